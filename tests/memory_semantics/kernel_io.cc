// SPDX-License-Identifier: MIT
// The kernel and other processes as users of the memory: they hold on to its pages, or write to
// them, behind the program's back.
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "world.h"

namespace semantics {
namespace {

constexpr std::size_t kBufferSize = 64 * kKilo;

// An io_uring with the memory as its fixed buffer, and a pipe to read from and write to.
class FixedBuffer {
 public:
  FixedBuffer(std::byte* memory, std::size_t size) : memory_(memory) {
    const int made = io_uring_queue_init(8, &ring_, 0);
    if (made == -EPERM || made == -ENOSYS) skip("io_uring is not allowed here");
    require(made == 0, "io_uring_queue_init: %s", strerror(-made));
    const iovec buffer{memory, size};
    const int done = io_uring_register_buffers(&ring_, &buffer, 1);
    require(done == 0, "io_uring_register_buffers: %s", strerror(-done));
    require(pipe(pipe_) == 0, "pipe");
  }
  ~FixedBuffer() {
    io_uring_queue_exit(&ring_);
    close(pipe_[0]);
    close(pipe_[1]);
  }
  FixedBuffer(const FixedBuffer&) = delete;
  FixedBuffer& operator=(const FixedBuffer&) = delete;

  // The kernel writes the pattern to the memory, and finds what the program wrote there.
  void use(std::size_t at, std::uint64_t seed, const char* when) {
    std::byte block[kPage];
    fill(block, kPage, seed);
    require(::write(pipe_[1], block, kPage) == static_cast<ssize_t>(kPage), "write");
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_read_fixed(entry, pipe_[0], memory_ + at, kPage, 0, 0);
    run_one();
    expect(memory_ + at, kPage, seed, when);
    fill(memory_ + at, kPage, seed + 1);
    entry = io_uring_get_sqe(&ring_);
    io_uring_prep_write_fixed(entry, pipe_[1], memory_ + at, kPage, 0, 0);
    run_one();
    require(::read(pipe_[0], block, kPage) == static_cast<ssize_t>(kPage), "read");
    expect(block, kPage, seed + 1, when);
  }

 private:
  void run_one() {
    require(io_uring_submit(&ring_) == 1, "io_uring_submit");
    io_uring_cqe* done = nullptr;
    require(io_uring_wait_cqe(&ring_, &done) == 0, "io_uring_wait_cqe");
    require(done->res == static_cast<int>(kPage), "a fixed buffer's transfer: %s",
            strerror(-done->res));
    io_uring_cqe_seen(&ring_, done);
  }
  io_uring ring_{};
  std::byte* memory_;
  int pipe_[2] = {-1, -1};
};

// The peer and the kernel, in turns, on one page.
void use_both(Peer& peer, ibv_mr* mr, FixedBuffer& fixed, std::byte* memory, const char* when) {
  for (std::size_t at = 0; at < kBufferSize; at += 5 * kPage) {
    fixed.use(at, at, when);
    peer.read(mr, memory + at, kPage, at + 1);
    peer.write(mr, memory + at, kPage, at + 2);
    expect(memory + at, kPage, at + 2, when);
  }
}

// Fixed buffers hold pages. Moved from under them, the kernel goes on writing to pages that the
// program no longer sees, without a word. Registered with the ring before the NIC sees them, or
// between its coming and going, or both.
void uring_fixed_before(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(30, 300); ++round) {
    std::byte* const memory = map_pages(kBufferSize);
    FixedBuffer fixed(memory, kBufferSize);
    fixed.use(0, round, "before registration");
    ibv_mr* const mr = peer.reg(memory, kBufferSize);
    use_both(peer, mr, fixed, memory, "fixed before registration, while registered");
    Peer::dereg(mr);
    fixed.use(kPage, round, "fixed before registration, after deregistration");
    munmap(memory, kBufferSize);
  }
}

void uring_fixed_meanwhile(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(30, 300); ++round) {
    std::byte* const memory = map_pages(kBufferSize);
    ibv_mr* const mr = peer.reg(memory, kBufferSize);
    FixedBuffer fixed(memory, kBufferSize);
    use_both(peer, mr, fixed, memory, "fixed after registration");
    Peer::dereg(mr);
    for (std::size_t at = 0; at < kBufferSize; at += 5 * kPage)
      fixed.use(at, round, "fixed after registration, after deregistration");
    ibv_mr* const again = peer.reg(memory, kBufferSize);
    use_both(peer, again, fixed, memory, "fixed, registered again");
    Peer::dereg(again);
    munmap(memory, kBufferSize);
  }
}

