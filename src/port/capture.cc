// SPDX-License-Identifier: MIT
#include "port/capture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>

#include "base/log.h"
#include "port/frame_head.h"
#include "port/pcapng.h"
#include "port/udp_socket.h"
#include "wire/icrc.h"

namespace verbena::port {
namespace {

// A path is given by whoever asked for the capture; links in the place of the file are not
// followed.
int create(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path.c_str(), kFlags, 0600));
}

std::string older(const std::string& path, std::uint32_t age) {
  return age == 0 ? path : path + "." + std::to_string(age);
}

constexpr std::uint32_t kBufferMin = 64 << 10;
constexpr std::uint32_t kFileMin = 64 << 10;

}  // namespace

const char* to_string(CaptureError error) {
  switch (error) {
    case CaptureError::kExists: return "the file exists";
    case CaptureError::kNoFile: return "the file cannot be made";
    case CaptureError::kNoMemory: return "no memory for the buffers";
  }
  return "?";
}

auto CaptureFile::open(CaptureOptions options)
    -> Result<std::unique_ptr<CaptureFile>, CaptureError> {
  options.buffer_bytes = std::max(options.buffer_bytes, kBufferMin);
  options.file_bytes_max = std::max<std::uint64_t>(options.file_bytes_max, kFileMin);
  UniqueFd file(create(options.path));
  if (!file) return refuse(errno == EEXIST ? CaptureError::kExists : CaptureError::kNoFile);
  std::unique_ptr<CaptureFile> capture(new CaptureFile(std::move(options), std::move(file)));
  if (!capture->begin_file()) return refuse(CaptureError::kNoFile);
  return capture;
}

CaptureFile::CaptureFile(CaptureOptions options, UniqueFd file) : options_(std::move(options)) {
  take_file(std::move(file));
  writing_.reserve(options_.buffer_bytes);
  filling_.reserve(options_.buffer_bytes);
}

CaptureFile::~CaptureFile() {
  if (flush()) write_all(closing_block());
}

// The program may have closed our descriptor, and its number be another file's.
bool CaptureFile::is_open() const {
  struct stat status{};
  return file_ && fstat(file_.get(), &status) == 0 && status.st_ino == inode_;
}

void CaptureFile::take_file(UniqueFd file) {
  file_ = UniqueFd(lift_descriptor(file.release()));
  struct stat status{};
  inode_ = fstat(file_.get(), &status) == 0 ? status.st_ino : 0;
}

bool CaptureFile::begin_file() {
  std::vector<std::byte> head;
  pcapng::begin_section(head, options_.interface_name, options_.packet_bytes_max);
  file_bytes_ = 0;
  return write_all(head);
}

void CaptureFile::add(const Frame& frame) {
  const pcapng::Packet packet{
      .time = static_cast<std::uint64_t>(frame.when.nanoseconds() + options_.wall_offset),
      .head = frame.head,
      .payload = frame.payload,
      .snap_length = options_.packet_bytes_max,
      .is_inbound = frame.is_inbound};
  const std::lock_guard lock(buffer_lock_);
  if (stats_.stopped) return;
  ++seen_;
  last_ = frame.when;
  if (filling_.size() + pcapng::packet_bytes_max(packet) > options_.buffer_bytes) {
    ++stats_.missed;
    return;
  }
  // Where the file will be changed, so that none is cut within a packet.
  filling_begins_.push_back(filling_.size());
  pcapng::add_packet(filling_, packet);
}

bool CaptureFile::flush() {
  const std::lock_guard lock(flush_lock_);
  if (!file_) return false;
  {
    const std::lock_guard buffer_lock(buffer_lock_);
    std::swap(filling_, writing_);
    std::swap(filling_begins_, begins_);
  }
  const bool good = is_open() && write_packets();
  writing_.clear();
  begins_.clear();
  if (!good) {
    if (is_open()) file_.reset();
    file_.release();
    const std::lock_guard buffer_lock(buffer_lock_);
    stats_.stopped = true;
    filling_.clear();
    filling_begins_.clear();
  }
  return good;
}

