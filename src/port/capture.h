// SPDX-License-Identifier: MIT
// Writes what passes a port into a pcapng file that Wireshark reads as RoCEv2. The heads below the
// BTH are made up again, as the kernel makes them: an Ethernet address from each IP address, the
// IPv4 id that a packet of its place in a train has (of received packets it follows from the ICRC,
// where that is right), checksums.
//
// The data path copies into a buffer of fixed size and never waits; when the buffer is full,
// packets are missed and counted in the file. flush() writes the buffer out: some other thread's
// job.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "port/port.h"

namespace verbena::port {

enum class CaptureError : std::uint8_t { kExists, kNoFile, kNoMemory };
const char* to_string(CaptureError error);

struct CaptureOptions {
  std::string path{};
  std::string interface_name = "verbena";
  std::uint64_t file_bytes_max = 64 << 20;
  // 0: stops when the file is full. Else goes on in a new one, and keeps that many older ones as
  // path.1 (the youngest), path.2 ...
  std::uint32_t files_kept = 0;
  std::uint32_t buffer_bytes = 4 << 20;
  std::uint32_t packet_bytes_max = 65535;  // of a frame; the rest is cut off
  std::int64_t wall_offset = 0;            // nanoseconds from `Instant` to the time since 1970
};

class CaptureFile {
 public:
  // A new file, for its owner only.
  static Result<std::unique_ptr<CaptureFile>, CaptureError> open(CaptureOptions options);
  CaptureFile(const CaptureFile&) = delete;
  CaptureFile& operator=(const CaptureFile&) = delete;
  ~CaptureFile();  // flushes

  // One frame: its heads, and then its payload.
  struct Frame {
    std::span<const std::byte> head{};
    std::span<const std::byte> payload{};
    bool is_inbound = false;
    Instant when{};
  };
  // Any thread, without waiting for the file.
  void add(const Frame& frame);
  // Any thread, one at a time. False: the file cannot be written (any more); capturing has ended.
  bool flush();

  struct Stats {
    std::uint64_t written = 0;  // packets
    std::uint64_t missed = 0;   // because the buffer was full
    bool stopped = false;       // because the file is full, or cannot be written
  };
  Stats stats() const;

 private:
  CaptureFile(CaptureOptions options, UniqueFd file);
  bool begin_file();
  bool rotate();
  bool write_all(std::span<const std::byte> bytes);
  bool write_packets();
  std::vector<std::byte> closing_block() const;
  bool is_open() const;
  void take_file(UniqueFd file);
  std::size_t packet_size(std::size_t i) const;

  const CaptureOptions options_;
  mutable Mutex flush_lock_;  // before buffer_lock_
  UniqueFd file_;
  ino_t inode_ = 0;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t written_ = 0;
  std::vector<std::byte> writing_;
  std::vector<std::size_t> begins_;  // of the packets in `writing_`

  mutable Mutex buffer_lock_;
  std::vector<std::byte> filling_;
  std::vector<std::size_t> filling_begins_;
  Stats stats_;
  std::uint64_t seen_ = 0;
  Instant last_;
};

// Wraps a port; both directions go to the file.
class CapturePort final : public Port {
 public:
  CapturePort(Port& inner, CaptureFile& file) : inner_(inner), file_(file) {}

  std::size_t send(std::span<const Train> trains, Instant now) override;
  std::size_t receive(std::span<Received> into, Instant now) override;
  std::span<const int> descriptors() const override { return inner_.descriptors(); }
  Instant next_deadline() const override { return inner_.next_deadline(); }
  Limits limits() const override { return inner_.limits(); }
  Result<std::uint32_t, RouteError> payload_max(const Route& route) override {
    return inner_.payload_max(route);
  }
  std::uint16_t source_port(const Route& route) override { return inner_.source_port(route); }
  const Counters& counters() override { return inner_.counters(); }

 private:
  Port& inner_;
  CaptureFile& file_;
};

}  // namespace verbena::port
