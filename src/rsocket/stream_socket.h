// SPDX-License-Identifier: MIT
// SOCK_STREAM: a connection of rdma_cm, with a Stream and the Channel that carries it.
//
//   kNew ─► kBound ─► kListening
//     └───────┴─────► kResolving ─► kRouting ─► kConnecting ─► kConnected ─► kOver
//                          └────────────┴────────────┴──────► kFailed
//
// kOver: no connection any more, but what has arrived can still be read. Each call takes what the
// NIC and the connection manager have brought, in the program's own thread.
#pragma once

#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "rsocket/channel.h"
#include "rsocket/socket.h"
#include "rsocket/stream.h"

namespace verbena::rsocket {

class StreamSocket final : public Socket {
 public:
  // Null: errno says why.
  static std::unique_ptr<StreamSocket> create(int family);
  explicit StreamSocket(int family) : Socket(family, SOCK_STREAM) {}
  ~StreamSocket() override;

  int bind(const sockaddr* address, socklen_t size) override;
  int listen(int backlog) override;
  Result<Socket*, int> accept() override;
  int connect(const sockaddr* address, socklen_t size) override;
  int shutdown(int how) override;
  void close() override;
  Result<std::size_t, int> receive(std::span<const iovec> parts, int flags,
                                   Sender* sender) override;
  Result<std::size_t, int> send(std::span<const iovec> parts, int flags, const sockaddr* to,
                                socklen_t size) override;
  int name(sockaddr_storage& address, socklen_t& size) override;
  int peer_name(sockaddr_storage& address, socklen_t& size) override;
  int set_option(int level, int option, const void* value, socklen_t size) override;
  int get_option(int level, int option, void* value, socklen_t* size) override;
  Result<off_t, int> map(std::span<std::byte> memory, int protection, off_t offset) override;
  int unmap(std::span<std::byte> memory) override;
  Result<std::size_t, int> write_mapped(std::span<const std::byte> bytes, off_t offset,
                                        int flags) override;

 protected:
  bool advance() override;
  void arm() override;
  short readiness() override;

 private:
  enum class Phase : std::uint8_t {
    kNew,
    kBound,
    kListening,
    kResolving,
    kRouting,
    kConnecting,
    kConnected,
    kOver,
    kFailed
  };
  // A request for a connection that nobody has accepted yet.
  struct Request {
    rdma_cm_id* id;
    std::vector<std::byte> hello;
  };
  // Memory that the program mapped.
  struct Mapping {
    ibv_mr* region;
    std::span<std::byte> memory;
    std::optional<std::uint32_t> index;
  };

  // stream_connect.cc
  bool open_events();
  int open_id();
  int start_connecting(const sockaddr* address, socklen_t size);
  bool take_events();
  void handle(rdma_cm_event& event);
  void handle_request(rdma_cm_event& event);
  int resolve_route();
  int start_request();
  void connected(const rdma_conn_param& answer);
  void failed(int error);
  void disconnected();
  void lose_connection();
  int prepare(rdma_cm_id* id);
  int accept_request(Request& request);
  rdma_conn_param parameters(const Hello& hello) const;
  bool is_connecting() const;

  // stream_transfer.cc
  bool has_stream() const { return stream_.has_value(); }
  bool can_send() const;
  bool can_receive() const;
  bool collect();
  void tell();
  int gone_error() const;
  void flush(Lock& held);
  std::size_t copy_out(std::span<const iovec> parts, int flags);
  Result<std::uint32_t, int> send_some(std::span<const iovec> parts, std::size_t skip,
                                       std::size_t left);
  void keep_alive();

  // stream_options.cc
  int set_socket_option(int option, const void* value, socklen_t size);
  int set_tcp_option(int option, const void* value, socklen_t size);
  int set_rdma_option(int option, const void* value, socklen_t size);
  int set_number(int level, int option, std::uint32_t value);
  std::optional<int> number_of(int level, int option);
  int set_keepalive_timer();

  // stream_info.cc
  std::uint8_t tcp_state() const;
  int get_tcp_info(void* value, socklen_t* size);

  Phase phase_ = Phase::kNew;
  int error_ = 0;            // why it failed
  bool told_error_ = false;  // by SO_ERROR
  rdma_event_channel* cm_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  std::deque<Request> requests_;
  std::size_t backlog_ = 0;
  std::vector<std::byte> route_;  // RDMA_ROUTE
  sockaddr_storage target_{};

  Channel channel_;
  std::optional<Stream> stream_;
  std::vector<Mapping> mappings_;
  Instant looked_at_events_;

  bool reuses_address_ = false;
  bool is_no_delay_ = false;
  bool has_inline_oob_ = false;
  bool is_ipv6_only_ = false;
  linger linger_{};
  bool keeps_alive_ = false;
  std::uint32_t keep_idle_seconds_ = 7200;
  std::uint32_t keep_interval_seconds_ = 75;
  std::uint32_t keep_count_ = 9;
  UniqueFd keep_timer_;
};

}  // namespace verbena::rsocket
