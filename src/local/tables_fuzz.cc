// SPDX-License-Identifier: MIT
// A peer process that writes whatever it likes into the tables of keys, grants and files that it
// publishes to us, while we map its regions and execute one-sided operations by ourselves: only
// what is mapped of its files is touched.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "base/assert.h"
#include "base/test_input.h"
#include "local/test_initiator.h"

namespace verbena::local {
namespace {

constexpr std::size_t kFileBytes = 64 * 1024;

// Made once: its tables take 6 MB.
Target& target() {
  static Target made(kFileBytes);
  return made;
}

class TableRun {
 public:
  explicit TableRun(TestInput input) : input_(input), initiator_(target()) {
    std::memset(static_cast<void*>(&target().place()), 0, sizeof(PublishedRegion));
    initiator_.map();
  }
  ~TableRun() { initiator_.revoke(); }
  TableRun(const TableRun&) = delete;
  TableRun& operator=(const TableRun&) = delete;

  void run() {
    for (int steps = 0; !input_.empty() && steps < 64; ++steps)
      step();
  }

 private:
  void step() {
    switch (input_.below(8)) {
      case 0: return change_field();
      case 1: return scribble();
      case 2: return grant();
      case 3: target().published.hide(Target::kKey); return target().show();
      case 4: return initiator_.memory.map_now(Target::kKey, target().files);
      case 5: return look();
      default: return execute();
    }
  }
  std::uint64_t wild(std::uint64_t sensible) {
    const std::uint8_t code = input_.take();
    if (code >= 0xF0) return input_.take<std::uint64_t>();
    if (code >= 0xE0) return std::uint64_t{1} << input_.below(64);
    return sensible + code - 0x70;
  }
  void change_field() {
    PublishedRegion& place = target().place();
    switch (input_.below(9)) {
      case 0: place.pd = static_cast<std::uint32_t>(wild(place.pd)); break;
      case 1: place.access = static_cast<std::uint32_t>(wild(place.access)); break;
      case 2: place.iova = wild(place.iova); break;
      case 3: place.length = wild(place.length); break;
      case 4: place.offset = wild(place.offset); break;
      case 5: place.file = static_cast<std::uint32_t>(wild(place.file)); break;
      case 6: place.begin = static_cast<std::uint32_t>(wild(place.begin)); break;
      case 7: place.end = wild(place.end); break;
      default: place.identity = place.identity + (std::uint64_t{input_.take()} << 32); break;
    }
  }
  void scribble() {
    const std::size_t at = input_.take() % sizeof(PublishedRegion);
    input_.fill(reinterpret_cast<std::byte*>(&target().place()) + at, sizeof(PublishedRegion) - at);
  }
  void grant() {
    initiator_.grant(input_.take<std::uint32_t>(), Initiator::kSelf,
                     input_.one_in(4) ? 1 : Initiator::kConnection, {input_.below(8)});
  }
  // All that is said to be mapped is.
  void look() {
    const std::lock_guard section(initiator_.lock());
    const auto region = initiator_.memory.find(Target::kKey);
    if (!region || !region->base) return;
    const std::uint64_t size = region->mapped.end - region->mapped.begin;
    VERBENA_ASSERT(size <= kFileBytes && region->mapped.end <= region->length);
    const auto begin = reinterpret_cast<std::uintptr_t>(region->base) / 4096 * 4096;
    const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(region->base) + size;
    VERBENA_ASSERT(size == 0 || msync(reinterpret_cast<void*>(begin), end - begin, MS_ASYNC) == 0);
  }
  void execute() {
    constexpr std::array kOpcodes{queues::SendOpcode::kWrite, queues::SendOpcode::kRead,
                                  queues::SendOpcode::kFetchAdd, queues::SendOpcode::kCompareSwap};
    const auto opcode = kOpcodes[input_.below(4)];
    std::uint32_t length = input_.take<std::uint16_t>();
    const bool is_atomic =
        opcode == queues::SendOpcode::kFetchAdd || opcode == queues::SendOpcode::kCompareSwap;
    if (is_atomic) length = 8;
    const std::uint64_t address = input_.one_in(8)
                                      ? wild(target().place().iova)
                                      : target().address() + input_.take<std::uint16_t>();
    if (initiator_.end.pair.state() != qp::QpState::kReadyToSend) return;
    initiator_.execute_at(opcode, address, length);
  }

  TestInput input_;
  Initiator initiator_;
};

}  // namespace
}  // namespace verbena::local

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::local::TableRun(verbena::TestInput(data, size)).run();
  return 0;
}
