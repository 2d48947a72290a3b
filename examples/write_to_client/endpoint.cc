// SPDX-License-Identifier: MIT
#include "write_to_client/endpoint.h"

#include <endian.h>
#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

namespace write_to_client {
namespace {

constexpr int kPatience = 60;            // seconds
constexpr int kResolvePatience = 5'000;  // milliseconds
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kRnrRetries = 7;  // without end

using AddressList = std::unique_ptr<addrinfo, With<freeaddrinfo>>;

AddressList look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) fail("%s: %s", host.c_str(), gai_strerror(error));
  return AddressList(found);
}

void wait_for(int descriptor, int limit, const char* what) {
  pollfd one = {.fd = descriptor, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&one, 1, limit > 0 ? limit * 1000 : -1);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) fail("%s: nothing for %d seconds", what, limit);
  if (ready < 0) fail("%s: %s", what, std::strerror(errno));
}

struct Acknowledge {
  void operator()(rdma_cm_event* event) const { rdma_ack_cm_event(event); }
};
using Event = std::unique_ptr<rdma_cm_event, Acknowledge>;

// The next event, which has to be this one.
Event next_event(const Channel& channel, rdma_cm_event_type wanted, int limit, const char* what) {
  wait_for(channel->fd, limit, what);
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel.get(), &event) != 0) {
    fail("%s: %s", what, std::strerror(errno));
  }
  if (event->event != wanted) {
    fail("%s: %s, status %d", what, rdma_event_str(event->event), event->status);
  }
  return Event(event);
}

Channel open_channel() {
  Channel channel(rdma_create_event_channel());
  if (!channel) fail("no RDMA device here (%s); try `verbena run -- ...`", std::strerror(errno));
  return channel;
}

Id make_id(const Channel& channel) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    fail("rdma_create_id: %s", std::strerror(errno));
  }
  return Id(id);
}

rdma_conn_param parameters(const void* data, std::size_t size) {
  rdma_conn_param param = {};
  param.private_data = data;
  param.private_data_len = static_cast<std::uint8_t>(size);
  param.retry_count = kRetries;
  param.rnr_retry_count = kRnrRetries;
  return param;
}

}  // namespace

Endpoint Endpoint::of_client(const Options& options, unsigned sends,
                             const std::function<void(unsigned)>& on_listening) {
  Channel channel = open_channel();
  const Id listener = make_id(channel);
  const AddressList at = look_up(options.address, options.port, AI_PASSIVE);
  if (rdma_bind_addr(listener.get(), at->ai_addr) != 0 || rdma_listen(listener.get(), 1) != 0) {
    fail("cannot listen at %s port %u: %s", options.address.c_str(), options.port,
         std::strerror(errno));
  }
  on_listening(be16toh(rdma_get_src_port(listener.get())));
  // Whoever started us by hand may take long on the other machine.
  const int limit = options.report < 0 ? 0 : kPatience;
  const Event request =
      next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, limit, "waiting for a client");
  Endpoint made(std::move(channel), Id(request->id));
  made.make_queue_pair(sends);
  return made;
}

void Endpoint::accept(const Offer& offer) {
  char text[kMessageBytes];
  const int length = std::snprintf(text, sizeof text, "offer %" PRIu64 " checksum %" PRIx64,
                                   offer.size, offer.checksum);
  rdma_conn_param param = parameters(text, static_cast<std::size_t>(length) + 1);
  if (rdma_accept(id_.get(), &param) != 0) fail("rdma_accept: %s", std::strerror(errno));
  next_event(channel_, RDMA_CM_EVENT_ESTABLISHED, kPatience, "accepting");
}

Endpoint Endpoint::to_server(const Options& options) {
  Channel channel = open_channel();
  Id id = make_id(channel);
  const AddressList to = look_up(options.address, options.port, 0);
  const std::string what = "reaching " + options.address;
  if (rdma_resolve_addr(id.get(), nullptr, to->ai_addr, kResolvePatience) != 0) {
    fail("%s: %s", what.c_str(), std::strerror(errno));
  }
  next_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED, kPatience, what.c_str());
  if (rdma_resolve_route(id.get(), kResolvePatience) != 0) {
    fail("%s: %s", what.c_str(), std::strerror(errno));
  }
  next_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, kPatience, what.c_str());
  Endpoint made(std::move(channel), std::move(id));
  made.make_queue_pair(1);
  return made;
}

Offer Endpoint::connect() {
  rdma_conn_param param = parameters(nullptr, 0);
  if (rdma_connect(id_.get(), &param) != 0) fail("rdma_connect: %s", std::strerror(errno));
  const Event answer =
      next_event(channel_, RDMA_CM_EVENT_ESTABLISHED, 2 * kPatience, "connecting to the server");
  const rdma_conn_param& said = answer->param.conn;
  const std::string line(static_cast<const char*>(said.private_data), said.private_data_len);
  Offer offer;
  if (std::sscanf(line.c_str(), "offer %" SCNu64 " checksum %" SCNx64, &offer.size,
                  &offer.checksum) != 2) {
    fail("the other side talks nonsense");
  }
  return offer;
}

Endpoint::~Endpoint() {
  region_.reset();
  if (!id_) return;
  rdma_disconnect(id_.get());
  if (id_->qp) rdma_destroy_qp(id_.get());
}

