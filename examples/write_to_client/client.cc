// SPDX-License-Identifier: MIT
// The client: offers memory, sleeps while the server writes into it, and checks what came.
#include <endian.h>
#include <poll.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "write_to_client/checksum.h"
#include "write_to_client/endpoint.h"
#include "write_to_client/memory.h"
#include "write_to_client/roles.h"
#include "write_to_client/wire.h"

namespace write_to_client {
namespace {

constexpr unsigned kReceives = 1;

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// The processor time of this thread, or of the whole process with the NIC's thread in it.
double processor_seconds(int who) {
  rusage usage = {};
  getrusage(who, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

// A WRITE with immediate takes a receive, though all its data goes elsewhere.
void post_receive(ibv_qp* queue_pair) {
  ibv_recv_wr receive = {};
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(queue_pair, &receive, &bad)) {
    fail("ibv_post_recv: %s", std::strerror(error));
  }
}

// Sleeps until the completion that was asked for. Should the server die, its TCP connection ends.
void sleep_until_event(const Endpoint& endpoint, const Wire& wire) {
  pollfd both[2] = {{.fd = endpoint.channel()->fd, .events = POLLIN, .revents = 0},
                    {.fd = wire.descriptor(), .events = POLLIN, .revents = 0}};
  while (poll(both, 2, -1) < 0 && errno == EINTR) {
  }
  if (!(both[0].revents & POLLIN)) fail("the server went away");
  ibv_cq* completions = nullptr;
  void* unused = nullptr;
  if (ibv_get_cq_event(endpoint.channel(), &completions, &unused) != 0) {
    fail("ibv_get_cq_event: %s", std::strerror(errno));
  }
  ibv_ack_cq_events(completions, 1);
}

void check_completion(const Endpoint& endpoint) {
  ibv_wc completion = {};
  const int count = ibv_poll_cq(endpoint.completions(), 1, &completion);
  if (count < 0) fail("ibv_poll_cq failed");
  if (count == 0) fail("an event came, but no completion with it");
  if (completion.status != IBV_WC_SUCCESS) {
    fail("receive: %s", ibv_wc_status_str(completion.status));
  }
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM || be32toh(completion.imm_data) != kDone) {
    fail("something else came than the end of the data");
  }
}

}  // namespace

int run_client(const Options& options) {
  Wire wire = Wire::connect(options.address, options.port);
  const Offer offer = wire.receive_offer();

  const Memory memory = Memory::fresh(offer.size);
  Endpoint endpoint(options, 1, kReceives);
  const Region region = endpoint.register_memory(memory.data(), memory.mapped(),
                                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  endpoint.connect(offer.address);
  post_receive(endpoint.queue_pair());
  if (ibv_req_notify_cq(endpoint.completions(), 0) != 0) fail("ibv_req_notify_cq failed");
  wire.send(Place{.address = endpoint.address(),
                  .memory = reinterpret_cast<std::uintptr_t>(memory.data()),
                  .key = region->rkey});

  const double thread_before = processor_seconds(RUSAGE_THREAD);
  const double process_before = processor_seconds(RUSAGE_SELF);
  sleep_until_event(endpoint, wire);
  const double thread_seconds = processor_seconds(RUSAGE_THREAD) - thread_before;
  const double process_seconds = processor_seconds(RUSAGE_SELF) - process_before;
  check_completion(endpoint);

  const double start = now();
  const bool is_right = xxh64(memory.data(), memory.size()) == offer.checksum;
  const double check_seconds = now() - start;
  report(options, "client_thread_seconds", std::to_string(thread_seconds));
  report(options, "client_process_seconds", std::to_string(process_seconds));
  report(options, "check_seconds", std::to_string(check_seconds));
  wire.send_verdict(is_right);
  if (!is_right) fail("the checksum is wrong: what arrived is not what was sent");
  if (!options.quiet) std::printf("  client: the checksum of its memory is right\n");
  return 0;
}

}  // namespace write_to_client
