// SPDX-License-Identifier: MIT
// Processes of the same user that send any frames and descriptors to a control thread: it goes on,
// lets go of everything that it was sent, and tells the end of each link that it said was up.
#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "base/assert.h"
#include "base/random.h"
#include "base/test_input.h"
#include "host/control.h"
#include "host/test_raw_link.h"

namespace verbena::host {
namespace {

const std::string& slot_name() {
  static const std::string name = "verbena-fuzz/" + std::to_string(getpid()) + "/";
  return name;
}

class Victim final : public ControlEvents {
 public:
  Victim() {
    KernelRandom random;
    auto started = Control::start(*this, random, {.slot_name = slot_name()});
    VERBENA_ASSERT(started.has_value());
    control_ = std::move(*started);
  }
  SlotAddress address() const { return {slot_name(), control_->first_slot()}; }
  SlotNumber slot() const { return control_->first_slot(); }
  ProcessId id() const { return control_->id(); }
  // Soon, when all have hung up.
  void expect_quiet() const {
    for (int tries = 0; up_ != down_; ++tries) {
      VERBENA_ASSERT(tries < 100'000);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    // One that gives no answer in time may have been kept from the processor.
    for (int tries = 0; !control_->call([] {}); ++tries)
      VERBENA_ASSERT(tries < 10);
  }

 private:
  void peer_up(std::unique_ptr<Peer>) override { ++up_; }
  void peer_down(PeerId) override { ++down_; }
  void slot_reached(SlotNumber, PeerId) override {}
  void slot_unreachable(SlotNumber, Refusal) override {}
  void message(PeerId from, std::span<const std::byte> bytes, PrivateFd attachment) override {
    static_cast<void>(SharedMemory::adopt(attachment, 4096));
    if (bytes.size() < 64) static_cast<void>(control_->send(from, bytes));
  }
  void tick(Instant) override {}

  std::unique_ptr<Control> control_;
  std::atomic<std::uint64_t> up_{0};
  std::atomic<std::uint64_t> down_{0};
};

// What may be passed, made once.
struct Files {
  SharedMemory::Created page = std::move(*SharedMemory::create(sizeof(ProcessPage)));
  UniqueFd unsealed{memfd_create("fuzz", MFD_CLOEXEC)};
  UniqueFd device{open("/dev/null", O_RDWR | O_CLOEXEC)};
  UniqueFd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  std::array<int, 4> all() const {
    return {page.fd.get(), unsealed.get(), device.get(), socket.get()};
  }
};

class ControlRun {
 public:
  ControlRun(const Victim& victim, const Files& files, TestInput input)
      : victim_(victim), files_(files), input_(input) {}

  void run() {
    for (int steps = 0; !input_.empty() && steps < 32; ++steps)
      step();
  }

 private:
  void step() {
    std::optional<Raw>& raw = raws_[input_.below(3)];
    const std::uint8_t what = input_.below(10);
    if (what == 0) return raw.reset();
    if (!raw) raw.emplace(victim_.address());
    if (what == 1) return shake_hands(*raw);
    if (what == 2) {
      // Whatever there is to hear.
      std::array<std::byte, 256> heard;
      static_cast<void>(recv(raw->fd(), heard.data(), heard.size(), MSG_DONTWAIT));
      return;
    }
    raw->send(take_frame(), take_files());
  }
  void shake_hands(Raw& raw) {
    raw.send(frame(FrameType::kHello, take_greeting()), {files_.page.fd.get()});
    raw.send(frame(FrameType::kReady));
  }
  Greeting take_greeting() {
    Greeting greeting = greeting_to(victim_.slot());
    greeting.id = {input_.take(), 7};
    return greeting;
  }
  Bytes take_frame() {
    const auto type = static_cast<FrameType>(input_.below(9));
    const std::uint8_t how = input_.take();
    Bytes bytes = frame(type, (how & 1) != 0 ? input_.take() : 0);
    if (type == FrameType::kHello || type == FrameType::kWelcome) append(bytes, take_greeting());
    if (type == FrameType::kSlots) append(bytes, take_greeting().slots);
    if ((how & 2) != 0) {
      const auto more = std::as_bytes(input_.take_bytes(input_.take()));
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    for (unsigned changes = how >> 6; changes > 0; --changes)
      bytes[input_.take() % bytes.size()] = static_cast<std::byte>(input_.take());
    if ((how & 4) != 0) bytes.resize(input_.take<std::uint16_t>() % (kFrameMax + 2));
    return bytes;
  }
  std::vector<int> take_files() {
    std::vector<int> chosen;
    const std::uint8_t count = input_.take();
    for (unsigned i = 0; i < (count & 0x80 ? count % 64u : count % 3u); ++i)
      chosen.push_back(files_.all()[input_.below(4)]);
    return chosen;
  }

  const Victim& victim_;
  const Files& files_;
  TestInput input_;
  std::array<std::optional<Raw>, 3> raws_;
};

}  // namespace
}  // namespace verbena::host

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena::host;  // NOLINT(google-build-using-namespace): a fuzzer is one function
  static const Victim* const victim = new Victim;
  static const Files* const files = new Files;
  ControlRun(*victim, *files, verbena::TestInput(data, size)).run();
  victim->expect_quiet();
  return 0;
}
