// SPDX-License-Identifier: MIT
// Programs that write to each other's memory, little and often, and do with their descriptors what
// they like. Small WRITEs into memory that is not adopted take a descriptor of ours in the
// program's table.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "node.h"
#include "scenarios.h"

namespace probe {
namespace {

constexpr int kNumbers = 1024;
constexpr std::size_t kNotAdopted = std::size_t{64} << 20;
constexpr std::uint64_t kOften = 20'000;

// Descriptors of some process's memory.
std::vector<int> memory_files() {
  std::vector<int> found;
  for (int fd = 3; fd < kNumbers; ++fd) {
    std::array<char, 64> path{};
    const std::string name = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t size = readlink(name.c_str(), path.data(), path.size() - 1);
    if (size > 0 && std::string(path.data()).ends_with("/mem")) found.push_back(fd);
  }
  return found;
}

// Writes a count to the peer's first bytes. Each sees the other's at its own.
class Writer {
 public:
  explicit Writer(Wire& wire)
      : memory_(map_pages(kNotAdopted)), source_(map_pages(4096)), wire_(wire) {
    mr_ = node.reg(memory_, kNotAdopted);
    source_mr_ = node.reg(source_, 4096);
    qp_ = node.meet(wire, {0, mr_->rkey, reinterpret_cast<std::uint64_t>(memory_), {}}, peer_);
  }
  void write(std::uint64_t times) {
    for (std::uint64_t i = 0; i < times; ++i) {
      ++count_;
      std::memcpy(source_, &count_, sizeof count_);
      require(post(qp_, {.id = count_,
                         .memory = source_,
                         .length = sizeof count_,
                         .local_key = source_mr_->lkey,
                         .remote = peer_.memory,
                         .remote_key = peer_.key}) == 0,
              "ibv_post_send");
      node.wait_success(count_);
    }
  }
  // Until it is done by the file, which takes the NIC's thread a moment; and then some more.
  void write_by_file() {
    constexpr int kRounds = 1000;
    bool is_used = false;
    for (int i = 0; i < kRounds && may_write_by_file() && !is_used; ++i) {
      write(1000);
      is_used = !memory_files().empty();
      wire_.put(is_used);
      is_used &= wire_.get<bool>();
    }
    write(kOften);
    require_count();
    require(is_used || !may_write_by_file(), "small WRITEs do not go by the peer's memory");
    require(memory_files().empty() != is_used, "a file is open that nobody uses");
    if (!is_used) skip("small WRITEs take another way here");
  }
  // Both have written, and come here.
  void require_count() {
    wire_.meet();
    std::uint64_t seen = 0;
    std::memcpy(&seen, memory_, sizeof seen);
    require(seen == count_, "%llu WRITEs came of %llu", static_cast<unsigned long long>(seen),
            static_cast<unsigned long long>(count_));
    wire_.meet();
  }
  void leave() {
    require(ibv_destroy_qp(qp_) == 0, "ibv_destroy_qp");
    qp_ = nullptr;
  }
  std::vector<int> known() const {
    return {0, 1, 2, node.context->async_fd, node.channel->fd, wire_.fd()};
  }

  Node node;

 private:
  std::byte* memory_;
  std::byte* source_;
  Wire& wire_;
  ibv_mr* mr_ = nullptr;
  ibv_mr* source_mr_ = nullptr;
  Address peer_;
  ibv_qp* qp_ = nullptr;
  std::uint64_t count_ = 0;
};

// Closes all that the program does not know, opens as many files as it may, and goes on writing.
// These are such as take bytes at any offset.
void close_between_writes(Wire& wire) {
  rlimit few{};
  getrlimit(RLIMIT_NOFILE, &few);
  few.rlim_cur = kNumbers;
  require(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit: %s", strerror(errno));
  Writer writer(wire);
  writer.write_by_file();
  const std::vector<int> known = writer.known();
  writer.write(1);
  for (int fd = 3; fd < kNumbers; ++fd) {
    if (std::find(known.begin(), known.end(), fd) == known.end()) close(fd);
  }
  std::vector<int> files{memfd_create("of the program", MFD_CLOEXEC)};
  require(files[0] >= 0, "memfd_create: %s", strerror(errno));
  while (files.back() >= 0)
    files.push_back(dup(files[0]));
  files.pop_back();
  require(files.back() > kNumbers - 16, "only %d are open", files.back());
  writer.write(kOften);
  struct stat status{};
  require(fstat(files[0], &status) == 0 && status.st_size == 0, "a file was written to");
  require(memory_files().empty(), "it was opened once more");
  writer.require_count();
}

// The kernel copies the table with all that is in it.
void fork_between_writes(Wire& wire) {
  Writer writer(wire);
  writer.write_by_file();
  const pid_t child = fork();
  if (child == 0) _exit(memory_files().empty() ? 0 : 1);
  writer.write(kOften);
  int status = 0;
  require(waitpid(child, &status, 0) == child, "waitpid");
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child has the peer's memory");
  writer.require_count();
  require(memory_files().size() == 1, "there are %zu files", memory_files().size());
}

// The peer goes, and the descriptor with it.
void outlive(Wire& wire) {
  Writer writer(wire);
  writer.write_by_file();
  wire.get<bool>();
}

bool peer_leaves() {
  return run_two(outlive, [](Wire& wire) {
    Writer writer(wire);
    writer.write_by_file();
    writer.leave();
    wire.put(true);
    for (int i = 0; i < 500 && !memory_files().empty(); ++i)
      usleep(10'000);
    require(memory_files().empty(), "the memory of a peer that has gone is still open");
  });
}

bool closed_between_writes() { return run_two(close_between_writes, close_between_writes); }
bool fork_while_writing() { return run_two(fork_between_writes, fork_between_writes); }

}  // namespace

std::vector<Scenario> reach_scenarios() {
  return {{"closed-between-writes", closed_between_writes},
          {"fork-between-writes", fork_while_writing},
          {"memory-of-gone-peer", peer_leaves}};
}

}  // namespace probe