// The statistics up to now: what a file ends with.
std::vector<std::byte> CaptureFile::closing_block() const {
  std::vector<std::byte> block;
  const std::lock_guard lock(buffer_lock_);
  const auto time = static_cast<std::uint64_t>(last_.nanoseconds() + options_.wall_offset);
  pcapng::add_statistics(block, time, seen_, stats_.missed);
  return block;
}

// Everything that was collected, in as many files as it takes.
bool CaptureFile::write_packets() {
  if (begins_.empty()) return true;
  const std::vector<std::byte> closing = closing_block();
  const std::uint64_t room_max = options_.file_bytes_max - closing.size();
  for (std::size_t i = 0; i < begins_.size();) {
    // As many packets as fit the file.
    const std::size_t begin = begins_[i];
    std::size_t end = begin;
    for (; i < begins_.size(); ++i) {
      const std::size_t next = i + 1 < begins_.size() ? begins_[i + 1] : writing_.size();
      if (file_bytes_ + (next - begin) > room_max) break;
      end = next;
      ++written_;
    }
    if (end > begin && !write_all(std::span(writing_).subspan(begin, end - begin))) return false;
    if (i == begins_.size()) break;
    if (!write_all(closing) || !rotate()) return false;
    // Longer than a whole file.
    if (end == begin && file_bytes_ + packet_size(i) > room_max) ++i;
  }
  return true;
}

std::size_t CaptureFile::packet_size(std::size_t i) const {
  return (i + 1 < begins_.size() ? begins_[i + 1] : writing_.size()) - begins_[i];
}

// Goes on in a new file. False: it ends here.
bool CaptureFile::rotate() {
  if (options_.files_kept == 0) return false;
  for (std::uint32_t age = options_.files_kept; age > 0; --age)
    std::rename(older(options_.path, age - 1).c_str(), older(options_.path, age).c_str());
  UniqueFd next(create(options_.path));
  if (!next) {
    LOG_WARN("the capture ends: no further file can be made");
    return false;
  }
  take_file(std::move(next));
  return begin_file();
}

bool CaptureFile::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(file_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      LOG_WARN("the capture ends: its file cannot be written");
      return false;
    }
    file_bytes_ += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return true;
}

auto CaptureFile::stats() const -> Stats {
  const std::lock_guard flush_lock(flush_lock_);
  const std::lock_guard lock(buffer_lock_);
  Stats stats = stats_;
  stats.written = written_;
  return stats;
}

// ------------------------------------------------------------------------------------ the port

std::size_t CapturePort::send(std::span<const Train> trains, Instant now) {
  const std::size_t taken = inner_.send(trains, now);
  for (const Train& train : trains.first(taken)) {
    wire::IpHead head{.flow = {.source = train.route.from,
                               .destination = train.route.to,
                               .source_port = inner_.source_port(train.route)},
                      .traffic_class = static_cast<std::uint8_t>(
                          (train.route.traffic_class & 0xFC) | static_cast<int>(train.route.ecn))};
    if (train.route.hop_limit != 0) head.hop_limit = train.route.hop_limit;
    for (std::size_t i = 0; i < train.packets(); ++i) {
      head.id = static_cast<std::uint16_t>(train.first_id + i);
      const FrameHead frame(head, train.packet(i));
      file_.add({frame.bytes(), train.packet(i), false, now});
    }
  }
  return taken;
}

std::size_t CapturePort::receive(std::span<Received> into, Instant now) {
  const std::size_t given = inner_.receive(into, now);
  for (const Received& packet : into.first(given)) {
    wire::IpHead head{.flow = {.source = packet.from,
                               .destination = packet.to,
                               .source_port = packet.source_port},
                      .traffic_class = static_cast<std::uint8_t>(packet.ecn),
                      .id = packet.segment};
    // The ICRC tells what the id was.
    const auto verified = wire::FlowIcrc(head.flow).verify(packet.payload, packet.segment);
    if (verified) head.id = verified->id;
    const FrameHead frame(head, packet.payload);
    file_.add({frame.bytes(), packet.payload, true, now});
  }
  return given;
}

}  // namespace verbena::port
