// SPDX-License-Identifier: MIT
// Memory that two processes map: a memfd whose size is sealed, so that no peer can take pages away
// under our reads (that would be SIGBUS). It stays out of forked children and of core dumps.
//
// Creating and adopting happen on the control thread, whose descriptors these are. The mapping
// needs no descriptor: it moves to, and ends on, any thread. Every byte in it is hostile: a peer
// writes whenever it likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/assert.h"
#include "base/result.h"
#include "host/private_fd.h"

namespace verbena::host {

enum class MemoryError : std::uint8_t {
  kNoDescriptor,  // the process has no descriptor left
  kNoMemory,      // no memory, no address space, or a limit on file sizes
  kDenied,        // the kernel or a filter refuses the system call
  kNotSealed,     // a peer's descriptor that is no memfd, or could still change its size
  kWrongSize,     // a peer's memfd of another size than agreed
};
const char* to_string(MemoryError error);

// When the pages are taken: at once (running out is then an error here), or when touched (then it
// is SIGBUS).
enum class Backing : std::uint8_t { kNow, kWhenTouched };

// Who may write: everybody who has the descriptor, or only the process that made it, by the mapping
// it has already (Linux 5.1).
enum class Writers : std::uint8_t { kEverybody, kMaker };

class SharedMemory {
 public:
  struct Created;

  // `size` is rounded up to pages, and the content is zero.
  static Result<Created, MemoryError> create(std::size_t size, Backing backing = Backing::kNow,
                                             Writers writers = Writers::kEverybody);
  // Maps a descriptor that came from a peer, which must be as create(size) makes it. The descriptor
  // is not needed after.
  static Result<SharedMemory, MemoryError> adopt(const PrivateFd& fd, std::size_t size);
  // The same to look at only, as memory of which the maker is the only writer must be.
  static Result<SharedMemory, MemoryError> adopt_read_only(const PrivateFd& fd, std::size_t size);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    SharedMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~SharedMemory() { unmap(); }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }  // whole pages
  // False in a forked child, which has nothing there.
  bool is_ours() const;

  // What lies at `offset`: a type whose layout both processes share.
  template <class T>
  T& at(std::size_t offset) const {
    VERBENA_ASSERT(offset % alignof(T) == 0 && offset <= size_ && sizeof(T) <= size_ - offset);
    return *reinterpret_cast<T*>(data_ + offset);
  }

 private:
  void swap(SharedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(process_, other.process_);
  }
  static Result<SharedMemory, MemoryError> check_and_map(const PrivateFd& fd, std::size_t size,
                                                         int rights);
  static Result<SharedMemory, MemoryError> map(int fd, std::size_t size, int rights);
  void unmap();

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int process_ = 0;  // who mapped it: a forked child may have something else at this address
};

struct SharedMemory::Created {
  SharedMemory memory;
  PrivateFd fd;  // to be passed to peers; of the calling thread
};

}  // namespace verbena::host
