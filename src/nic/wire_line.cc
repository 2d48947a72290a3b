// SPDX-License-Identifier: MIT
#include "nic/wire_line.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "nic/engine.h"
#include "port/capture_path.h"
#include "port/fault_text.h"

namespace verbena::nic {
namespace {

// A bad line gives packets when their time has come, and no descriptor shows it.
constexpr Duration kFaultPatience = Duration::microseconds(200);
constexpr Duration kCapturePatience = Duration::milliseconds(20);
constexpr std::uint64_t kCaptureBytesMax = std::uint64_t{1} << 30;
constexpr std::uint32_t kCaptureBuffer = 32 << 20;

// Who asks for faults or a recording wants to know that there are none, whatever VERBENA_LOG says.
void complain(const char* variable, const char* value, const char* why) {
  dprintf(STDERR_FILENO, "verbena: %s=%s: %s\n", variable, value, why);
}

std::int64_t wall_offset() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec - clock_now().nanoseconds();
}

}  // namespace

LineOptions LineOptions::from_environment() {
  LineOptions options;
  const char* const faults = secure_getenv("VERBENA_FAULT");
  if (faults && *faults) {
    auto parsed = port::parse_faults(faults);
    options.is_wrong = !parsed;
    if (parsed) {
      options.faults = *parsed;
    } else {
      const std::string why = parsed.error() + "; nothing goes by the wire until that is right";
      complain("VERBENA_FAULT", faults, why.c_str());
    }
  }
  const char* const capture = secure_getenv("VERBENA_CAPTURE");
  if (capture) options.capture = capture;
  return options;
}

WireLine::WireLine(port::Port& sockets, const LineOptions& options) : port_(&sockets) {
  if (!options.capture.empty()) open_capture(options.capture);
  if (file_) {
    capture_ = std::make_unique<port::CapturePort>(*port_, *file_);
    port_ = capture_.get();
  }
  if (options.faults) {
    impaired_ = std::make_unique<port::ImpairedPort>(*port_, *options.faults);
    port_ = impaired_.get();
  }
}

void WireLine::open_capture(const std::string& path) {
  auto file = port::CaptureFile::open({.path = port::capture_path(path, getpid()),
                                       .file_bytes_max = kCaptureBytesMax,
                                       .buffer_bytes = kCaptureBuffer,
                                       .wall_offset = wall_offset()});
  if (!file) return complain("VERBENA_CAPTURE", path.c_str(), port::to_string(file.error()));
  file_ = std::move(*file);
}

std::optional<Duration> WireLine::patience() const {
  if (impaired_) return kFaultPatience;
  if (file_) return kCapturePatience;
  return std::nullopt;
}

void WireLine::tend(Instant now, bool is_last) {
  if (!file_ || (now - tended_ < kCapturePatience && !is_last)) return;
  tended_ = now;
  static_cast<void>(file_->flush());
}

}  // namespace verbena::nic