void Endpoint::make_queue_pair(unsigned sends) {
  ibv_qp_init_attr init = {};
  init.qp_type = IBV_QPT_RC;
  init.cap = {.max_send_wr = sends,
              .max_recv_wr = kReceives,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  // It brings a domain, completion queues and their channels along.
  if (rdma_create_qp(id_.get(), nullptr, &init) != 0) {
    fail("rdma_create_qp: %s", std::strerror(errno));
  }
  messages_ = std::make_unique<Messages>();
  region_ = register_memory(messages_.get(), sizeof *messages_, IBV_ACCESS_LOCAL_WRITE);
  for (unsigned i = 0; i < kReceives; ++i)
    post_receive(i);
}

Region Endpoint::register_memory(void* data, std::size_t size, int access) const {
  Region region(ibv_reg_mr(id_->pd, data, size, access));
  if (!region) fail("cannot register %zu bytes: %s", size, std::strerror(errno));
  return region;
}

void Endpoint::post_receive(unsigned number) {
  ibv_sge room = {.addr = reinterpret_cast<std::uintptr_t>(messages_->received[number]),
                  .length = kMessageBytes,
                  .lkey = region_->lkey};
  ibv_recv_wr receive = {};
  receive.wr_id = number;
  receive.sg_list = &room;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(id_->qp, &receive, &bad)) {
    fail("ibv_post_recv: %s", std::strerror(error));
  }
}

// Should the other side die, an event says so.
ibv_wc Endpoint::receive(int limit, const char* what) {
  for (bool is_armed = false;;) {
    ibv_wc completion = {};
    const int count = ibv_poll_cq(id_->recv_cq, 1, &completion);
    if (count < 0) fail("ibv_poll_cq failed");
    if (count > 0 && completion.status == IBV_WC_SUCCESS) return completion;
    if (count > 0) fail("%s: %s", what, ibv_wc_status_str(completion.status));
    if (!is_armed) {
      if (ibv_req_notify_cq(id_->recv_cq, 0) != 0) fail("ibv_req_notify_cq failed");
      is_armed = true;
      continue;
    }
    pollfd both[2] = {{.fd = id_->recv_cq_channel->fd, .events = POLLIN, .revents = 0},
                      {.fd = channel_->fd, .events = POLLIN, .revents = 0}};
    const int ready = poll(both, 2, limit > 0 ? limit * 1000 : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) fail("%s: nothing for %d seconds", what, limit);
    if (!(both[0].revents & POLLIN)) fail("%s: the other side went away", what);
    ibv_cq* completions = nullptr;
    void* unused = nullptr;
    if (ibv_get_cq_event(id_->recv_cq_channel, &completions, &unused) != 0) {
      fail("ibv_get_cq_event: %s", std::strerror(errno));
    }
    ibv_ack_cq_events(completions, 1);
    is_armed = false;
  }
}

void Endpoint::send_line(const std::string& line) {
  if (line.size() >= kMessageBytes) fail("a line is too long");
  std::memcpy(messages_->sent, line.c_str(), line.size() + 1);
  ibv_sge piece = {.addr = reinterpret_cast<std::uintptr_t>(messages_->sent),
                   .length = static_cast<std::uint32_t>(line.size() + 1),
                   .lkey = region_->lkey};
  ibv_send_wr message = {};
  message.opcode = IBV_WR_SEND;
  message.send_flags = IBV_SEND_SIGNALED;
  message.sg_list = &piece;
  message.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(id_->qp, &message, &bad)) {
    fail("ibv_post_send: %s", std::strerror(error));
  }
  ibv_wc completion = {};
  int count = 0;
  while (count == 0)
    count = ibv_poll_cq(id_->send_cq, 1, &completion);
  if (count < 0) fail("ibv_poll_cq failed");
  if (completion.status != IBV_WC_SUCCESS) {
    fail("the other side went away: %s", ibv_wc_status_str(completion.status));
  }
}

std::string Endpoint::receive_line(const char* what) {
  const ibv_wc completion = receive(kPatience, what);
  const auto number = static_cast<unsigned>(completion.wr_id);
  if (number >= kReceives || completion.opcode != IBV_WC_RECV)
    fail("%s: something else came", what);
  const char* const text = messages_->received[number];
  return {text, strnlen(text, std::min<std::size_t>(completion.byte_len, kMessageBytes))};
}

void Endpoint::send(const Place& place) {
  char text[kMessageBytes];
  std::snprintf(text, sizeof text, "memory %" PRIx64 " key %" PRIx32, place.memory, place.key);
  send_line(text);
}

Place Endpoint::receive_place() {
  const std::string line = receive_line("waiting for the client's memory");
  Place place;
  if (std::sscanf(line.c_str(), "memory %" SCNx64 " key %" SCNx32, &place.memory, &place.key) !=
      2) {
    fail("the other side talks nonsense: '%s'", line.c_str());
  }
  return place;
}

void Endpoint::send_verdict(bool is_right) { send_line(is_right ? "right" : "wrong"); }

bool Endpoint::receive_verdict() {
  return receive_line("waiting for the client's verdict") == "right";
}

}  // namespace write_to_client
