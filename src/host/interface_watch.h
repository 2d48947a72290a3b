// SPDX-License-Identifier: MIT
// Hears from the kernel that network interfaces or their addresses have changed (rtnetlink(7),
// which needs no privilege). What has changed it does not say: whoever wants to know looks.
//
// Hosts that start containers change much and often, so what comes within a short time is one
// change; meanwhile nothing wakes the control thread.
#pragma once

#include "base/time.h"
#include "host/descriptor_table.h"
#include "host/poller.h"
#include "host/private_fd.h"

namespace verbena::host {

// The control thread's.
class InterfaceWatch {
 public:
  // Where the system does not let us listen, nothing is heard.
  void open(DescriptorTable& table, Poller& poller);
  // The poller says that something came.
  void heard(Poller& poller, Instant now);
  // Something has changed, and it has been quiet long enough: true once.
  bool take_change(Poller& poller, Instant now);
  Instant next_deadline() const { return tell_at_; }

 private:
  static constexpr Duration kSettling = Duration::milliseconds(50);
  void drain();

  PrivateFd socket_;
  Instant tell_at_ = Instant::never();
};

}  // namespace verbena::host
