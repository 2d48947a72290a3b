// SPDX-License-Identifier: MIT
// Two ends that meet by rdma_cm, with private data in every message that may carry some: the first
// request is rejected, the second is accepted, and its connection carries one message.
//
//   meeting server PORT            meeting client ADDRESS PORT
//
// Each end checks all that it hears, and prints `met` at the end. Linked with the system's
// librdmacm: it knows nothing of Verbena.
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr char kFirstRequest[] = "let me in, please";
constexpr char kRejection[] = "not today, and this is why";
constexpr char kSecondRequest[] = "and now?";
constexpr char kAcceptance[] = "come in";
constexpr char kGreeting[] = "a message";
constexpr int kConsumerDefined = 28;  // IBTA vol 1, table of reasons for a REJ
constexpr int kMilliseconds = 10'000;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "meeting: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

void demand(bool holds, const char* what) {
  if (!holds) fail(what);
}

template <std::size_t kSize>
rdma_conn_param with(const char (&text)[kSize]) {
  rdma_conn_param param{};
  param.private_data = text;
  param.private_data_len = kSize;
  param.responder_resources = 1;
  param.initiator_depth = 1;
  param.retry_count = 7;
  param.rnr_retry_count = 7;
  return param;
}

// Both the kernel and Verbena hand out all that a message has room for, zeros at the end.
template <std::size_t kSize>
void demand_data(const rdma_cm_event& event, const char (&text)[kSize]) {
  const rdma_conn_param& param = event.param.conn;
  const bool is_right = param.private_data && param.private_data_len >= kSize &&
                        std::memcmp(param.private_data, text, kSize) == 0;
  demand(is_right, "other private data than was sent");
}

class Events {
 public:
  Events() : channel_(rdma_create_event_channel()) { demand(channel_, "no event channel"); }
  rdma_event_channel* channel() const { return channel_; }

  rdma_cm_event* next(rdma_cm_event_type wanted) {
    rdma_cm_event* event = nullptr;
    demand(rdma_get_cm_event(channel_, &event) == 0, "rdma_get_cm_event");
    if (event->event != wanted) {
      std::fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status,
                   rdma_event_str(wanted));
      std::exit(1);
    }
    return event;
  }
  void pass(rdma_cm_event_type wanted) { rdma_ack_cm_event(next(wanted)); }

 private:
  rdma_event_channel* channel_;
};

