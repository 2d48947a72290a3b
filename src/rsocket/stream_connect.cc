// SPDX-License-Identifier: MIT
// Coming to a connection, and its end as the connection manager tells it.
#include <fcntl.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rsocket/stream_socket.h"

namespace verbena::rsocket {
namespace {

constexpr int kResolveMilliseconds = 2000;
constexpr std::size_t kBacklogMax = 1024;
// How often the connection manager is asked while data flow.
constexpr Duration kLookPause = Duration::milliseconds(1);

int errno_of(const rdma_cm_event& event) {
  if (event.event == RDMA_CM_EVENT_REJECTED) return ECONNREFUSED;
  if (event.event == RDMA_CM_EVENT_UNREACHABLE) return ETIMEDOUT;
  const bool is_resolving =
      event.event == RDMA_CM_EVENT_ADDR_ERROR || event.event == RDMA_CM_EVENT_ROUTE_ERROR;
  if (!is_resolving) return ECONNABORTED;
  return event.status == -ETIMEDOUT ? ETIMEDOUT : EHOSTUNREACH;
}

bool is_failure(rdma_cm_event_type event) {
  return event == RDMA_CM_EVENT_ADDR_ERROR || event == RDMA_CM_EVENT_ROUTE_ERROR ||
         event == RDMA_CM_EVENT_REJECTED || event == RDMA_CM_EVENT_UNREACHABLE ||
         event == RDMA_CM_EVENT_CONNECT_ERROR || event == RDMA_CM_EVENT_DEVICE_REMOVAL;
}

socklen_t size_of(const sockaddr& address) {
  switch (address.sa_family) {
    case AF_INET: return sizeof(sockaddr_in);
    case AF_INET6: return sizeof(sockaddr_in6);
    case AF_IB: return sizeof(sockaddr_ib);
    default: return sizeof(sockaddr_storage);
  }
}

int copy_address(const sockaddr& from, sockaddr_storage& to, socklen_t& size) {
  size = size_of(from);
  std::memcpy(&to, &from, size);
  return 0;
}

}  // namespace

std::unique_ptr<StreamSocket> StreamSocket::create(int family) {
  auto socket = std::make_unique<StreamSocket>(family);
  if (socket->fd() < 0 || !socket->open_events()) return nullptr;
  return socket;
}

StreamSocket::~StreamSocket() {
  channel_.destroy();
  for (Request& each : requests_)
    rdma_destroy_id(each.id);
  if (id_) rdma_destroy_id(id_);
  if (cm_) rdma_destroy_event_channel(cm_);
}

bool StreamSocket::open_events() {
  cm_ = rdma_create_event_channel();
  if (!cm_) return false;
  const int flags = fcntl(cm_->fd, F_GETFL);
  return flags >= 0 && fcntl(cm_->fd, F_SETFL, flags | O_NONBLOCK) == 0 && watch(cm_->fd);
}

int StreamSocket::open_id() {
  if (id_) return 0;
  if (rdma_create_id(cm_, &id_, this, RDMA_PS_TCP) != 0) return errno;
  int yes = 1;
  if (reuses_address_) rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, 4);
  if (family() == AF_INET6) {
    int only = is_ipv6_only_;
    rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only);
  }
  return 0;
}

int StreamSocket::bind(const sockaddr* address, socklen_t size) {
  const Lock held(lock);
  if (!address || size < sizeof(sa_family_t)) return EINVAL;
  if (size < size_of(*address)) return EINVAL;
  if (phase_ != Phase::kNew) return EINVAL;
  if (const int error = open_id()) return error;
  if (rdma_bind_addr(id_, const_cast<sockaddr*>(address)) != 0) return errno;
  phase_ = Phase::kBound;
  return 0;
}

int StreamSocket::listen(int backlog) {
  const Lock held(lock);
  backlog_ =
      std::clamp<std::size_t>(static_cast<std::size_t>(std::max(backlog, 1)), 1, kBacklogMax);
  if (phase_ == Phase::kListening) return 0;
  if (phase_ == Phase::kNew) {
    if (const int error = open_id()) return error;
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family());
    if (rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&any)) != 0) return errno;
    phase_ = Phase::kBound;
  }
  if (phase_ != Phase::kBound) return EINVAL;
  if (rdma_listen(id_, static_cast<int>(backlog_)) != 0) return errno;
  phase_ = Phase::kListening;
  return 0;
}