// A file of patterns on a real file system, opened past the page cache.
class DirectFile {
 public:
  static constexpr std::size_t kBlocks = 256;
  DirectFile() {
    char name[] = "/var/tmp/verbena-direct-XXXXXX";
    const int plain = mkstemp(name);
    require(plain >= 0, "a temporary file: %s", strerror(errno));
    fd_ = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
    const bool is_refused = fd_ < 0;
    unlink(name);
    if (is_refused) skip("the file system of /var/tmp refuses O_DIRECT");
    std::vector<std::byte> block(kPage);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      fill(block.data(), kPage, i);
      require(::write(plain, block.data(), kPage) == static_cast<ssize_t>(kPage), "write");
    }
    require(fsync(plain) == 0, "fsync");
    close(plain);
  }
  ~DirectFile() { close(fd_); }
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// O_DIRECT reads of threads land in the memory while it comes and goes. The device writes to pages
// that the kernel found some time before: moved meanwhile, the program sees the old bytes.
void direct_reads(World& world) {
  Peer peer(world.next());
  const DirectFile file;
  std::byte* const memory = map_pages(kBufferSize);
  std::atomic<bool> is_over{false};
  std::atomic<unsigned> reads{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      Numbers numbers(60 + thread);
      while (!is_over) {
        // Each its own half.
        const std::size_t block = numbers.between(0, DirectFile::kBlocks - 1);
        std::byte* const at = memory + thread * kBufferSize / 2 + numbers.between(0, 7) * kPage;
        memset(at, 0x77, kPage);
        const ssize_t got = pread(file.fd(), at, kPage, static_cast<off_t>(block * kPage));
        require(got == static_cast<ssize_t>(kPage), "an O_DIRECT read: %s",
                got < 0 ? strerror(errno) : "short");
        expect(at, kPage, block, "an O_DIRECT read");
        ++reads;
      }
    });
  }
  for (unsigned round = 0; round < rounds(800, 20'000) || reads < 500; ++round) {
    ibv_mr* const mr = peer.reg(memory, kBufferSize);
    usleep(round % 4 * 20);
    Peer::dereg(mr);
  }
  is_over = true;
  for (std::thread& thread : threads)
    thread.join();
}

