// SPDX-License-Identifier: MIT
#include "host/shared_memory.h"

#include <linux/magic.h>
#include <sys/mman.h>

#include <cerrno>

#include "host/descriptor_limit.h"
#include "host/raw_calls.h"
#include "host/raw_memory.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace verbena::host {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

MemoryError memory_error_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE: return MemoryError::kNoDescriptor;
    case ENOMEM:
    case ENOSPC:
    case EAGAIN:
    case EFBIG: return MemoryError::kNoMemory;
    default: return MemoryError::kDenied;
  }
}

// `size` in whole pages; 0 where that is no size at all.
std::size_t whole_pages(std::size_t size) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (size > std::size_t{PTRDIFF_MAX} - page) return 0;
  return (size + page - 1) / page * page;
}

int new_memfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Systems with vm.memfd_noexec = 2 insist on the seal. Kernels before 6.3 do not know it, and
  // filters that were written before may refuse it.
  const int fd = raw::memory_file("verbena", kFlags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno == EMFILE || errno == ENFILE || errno == ENOMEM) return fd;
  return raw::memory_file("verbena", kFlags);
}

int new_memfd_above_limit() {
  const RaisedDescriptorLimit raised;
  return new_memfd();
}

bool take_pages(int fd, std::size_t size) {
  int failed = 0;
  do {
    failed = raw::take_pages(fd, size) == 0 ? 0 : errno;
  } while (failed == EINTR);
  errno = failed;
  // Where a filter refuses the call, the pages are taken when touched.
  return failed != ENOSPC && failed != ENOMEM && failed != EFBIG;
}

}  // namespace

const char* to_string(MemoryError error) {
  switch (error) {
    case MemoryError::kNoDescriptor: return "no descriptor left";
    case MemoryError::kNoMemory: return "no memory left";
    case MemoryError::kDenied: return "denied by the system";
    case MemoryError::kNotSealed: return "not a memfd of sealed size";
    case MemoryError::kWrongSize: return "a memfd of another size";
  }
  return "?";
}

auto SharedMemory::create(std::size_t size, Backing backing, Writers writers)
    -> Result<Created, MemoryError> {
  size = whole_pages(size);
  if (size == 0) return refuse(MemoryError::kNoMemory);
  PrivateFd fd(new_memfd());
  if (!fd && errno == EMFILE) fd = PrivateFd(new_memfd_above_limit());
  if (!fd) return refuse(memory_error_of(errno));
  if (raw::set_size(fd.get(), size) != 0) return refuse(memory_error_of(errno));
  if (backing == Backing::kNow && !take_pages(fd.get(), size)) {
    return refuse(memory_error_of(errno));
  }
  auto memory = map(fd.get(), size, kReadWrite);
  if (!memory) return refuse(memory.error());
  const int seals = kSizeSeals | (writers == Writers::kMaker ? F_SEAL_FUTURE_WRITE : 0);
  if (raw::add_seals(fd.get(), seals) != 0) return refuse(memory_error_of(errno));
  return Created{std::move(*memory), std::move(fd)};
}

auto SharedMemory::adopt(const PrivateFd& fd, std::size_t size)
    -> Result<SharedMemory, MemoryError> {
  return check_and_map(fd, size, kReadWrite);
}

auto SharedMemory::adopt_read_only(const PrivateFd& fd, std::size_t size)
    -> Result<SharedMemory, MemoryError> {
  return check_and_map(fd, size, PROT_READ);
}

auto SharedMemory::check_and_map(const PrivateFd& fd, std::size_t size, int rights)
    -> Result<SharedMemory, MemoryError> {
  size = whole_pages(size);
  const int seals = raw::seals(fd.get());
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) return refuse(MemoryError::kNotSealed);
  // Not hugetlbfs: a peer could punch a hole, and our next touch be SIGBUS where no huge page is
  // free.
  struct statfs system{};
  if (raw::file_system(fd.get(), system) != 0 || system.f_type != TMPFS_MAGIC) {
    return refuse(MemoryError::kNotSealed);
  }
  struct stat status{};
  if (raw::status(fd.get(), status) != 0) return refuse(MemoryError::kNotSealed);
  if (size == 0 || status.st_size != static_cast<off_t>(size)) {
    return refuse(MemoryError::kWrongSize);
  }
  return map(fd.get(), size, rights);
}

auto SharedMemory::map(int fd, std::size_t size, int rights) -> Result<SharedMemory, MemoryError> {
  void* at = raw_map(size, MAP_SHARED, fd, rights);
  if (at == MAP_FAILED) return refuse(memory_error_of(errno));
  SharedMemory memory;
  memory.data_ = static_cast<std::byte*>(at);
  memory.size_ = size;
  memory.process_ = getpid();
  // A forked child that wrote here would speak for its parent.
  if (!raw_advise(at, size, MADV_DONTFORK)) return refuse(MemoryError::kDenied);
  raw_advise(at, size, MADV_DONTDUMP);  // a refusal only makes core files larger
  return memory;
}

bool SharedMemory::is_ours() const { return data_ && process_ == getpid(); }

void SharedMemory::unmap() {
  if (is_ours()) raw_unmap(data_, size_);
  data_ = nullptr;
}

}  // namespace verbena::host
