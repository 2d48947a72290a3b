// SPDX-License-Identifier: MIT
// A peer that is held at the worst moment: after it has looked whether it may write, before it
// does. Whatever is taken away meanwhile, the rest of its way leads nowhere.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "traffic.h"

// Linux 5.3; the C library's header is in the way of the kernel's.
struct SyscallInfo {
  std::uint8_t op;  // 1: entry
  std::uint8_t pad[3];
  std::uint32_t arch;
  std::uint64_t instruction;
  std::uint64_t stack;
  std::uint64_t number;
  std::uint64_t arguments[6];
};

namespace access_test {

using probe::require;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kNotAdopted = std::size_t{64} << 20;
// Written by pwritev, into the memory as a file.
constexpr std::uint32_t kSmallSize = 8;
// More queue pairs than one slot takes, though fewer than a device has.
constexpr std::uint32_t kFirstSlot = 12'500;

// From now on the kernel stops our threads at pwritev when somebody traces us, and refuses that
// call otherwise. A tracer that looked at each call would slow us down so much that we would not
// write that way: it is for what follows each other soon.
void offer_to_be_held() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwritev, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) probe::skip("seccomp is denied");
}

// Holds the first thread of a process at its next process_vm_writev, or pwritev, before the kernel
// looks at anything.
class Holder {
 public:
  explicit Holder(pid_t process) : process_(process) {}
  ~Holder() { release(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  // False: it does not make that call.
  bool hold() {
    attach(PTRACE_O_TRACESYSGOOD);
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (Clock::now() < end) {
      require(ptrace(PTRACE_SYSCALL, process_, nullptr, nullptr) == 0, "ptrace");
      wait_stopped();
      SyscallInfo info{};
      const long size = ptrace(static_cast<__ptrace_request>(0x420e), process_,
                               reinterpret_cast<void*>(sizeof info), &info);
      if (size <= 0) probe::skip("no PTRACE_GET_SYSCALL_INFO");
      if (info.op == 1 && info.number == SYS_process_vm_writev) return true;
    }
    return false;
  }
  // The same of one that offers it.
  bool hold_at_offer() {
    attach(PTRACE_O_TRACESECCOMP);
    require(ptrace(PTRACE_CONT, process_, nullptr, nullptr) == 0, "ptrace");
    const auto end = Clock::now() + std::chrono::seconds(5);
    int status = 0;
    while (waitpid(process_, &status, __WALL | WNOHANG) == 0) {
      if (Clock::now() < end) continue;
      kill(process_, SIGSTOP);  // who does not stop cannot be let go
      wait_stopped();
      return false;
    }
    require(WIFSTOPPED(status) && status >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8), "status %x",
            status);
    return true;
  }
  void release() {
    if (is_attached_) ptrace(PTRACE_DETACH, process_, nullptr, nullptr);
    is_attached_ = false;
  }

 private:
  void attach(int options) {
    if (ptrace(PTRACE_ATTACH, process_, nullptr, nullptr) != 0) probe::skip("ptrace is denied");
    is_attached_ = true;
    wait_stopped();
    require(ptrace(PTRACE_SETOPTIONS, process_, nullptr, options) == 0, "options");
  }
  void wait_stopped() const {
    int status = 0;
    require(waitpid(process_, &status, __WALL) == process_ && WIFSTOPPED(status), "waitpid: %s",
            strerror(errno));
  }
  pid_t process_;
  bool is_attached_ = false;
};

enum class Writes { kLarge, kSmall, kInSecondSlot };

void held_once(probe::Node& node, probe::Wire& wire, pid_t peer, const Taking& taking,
               Writes writes) {
  const bool is_small = writes == Writes::kSmall;
  Victim victim(node, wire, kNotAdopted, is_small ? kSmallSize : kUsed);
  victim.wait_for_traffic();
  Holder holder(peer);
  const bool is_held = is_small ? holder.hold_at_offer() : holder.hold();
  require(is_held || !is_small || !probe::may_write_by_file(), "the peer does not use pwritev");
  if (!is_held && writes != Writes::kInSecondSlot)
    probe::skip("the peer does not write by that call here");
  const double seconds = seconds_of([&] { taking.take(node, victim); });
  victim.mark();
  require(seconds < kBound, "%s took %.1f s", taking.name, seconds);
  holder.release();
  usleep(20'000);
  require(victim.is_untouched(), "written after %s", taking.name);
}

}  // namespace

void held(const char* where) {
  if (has_only_the_ring()) probe::skip("with the ring nobody makes that call");
  const bool in_second_slot = std::string_view(where) == "second-slot";
  const bool is_small = std::string_view(where) == "small";
  const Writes writes = in_second_slot ? Writes::kInSecondSlot
                        : is_small     ? Writes::kSmall
                                       : Writes::kLarge;
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    probe::i_am("peer");
    close(fds[0]);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    probe::Wire wire(fds[1]);
    if (is_small) offer_to_be_held();
    write_all_the_time(wire, in_second_slot ? kFirstSlot : 0);
    _exit(0);
  }
  close(fds[1]);
  const bool good = probe::run_one(
      [&] {
        probe::i_am("owner");
        probe::Wire wire(fds[0]);
        probe::Node node;
        const auto peer = wire.get<pid_t>();
        for (int round = 0; round < (is_long() ? 10 : 1); ++round) {
          for (std::size_t i = 0; i < (in_second_slot ? 1 : kTakingCount); ++i)
            held_once(node, wire, peer, kTakings[i], writes);
        }
        dismiss(wire);
      },
      is_long() ? 900 : 120);
  close(fds[0]);
  kill(child, SIGKILL);
  require(good, "see above");
}

// A thousand regions are not a thousand times the patience for one peer that is stopped in the
// middle of a write.
void many_regions() {
  if (has_only_the_ring()) probe::skip("with the ring nobody makes that call");
  const bool good = probe::run_two(
      [](probe::Wire& wire) {
        probe::Node node;
        const auto peer = wire.get<pid_t>();
        Victim victim(node, wire, kNotAdopted, kUsed);
        std::vector<ibv_mr*> regions;
        constexpr std::size_t kSize = 16384;
        constexpr int kRegions = 1000;
        std::byte* const memory = probe::map_pages(kSize * kRegions);
        for (int i = 0; i < kRegions; ++i)
          regions.push_back(node.reg(memory + static_cast<std::size_t>(i) * kSize, kSize));
        victim.wait_for_traffic();
        Holder holder(peer);
        if (!holder.hold()) probe::skip("the peer does not write by process_vm_writev here");
        const double seconds = seconds_of([&] {
          for (ibv_mr* mr : regions)
            require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
        });
        require(seconds < 2 * kBound, "%d regions took %.1f s", kRegions, seconds);
        holder.release();
        // And it gets its rights back.
        victim.wait_for_traffic();
        victim.stop_traffic();
        dismiss(wire);
      },
      [](probe::Wire& wire) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        write_all_the_time(wire);
      },
      120);
  require(good, "see above");
}

}  // namespace access_test
