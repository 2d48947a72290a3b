// SPDX-License-Identifier: MIT
// RC: every operation at every size that means something to packets, and every refusal.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "exchange.h"

namespace exchange {
namespace {

constexpr std::uint32_t kOdd = 4;  // where no atomic may be

std::vector<std::uint32_t> sizes(std::uint32_t mtu) {
  return {0, 1, 2, 3, 4, 5, 63, mtu - 1, mtu, mtu + 1, 2 * mtu - 3, 2 * mtu, 3 * mtu + 2, 40001};
}

// Places that are aligned to nothing, far enough from the ends of the region.
Work placed(ibv_wr_opcode opcode, std::uint32_t size, std::uint32_t round) {
  return {.opcode = opcode,
          .length = size,
          .local = 4096 + 7 * round + 1,
          .remote = 12288 + 13 * round + 3,
          .immediate = 0x01020304 + round,
          .pieces = 1 + round % 3};
}

void writes(Client& client) {
  for (const bool is_immediate : {false, true}) {
    client.begin(is_immediate ? "WRITE with immediate" : "WRITE");
    std::uint32_t round = 0;
    for (const std::uint32_t size : sizes(client.mtu)) {
      const Work work =
          placed(is_immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, size, round++);
      if (is_immediate) client.receive(0, 0);
      client.post(work);
      client.await({kOk});
      client.model_write(work);
      if (is_immediate) {
        const Completion got = client.server_completions(1)[0];
        client.expect(got.status == kOk && got.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
                          got.immediate == work.immediate && (got.flags & IBV_WC_WITH_IMM) != 0 &&
                          got.bytes == size,
                      "%u bytes: the server's completion says status %u, opcode %u, %u bytes,"
                      " immediate %#x",
                      size, got.status, got.opcode, got.bytes, got.immediate);
      }
      client.check("WRITE", size);
    }
    client.finish();
  }
}

void sends(Client& client) {
  for (const bool is_immediate : {false, true}) {
    client.begin(is_immediate ? "SEND with immediate" : "SEND");
    std::uint32_t round = 0;
    for (const std::uint32_t size : sizes(client.mtu)) {
      Work work = placed(is_immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, size, round++);
      if (round % 2 == 1) work.flags |= IBV_SEND_SOLICITED;
      client.receive(work.remote, 45000 + round, 1 + round % 4);
      client.post(work);
      client.await({kOk});
      client.model_write(work);
      const Completion got = client.server_completions(1)[0];
      client.expect(got.status == kOk && got.opcode == IBV_WC_RECV && got.bytes == size &&
                        (!is_immediate || got.immediate == work.immediate) &&
                        ((got.flags & IBV_WC_WITH_IMM) != 0) == is_immediate,
                    "%u bytes: the server's completion says status %u, opcode %u, %u bytes,"
                    " immediate %#x",
                    size, got.status, got.opcode, got.bytes, got.immediate);
      client.check("SEND", size);
    }
    client.finish();
  }
}

void reads(Client& client) {
  client.begin("READ");
  std::uint32_t round = 0;
  for (const std::uint32_t size : sizes(client.mtu)) {
    const Work work = placed(IBV_WR_RDMA_READ, size, round++);
    client.post(work);
    client.await({kOk});
    client.model_read(work);
    client.check("READ", size);
  }
  client.finish();

  // More of them than may be open at a time (4), and of different lengths.
  client.begin("many READs");
  for (std::uint32_t i = 0; i < 16; ++i) {
    Work work{.opcode = IBV_WR_RDMA_READ,
              .length = 1 + i * (client.mtu / 2 + 1) % 6000,
              .local = i * 6001,
              .remote = 20000 + i * 17,
              .flags = i == 15 ? unsigned{IBV_SEND_SIGNALED} : 0u};
    client.post(work);
    client.model_read(work);
  }
  client.await({kOk});
  client.check("READs", 16);
  client.finish();
}

void atomics(Client& client) {
  client.begin("atomics");
  const auto word_there = [&](std::uint32_t offset) {
    std::uint64_t word = 0;
    std::memcpy(&word, client.there.data() + offset, sizeof word);
    return word;
  };
  const auto carry_out = [&](Work work) {
    const std::uint64_t old = word_there(work.remote);
    const bool is_add = work.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (!is_add && work.swap == 1) work.compare_or_add = old;  // one that matches
    client.post(work);
    client.await({kOk});
    const std::uint64_t fresh = is_add                       ? old + work.compare_or_add
                                : old == work.compare_or_add ? work.swap
                                                             : old;
    std::memcpy(client.there.data() + work.remote, &fresh, sizeof fresh);
    std::memcpy(client.here.data() + work.local, &old, sizeof old);
    client.check("atomic", 8);
  };
  const auto add = IBV_WR_ATOMIC_FETCH_AND_ADD;
  const auto swap = IBV_WR_ATOMIC_CMP_AND_SWP;
  carry_out({.opcode = add, .length = 8, .local = 8, .remote = 64, .compare_or_add = 5});
  carry_out({.opcode = add, .length = 8, .local = 16, .remote = 64, .compare_or_add = ~0ull});
  carry_out(
      {.opcode = swap, .length = 8, .local = 24, .remote = 72, .compare_or_add = 1, .swap = 2});
  carry_out({.opcode = swap, .length = 8, .local = 32, .remote = 72, .swap = 1});
  for (std::uint32_t i = 0; i < 8; ++i) {
    carry_out({.opcode = add, .length = 8, .local = 40 + 8 * i, .remote = 80, .compare_or_add = i});
  }
  client.finish();
}

// Different operations in one go, with fences, of which only the last is signaled.
void mixed(Client& client) {
  client.begin("a mix of operations");
  for (std::uint32_t i = 0; i < 3; ++i)
    client.receive(100000 + i * 5000, 5000);
  for (std::uint32_t i = 0; i < 12; ++i) {
    const Work work{.opcode = IBV_WR_RDMA_WRITE,
                    .length = 700 + i,
                    .local = 1000 * i + 1,
                    .remote = 900 * i,
                    .flags = 0};
    client.post(work);
    client.model_write(work);
  }
  const Work read{
      .opcode = IBV_WR_RDMA_READ, .length = 2101, .local = 60000, .remote = 800, .flags = 0};
  client.post(read);
  client.model_read(read);
  // Sends what the READ has just brought.
  const Work fenced{.length = 2101, .local = 60000, .flags = IBV_SEND_FENCE};
  client.post(fenced);
  client.model_copy(fenced, 100000);
  const Work inlined{.length = 33, .local = 70001, .flags = IBV_SEND_INLINE};
  client.post(inlined);
  client.model_copy(inlined, 105000);
  const Work last{.length = 4097, .local = 80000, .pieces = 4};
  client.post(last);
  client.await({kOk});
  client.model_copy(last, 110000);
  const auto got = client.server_completions(3);
  client.expect(got[0].bytes == 2101 && got[1].bytes == 33 && got[2].bytes == 4097,
                "the server received %u, %u and %u bytes", got[0].bytes, got[1].bytes,
                got[2].bytes);
  client.check("mix", 0);
  client.finish();
}

// Enough messages that windows, acknowledgements and the order of completions matter.
void streams(Client& client) {
  client.begin("a stream of WRITEs");
  for (std::uint32_t round = 0; round < 8; ++round) {
    for (std::uint32_t i = 0; i < 64; ++i) {
      const Work work{.opcode = IBV_WR_RDMA_WRITE,
                      .length = 1 + (i * 997 + round * 61) % 9001,
                      .local = (i * 331 + round) % 100000,
                      .remote = (i * 1777 + round * 5) % 120000,
                      .flags = i == 63 ? unsigned{IBV_SEND_SIGNALED} : 0u};
      client.post(work);
      client.model_write(work);
    }
    client.await({kOk});
  }
  client.check("stream", 512);
  client.finish();

  client.begin("a stream of SENDs");
  for (std::uint32_t round = 0; round < 8; ++round) {
    for (std::uint32_t i = 0; i < 32; ++i)
      client.receive(4000 * i, 4000);
    for (std::uint32_t i = 0; i < 32; ++i) {
      const Work work{.length = (i * 769 + round * 401) % 4001,
                      .local = 31 * i + round,
                      .flags = i == 31 ? unsigned{IBV_SEND_SIGNALED} : 0u};
      client.post(work);
      client.model_copy(work, 4000 * i);
    }
    client.await({kOk});
    const auto got = client.server_completions(32);
    for (std::uint32_t i = 0; i < 32; ++i) {
      client.expect(got[i].id == 4000 * i && got[i].bytes == (i * 769 + round * 401) % 4001,
                    "the server's completion %u is for receive %llu, with %u bytes", i,
                    static_cast<unsigned long long>(got[i].id), got[i].bytes);
    }
  }
  client.check("stream", 256);
  client.finish();
}

void receiver_not_ready(Client& client) {
  client.begin("a receiver that is not ready yet");
  const Work work{.length = 3 * client.mtu + 1, .local = 5};
  client.post(work);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  client.receive(777, 40000);
  client.await({kOk});
  client.model_copy(work, 777);
  client.server_completions(1);
  client.check("SEND", work.length);
  client.finish();

  client.begin("a receiver that never gets ready", {.rnr_retry = 2});
  client.post(work);
  client.await_refusal({IBV_WC_RNR_RETRY_EXC_ERR});
  client.check("SEND", work.length);
  client.finish();
}

}  // namespace

void reliable(Client& client) {
  writes(client);
  sends(client);
  reads(client);
  atomics(client);
  mixed(client);
  streams(client);
}

void reliable_refusals(Client& client) {
  receiver_not_ready(client);
  struct Case {
    const char* name;
    Work work;
    ibv_wc_status status;
    std::uint32_t access = kAllAccess;
  };
  const std::uint32_t large = 2 * client.mtu + 5;
  const auto access = IBV_WC_REM_ACCESS_ERR;
  const auto invalid = IBV_WC_REM_INV_REQ_ERR;
  const Case cases[] = {
      {"WRITE with a wrong key",
       {.opcode = IBV_WR_RDMA_WRITE, .length = large, .key_change = 0x5a0000},
       access},
      {"READ with a wrong key",
       {.opcode = IBV_WR_RDMA_READ, .length = large, .key_change = 0x5a0000},
       access},
      {"atomic with a wrong key",
       {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8, .key_change = 0x5a0000},
       access},
      {"WRITE beyond the region",
       {.opcode = IBV_WR_RDMA_WRITE, .length = large, .remote = kRegion - large + 1},
       access},
      {"READ beyond the region",
       {.opcode = IBV_WR_RDMA_READ, .length = large, .remote = kRegion - large + 1},
       access},
      {"atomic at an odd address",
       {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8, .remote = kOdd},
       invalid},
      {"WRITE to a queue pair without that right",
       {.opcode = IBV_WR_RDMA_WRITE, .length = 30},
       invalid,
       IBV_ACCESS_LOCAL_WRITE},
      {"READ from a queue pair without that right",
       {.opcode = IBV_WR_RDMA_READ, .length = 30},
       invalid,
       IBV_ACCESS_LOCAL_WRITE},
  };
  for (const Case& one : cases) {
    if (client.is_rxe && one.work.remote == kOdd) {
      std::printf("SKIP %s: rxe refuses it when it is posted\n", one.name);
      continue;
    }
    client.begin(one.name, {.server_access = one.access});
    client.post(one.work);
    client.await_refusal({one.status});
    client.check(one.name, one.work.length);
    client.finish();
  }

  // 9.7.5.2.4: an invalid request. The kernel's rxe answers with an operational error.
  client.begin("SEND that is longer than the receive");
  client.receive(0, large - 5);
  client.post({.length = large, .local = 3});
  client.await_refusal({client.server_is_rxe() ? IBV_WC_REM_OP_ERR : invalid});
  client.finish();

  client.begin("a peer that does not exist", {.is_misaddressed = 1});
  client.post({.opcode = IBV_WR_RDMA_WRITE, .length = large});
  client.await_refusal({IBV_WC_RETRY_EXC_ERR});
  client.check("WRITE", large);
  client.finish();
}

}  // namespace exchange
