// SPDX-License-Identifier: MIT
// What the cases and the scenes of bad input share.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "node.h"

namespace probe {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::uint32_t kSize = 2 * kPage;  // of each target
inline constexpr std::byte kCanary{0xC7};

// Where the kernel maps nothing by itself: a case that unmaps it finds it unmapped, although the
// library, like anybody, maps something meanwhile.
inline std::byte* map_far_away(std::size_t size) {
  static std::uintptr_t next = std::uintptr_t{1} << 37;
  void* const wanted = reinterpret_cast<void*>(next);
  next += 2 * size;
  void* const at = mmap(wanted, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  require(at == wanted, "mmap of a certain address: %s", strerror(errno));
  return static_cast<std::byte*>(at);
}

// A page of canary, the target, a page of canary.
struct Target {
  std::byte* base = nullptr;
  std::byte* data() const { return base + kPage; }
  bool is_untouched() const {
    for (std::size_t i = 0; i < kSize + 2 * kPage; ++i) {
      if (base[i] != kCanary) return false;
    }
    return true;
  }
  static Target make() {
    Target target{map_far_away(kSize + 2 * kPage)};
    std::memset(target.base, static_cast<int>(kCanary), kSize + 2 * kPage);
    return target;
  }
};

void drain_events(Node& node);

// What needs no table.
struct Scene {
  const char* name;
  void (*target)(Node&, Wire&);
  void (*initiator)(Node&, Wire&);
};
std::span<const Scene> bad_input_scenes();

}  // namespace probe
