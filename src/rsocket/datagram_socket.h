// SPDX-License-Identifier: MIT
// SOCK_DGRAM: a socket of UDP, by which two ends find each other's queue pairs, and UD queue pairs
// for everything after that (upstream's design guide, "Datagram Overview").
//
// A datagram to somebody new goes by UDP, behind a header that names our queue pair for the address
// that we send from. Whoever gets one answers with its own; from then on datagrams take the queue
// pairs, behind a short header with the sender's address. What a lost answer costs is that the next
// datagram goes by UDP as well.
#pragma once

#include <rdma/rdma_cma.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "rsocket/datagram_pair.h"
#include "rsocket/socket.h"

namespace verbena::rsocket {

class DatagramSocket final : public Socket {
 public:
  // Null: errno says why.
  static std::unique_ptr<DatagramSocket> create(int family);
  explicit DatagramSocket(int family) : Socket(family, SOCK_DGRAM) {}
  ~DatagramSocket() override;

  int bind(const sockaddr* address, socklen_t size) override;
  int listen(int) override { return EOPNOTSUPP; }
  Result<Socket*, int> accept() override { return refuse(EOPNOTSUPP); }
  int connect(const sockaddr* address, socklen_t size) override;
  int shutdown(int) override { return EOPNOTSUPP; }
  void close() override;
  Result<std::size_t, int> receive(std::span<const iovec> parts, int flags,
                                   Sender* sender) override;
  Result<std::size_t, int> send(std::span<const iovec> parts, int flags, const sockaddr* to,
                                socklen_t size) override;
  int name(sockaddr_storage& address, socklen_t& size) override;
  int peer_name(sockaddr_storage& address, socklen_t& size) override;
  int set_option(int level, int option, const void* value, socklen_t size) override;
  int get_option(int level, int option, void* value, socklen_t* size) override;

 protected:
  bool advance() override;
  void arm() override;
  short readiness() override;

 private:
  // Somebody we sent to, or who sent to us.
  struct Peer {
    DatagramPair* pair = nullptr;  // by which we reach it
    ibv_ah* handle = nullptr;      // null: it did not tell its queue pair yet
    std::uint32_t queue_pair = 0;
  };

  bool take_udp();
  bool take_pairs();
  void learn(const UdpHeader& header, const EndPoint& from, std::span<const std::byte> data);
  Result<DatagramPair*, int> pair_for(const EndPoint& local);
  Result<Peer*, int> peer_for(const EndPoint& to);
  int send_udp(const Peer& peer, const EndPoint& to, UdpOp op, std::span<const iovec> parts);
  Result<EndPoint, int> source_towards(const EndPoint& to) const;
  void forget_peers();
  void keep(const EndPoint& from, std::span<const std::byte> data);

  UniqueFd udp_;
  rdma_event_channel* cm_ = nullptr;
  std::vector<std::unique_ptr<DatagramPair>> pairs_;
  std::map<EndPoint, Peer> peers_;
  std::deque<Datagram> waiting_;
  std::optional<EndPoint> connected_to_;
  std::vector<std::byte> scratch_;  // one datagram of UDP
};

}  // namespace verbena::rsocket