Result<Socket*, int> StreamSocket::accept() {
  Lock held(lock);
  if (phase_ != Phase::kListening) return refuse(EINVAL);
  const Instant deadline = receive_deadline();
  for (;;) {
    const int waited = wait(held, is_nonblocking(0), deadline,
                            [this] { return !requests_.empty() || phase_ != Phase::kListening; });
    if (waited != 0) return refuse(waited);
    if (requests_.empty()) return refuse(EINVAL);  // closed meanwhile
    Request request = std::move(requests_.front());
    requests_.pop_front();
    std::unique_ptr<StreamSocket> made = create(family());
    if (!made) {
      const int error = errno;
      rdma_reject(request.id, nullptr, 0);
      rdma_destroy_id(request.id);
      return refuse(error);
    }
    made->settings = settings;
    made->take_patience_of(*this);
    made->is_no_delay_ = is_no_delay_;
    made->linger_ = linger_;
    made->keeps_alive_ = keeps_alive_;
    made->keep_idle_seconds_ = keep_idle_seconds_;
    made->keep_interval_seconds_ = keep_interval_seconds_;
    held.unlock();
    const int error = made->accept_request(request);
    if (error == 0) return made.release();
    made->close();
    if (error != EPROTO && error != ECONNABORTED) return refuse(error);
    held.lock();  // it was nobody of ours, or has gone: the next
  }
}

int StreamSocket::accept_request(Request& request) {
  const Lock held(lock);
  id_ = request.id;
  id_->context = this;
  if (rdma_migrate_id(id_, cm_) != 0) return errno;
  int error = prepare(id_);
  if (error == 0) {
    stream_.emplace(channel_.stream_setup());
    if (!stream_->begin(request.hello)) error = EPROTO;
  }
  if (error != 0) {
    rdma_reject(id_, nullptr, 0);
    return error;
  }
  const Hello hello = stream_->hello();
  rdma_conn_param parameter = parameters(hello);
  // Of a request whose peer gave up nothing is told before.
  if (rdma_accept(id_, &parameter) != 0) return errno == EINVAL ? ECONNABORTED : errno;
  phase_ = Phase::kConnected;
  if (keeps_alive_) set_keepalive_timer();
  return 0;
}

rdma_conn_param StreamSocket::parameters(const Hello& hello) const {
  rdma_conn_param parameter{};
  parameter.private_data = &hello;
  parameter.private_data_len = sizeof hello;
  parameter.responder_resources = 1;
  parameter.initiator_depth = 1;
  parameter.flow_control = 1;
  parameter.retry_count = 7;
  parameter.rnr_retry_count = 7;
  return parameter;
}

// The channel, once it is known on which device.
int StreamSocket::prepare(rdma_cm_id* id) {
  if (const int error = channel_.create(id, settings)) return error;
  return watch(channel_.event_fd()) ? 0 : errno;
}

bool StreamSocket::is_connecting() const {
  return phase_ == Phase::kResolving || phase_ == Phase::kRouting || phase_ == Phase::kConnecting;
}

int StreamSocket::connect(const sockaddr* address, socklen_t size) {
  Lock held(lock);
  step();
  switch (phase_) {
    case Phase::kNew:
    case Phase::kBound:
      if (const int error = start_connecting(address, size)) return error;
      break;
    case Phase::kResolving:
    case Phase::kRouting:
    case Phase::kConnecting:
      if (is_nonblocking(0)) return EALREADY;
      break;
    case Phase::kConnected:
    case Phase::kOver: return EISCONN;
    case Phase::kListening: return EINVAL;
    case Phase::kFailed: return error_;
  }
  const int waited =
      wait(held, is_nonblocking(0), send_deadline(), [this] { return !is_connecting(); });
  if (waited == EAGAIN) return EINPROGRESS;
  if (waited != 0) return waited;
  if (phase_ != Phase::kFailed) return 0;
  told_error_ = true;
  return error_;
}

int StreamSocket::start_connecting(const sockaddr* address, socklen_t size) {
  if (!address || size < sizeof(sa_family_t) || size > sizeof target_) return EINVAL;
  if (size < size_of(*address)) return EINVAL;
  if (const int error = open_id()) return error;
  std::memcpy(&target_, address, size);
  if (rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&target_),
                        kResolveMilliseconds) != 0) {
    return errno;
  }
  phase_ = Phase::kResolving;
  return 0;
}

void StreamSocket::failed(int error) {
  error_ = error;
  told_error_ = false;
  phase_ = Phase::kFailed;
  if (stream_) stream_->lost();
}

// Whether something came. While data flow it is asked for now and then only.
bool StreamSocket::take_events() {
  bool any = false;
  rdma_cm_event* event = nullptr;
  while (cm_ && rdma_get_cm_event(cm_, &event) == 0) {
    any = true;
    handle(*event);
  }
  return any;
}

