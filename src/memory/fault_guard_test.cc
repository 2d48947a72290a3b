// SPDX-License-Identifier: MIT
#include "memory/fault_guard.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "memory/guarded_copy.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

// All of these change what the process does with signals, so each runs in a process of its own,
// from its start on.
class FaultGuardDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Where nothing is mapped, whatever a sanitizer does with the rest. The compiler must not see it.
volatile int* nowhere() {
  volatile std::uintptr_t address = 64;
  return reinterpret_cast<volatile int*>(address);
}

__attribute__((no_sanitize("address", "undefined", "thread"))) void crash() { *nowhere() = 1; }

void set_handler(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

bool guarded_access_is_refused() {
  const TestPages pages(1);
  std::byte byte{};
  return !guarded_copy(pages.end(), &byte, 1) && !portable::guarded_copy(pages.end(), &byte, 1);
}

[[noreturn]] void leave(bool well) { _exit(well ? 42 : 1); }

TEST_F(FaultGuardDeathTest, AProgramsOwnFaultStillKillsIt) {
  EXPECT_EXIT(
      {
        set_handler(SIGSEGV, SIG_DFL);
        install_fault_guard();
        if (!guarded_access_is_refused()) leave(false);
        crash();
        leave(false);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(FaultGuardDeathTest, ASignalThatWasSentStillKills) {
  EXPECT_EXIT(
      {
        set_handler(SIGBUS, SIG_DFL);
        install_fault_guard();
        kill(getpid(), SIGBUS);
        pause();
        leave(false);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FaultGuardDeathTest, AnIgnoredSignalIsIgnoredWhenSentAndKillsWhenItIsAFault) {
  EXPECT_EXIT(
      {
        set_handler(SIGSEGV, SIG_IGN);
        install_fault_guard();
        raise(SIGSEGV);
        if (!guarded_access_is_refused()) leave(false);
        std::fputs("survived the sent one\n", stderr);
        crash();
        leave(false);
      },
      testing::KilledBySignal(SIGSEGV), "survived the sent one");
}

TEST_F(FaultGuardDeathTest, AProgramsHandlerIsCalledForItsOwnFaultOnly) {
  EXPECT_EXIT(
      {
        set_handler(SIGSEGV, [](int signal) { leave(signal == SIGSEGV); });
        install_fault_guard();
        if (!guarded_access_is_refused()) leave(false);
        crash();
        leave(false);
      },
      testing::ExitedWithCode(42), "");
}

void detailed_handler(int signal, siginfo_t* info, void* context) {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  leave(signal == SIGSEGV && info->si_code == SEGV_MAPERR && info->si_addr == nowhere() &&
        context != nullptr && sigismember(&now, SIGUSR2) && sigismember(&now, SIGSEGV) &&
        !sigismember(&now, SIGUSR1));
}

TEST_F(FaultGuardDeathTest, AProgramsHandlerGetsTheDetailsAndTheMaskItAskedFor) {
  if (kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer blocks every signal in handlers";
  EXPECT_EXIT(
      {
        struct sigaction action{};
        action.sa_sigaction = detailed_handler;
        action.sa_flags = SA_SIGINFO;
        sigaddset(&action.sa_mask, SIGUSR2);
        sigaction(SIGSEGV, &action, nullptr);
        install_fault_guard();
        if (!guarded_access_is_refused()) leave(false);
        crash();
        leave(false);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(FaultGuardDeathTest, AProgramsHandlerMayReturnAndTryAgain) {
  EXPECT_EXIT(
      {
        static const TestPages* pages = new TestPages(1, PROT_NONE);
        set_handler(SIGSEGV, [](int) { pages->protect(0, 1, PROT_READ | PROT_WRITE); });
        install_fault_guard();
        *reinterpret_cast<volatile char*>(pages->begin()) = 5;
        leave(*reinterpret_cast<volatile char*>(pages->begin()) == 5);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(FaultGuardDeathTest, AHandlerForOneTimeIsCalledOneTime) {
  EXPECT_EXIT(
      {
        set_handler(SIGSEGV, [](int) { write(2, "once\n", 5); }, static_cast<int>(SA_RESETHAND));
        install_fault_guard();
        if (!guarded_access_is_refused()) leave(false);
        crash();  // the handler returns, the fault comes again, and the default action kills
        leave(false);
      },
      testing::KilledBySignal(SIGSEGV), "^once\n$");
}

TEST_F(FaultGuardDeathTest, WorksOnAnAlternateStackAndInAHandler) {
  if (kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer blocks every signal in handlers";
  EXPECT_EXIT(
      {
        stack_t stack{};
        stack.ss_size = 64 * 1024;
        stack.ss_sp = std::malloc(stack.ss_size);
        sigaltstack(&stack, nullptr);
        set_handler(SIGUSR1, [](int) { leave(guarded_access_is_refused()); }, SA_ONSTACK);
        install_fault_guard();
        raise(SIGUSR1);
        leave(false);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(FaultGuardDeathTest, AChildOfForkIsGuardedToo) {
  EXPECT_EXIT(
      {
        install_fault_guard();
        const pid_t child = fork();
        if (child == 0) leave(guarded_access_is_refused());
        int status = 0;
        waitpid(child, &status, 0);
        leave(WIFEXITED(status) && WEXITSTATUS(status) == 42);
      },
      testing::ExitedWithCode(42), "");
}

TEST(FaultGuard, InstallsOnce) {
  install_fault_guard();
  struct sigaction first;
  sigaction(SIGSEGV, nullptr, &first);
  install_fault_guard();
  struct sigaction second;
  sigaction(SIGSEGV, nullptr, &second);
  EXPECT_EQ(first.sa_sigaction, second.sa_sigaction);
  EXPECT_TRUE(guarded_access_is_refused());
}

}  // namespace
}  // namespace verbena::memory
