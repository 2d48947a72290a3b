// SPDX-License-Identifier: MIT
// The server: writes the data into the client's memory, piece by piece, many pieces at a time. The
// last piece carries the news that it is done.

#include <endian.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "write_to_client/checksum.h"
#include "write_to_client/endpoint.h"
#include "write_to_client/memory.h"
#include "write_to_client/progress.h"
#include "write_to_client/roles.h"
#include "write_to_client/wire.h"

namespace write_to_client {
namespace {

constexpr double kPatienceSeconds = 30;  // without any completion
constexpr int kBatch = 16;

class Transfer {
 public:
  Transfer(const Endpoint& endpoint, const Memory& memory, const Region& region, const Place& place)
      : endpoint_(endpoint), memory_(memory), region_(region), place_(place) {}

  // Returns how many seconds it took.
  double run(bool quiet);
  std::uint64_t pieces() const {
    return std::max<std::uint64_t>(1, (memory_.size() + kPieceBytes - 1) / kPieceBytes);
  }

 private:
  std::uint32_t length_of(std::uint64_t piece) const;
  void post(std::uint64_t piece);
  unsigned collect();

  const Endpoint& endpoint_;
  const Memory& memory_;
  const Region& region_;
  const Place& place_;
  std::uint64_t bytes_done_ = 0;
};

std::uint32_t Transfer::length_of(std::uint64_t piece) const {
  const std::uint64_t left = memory_.size() - piece * kPieceBytes;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(left, kPieceBytes));
}

void Transfer::post(std::uint64_t piece) {
  const std::uint64_t offset = piece * kPieceBytes;
  ibv_sge source = {.addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + offset,
                    .length = length_of(piece),
                    .lkey = region_->lkey};
  ibv_send_wr write = {};
  write.wr_id = piece;
  write.sg_list = &source;
  write.num_sge = source.length > 0 ? 1 : 0;
  write.opcode = IBV_WR_RDMA_WRITE;
  write.send_flags = IBV_SEND_SIGNALED;
  write.wr.rdma.remote_addr = place_.memory + offset;
  write.wr.rdma.rkey = place_.key;
  if (piece + 1 == pieces()) {
    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write.imm_data = htobe32(kDone);
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(endpoint_.queue_pair(), &write, &bad)) {
    fail("ibv_post_send: %s", std::strerror(error));
  }
}

// Takes what is complete; the number of pieces.
unsigned Transfer::collect() {
  ibv_wc completions[kBatch];
  const int count = ibv_poll_cq(endpoint_.completions(), kBatch, completions);
  if (count < 0) fail("ibv_poll_cq failed");
  for (int i = 0; i < count; ++i) {
    if (completions[i].status != IBV_WC_SUCCESS) {
      fail("piece %" PRIu64 ": %s", completions[i].wr_id, ibv_wc_status_str(completions[i].status));
    }
    bytes_done_ += length_of(completions[i].wr_id);
  }
  return static_cast<unsigned>(count);
}

double Transfer::run(bool quiet) {
  Progress progress(memory_.size(), quiet);
  const double start = now();
  double last = start;
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  while (done < pieces()) {
    for (; posted < pieces() && posted - done < kPiecesInFlight; ++posted)
      post(posted);
    const unsigned collected = collect();
    const double time = now();
    if (collected > 0) {
      done += collected;
      last = time;
      if (done < pieces()) progress.at(bytes_done_, time - start);
    } else if (time - last > kPatienceSeconds) {
      fail("no piece was done for %.0f seconds; is the client still there?", kPatienceSeconds);
    }
  }
  progress.at(bytes_done_, last - start);
  return last - start;
}

Memory data_of(const Options& options) {
  if (!options.file.empty()) return Memory::of_file(options.file);
  Memory memory = Memory::fresh(options.generate);
  make_up_data(memory);
  return memory;
}

}  // namespace

int run_server(const Options& options) {
  const Memory memory = data_of(options);
  const std::uint64_t checksum = xxh64(memory.data(), memory.size());
  Endpoint endpoint(options, kPiecesInFlight, 1);
  const Region region = endpoint.register_memory(memory.data(), memory.mapped(), 0);
  report(options, "device", endpoint.device());

  Wire wire = Wire::accept(options.address, options.port, [&](std::uint16_t port) {
    report(options, "port", std::to_string(port));
    if (!options.quiet && options.report < 0) {
      std::printf("waiting for a client at %s port %u\n", options.address.c_str(), port);
      std::fflush(stdout);
    }
  });
  wire.send(Offer{.address = endpoint.address(), .size = memory.size(), .checksum = checksum});
  const Place place = wire.receive_place();
  endpoint.connect(place.address);

  Transfer transfer(endpoint, memory, region, place);
  const double seconds = transfer.run(options.quiet);
  const bool is_right = wire.receive_verdict();
  char text[32];
  std::snprintf(text, sizeof text, "%016" PRIx64, checksum);
  report(options, "bytes", std::to_string(memory.size()));
  report(options, "pieces", std::to_string(transfer.pieces()));
  report(options, "seconds", std::to_string(seconds));
  report(options, "checksum", text);
  if (!is_right) fail("the client says that the checksum is wrong");
  return 0;
}

}  // namespace write_to_client