void StreamSocket::handle(rdma_cm_event& event) {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return handle_request(event);
  const rdma_cm_event_type what = event.event;
  const int reason = errno_of(event);
  if (what == RDMA_CM_EVENT_ESTABLISHED && phase_ == Phase::kConnecting) {
    connected(event.param.conn);
    rdma_ack_cm_event(&event);
    return;
  }
  rdma_ack_cm_event(&event);
  int error = is_failure(what) ? reason : 0;
  if (what == RDMA_CM_EVENT_ADDR_RESOLVED) error = resolve_route();
  if (what == RDMA_CM_EVENT_ROUTE_RESOLVED && phase_ == Phase::kRouting) error = start_request();
  if (error != 0 && is_connecting()) return failed(error);
  if (error != 0 || what == RDMA_CM_EVENT_DISCONNECTED) disconnected();
}

void StreamSocket::disconnected() {
  if (phase_ != Phase::kConnected) return;
  // What came before that first: the peer may have said goodbye properly.
  collect();
  if (phase_ == Phase::kConnected && stream_->is_connected() && !stream_->peer_said_goodbye()) {
    error_ = ECONNRESET;
  }
  lose_connection();
}

void StreamSocket::lose_connection() {
  stream_->lost();
  phase_ = Phase::kOver;
  keep_timer_.reset();
}

void StreamSocket::handle_request(rdma_cm_event& event) {
  const auto* const data = static_cast<const std::byte*>(event.param.conn.private_data);
  const std::size_t size = data ? event.param.conn.private_data_len : 0;
  Request request{event.id, {data, data + size}};
  rdma_ack_cm_event(&event);
  if (requests_.size() >= backlog_) {
    rdma_reject(request.id, nullptr, 0);
    rdma_destroy_id(request.id);
    return;
  }
  requests_.push_back(std::move(request));
}

int StreamSocket::resolve_route() {
  if (phase_ != Phase::kResolving) return 0;
  phase_ = Phase::kRouting;
  if (!route_.empty()) {
    const int set =
        rdma_set_option(id_, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, route_.data(), route_.size());
    return set == 0 ? 0 : errno;  // brings the event as well
  }
  return rdma_resolve_route(id_, kResolveMilliseconds) == 0 ? 0 : errno;
}

int StreamSocket::start_request() {
  if (const int error = prepare(id_)) return error;
  stream_.emplace(channel_.stream_setup());
  const Hello hello = stream_->hello();
  rdma_conn_param parameter = parameters(hello);
  if (rdma_connect(id_, &parameter) != 0) return errno;
  phase_ = Phase::kConnecting;
  return 0;
}

void StreamSocket::connected(const rdma_conn_param& answer) {
  const auto* const data = static_cast<const std::byte*>(answer.private_data);
  const std::size_t size = data ? answer.private_data_len : 0;
  if (!stream_->begin({data, size})) {
    rdma_disconnect(id_);
    return failed(EPROTO);
  }
  phase_ = Phase::kConnected;
  if (keeps_alive_) set_keepalive_timer();
}

bool StreamSocket::advance() {
  if (!in_owner()) return false;
  bool any = false;
  const bool has_data = phase_ == Phase::kConnected || phase_ == Phase::kOver;
  if (has_data) any = collect();
  if (any && phase_ == Phase::kConnected) return true;
  if (phase_ == Phase::kConnected) {
    const Instant now = clock_now();
    if (now - looked_at_events_ < kLookPause) return any;
    looked_at_events_ = now;
  }
  return take_events() || any;
}

void StreamSocket::arm() {
  if (!in_owner()) return;
  if (phase_ == Phase::kConnected) {
    channel_.arm();
    if (keeps_alive_) keep_alive();
  }
  looked_at_events_ = {};
}

int StreamSocket::name(sockaddr_storage& address, socklen_t& size) {
  const Lock held(lock);
  if (!id_) {
    address = {};
    address.ss_family = static_cast<sa_family_t>(family());
    size = size_of(reinterpret_cast<const sockaddr&>(address));
    return 0;
  }
  return copy_address(*rdma_get_local_addr(id_), address, size);
}

int StreamSocket::peer_name(sockaddr_storage& address, socklen_t& size) {
  const Lock held(lock);
  if (!id_ || (phase_ != Phase::kConnected && phase_ != Phase::kOver)) return ENOTCONN;
  return copy_address(*rdma_get_peer_addr(id_), address, size);
}

}  // namespace verbena::rsocket
