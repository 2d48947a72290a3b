// SPDX-License-Identifier: MIT
// Whether a host that does not answer says by ICMP that its UDP port 4791 is closed (RFC 1122,
// 3.2.2.1; RFC 4443, 3.1).
//
// The sockets of the wire hear no ICMP, so that nobody can disturb a connection with it. What may
// be disturbed is a request that nobody has answered yet: it is sent once more from a socket of its
// own, which hears. The kernel gives that only errors that quote what it has sent.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/contracts.h"
#include "wire/ip.h"

namespace verbena::rdmacm {

class PortProbe {
 public:
  // Between whom, and on which interface, as `question` goes.
  explicit PortProbe(const GsiMad& question, std::uint16_t port = wire::kRocePort);
  PortProbe(const PortProbe&) = delete;
  PortProbe& operator=(const PortProbe&) = delete;
  ~PortProbe();

  // Sends the question: a packet that every end of RoCEv2 understands. False: it cannot be sent.
  bool ask();
  // Whether the port was told to be closed since the last call.
  bool was_refused();

 private:
  bool is_still_ours() const;

  GsiMad question_;
  std::uint16_t port_;
  int fd_ = -1;
  std::uint16_t source_port_ = 0;
  // Programs close descriptors that they do not know, and open others in their place.
  ino_t inode_ = 0;
};

}  // namespace verbena::rdmacm
