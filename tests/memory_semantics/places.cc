// SPDX-License-Identifier: MIT
// Where programs have the memory that they register: stacks, static data, thread-local data, the
// heap, and memory that they share on purpose.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "world.h"

namespace semantics {
namespace {

// Uses one place, with the bytes around it watched.
void use_inside(Peer& peer, std::byte* at, std::size_t size, const char* where) {
  const std::size_t margin = size / 8;
  fill(at, size, 1);
  ibv_mr* const mr = peer.reg(at + margin, size - 2 * margin);
  expect(at, size, 1, where);
  peer.use(mr, at + margin, size - 2 * margin, 2);
  Peer::dereg(mr);
  expect(at, margin, 1, where);
  expect(at + margin, size - 2 * margin, 2, where);
  expect(at + size - margin, margin, 1, where, size - margin);
}

[[gnu::noinline]] unsigned grow_stack(unsigned depth) {
  volatile unsigned char frame[2048];
  frame[depth % sizeof frame] = static_cast<unsigned char>(depth);
  const unsigned below = depth == 0 ? 0 : grow_stack(depth - 1);
  return below + frame[depth % sizeof frame];
}

[[gnu::noinline]] void use_own_stack(Peer& peer) {
  std::array<std::byte, 128 * kKilo> buffer;
  use_inside(peer, buffer.data(), buffer.size(), "a stack");
  grow_stack(300);
  expect(buffer.data(), buffer.size() / 8, 1, "a stack, afterwards");
}

// The calling thread's stack is written to by the very call that registers it. Threads' stacks are
// ordinary mappings, which the next thread gets again, dirty or not.
void stacks(World& world) {
  const auto peer = std::make_unique<Peer>(world.next());
  for (unsigned round = 0; round < rounds(10, 100); ++round) {
    use_own_stack(*peer);
    for (int i = 0; i < 4; ++i)
      std::thread([&] { use_own_stack(*peer); }).join();
  }
}

std::pair<std::byte*, std::size_t> stack_of(pthread_t thread) {
  pthread_attr_t attributes;
  require(pthread_getattr_np(thread, &attributes) == 0, "pthread_getattr_np");
  void* begin = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &begin, &size);
  pthread_attr_destroy(&attributes);
  return {static_cast<std::byte*>(begin), size};
}

// The whole stack of another thread, its thread-local data and what joins it included, is
// registered while that thread computes or sleeps; then it ends and is joined. Looks for a thread
// whose stack changed, and (while another thread waits in the join already, at registration or at
// deregistration) for a join that never returns.
void other_stacks(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(30, 300); ++round) {
    std::mutex lock;
    std::condition_variable changed;
    int state = 0;
    std::thread thread([&] {
      std::array<std::byte, 16 * kKilo> frame;
      fill(frame.data(), frame.size(), round);
      {
        std::unique_lock guard(lock);
        state = 1;
        changed.notify_all();
        if (round % 2 == 0) changed.wait(guard, [&] { return state == 2; });
      }
      while (round % 2 == 1) {
        grow_stack(20);
        const std::lock_guard guard(lock);
        if (state == 2) break;
      }
      expect(frame.data(), frame.size(), round, "a thread's frame");
    });
    {
      std::unique_lock guard(lock);
      changed.wait(guard, [&] { return state == 1; });
    }
    const auto [begin, size] = stack_of(thread.native_handle());
    std::byte* const part = begin + size - 64 * kKilo;
    const bool is_early = round % 4 < 2;
    ibv_mr* mr = is_early ? peer.reg(part, 64 * kKilo) : nullptr;
    std::atomic<bool> is_joined{false};
    std::thread joiner([&] {
      thread.join();
      is_joined = true;
    });
    usleep(2000);  // until it waits
    if (is_early) {
      Peer::dereg(mr);
    } else {
      mr = peer.reg(part, 64 * kKilo);
    }
    {
      const std::lock_guard guard(lock);
      state = 2;
    }
    changed.notify_all();
    for (int i = 0; i < 5000 && !is_joined; ++i)
      usleep(1000);
    require(is_joined, "a thread that waits for another's end is not woken (round %u)", round);
    joiner.join();
    if (!is_early) Peer::dereg(mr);
  }
}

std::array<std::byte, 64 * kKilo> bss;
// Not zero, so that it lies in the file's own pages.
std::array<std::byte, 64 * kKilo> data{std::byte{1}};
thread_local std::array<std::byte, 64 * kKilo> thread_local_memory;

void static_memory(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(20, 200); ++round) {
    use_inside(peer, bss.data(), bss.size(), "static memory");
    use_inside(peer, data.data(), data.size(), "static data");
    for (auto* const place : {&bss, &data}) {
      fill(place->data(), place->size(), 3);
      in_child([&] { memset(place->data(), 0, place->size()); });
      expect(place->data(), place->size(), 3, "static memory after a child's writes");
    }
  }
}