// The same, asynchronously: the reads are under way in the kernel when the region comes or goes.
void direct_reads_in_flight(World& world) {
  constexpr unsigned kDepth = 16;
  Peer peer(world.next());
  const DirectFile file;
  std::byte* const memory = map_pages(kDepth * kPage);
  io_uring ring{};
  const int made = io_uring_queue_init(kDepth, &ring, 0);
  if (made == -EPERM || made == -ENOSYS) skip("io_uring is not allowed here");
  require(made == 0, "io_uring_queue_init: %s", strerror(-made));
  for (unsigned round = 0; round < rounds(400, 10'000); ++round) {
    const bool is_leaving = round % 2 == 1;
    ibv_mr* mr = is_leaving ? peer.reg(memory, kDepth * kPage) : nullptr;
    memset(memory, 0x77, kDepth * kPage);
    for (unsigned i = 0; i < kDepth; ++i) {
      const std::size_t block = (round + i) % DirectFile::kBlocks;
      io_uring_prep_read(io_uring_get_sqe(&ring), file.fd(), memory + i * kPage, kPage,
                         block * kPage);
    }
    require(io_uring_submit(&ring) == static_cast<int>(kDepth), "io_uring_submit");
    if (is_leaving) {
      Peer::dereg(mr);
    } else {
      mr = peer.reg(memory, kDepth * kPage);
    }
    for (unsigned i = 0; i < kDepth; ++i) {
      io_uring_cqe* done = nullptr;
      require(io_uring_wait_cqe(&ring, &done) == 0, "io_uring_wait_cqe");
      require(done->res == static_cast<int>(kPage), "an O_DIRECT read in flight: %s",
              strerror(-done->res));
      io_uring_cqe_seen(&ring, done);
    }
    for (unsigned i = 0; i < kDepth; ++i)
      expect(
          memory + i * kPage, kPage, (round + i) % DirectFile::kBlocks,
          is_leaving ? "a read in flight at deregistration" : "a read in flight at registration");
    if (!is_leaving) {
      peer.read(mr, memory, kPage, round % DirectFile::kBlocks);
      Peer::dereg(mr);
    }
  }
  io_uring_queue_exit(&ring);
}

// What the third process and the owner share: how many writes it says have succeeded.
struct Progress {
  std::atomic<std::uint64_t> written[16];
  std::atomic<std::uint64_t> refused;
  std::atomic<bool> is_over;
};

// Writes ever larger numbers to a page each, in turn. A refusal is an answer, and tried again; a
// success must stay.
void write_from_outside(pid_t owner, std::byte* memory, Progress& progress) {
  for (std::uint64_t turn = 0; !progress.is_over; ++turn) {
    const std::size_t page = turn % 16;
    std::uint64_t value = turn + 1;
    const iovec from{&value, sizeof value};
    const iovec to{memory + page * kPage, sizeof value};
    if (process_vm_writev(owner, &from, 1, &to, 1, 0) == static_cast<ssize_t>(sizeof value)) {
      progress.written[page] = value;
    } else {
      require(errno == EFAULT, "process_vm_writev: %s", strerror(errno));
      ++progress.refused;
    }
  }
}

// A third process (a debugger, MPI's large messages) writes to the memory while it comes and goes.
// Looks for writes that succeeded and are gone: they went to a page that was being copied.
void outside_writes(World& world) {
  Peer peer(world.next());
  std::byte* const memory = map_pages(16 * kPage);
  void* const shared =
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(shared != MAP_FAILED, "mmap");
  auto& progress = *new (shared) Progress{};
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  const pid_t owner = getpid();
  const pid_t child = fork();
  if (child == 0) {
    probe::i_am("third process");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    write_from_outside(owner, memory, progress);
    _exit(0);
  }
  std::uint64_t checks = 0;
  for (unsigned round = 0; round < rounds(800, 20'000); ++round) {
    ibv_mr* const mr = peer.reg(memory, 16 * kPage);
    if (round % 8 == 0) peer.add(mr, reinterpret_cast<std::uint64_t*>(memory + 2048), 1);
    Peer::dereg(mr);
    for (std::size_t page = 0; page < 16; ++page) {
      const std::uint64_t least = progress.written[page];
      const std::uint64_t found = *reinterpret_cast<volatile std::uint64_t*>(memory + page * kPage);
      require(found >= least, "page %zu: another process wrote %zu, found is %zu", page,
              static_cast<std::size_t>(least), static_cast<std::size_t>(found));
      if (least > 0) ++checks;
    }
  }
  progress.is_over = true;
  require_child(child);
  require(checks > 100, "the third process came too late: this shows nothing");
  const std::uint64_t refused = progress.refused;
  if (refused > 0)
    std::printf("note: %zu outside writes were refused for a moment\n",
                static_cast<std::size_t>(refused));
}

// Pages in a pipe by vmsplice are the program's own: what it writes afterwards shows at the other
// end, registered meanwhile or not. And what it gave before a registration is not lost by it.
void spliced(World& world) {
  Peer peer(world.next());
  int fds[2];
  require(pipe(fds) == 0, "pipe");
  for (unsigned round = 0; round < rounds(300, 3000); ++round) {
    std::byte* const memory = map_pages(4 * kPage);
    fill(memory, 4 * kPage, round);
    const iovec pages{memory, 4 * kPage};
    require(vmsplice(fds[1], &pages, 1, 0) == static_cast<ssize_t>(4 * kPage), "vmsplice");
    ibv_mr* const mr = peer.reg(memory, 4 * kPage);
    expect(memory, 4 * kPage, round, "after registration of spliced pages");
    std::vector<std::byte> copy(4 * kPage);
    require(::read(fds[0], copy.data(), copy.size()) == static_cast<ssize_t>(copy.size()), "read");
    expect(copy.data(), copy.size(), round, "what was spliced");
    peer.touch(mr, memory, 4 * kPage, round + 1);
    Peer::dereg(mr);
    expect(memory, 4 * kPage, round + 1, "after deregistration of spliced pages");
    munmap(memory, 4 * kPage);
  }
}

}  // namespace

std::vector<Scenario> kernel_scenarios() {
  return {{"uring-fixed-before", uring_fixed_before},
          {"uring-fixed-meanwhile", uring_fixed_meanwhile},
          {"direct-reads", direct_reads},
          {"direct-reads-in-flight", direct_reads_in_flight},
          {"outside-writes", outside_writes},
          {"spliced", spliced}};
}

}  // namespace semantics
