// SPDX-License-Identifier: MIT
// What stands between the wire and the queue pairs if the user asks for it: a recording of what
// goes over the wire (VERBENA_CAPTURE), and a bad line on our side of that (VERBENA_FAULT).
//
//   queue pairs ◄──► bad line ◄──► recording ◄──► sockets
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/time.h"
#include "port/capture.h"
#include "port/impaired.h"
#include "port/port.h"

namespace verbena::nic {

struct LineOptions {
  std::optional<port::ImpairedOptions> faults;
  std::string capture;    // the path as it was given, empty: none
  bool is_wrong = false;  // the faults were not understood: then there is no wire at all

  // Says on standard error what is wrong.
  static LineOptions from_environment();
};

class WireLine {
 public:
  WireLine(port::Port& sockets, const LineOptions& options);
  WireLine(const WireLine&) = delete;
  WireLine& operator=(const WireLine&) = delete;

  port::Port& port() { return *port_; }
  // The time must be right in calls of the port.
  bool wants_time() const { return capture_ || impaired_; }
  // How long nobody may look at the line; none: until a packet comes.
  std::optional<Duration> patience() const;
  bool records() const { return file_ != nullptr; }
  // Packets that we have sent lie on our bad line still. Any thread, without a lock.
  bool has_underway() const { return impaired_ && impaired_->has_underway(); }
  // One thread, now and then: writes the recording out. `is_last`: even if it was done just now.
  void tend(Instant now, bool is_last = false);

 private:
  void open_capture(const std::string& path);

  std::unique_ptr<port::CaptureFile> file_;
  std::unique_ptr<port::CapturePort> capture_;
  std::unique_ptr<port::ImpairedPort> impaired_;
  port::Port* port_;
  Instant tended_;
};

}  // namespace verbena::nic
