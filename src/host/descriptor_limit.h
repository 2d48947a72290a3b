// SPDX-License-Identifier: MIT
// RLIMIT_NOFILE, for one system call. The program may live with a low soft limit; we may need a
// descriptor for each peer.
#pragma once

namespace verbena::host {

// Raises the soft limit to one below the hard one while it lives. The whole process sees it, for a
// microsecond; so only after a call failed with EMFILE. A limit that the program sets meanwhile
// stays.
class RaisedDescriptorLimit {
 public:
  RaisedDescriptorLimit();
  RaisedDescriptorLimit(const RaisedDescriptorLimit&) = delete;
  RaisedDescriptorLimit& operator=(const RaisedDescriptorLimit&) = delete;
  ~RaisedDescriptorLimit();

 private:
  unsigned long before_ = 0;
  unsigned long raised_to_ = 0;
  bool raised_ = false;
};

}  // namespace verbena::host
