// SPDX-License-Identifier: MIT
// The client: offers memory, sleeps while the server writes into it, and checks what came.
#include <endian.h>
#include <sys/resource.h>

#include <cstdio>

#include "write_to_client/checksum.h"
#include "write_to_client/endpoint.h"
#include "write_to_client/memory.h"
#include "write_to_client/roles.h"

namespace write_to_client {
namespace {

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
void sleep_until_done(Endpoint& endpoint) {
  const ibv_wc completion = endpoint.receive(0, "waiting for the data");
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM || be32toh(completion.imm_data) != kDone) {
    fail("something else came than the end of the data");
  }
}

}  // namespace

int run_client(const Options& options) {
  Endpoint endpoint = Endpoint::to_server(options);
  const Offer offer = endpoint.connect();
  const Memory memory = Memory::fresh(offer.size);
  const Region region = endpoint.register_memory(memory.data(), memory.mapped(),
                                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  endpoint.send(
      Place{.memory = reinterpret_cast<std::uintptr_t>(memory.data()), .key = region->rkey});

  const double thread_before = processor_seconds(RUSAGE_THREAD);
  const double process_before = processor_seconds(RUSAGE_SELF);
  sleep_until_done(endpoint);
  const double thread_seconds = processor_seconds(RUSAGE_THREAD) - thread_before;
  const double process_seconds = processor_seconds(RUSAGE_SELF) - process_before;

  const double start = now();
  const bool is_right = xxh64(memory.data(), memory.size()) == offer.checksum;
  const double check_seconds = now() - start;
  report(options, "client_thread_seconds", std::to_string(thread_seconds));
  report(options, "client_process_seconds", std::to_string(process_seconds));
  report(options, "check_seconds", std::to_string(check_seconds));
  endpoint.send_verdict(is_right);
  if (!is_right) fail("the checksum is wrong: what arrived is not what was sent");
  if (!options.quiet) std::printf("  client: the checksum of its memory is right\n");
  return 0;
}

}  // namespace write_to_client
