// SPDX-License-Identifier: MIT
// A peer of a stream that says anything as its private data and immediates, and writes anything
// where it may write: no more is readable than our buffer holds, and nothing that we tell refers to
// memory of ours that is not the stream's.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"
#include "base/test_input.h"
#include "rsocket/stream.h"

namespace verbena::rsocket {
namespace {

constexpr std::uint32_t kBuffer = 64;
constexpr std::uint32_t kMaps = 2;

class StreamRun {
 public:
  explicit StreamRun(TestInput input) : input_(input) {}

  void run() {
    Hello hello = other().hello();
    if (input_.one_in(2)) input_.fill(&hello, input_.below(sizeof hello + 1));
    const auto bytes = std::as_bytes(std::span(&hello, 1));
    if (!stream_.begin(bytes.first(sizeof hello - (input_.one_in(8) ? 1 : 0)))) return;
    for (int steps = 0; !input_.empty() && steps < 200; ++steps) {
      step();
      check();
    }
  }

 private:
  struct Notes {
    PeerNotes notes;
    std::array<MappedPlace, kMaps> maps;
  };
  static Stream::Setup setup(std::array<std::byte, kBuffer>& buffer, Notes& notes) {
    return {.receive_bytes = kBuffer,
            .credits = 8,
            .buffer_address = reinterpret_cast<std::uintptr_t>(buffer.data()),
            .buffer_key = 1,
            .notes_address = reinterpret_cast<std::uintptr_t>(&notes),
            .notes_key = 2,
            .notes = &notes.notes,
            .maps = notes.maps};
  }
  static Stream other() {
    static std::array<std::byte, kBuffer> buffer;
    static Notes notes;
    return Stream(setup(buffer, notes));
  }

  void step() {
    switch (input_.below(8)) {
      case 0:
      case 1: return hear();
      case 2: return input_.fill(&notes_, input_.below(sizeof notes_ + 1));
      case 3: return send();
      case 4: return stream_.consumed(input_.below(kBuffer + 1) % (stream_.readable() + 1));
      case 5: return tell();
      case 6: return map();
      default:
        if (input_.one_in(16)) stream_.shut_down(static_cast<Half>(input_.below(3)));
    }
  }
  void hear() {
    const std::uint8_t how = input_.take();
    const std::uint32_t value = how == 0xFF ? input_.take<std::uint32_t>() : input_.take();
    const auto heard = stream_.received(immediate_of(static_cast<Op>(how & 7), value));
    if (!heard && input_.one_in(2)) stream_.lost();
  }
  // Any place of the peer's is as good as any other, but not for more than was asked.
  void send() {
    const std::uint32_t wanted = input_.take();
    if (stream_.may_send()) {
      const auto write = stream_.send(wanted);
      VERBENA_ASSERT(!write || write->length <= wanted);
    }
    const auto mapped = stream_.send_mapped(input_.take(), wanted);
    VERBENA_ASSERT(!mapped || mapped->length <= wanted);
  }
  void tell() {
    const auto write = stream_.next_control();
    VERBENA_ASSERT(!write || write->length <= write->body.size());
  }
  void map() {
    const auto index = stream_.map({.offset = input_.take(), .place = {1, 1, 1}});
    VERBENA_ASSERT(!index || *index < kMapsMax);
    if (index && input_.one_in(2)) stream_.unmap(*index);
  }
  void check() const {
    VERBENA_ASSERT(stream_.readable() <= kBuffer);
    VERBENA_ASSERT(stream_.read_offset() < kBuffer);
  }

  TestInput input_;
  std::array<std::byte, kBuffer> buffer_{};
  Notes notes_{};
  Stream stream_{setup(buffer_, notes_)};
};

}  // namespace
}  // namespace verbena::rsocket

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::rsocket::StreamRun(verbena::TestInput(data, size)).run();
  return 0;
}
