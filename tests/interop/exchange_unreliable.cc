// SPDX-License-Identifier: MIT
// UC and UD: nothing is lost on a wire of two ends with receives at hand, so everything arrives.
#include "exchange.h"

namespace exchange {
namespace {

constexpr std::uint32_t kGrh = 40;

std::vector<std::uint32_t> fewer_sizes(std::uint32_t mtu) {
  return {0, 1, 3, 4, 63, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 2, 30001};
}

void one_uc(Client& client, ibv_wr_opcode opcode, std::uint32_t size, std::uint32_t round) {
  const bool is_send = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
  const bool is_immediate = opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const Work work{.opcode = opcode,
                  .length = size,
                  .local = 100 + 3 * round,
                  .remote = 50001 + 7 * round,
                  .immediate = 0xa1b2c300 + round,
                  .pieces = 1 + round % 3};
  const bool has_receive = is_send || is_immediate;
  if (has_receive) client.receive(is_send ? work.remote : 0, is_send ? 33000 : 0);
  client.post(work);
  client.await({kOk});
  if (has_receive) {
    const Completion got = client.server_completions(1)[0];
    client.expect(got.status == kOk && got.bytes == size &&
                      got.opcode == (is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM) &&
                      (!is_immediate || got.immediate == work.immediate),
                  "%u bytes: the server's completion says status %u, opcode %u, %u bytes,"
                  " immediate %#x",
                  size, got.status, got.opcode, got.bytes, got.immediate);
  } else {
    // Nothing else says when a WRITE without acknowledgements has arrived.
    const Work last{.length = 4, .remote = 120'000};
    client.receive(last.remote, 4);
    client.post(last);
    client.await({kOk});
    client.server_completions(1);
    client.model_write(last);
  }
  client.model_write(work);
  client.check("UC", size);
}

}  // namespace

void unreliable(Client& client) {
  struct Case {
    const char* name;
    ibv_wr_opcode opcode;
  };
  const Case cases[] = {
      {"UC SEND", IBV_WR_SEND},
      {"UC SEND with immediate", IBV_WR_SEND_WITH_IMM},
      {"UC WRITE", IBV_WR_RDMA_WRITE},
      {"UC WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM},
  };
  for (const Case& one : cases) {
    client.begin(one.name, {.type = IBV_QPT_UC});
    std::uint32_t round = 0;
    for (const std::uint32_t size : fewer_sizes(client.mtu))
      one_uc(client, one.opcode, size, round++);
    client.finish();
  }
  // A message that may not be written is dropped, and the next one arrives.
  client.begin("UC WRITE with a wrong key", {.type = IBV_QPT_UC});
  client.post({.opcode = IBV_WR_RDMA_WRITE, .length = 3 * client.mtu, .key_change = 0x5a0000});
  client.await({kOk});
  one_uc(client, IBV_WR_SEND, 5000, 1);
  client.finish();
}

void datagrams(Client& client) {
  for (const bool is_immediate : {false, true}) {
    client.begin(is_immediate ? "UD SEND with immediate" : "UD SEND", {.type = IBV_QPT_UD});
    std::uint32_t round = 0;
    for (const std::uint32_t size : {0u, 1u, 2u, 3u, 4u, 63u, client.mtu - 3, client.mtu}) {
      const Work work{.opcode = is_immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
                      .length = size,
                      .local = 9 + round,
                      .immediate = 0x99000000 + round,
                      .pieces = 1 + round % 3};
      // The first 40 bytes are for the network's head, whose reserved parts may hold anything.
      const std::uint32_t at = 10000 * (1 + round++);
      client.receive(at, client.mtu + kGrh);
      client.post(work);
      client.await({kOk});
      const Completion got = client.server_completions(1)[0];
      client.expect(got.status == kOk && got.opcode == IBV_WC_RECV && got.bytes == size + kGrh &&
                        (got.flags & IBV_WC_GRH) != 0 && got.source == client.own_qpn() &&
                        (!is_immediate || got.immediate == work.immediate),
                    "%u bytes: the server's completion says status %u, opcode %u, %u bytes,"
                    " flags %#x, from %#x, immediate %#x",
                    size, got.status, got.opcode, got.bytes, got.flags, got.source, got.immediate);
      client.model_copy(work, at + kGrh);
      client.check_beside(at, kGrh, size);
    }
    client.finish();
  }
  client.begin("UD SEND with a wrong Q_Key", {.type = IBV_QPT_UD});
  client.receive(20000, 4096);
  client.post({.length = 100, .qkey = kQkey + 1});
  client.await({kOk});
  client.post({.length = 101});
  client.await({kOk});
  const Completion got = client.server_completions(1)[0];
  client.expect(got.bytes == 101 + kGrh, "%u bytes arrived", got.bytes);
  client.finish();
}

}  // namespace exchange
