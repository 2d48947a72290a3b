// SPDX-License-Identifier: MIT
// What a process publishes to its peers on this host: which memory its keys name and where they
// find it, what its queue pairs grant, and the locks under which it touches memory of others. A
// memfd that its owner writes and peers map read-only.
//
// A peer that executes a one-sided operation by itself (local/direct.h) does so inside an access
// section, the holding of its own queue pair's lock, which lies in its own published memory:
//   the peer:   takes its lock (a full fence), reads grant and region here, copies, looks at the
//               region's identity once more, gives the lock back
//   the owner:  clears the grant or the identity, fences, and waits until each lock that was held
//               at that time has been given back once
// One of the two sees the other, so after the wait nobody touches what was taken away.
//
// To the reader everything here is hostile: it copies what it uses, and bounds it by its own
// mappings.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/section_lock.h"
#include "base/types.h"
#include "host/shared_memory.h"
#include "memory/region_table.h"

namespace verbena::local {

// Where the bytes [begin, end) of a region lie in a file that peers map: none when begin == end.
struct MappedPart {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;  // of byte `begin` in the file
  std::uint32_t file = 0;    // FileId
};

// A file of a process: its generation, and whether peers may write it.
struct FileId {
  static constexpr std::uint32_t kWritable = 1;
  std::uint32_t value = 0;  // generation << 1 | kWritable; 0: no file
  static constexpr FileId of(std::uint32_t generation, bool is_writable) {
    return {generation << 1 | (is_writable ? kWritable : 0)};
  }
  constexpr bool is_writable() const { return value & kWritable; }
  friend constexpr auto operator<=>(FileId, FileId) = default;
};

struct alignas(64) PublishedRegion {
  // Key in the lower half, a count of publications above: 0 is no region. Stored last, cleared
  // first.
  std::atomic<std::uint64_t> identity;
  std::uint32_t pd;
  std::uint32_t access;   // memory::AccessFlag
  std::uint64_t iova;     // of its first byte
  std::uint64_t length;   // bytes
  std::uint64_t address;  // of its first byte in the owner; 0: not in one piece
  std::uint64_t offset;   // MappedPart
  std::uint32_t file;     // MappedPart
  std::uint32_t begin;    // MappedPart: less than a page
  std::uint64_t end;      // MappedPart
};
static_assert(sizeof(PublishedRegion) == 64);

struct PublishedQp {
  // Written with every message of the owner's.
  alignas(64) SectionLock lock;
  // Read by the peer. 0: nothing is granted. Else the peer's number in the upper half, and the
  // rights: memory::AccessFlag, kOpen.
  static constexpr std::uint32_t kOpen = 1u << 31;
  alignas(64) std::atomic<std::uint64_t> grant;
  std::atomic<std::uint64_t> connection;  // the conduit that the peer must have taken
  std::atomic<std::uint32_t> pd;
};
static_assert(sizeof(PublishedQp) == 128);

inline constexpr std::uint32_t kPublishedRegions = 65'536;
inline constexpr std::uint32_t kPublishedQps = QpNum::kIndexMask + 1;

struct PublishedTables {
  static constexpr std::uint64_t kMagic = 0x01'64'65'68'73'6C'62'50;  // "Pblshed\1" in memory

  std::uint64_t magic;
  std::uint32_t slot;  // the queue pairs below are those of this slot
  PublishedRegion regions[kPublishedRegions];
  PublishedQp queue_pairs[kPublishedQps];
};
inline constexpr std::size_t kPublishedSize = sizeof(PublishedTables);

// Which place of the table a key has.
constexpr std::uint32_t published_place(MemoryKey key) { return key.value % kPublishedRegions; }

// The owner's side. Empty where there is no memory for it: then nothing is published, and peers
// take the ring. Not locked: one thread changes a region or a grant at a time.
class Published {
 public:
  Published() = default;
  // `memory` is zero and of kPublishedSize.
  Published(host::SharedMemory memory, SlotNumber slot);

  explicit operator bool() const { return static_cast<bool>(memory_); }
  const PublishedTables& tables() const { return memory_.at<PublishedTables>(0); }

  // Null: this queue pair has no place here.
  SectionLock* lock_of(QpNum number) const;
  // What peer `to` may do by itself on our queue pair. The place has no grant.
  struct Grant {
    PdId pd;
    QpNum to;
    std::uint32_t rights = 0;  // memory::AccessFlag
    std::uint64_t connection = 0;
  };
  void grant(QpNum number, const Grant& grant) const;
  // Takes it back. The caller fences and waits.
  void revoke(QpNum number) const;

  struct Region {
    PdId pd;
    std::uint32_t access = 0;
    std::uint64_t iova = 0;
    std::uint64_t length = 0;
    const std::byte* address = nullptr;
    MappedPart mapped;
  };
  // The place of the key must be hidden, or never used.
  void show(MemoryKey key, const Region& region);
  // The caller fences and waits, before it shows something else there.
  void hide(MemoryKey key);

 private:
  PublishedTables& all() const { return memory_.at<PublishedTables>(0); }
  host::SharedMemory memory_;
  std::uint32_t publications_ = 0;
};

}  // namespace verbena::local