void thread_local_places(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(20, 200); ++round) {
    use_inside(peer, thread_local_memory.data(), thread_local_memory.size(), "thread-local memory");
    std::thread([&] {
      // Of a new thread it is zero, whoever had that stack before.
      expect_zero(thread_local_memory.data(), thread_local_memory.size(), "thread-local memory");
      use_inside(peer, thread_local_memory.data(), thread_local_memory.size(),
                 "thread-local memory of a thread");
    }).join();
  }
}

int shared_object(const char* kind) {
  int fd = -1;
  if (strcmp(kind, "memfd") == 0) fd = memfd_create("test", MFD_CLOEXEC);
  if (strcmp(kind, "/dev/shm") == 0) fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (strcmp(kind, "a file") == 0) fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) skip("shared memory of this kind is refused here");
  require(ftruncate(fd, 64 * kKilo) == 0, "ftruncate: %s", strerror(errno));
  return fd;
}

// Memory that the program shares stays shared, with the same object: what the peer writes is seen
// through another view and by a child, and what they write the peer sees.
void shared_kinds(World& world) {
  Peer peer(world.next());
  constexpr std::size_t kSize = 64 * kKilo;
  for (const char* kind : {"memfd", "/dev/shm", "a file"}) {
    const int fd = shared_object(kind);
    const auto view = [&](int flags) {
      void* const at = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, flags, fd, 0);
      require(at != MAP_FAILED, "mmap: %s", strerror(errno));
      return static_cast<std::byte*>(at);
    };
    std::byte* const memory = view(MAP_SHARED);
    std::byte* const other = view(MAP_SHARED);
    std::byte* const own = view(MAP_PRIVATE);
    fill(own, kPage, 9);  // a page of its own, the rest shows the file
    ibv_mr* const mr = peer.reg(memory, kSize);
    ibv_mr* const own_mr = peer.reg(own, kSize);
    peer.use(mr, memory, kSize, 3);
    expect(other, kSize, 3, kind);
    expect(own, kPage, 9, "a private view");
    fill(other, kSize, 4);
    peer.read(mr, memory, kSize, 4);
    in_child([&] { fill(memory, kSize, 5); });
    expect(other, kSize, 5, "written by a child");
    peer.read(mr, memory, kSize, 5);
    peer.touch(own_mr, own, kSize, 6);
    expect(memory, kSize, 5, "after the peer's WRITE to a private view");
    Peer::dereg(mr);
    Peer::dereg(own_mr);
    expect(own, kSize, 6, "a private view, deregistered");
    fill(other, kSize, 7);
    expect(memory, kSize, 7, "two views, deregistered");
    expect(own, kSize, 6, "a private view, deregistered");
    std::vector<std::byte> content(kSize);
    require(pread(fd, content.data(), kSize, 0) == static_cast<ssize_t>(kSize), "pread");
    expect(content.data(), kSize, 7, "the file");
    munmap(memory, kSize);
    munmap(other, kSize);
    munmap(own, kSize);
    close(fd);
  }
}

// Shared anonymous memory between a parent and its child, both with peers of their own.
void shared_anonymous(World& world) {
  constexpr std::size_t kSize = 64 * kKilo;
  void* const at = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(at != MAP_FAILED, "mmap");
  Peer peer(world.next());
  const int wire = world.next();
  ibv_mr* const mr = peer.reg(at, kSize);
  peer.use(mr, at, kSize, 1);
  in_child([&] {
    Peer own(wire);
    ibv_mr* const again = own.reg(at, kSize);
    own.read(again, at, kSize, 1);
    own.use(again, at, kSize, 2);
    Peer::dereg(again);
  });
  expect(at, kSize, 2, "what a child's peer wrote");
  peer.read(mr, at, kSize, 2);
  Peer::dereg(mr);
  expect(at, kSize, 2, "after deregistration");
  munmap(at, kSize);
}

// The least of all, with memory of the heap and mapped memory.
void plain(World& world) {
  constexpr std::size_t kSize = 64 * kKilo;
  Peer peer(world.next());
  auto* const heap = static_cast<std::byte*>(std::malloc(kSize));
  std::byte* const mapped = map_pages(kSize);
  for (std::byte* at : {heap, mapped})
    use_inside(peer, at, kSize, "plain memory");
  std::free(heap);
  munmap(mapped, kSize);
}

}  // namespace

std::vector<Scenario> place_scenarios() {
  return {{"plain", plain},
          {"stacks", stacks},
          {"other-stacks", other_stacks},
          {"static-memory", static_memory},
          {"thread-local", thread_local_places},
          {"shared-kinds", shared_kinds},
          {"shared-anonymous", shared_anonymous}};
}

}  // namespace semantics