void make_queue_pair(rdma_cm_id* id) {
  ibv_qp_init_attr attributes{};
  attributes.cap = {.max_send_wr = 1,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  demand(rdma_create_qp(id, nullptr, &attributes) == 0, "rdma_create_qp");
}

void wait_for(ibv_cq* cq) {
  ibv_wc completion{};
  int count = 0;
  while (count == 0)
    count = ibv_poll_cq(cq, 1, &completion);
  if (count != 1 || completion.status != IBV_WC_SUCCESS) {
    std::fprintf(stderr, "%s\n", ibv_wc_status_str(completion.status));
    std::exit(1);
  }
}

struct Buffer {
  explicit Buffer(ibv_pd* pd)
      : region(ibv_reg_mr(pd, bytes, sizeof bytes, int{IBV_ACCESS_LOCAL_WRITE})) {
    demand(region, "ibv_reg_mr");
  }
  ibv_sge piece() {
    return {.addr = reinterpret_cast<std::uintptr_t>(bytes),
            .length = sizeof kGreeting,
            .lkey = region->lkey};
  }
  char bytes[64] = {};
  ibv_mr* region;
};

void send_greeting(rdma_cm_id* id) {
  Buffer buffer(id->pd);
  std::memcpy(buffer.bytes, kGreeting, sizeof kGreeting);
  ibv_sge piece = buffer.piece();
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  demand(ibv_post_send(id->qp, &request, &bad) == 0, "ibv_post_send");
  wait_for(id->send_cq);
  ibv_dereg_mr(buffer.region);
}

int serve(const char* port) {
  Events events;
  rdma_cm_id* listener = nullptr;
  demand(rdma_create_id(events.channel(), &listener, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htobe16(static_cast<std::uint16_t>(std::atoi(port)));
  demand(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&any)) == 0, "rdma_bind_addr");
  demand(rdma_listen(listener, 8) == 0, "rdma_listen");

  rdma_cm_event* event = events.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  demand_data(*event, kFirstRequest);
  rdma_cm_id* id = event->id;
  demand(rdma_reject(id, kRejection, sizeof kRejection) == 0, "rdma_reject");
  rdma_ack_cm_event(event);
  rdma_destroy_id(id);

  event = events.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  demand_data(*event, kSecondRequest);
  id = event->id;
  make_queue_pair(id);
  Buffer buffer(id->pd);
  ibv_sge piece = buffer.piece();
  ibv_recv_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  demand(ibv_post_recv(id->qp, &request, &bad) == 0, "ibv_post_recv");
  rdma_conn_param param = with(kAcceptance);
  demand(rdma_accept(id, &param) == 0, "rdma_accept");
  rdma_ack_cm_event(event);
  events.pass(RDMA_CM_EVENT_ESTABLISHED);
  wait_for(id->recv_cq);
  demand(std::memcmp(buffer.bytes, kGreeting, sizeof kGreeting) == 0, "another message");
  events.pass(RDMA_CM_EVENT_DISCONNECTED);
  rdma_disconnect(id);
  rdma_destroy_qp(id);
  ibv_dereg_mr(buffer.region);
  rdma_destroy_id(id);
  rdma_destroy_id(listener);
  return 0;
}

rdma_cm_id* resolved(Events& events, const sockaddr_in& to) {
  rdma_cm_id* id = nullptr;
  demand(rdma_create_id(events.channel(), &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  sockaddr_in copy = to;
  auto* const address = reinterpret_cast<sockaddr*>(&copy);
  demand(rdma_resolve_addr(id, nullptr, address, kMilliseconds) == 0, "rdma_resolve_addr");
  events.pass(RDMA_CM_EVENT_ADDR_RESOLVED);
  demand(rdma_resolve_route(id, kMilliseconds) == 0, "rdma_resolve_route");
  events.pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_queue_pair(id);
  return id;
}

int call(const char* address, const char* port) {
  Events events;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htobe16(static_cast<std::uint16_t>(std::atoi(port)));
  demand(inet_pton(AF_INET, address, &to.sin_addr) == 1, "no IPv4 address");

  rdma_cm_id* id = resolved(events, to);
  rdma_conn_param param = with(kFirstRequest);
  demand(rdma_connect(id, &param) == 0, "rdma_connect");
  rdma_cm_event* event = events.next(RDMA_CM_EVENT_REJECTED);
  demand(event->status == kConsumerDefined, "another reason than the program's own");
  demand_data(*event, kRejection);
  rdma_ack_cm_event(event);
  rdma_destroy_qp(id);
  rdma_destroy_id(id);

  id = resolved(events, to);
  param = with(kSecondRequest);
  demand(rdma_connect(id, &param) == 0, "rdma_connect");
  event = events.next(RDMA_CM_EVENT_ESTABLISHED);
  demand_data(*event, kAcceptance);
  rdma_ack_cm_event(event);
  send_greeting(id);
  demand(rdma_disconnect(id) == 0, "rdma_disconnect");
  events.pass(RDMA_CM_EVENT_DISCONNECTED);
  rdma_destroy_qp(id);
  rdma_destroy_id(id);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view role = count > 1 ? words[1] : "";
  int status = 2;
  if (role == "server" && count == 3) status = serve(words[2]);
  if (role == "client" && count == 4) status = call(words[2], words[3]);
  if (status == 2) std::fprintf(stderr, "meeting server PORT | meeting client ADDRESS PORT\n");
  if (status == 0) std::puts("met");
  return status;
}
