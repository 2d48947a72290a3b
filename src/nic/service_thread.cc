// SPDX-License-Identifier: MIT
#include "nic/service_thread.h"

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>

#include "memory/fault_guard.h"

namespace verbena::nic {
namespace {

constexpr std::size_t kStackSize = 256 * 1024;
constexpr std::size_t kStackSizeMax = 8 << 20;

}  // namespace

bool start_service_thread(const char* name, void* (*run)(void*), void* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackSize);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // The program's signals are for the program's threads.
  const sigset_t ours = memory::signals_but_faults();
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, &ours, &before);
  pthread_t thread{};
  int failed = pthread_create(&thread, &attributes, run, argument);
  if (failed == EINVAL) {
    // A program with much thread-local storage needs a larger stack.
    pthread_attr_setstacksize(&attributes, kStackSizeMax);
    failed = pthread_create(&thread, &attributes, run, argument);
  }
  if (failed == 0) pthread_setname_np(thread, name);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return failed == 0;
}

}  // namespace verbena::nic
