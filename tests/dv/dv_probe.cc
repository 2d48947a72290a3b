// SPDX-License-Identifier: MIT
// A program that uses verbena/dv.h: memory that is shared from the start, between two processes of
// which the target is stopped, and everything that the header promises besides.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>

#include "environment/node.h"
#include "verbena/dv.h"

// NOLINTNEXTLINE(readability-identifier-naming): a name of C
extern "C" const std::size_t verbena_dv_sizes_in_c[2];

namespace {

using namespace probe;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSize = 64 << 20;  // more than is ever adopted

bool is_all(const std::byte* at, std::size_t size, int value) {
  for (std::size_t i = 0; i < size; ++i) {
    if (at[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

verbena_dv_mr reach_of(ibv_mr* mr) {
  verbena_dv_mr reach = {};
  reach.comp_mask = ~std::uint64_t{0};
  const int error = verbena_dv_query_mr(mr, &reach);
  require(error == 0, "verbena_dv_query_mr: %s", strerror(error));
  require(reach.comp_mask == 0, "there are no later fields");
  return reach;
}

verbena_dv_qp service_of(ibv_qp* qp) {
  verbena_dv_qp service = {};
  const int error = verbena_dv_query_qp(qp, &service);
  require(error == 0, "verbena_dv_query_qp: %s", strerror(error));
  return service;
}

std::byte* alloc(const Node& node, std::size_t size) {
  void* const memory = verbena_dv_alloc(node.context, size);
  require(memory != nullptr, "verbena_dv_alloc: %s", strerror(errno));
  require(reinterpret_cast<std::uintptr_t>(memory) % kPage == 0, "it does not begin at a page");
  return static_cast<std::byte*>(memory);
}

void release(const Node& node, void* memory) {
  const int error = verbena_dv_free(node.context, memory);
  require(error == 0, "verbena_dv_free: %s", strerror(error));
}

void wait_until_stopped(pid_t process) {
  for (int i = 0; i < 5000; ++i) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE* const file = fopen(path, "re");
    char state = 0;
    if (!file || std::fscanf(file, "%*d (%*[^)]) %c", &state) != 1) fail("cannot read %s", path);
    std::fclose(file);
    if (state == 'T') return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  fail("the target does not stop");
}

// The owner of the memory.
void target(Wire& wire) {
  i_am("target");
  Node node;
  require(verbena_dv_is_supported(node.context->device), "our own device is not supported");
  std::byte* const memory = alloc(node, kSize);
  require(is_all(memory, kSize, 0), "it is not zero");
  ibv_mr* const mr = node.reg(memory + 100, kSize - 200);
  const verbena_dv_mr reach = reach_of(mr);
  require(reach.reach & VERBENA_DV_REACH_MAPPED, "it cannot be mapped");
  require(reach.mapped_offset == kPage - 100, "from %lu", reach.mapped_offset);
  require(reach.mapped_length == kSize - 2 * kPage, "%lu bytes", reach.mapped_length);
  // What peers may only read is no less shared.
  ibv_mr* const readable = node.reg(memory, kSize, IBV_ACCESS_REMOTE_READ);
  require(reach_of(readable).mapped_length == kSize, "what peers may only read cannot be mapped");

  Address peer;
  const Address mine{0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}};
  node.meet(wire, mine, peer);
  wire.put(getpid());
  wire.meet();  // here the initiator stops us, and lets us go on
  wire.meet();
  require(is_all(memory + kPage, kPage, 0x5a), "what was written meanwhile is not there");
  std::uint64_t sum = 0;
  std::memcpy(&sum, memory + 2 * kPage, sizeof sum);
  require(sum == 100, "100 additions made %lu", sum);
  wire.meet();
  ibv_dereg_mr(readable);
  release(node, memory);
  require(is_all(memory + kPage, kPage, 0x5a), "gone though a region is in it");
  require(ibv_dereg_mr(mr) == 0, "dereg");
  require(msync(memory, kPage, MS_ASYNC) == -1 && errno == ENOMEM, "still there after all");
}

void one(Node& node, ibv_qp* qp, const Work& work) {
  const int error = post(qp, work);
  require(error == 0, "post: %s", strerror(error));
  node.wait_success(work.id);
}

void initiator(Wire& wire) {
  i_am("initiator");
  Node node;
  const auto own = map_pages(2 * kPage);
  ibv_mr* const mr = node.reg(own, 2 * kPage);
  Address peer;
  ibv_qp* const qp = node.meet(wire, {}, peer);
  const pid_t process = wire.get<pid_t>();
  wire.meet();
  Work work{.memory = own, .length = kPage, .local_key = mr->lkey, .remote_key = peer.key};
  work.remote = peer.memory + kPage;
  // The first ones find the way.
  for (int i = 0; service_of(qp).mapped_operations == 0; ++i) {
    require(i < 2000, "the target's memory is not mapped");
    one(node, qp, work);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(service_of(qp).carrier == VERBENA_DV_CARRIER_DIRECT, "not executed by ourselves");
  require(kill(process, SIGSTOP) == 0, "kill: %s", strerror(errno));
  wait_until_stopped(process);
  const verbena_dv_qp before = service_of(qp);
  std::memset(own, 0x5a, kPage);
  one(node, qp, work);
  work.opcode = IBV_WR_RDMA_READ;
  work.memory = own + kPage;
  one(node, qp, work);
  require(std::memcmp(own, own + kPage, kPage) == 0, "READ brings something else");
  work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  work.length = 8;
  work.remote = peer.memory + 2 * kPage;
  work.compare_add = 1;
  for (std::uint64_t i = 0; i < 100; ++i) {
    one(node, qp, work);
    require(std::memcmp(own + kPage, &i, sizeof i) == 0, "addition %lu", i);
  }
  const verbena_dv_qp after = service_of(qp);
  require(after.mapped_operations == before.mapped_operations + 102, "%lu operations were mapped",
          after.mapped_operations - before.mapped_operations);
  require(after.ring_operations == before.ring_operations, "the ring was used");
  require(after.process_operations == before.process_operations, "process_vm_writev was used");
  require(kill(process, SIGCONT) == 0, "kill: %s", strerror(errno));
  wire.meet();
  wire.meet();
}

void stopped() {
  if (!run_two(target, initiator)) fail("between two processes");
}

// Regions that peers may write and regions that they may only read lie in different files, of
// which the second is made when its first region comes: after the peer, here.
void owner_of_later(Wire& wire) {
  i_am("owner");
  Node node;
  std::byte* const first = alloc(node, kPage);
  ibv_mr* const writable = node.reg(first, kPage);
  Address peer;
  node.meet(wire, {0, writable->rkey, reinterpret_cast<std::uint64_t>(first), {}}, peer);
  wire.meet();
  std::byte* const second = map_pages(8 * kPage);
  ibv_mr* const readable = node.reg(second, 8 * kPage, IBV_ACCESS_REMOTE_READ);
  wire.put((reach_of(readable).reach & VERBENA_DV_REACH_MAPPED) != 0);
  wire.put(Address{0, readable->rkey, reinterpret_cast<std::uint64_t>(second), {}});
  wire.meet();
}

void reader_of_later(Wire& wire) {
  i_am("reader");
  Node node;
  std::byte* const own = map_pages(kPage);
  ibv_mr* const mr = node.reg(own, kPage);
  Address first;
  ibv_qp* const qp = node.meet(wire, {}, first);
  Work work{.memory = own, .length = kPage, .local_key = mr->lkey};
  const auto use_until_mapped = [&](const Address& at) {
    work.remote = at.memory;
    work.remote_key = at.key;
    const std::uint64_t before = service_of(qp).mapped_operations;
    for (int i = 0; service_of(qp).mapped_operations == before; ++i) {
      require(i < 2000, "the region is not mapped");
      one(node, qp, work);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  use_until_mapped(first);
  wire.meet();
  const bool is_shared = wire.get<bool>();
  const auto second = wire.get<Address>();
  work.opcode = IBV_WR_RDMA_READ;
  if (is_shared) use_until_mapped(second);
  wire.meet();
  if (!is_shared) std::printf("SKIP a region that comes later: it is not shared here\n");
}

void later() {
  if (!run_two(owner_of_later, reader_of_later)) fail("between two processes");
}

void errors() {
  Node node;
  errno = 0;
  require(!verbena_dv_alloc(node.context, 0) && errno == EINVAL, "0 bytes: %s", strerror(errno));
  for (const std::size_t size : {~std::size_t{0}, std::size_t{1} << 40, (std::size_t{1} << 38) + 1})
    require(!verbena_dv_alloc(node.context, size) && errno == ENOMEM, "%zu bytes", size);
  require(!verbena_dv_alloc(nullptr, 1) && errno == EINVAL, "no context");
  std::byte* const memory = alloc(node, 3 * kPage - 1);
  require(is_all(memory, 3 * kPage, 0), "whole pages");
  std::byte* const other = alloc(node, 1);
  require(verbena_dv_free(node.context, memory + kPage) == EINVAL, "free of its middle");
  require(verbena_dv_free(node.context, nullptr) == EINVAL, "free of null");
  require(verbena_dv_free(node.context, &node) == EINVAL, "free of something else");
  release(node, memory);
  require(verbena_dv_free(node.context, memory) == EINVAL, "freed twice");
  release(node, other);
  require(verbena_dv_query_mr(nullptr, nullptr) == EINVAL, "no region");
  require(verbena_dv_query_qp(nullptr, nullptr) == EINVAL, "no queue pair");
  require(!verbena_dv_is_supported(nullptr), "no device");
  const verbena_dv_qp service = service_of(node.create());
  require(service.carrier == VERBENA_DV_CARRIER_NONE, "not connected");
  for (int i = 0; i < 3000; ++i)
    release(node, alloc(node, kPage));
}

// Private memory that is registered, in each mode.
void adopted() {
  Node node;
  const char* const adopt = std::getenv("VERBENA_ADOPT");
  const bool may_adopt = !adopt || std::string_view(adopt) != "never";
  ibv_mr* const mr = node.reg(map_pages(8 * kPage), 8 * kPage);
  const verbena_dv_mr reach = reach_of(mr);
  require(reach.reach & VERBENA_DV_REACH_RING, "the ring reaches everything");
  require(reach.reach & VERBENA_DV_REACH_PROCESS, "process_vm_writev is not offered");
  const bool is_mapped = reach.reach & VERBENA_DV_REACH_MAPPED;
  require(is_mapped == (reach.mapped_length != 0), "kind and length disagree");
  if (is_mapped && !may_adopt) fail("adopted though it may not be");
  if (!is_mapped && may_adopt) std::printf("SKIP adopted memory: this system does not allow it\n");
  ibv_mr* const shared = node.reg(alloc(node, kSize), kSize);
  require(reach_of(shared).mapped_length == kSize, "allocated memory cannot be mapped");
}

void forked() {
  Node node;
  std::byte* const memory = alloc(node, 4 * kPage);
  ibv_mr* const mr = node.reg(memory, 4 * kPage);
  std::memset(memory, 7, 4 * kPage);
  if (!run_one([&] {
        i_am("child");
        require(!verbena_dv_alloc(node.context, 1) && errno == EIO, "alloc: %s", strerror(errno));
        require(verbena_dv_free(node.context, memory) == EIO, "free");
        verbena_dv_mr reach;
        require(verbena_dv_query_mr(mr, &reach) == EIO, "query_mr");
        require(msync(memory, kPage, MS_ASYNC) == -1 && errno == ENOMEM, "the child has it");
        Node fresh;
        std::memset(alloc(fresh, kPage), 1, kPage);
      })) {
    fail("in a child");
  }
  require(is_all(memory, 4 * kPage, 7), "a child changed it");
}

void ring() {
  Node node;
  require(!verbena_dv_alloc(node.context, 1) && errno == EOPNOTSUPP, "%s", strerror(errno));
  ibv_mr* const mr = node.reg(map_pages(kPage), kPage);
  require(reach_of(mr).reach == VERBENA_DV_REACH_RING, "not the ring only");
}

// With another libibverbs. It has no device to ask about, and none of these is looked at.
void foreign() {
  alignas(16) char anything[4096] = {};
  require(!verbena_dv_is_supported(reinterpret_cast<ibv_device*>(anything)), "supported");
  errno = 0;
  void* const memory = verbena_dv_alloc(reinterpret_cast<ibv_context*>(anything), 1);
  require(!memory && errno == EOPNOTSUPP, "alloc: %s", strerror(errno));
  const int error = verbena_dv_free(reinterpret_cast<ibv_context*>(anything), anything);
  require(error == EOPNOTSUPP, "free: %s", strerror(error));
  verbena_dv_mr reach;
  require(verbena_dv_query_mr(reinterpret_cast<ibv_mr*>(anything), &reach) == EOPNOTSUPP, "mr");
  verbena_dv_qp service;
  require(verbena_dv_query_qp(reinterpret_cast<ibv_qp*>(anything), &service) == EOPNOTSUPP, "qp");
}

struct Scene {
  std::string_view name;
  void (*run)();
};
constexpr Scene kScenes[] = {{"stopped", stopped}, {"later", later},   {"errors", errors},
                             {"adopted", adopted}, {"forked", forked}, {"ring", ring},
                             {"foreign", foreign}};

}  // namespace

int main(int count, char** arguments) {
  require(verbena_dv_sizes_in_c[0] == sizeof(verbena_dv_mr) &&
              verbena_dv_sizes_in_c[1] == sizeof(verbena_dv_qp),
          "C and C++ disagree");
  for (const Scene& scene : kScenes) {
    if (count != 2 || scene.name != arguments[1]) continue;
    scene.run();
    return 0;
  }
  std::fprintf(stderr, "usage: dv_probe SCENE\n");
  return 2;
}
