// SPDX-License-Identifier: MIT
// What we know of the memory of one process on this host: its published tables, and those of its
// files' pieces that we have mapped.
//
// Looking up is for any thread in an access section; mapping and unmapping are for the control
// thread, which has the descriptors. Only the regions that are used get mapped: the first operation
// on one asks for it and takes another way meanwhile.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/types.h"
#include "host/memory_file.h"
#include "host/private_fd.h"
#include "host/shared_memory.h"
#include "local/published.h"
#include "memory/access_sections.h"

namespace verbena::local {

// Asks the control thread to call map_now() soon. On any thread, with a queue pair's lock held.
class MappingRequests {
 public:
  virtual void want_mapping(MemoryKey key) = 0;
  // The same of the NIC's thread and MemoryFile::make_room_if_wanted().
  virtual void want_room() = 0;

 protected:
  ~MappingRequests() = default;
};

// The files of a process that it passed to us. The control thread's.
class PeerFiles {
 public:
  // Refuses what is no memory of sealed size.
  void take(FileId id, host::PrivateFd descriptor);
  // -1: it has not come.
  int find(FileId id) const;
  std::size_t count() const { return files_.size(); }
  // What is mapped already stays mapped.
  void drop() { files_.clear(); }

 private:
  static constexpr std::size_t kMost = 4;
  std::map<FileId, host::PrivateFd> files_;
};

class PeerMemory {
 public:
  // `owner`: for process_vm_writev, without a pid where that does not reach the peer. `sections`:
  // ours.
  PeerMemory(const host::MemoryOwner& owner, MappingRequests& requests,
             memory::AccessSections& sections);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // -- any thread, in an access section --------------------------------------------------------
  // Null: the peer has not published anything (yet).
  const PublishedTables* tables() const { return tables_.load(std::memory_order_acquire); }
  pid_t process() const { return process_; }
  // All that it has, for small operations.
  host::MemoryFile& file() { return file_; }
  void look_at_file() {
    if (file_.look()) requests_.want_room();
  }

  // A region of the peer as it was published, copied and checked for consistency.
  struct Region {
    std::uint64_t identity = 0;
    PdId pd;
    std::uint32_t access = 0;
    std::uint64_t iova = 0;
    std::uint64_t length = 0;
    std::uint64_t address = 0;  // in the peer; 0: not in one piece
    MappedPart mapped;
    // Of byte mapped.begin in our address space; null: not mapped here (yet).
    std::byte* base = nullptr;
    bool may_write_mapping = false;
  };
  // None: no such key. Asks for a mapping where there could be one.
  std::optional<Region> find(MemoryKey key);
  // Whether what find() gave still holds: after an operation, before it is reported done.
  bool still_holds(MemoryKey key, std::uint64_t identity) const {
    return tables()->regions[published_place(key)].identity.load(std::memory_order_acquire) ==
           identity;
  }

  // How often mappings were taken out of use. What find() gave in an earlier section is good only
  // if this is still the same: the identity alone is the peer's to choose.
  std::uint64_t drops() const { return drops_.load(std::memory_order_acquire); }

  // -- the control thread ----------------------------------------------------------------------
  void take_tables(host::SharedMemory memory);
  // A file of the peer came: what could not be mapped for want of it is tried again.
  void forget_failures();
  // Maps the region of this key, if it can be mapped.
  void map_now(MemoryKey key, const PeerFiles& files);

 private:
  // Never changed once it is in places_.
  struct Mapping {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;   // of the region's mapped part
    std::byte* base = nullptr;  // null: it cannot be mapped
    std::byte* pages = nullptr;
    std::size_t size = 0;
  };
  static constexpr std::size_t kMappingsMax = 4096;

  std::atomic<const Mapping*>* places() const { return places_.load(std::memory_order_acquire); }
  static bool fits(const Mapping& mapping, const MappedPart& part);
  std::optional<Region> read(MemoryKey key) const;
  bool make_places();
  void drop_stale();
  void drop(const std::vector<std::uint32_t>& places);
  std::unique_ptr<Mapping> map(const Region& region, const PeerFiles& files);
  void unmap(const Mapping& mapping);
  bool has_room(std::uint64_t length) const;

  const pid_t process_;
  host::MemoryFile file_;
  MappingRequests& requests_;
  memory::AccessSections& sections_;
  host::SharedMemory memory_;
  std::atomic<const PublishedTables*> tables_{nullptr};
  // One for each place of the peer's table; made when the first region is mapped.
  std::atomic<std::atomic<const Mapping*>*> places_{nullptr};
  std::atomic<std::uint64_t> drops_{0};
  std::size_t mapped_ = 0;                                      // of mappings_, those with pages
  std::uint64_t mapped_bytes_ = 0;                              // of them
  std::map<std::uint32_t, std::unique_ptr<Mapping>> mappings_;  // the control thread's, by place
};

}  // namespace verbena::local
