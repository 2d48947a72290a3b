// SPDX-License-Identifier: MIT
// The server: writes the data into the client's memory, piece by piece, many pieces at a time. One
// more WRITE, with immediate, carries the news that it is done.

#include <endian.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "write_to_client/checksum.h"
#include "write_to_client/endpoint.h"
#include "write_to_client/memory.h"
#include "write_to_client/progress.h"
#include "write_to_client/roles.h"

namespace write_to_client {
namespace {

constexpr double kPatienceSeconds = 30;  // without any completion
constexpr double kReportSeconds = 0.25;  // between two reports of progress
constexpr int kBatch = 16;

class Transfer {
 public:
  Transfer(const Endpoint& endpoint, const Memory& memory, const Region& region, const Place& place)
      : endpoint_(endpoint), memory_(memory), region_(region), place_(place) {}

  // Writes the first few bytes, and returns when they are there. Data of no bytes has one here, in
  // memory that belongs to nothing: an empty WRITE would not show whether the memory is reached.
  void greet();
  // Writes all the data. Returns how many seconds it took.
  double run(const Options& options);
  // Tells the client's program that all is there.
  void announce();
  std::uint64_t pieces() const { return (memory_.size() + kPieceBytes - 1) / kPieceBytes; }

 private:
  std::uint32_t length_of(std::uint64_t piece) const;
  void post(ibv_send_wr write, std::uint64_t offset, std::uint32_t length);
  void post_piece(std::uint64_t piece);
  unsigned collect();
  void wait_for_one();

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

void Transfer::post(ibv_send_wr write, std::uint64_t offset, std::uint32_t length) {
  ibv_sge source = {.addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + offset,
                    .length = length,
                    .lkey = region_->lkey};
  write.wr_id = length;
  write.sg_list = &source;
  write.num_sge = length > 0 ? 1 : 0;
  write.send_flags = IBV_SEND_SIGNALED;
  write.wr.rdma.remote_addr = place_.memory + offset;
  write.wr.rdma.rkey = place_.key;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(endpoint_.queue_pair(), &write, &bad)) {
    fail("ibv_post_send: %s", std::strerror(error));
  }
}

void Transfer::post_piece(std::uint64_t piece) {
  ibv_send_wr write = {};
  write.opcode = IBV_WR_RDMA_WRITE;
  post(write, piece * kPieceBytes, length_of(piece));
}

// Takes what is complete; the number of WRITEs.
unsigned Transfer::collect() {
  ibv_wc completions[kBatch];
  const int count = ibv_poll_cq(endpoint_.send_completions(), kBatch, completions);
  if (count < 0) fail("ibv_poll_cq failed");
  for (int i = 0; i < count; ++i) {
    if (completions[i].status != IBV_WC_SUCCESS) {
      fail("RDMA WRITE: %s", ibv_wc_status_str(completions[i].status));
    }
    bytes_done_ += completions[i].wr_id;
  }
  return static_cast<unsigned>(count);
}

void Transfer::wait_for_one() {
  for (const double start = now(); collect() == 0;) {
    if (now() - start > kPatienceSeconds) {
      fail("no answer for %.0f seconds; is the client still there?", kPatienceSeconds);
    }
  }
}

void Transfer::greet() {
  ibv_send_wr write = {};
  write.opcode = IBV_WR_RDMA_WRITE;
  post(write, 0,
       static_cast<std::uint32_t>(std::min<std::size_t>(kGreetingBytes, memory_.mapped())));
  wait_for_one();
}

void Transfer::announce() {
  ibv_send_wr write = {};
  write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  write.imm_data = htobe32(kDone);
  post(write, 0, 0);
  wait_for_one();
}

double Transfer::run(const Options& options) {
  Progress progress(memory_.size(), options.quiet);
  const double start = now();
  double last = start;
  double reported = start;
  bytes_done_ = 0;
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  while (done < pieces()) {
    for (; posted < pieces() && posted - done < kPiecesInFlight; ++posted)
      post_piece(posted);
    const unsigned collected = collect();
    const double time = now();
    if (collected > 0) {
      done += collected;
      last = time;
      if (done < pieces()) progress.at(bytes_done_, time - start);
    } else if (time - last > kPatienceSeconds) {
      fail("no piece was done for %.0f seconds; is the client still there?", kPatienceSeconds);
    }
    if (collected > 0 && time - reported > kReportSeconds) {
      report(options, "moving", std::to_string(bytes_done_));
      reported = time;
    }
  }
  progress.at(bytes_done_, last - start);
  return last - start;
}

// Until the program above us gives a byte or closes its end.
void wait_for_word(int descriptor) {
  char byte = 0;
  while (read(descriptor, &byte, 1) < 0) {
    if (errno != EINTR) fail("cannot wait for descriptor %d: %s", descriptor, std::strerror(errno));
  }
}

// Returns how many seconds the data took.
double write_all(Transfer& transfer, const Options& options) {
  // Twice: a NIC of software may open the client's memory to us only after it has answered the
  // first message, and by its second answer it has.
  transfer.greet();
  transfer.greet();
  report(options, "connected", "1");
  if (options.wait_for >= 0) {
    wait_for_word(options.wait_for);
    // Where the client is stopped and the NIC cannot do without it, this lasts until it goes on,
    // and is no part of the time of the data.
    transfer.greet();
  }
  report(options, "moving", "0");
  const double seconds = transfer.run(options);
  report(options, "written", std::to_string(seconds));
  transfer.announce();
  return seconds;
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
  Endpoint endpoint = Endpoint::of_client(options, kPiecesInFlight, [&](unsigned port) {
    report(options, "port", std::to_string(port));
    if (!options.quiet && options.report < 0) {
      std::printf("  server: waiting for a client at %s port %u\n", options.address.c_str(), port);
      std::fflush(stdout);
    }
  });
  report(options, "device", endpoint.device());
  const Region region = endpoint.register_memory(memory.data(), memory.mapped(), 0);
  endpoint.accept({.size = memory.size(), .checksum = checksum});
  const Place place = endpoint.receive_place();

  Transfer transfer(endpoint, memory, region, place);
  const double seconds = write_all(transfer, options);
  const bool is_right = endpoint.receive_verdict();
  char text[32];
  std::snprintf(text, sizeof text, "%016" PRIx64, checksum);
  report(options, "bytes", std::to_string(memory.size()));
  report(options, "pieces", std::to_string(transfer.pieces()));
  report(options, "checksum", text);
  if (!is_right) fail("the client says that the checksum is wrong");
  if (!options.quiet && options.report < 0) {
    const double gigabytes = static_cast<double>(memory.size()) * 1e-9;
    std::printf("  server: %" PRIu64 " bytes at %.2f GB/s by %s, XXH64 %s; right at the client\n",
                static_cast<std::uint64_t>(memory.size()), seconds > 0 ? gigabytes / seconds : 0,
                endpoint.device(), text);
  }
  return 0;
}

}  // namespace write_to_client
