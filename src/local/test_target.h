// SPDX-License-Identifier: MIT
// Both sides of published memory in one process, for tests: the owner's mappings and those of a
// peer are different ones of the same files, as in two processes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "local/peer_memory.h"
#include "local/published.h"

namespace verbena::local {

inline constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// As memory::Arena makes them.
inline host::PrivateFd make_file(std::size_t size, int seals = kSizeSeals) {
  const int file = memfd_create("verbena-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_GE(file, 0);
  EXPECT_EQ(ftruncate(file, static_cast<off_t>(size)), 0);
  if (seals) {
    EXPECT_EQ(fcntl(file, F_ADD_SEALS, seals), 0);
  }
  return host::PrivateFd(file);
}

// Notes what was asked for.
class AskedMappings final : public MappingRequests {
 public:
  void want_mapping(MemoryKey key) override { asked.push_back(key); }
  void want_room() override { host::MemoryFile::make_room_if_wanted(); }
  std::vector<MemoryKey> asked;
};

// A process that publishes one file of memory, and what its peer holds of it.
class Target {
 public:
  static constexpr std::size_t kSize = 1 << 20;
  static constexpr SlotNumber kSlot{3};
  static constexpr FileId kFile = FileId::of(1, true);
  static constexpr MemoryKey kKey{0x12340007};
  static constexpr PdId kPd{5};
  static constexpr std::uint32_t kRights =
      memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;

  explicit Target(std::size_t size = kSize) : size_(size) {
    auto created = host::SharedMemory::create(kPublishedSize, host::Backing::kWhenTouched,
                                              host::Writers::kMaker);
    EXPECT_TRUE(created.has_value());
    tables_file_ = std::move(created->fd);
    view = look();
    published = Published(std::move(created->memory), kSlot);
    host::PrivateFd file = make_file(size);
    memory = static_cast<std::byte*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    EXPECT_NE(static_cast<void*>(memory), MAP_FAILED);
    files.take(kFile, std::move(file));
  }
  ~Target() { munmap(memory, size_); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // What a peer maps.
  host::SharedMemory look() const {
    auto seen = host::SharedMemory::adopt_read_only(tables_file_, kPublishedSize);
    EXPECT_TRUE(seen.has_value());
    return std::move(*seen);
  }
  // As a hostile owner writes them.
  PublishedTables& tables() { return const_cast<PublishedTables&>(published.tables()); }
  PublishedRegion& place(MemoryKey key = kKey) { return tables().regions[published_place(key)]; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory); }
  Published::Region region() const {
    return {.pd = kPd,
            .access = kRights,
            .iova = address(),
            .length = size_,
            .address = memory,
            .mapped = {.begin = 0, .end = size_, .offset = 0, .file = kFile.value}};
  }
  void show(MemoryKey key = kKey) { published.show(key, region()); }

  Published published;
  host::SharedMemory view;
  PeerFiles files;  // the peer's
  std::byte* memory = nullptr;

 private:
  std::size_t size_;
  host::PrivateFd tables_file_;
};

}  // namespace verbena::local
