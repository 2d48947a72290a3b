// SPDX-License-Identifier: MIT
// Prints what the library tells of its surroundings, one event a line, until it is killed.
//
//   verbs DEVICE          asynchronous events of a device on which nothing was made
//   objects DEVICE        the same of one with a queue pair
//   bound ADDRESS         events of an id that is bound to the address
//   listening ADDRESS     the same, and it listens
//   resolved ADDRESS      the same, bound to whatever leads to the address
//   descriptors DEVICE    which sockets a process has that has only opened the device
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace {

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void say(const std::string& what) {
  std::puts(what.c_str());
  std::fflush(stdout);
}

ibv_context* open_device(const std::string& name) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  for (int i = 0; i < count; ++i) {
    if (ibv_get_device_name(list[i]) != name) continue;
    ibv_context* const context = ibv_open_device(list[i]);
    if (context) return context;
  }
  fail("no such device");
}

void make_objects(ibv_context* context) {
  ibv_pd* const domain = ibv_alloc_pd(context);
  ibv_cq* const cq = ibv_create_cq(context, 1, nullptr, nullptr, 0);
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = cq;
  attributes.cap = {1, 1, 1, 1, 0};
  attributes.qp_type = IBV_QPT_RC;
  if (!domain || !cq || !ibv_create_qp(domain, &attributes)) fail("a queue pair");
}

const char* state_of(ibv_context* context) {
  ibv_port_attr port{};
  if (ibv_query_port(context, 1, &port) != 0) return "unknown";
  return port.state == IBV_PORT_ACTIVE ? "active" : "down";
}

[[noreturn]] void tell_async(ibv_context* context) {
  say("ready");
  for (;;) {
    ibv_async_event event{};
    if (ibv_get_async_event(context, &event) != 0) fail("ibv_get_async_event");
    say(std::string(ibv_event_type_str(event.event_type)) + ", port " +
        std::to_string(event.element.port_num) + " " + state_of(context));
    ibv_ack_async_event(&event);
  }
}

sockaddr_storage address_of(const char* text) {
  sockaddr_storage made{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(made);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(made);
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
  } else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
  }
  return made;
}

// The event that a call brings about.
void expect(rdma_event_channel* events, rdma_cm_event_type type) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(events, &event) != 0 || event->event != type) fail("another event");
  rdma_ack_cm_event(event);
}

[[noreturn]] void tell_cm(const std::string& how, const char* where) {
  rdma_event_channel* const events = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  sockaddr_storage address = address_of(where);
  auto* const to = reinterpret_cast<sockaddr*>(&address);
  if (!events || rdma_create_id(events, &id, nullptr, RDMA_PS_TCP) != 0) fail("an id");
  if (how == "resolved") {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htobe16(7);
    if (rdma_resolve_addr(id, nullptr, to, 2000) != 0) fail("rdma_resolve_addr");
    expect(events, RDMA_CM_EVENT_ADDR_RESOLVED);
  } else if (rdma_bind_addr(id, to) != 0) {
    fail("rdma_bind_addr");
  }
  if (how == "listening" && rdma_listen(id, 1) != 0) fail("rdma_listen");
  say("ready");
  for (;;) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(events, &event) != 0) fail("rdma_get_cm_event");
    say(std::string(rdma_event_str(event->event)) + (event->id == id ? "" : " of another id"));
    rdma_ack_cm_event(event);
  }
}

void show_sockets() {
  int sockets = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    for (const auto& fd : std::filesystem::directory_iterator(thread.path() / "fd")) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(fd.path(), gone);
      if (!gone && target.string().starts_with("socket:")) ++sockets;
    }
  }
  say(std::to_string(sockets) + " sockets");
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  const std::string what = words[1];
  if (what == "descriptors") {
    open_device(words[2]);
    show_sockets();
    return 0;
  }
  if (what == "verbs" || what == "objects") {
    ibv_context* const context = open_device(words[2]);
    if (what == "objects") make_objects(context);
    tell_async(context);
  }
  tell_cm(what, words[2]);
}
