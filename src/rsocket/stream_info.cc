// SPDX-License-Identifier: MIT
// What TCP_INFO tells of a stream (tcp(7)). What nobody here knows is 0: round trips, and what the
// NIC had to send again. A file of its own: <linux/tcp.h> has the whole structure, and what
// <netinet/tcp.h> declares of it is in its way.
#include <linux/tcp.h>

#include <algorithm>
#include <cstdint>

#include "rsocket/option_value.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {
namespace {

// The states of a connection (RFC 9293, 3.3.2) as the kernel numbers them; <netinet/tcp.h>.
enum TcpState : std::uint8_t {
  kEstablished = 1,
  kSynSent = 2,
  kFinWait2 = 5,
  kClose = 7,
  kCloseWait = 8,
  kListen = 10
};

}  // namespace

std::uint8_t StreamSocket::tcp_state() const {
  switch (phase_) {
    case Phase::kNew:
    case Phase::kBound:
    case Phase::kOver:
    case Phase::kFailed: return kClose;
    case Phase::kListening: return kListen;
    case Phase::kResolving:
    case Phase::kRouting:
    case Phase::kConnecting: return kSynSent;
    case Phase::kConnected: break;
  }
  if (stream_->is_writable()) return stream_->is_readable() ? kEstablished : kCloseWait;
  return stream_->is_connected() ? kFinWait2 : kClose;
}

int StreamSocket::get_tcp_info(void* value, socklen_t* size) {
  step();
  const std::uint32_t packet = channel_.packet_bytes();
  const auto packets = [packet](std::uint64_t bytes) {
    return static_cast<std::uint32_t>((bytes + packet - 1) / packet);
  };
  tcp_info info{};
  info.tcpi_state = tcp_state();
  info.tcpi_snd_mss = info.tcpi_rcv_mss = info.tcpi_advmss = info.tcpi_pmtu = packet;
  info.tcpi_rcv_space = settings.receive_bytes;
  // Nothing but the send buffer limits what may be on its way.
  info.tcpi_snd_cwnd = packets(settings.send_bytes);
  if (!has_stream()) return write_option(info, value, size);
  info.tcpi_bytes_sent = channel_.sent_bytes();
  info.tcpi_bytes_acked = channel_.acknowledged_bytes();
  info.tcpi_unacked = packets(info.tcpi_bytes_sent - info.tcpi_bytes_acked);
  info.tcpi_bytes_received = stream_->received_bytes();
  return write_option(info, value, size);
}

}  // namespace verbena::rsocket
