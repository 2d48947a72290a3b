// SPDX-License-Identifier: MIT
#include "host/control.h"

#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/futex.h"
#include "base/log.h"
#include "host/control_thread.h"
#include "host/mailbox.h"

namespace verbena::host {
namespace {

constexpr std::size_t kStackSize = 256 << 10;

Instant monotonic_now() {
  timespec t{};
  // check: allow clock: because this thread waits in the kernel; tests may set ControlOptions::now
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant::at(t.tv_sec * 1'000'000'000 + t.tv_nsec);
}

// A word that one thread sets and another waits for.
class Event {
 public:
  void set() {
    word_.store(1, std::memory_order_release);
    futex_wake(word_, 1, FutexScope::kProcess);
  }
  bool is_set() const { return word_.load(std::memory_order_acquire) != 0; }
  // False: not within the time.
  bool wait(Instant (*now)(), Duration patience) const {
    const Instant end = now() + patience;
    for (Instant at = now(); !is_set(); at = now()) {
      if (at >= end) return false;
      futex_wait(word_, 0, FutexScope::kProcess, end - at);
    }
    return true;
  }

 private:
  std::atomic<std::uint32_t> word_{0};
};

// A small stack, and plain scheduling even where the calling thread runs with real-time priority.
int create_thread(pthread_t& thread, void* (*main)(void*), void* argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
  pthread_attr_setstacksize(&attributes, kStackSize);
  int failed = pthread_create(&thread, &attributes, main, argument);
  // A program with much thread-local storage needs more; some containers refuse to set scheduling.
  if (failed == EINVAL || failed == EPERM) {
    failed = pthread_create(&thread, nullptr, main, argument);
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed;
}

}  // namespace

struct Control::Shared {
  Shared(ControlEvents& e, ControlOptions o)
      : events(e), options(std::move(o)), mailbox(options.tasks_max) {}

  static void* thread_main(void* argument);
  Control* control = nullptr;  // until `started`: it may be gone later
  void serve();

  ControlEvents& events;
  const ControlOptions options;
  Mailbox mailbox;
  ControlThread::Self self;
  std::uint64_t nonce = 0;

  pthread_t handle{};
  Event started;  // what follows is set
  Result<SlotNumber, ControlError> first_slot = SlotNumber{};
  SharedMemory page;
  ControlThread* thread = nullptr;  // lives while it runs; for the thread itself

  Event ended;
  bool may_free = false;  // the thread is joined
};

namespace {

// Which Control this thread serves, if it is a control thread.
thread_local const void* served = nullptr;

}  // namespace

void* Control::Shared::thread_main(void* argument) {
  auto* shared = static_cast<Shared*>(argument);
  pthread_setname_np(pthread_self(), "verbena-control");
  served = shared;
  shared->serve();
  shared->ended.set();
  return nullptr;
}

void Control::Shared::serve() {
  ControlThread self_thread(events, options, mailbox);
  thread = &self_thread;
  auto opened = self_thread.open(self);
  if (opened) {
    first_slot = opened->slot;
    page = std::move(opened->page);
    events.started(*control);
  } else {
    first_slot = refuse(opened.error());
  }
  const bool goes_on = opened.has_value();
  started.set();
  if (goes_on) self_thread.run();
  mailbox.close();
}

auto Control::start(ControlEvents& events, RandomSource& random, ControlOptions options)
    -> Result<std::unique_ptr<Control>, ControlError> {
  if (!options.now) options.now = monotonic_now;
  auto* shared = new Shared(events, std::move(options));
  std::unique_ptr<Control> control(new Control(shared));
  shared->control = control.get();
  do {
    shared->self.id = {random.next(), random.next()};
  } while (shared->self.id == ProcessId{});
  shared->nonce = random.next();
  shared->self.nonce = &shared->nonce;
  shared->self.slot_seed = random.next() % kSlotCount;
  if (create_thread(shared->handle, Shared::thread_main, shared) != 0) {
    shared->may_free = true;
    return refuse(ControlError::kNoThread);
  }
  if (!shared->started.wait(shared->options.now, shared->options.call_patience)) {
    control->stop();
    return refuse(ControlError::kNoAnswer);
  }
  if (shared->first_slot) return control;
  const ControlError why = shared->first_slot.error();
  LOG_WARN("no control thread: %s", to_string(why));
  control->stop();
  return refuse(why);
}

Control::~Control() {
  if (shared_ && shared_->may_free) delete shared_;
}

bool Control::stop() {
  VERBENA_ASSERT(!on_control_thread());
  if (shared_->may_free) return true;
  Shared* const shared = shared_;
  shared->mailbox.post([shared] { shared->thread->quit(); }, Mailbox::Limit::kIgnore);
  if (!shared->ended.wait(shared->options.now, shared->options.call_patience)) {
    LOG_ERROR("the control thread does not end");
    pthread_detach(shared->handle);
    return false;
  }
  pthread_join(shared->handle, nullptr);
  shared->may_free = true;
  return true;
}

void Control::abandon() { shared_ = nullptr; }

ProcessId Control::id() const { return shared_->self.id; }
SlotNumber Control::first_slot() const { return *shared_->first_slot; }
ProcessPage& Control::page() const { return shared_->page.at<ProcessPage>(0); }
bool Control::on_control_thread() const { return served == shared_; }

bool Control::on_any_control_thread() { return served != nullptr; }

bool Control::nudge() { return shared_->mailbox.nudge(); }

bool Control::submit(Task task) { return shared_->mailbox.post(std::move(task)); }

namespace {

// Of both sides: whoever is second frees it, since the waiting side may give up.
template <class Answer>
struct Call {
  Event done;
  std::atomic<unsigned> owners{2};
  Answer answer{};

  void leave() {
    if (owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

struct Nothing {};

}  // namespace

bool Control::call(Task task) {
  if (on_control_thread()) {
    task();
    return true;
  }
  auto* call = new Call<Nothing>;
  const bool submitted = submit([call, task = std::move(task)] {
    task();
    call->done.set();
    call->leave();
  });
  if (!submitted) {
    delete call;
    return false;
  }
  const bool answered = call->done.wait(shared_->options.now, shared_->options.call_patience);
  call->leave();
  return answered;
}

Result<SlotNumber, ControlError> Control::take_another_slot() {
  if (on_control_thread()) return shared_->thread->take_slot();
  using Answer = std::optional<Result<SlotNumber, ControlError>>;
  auto* call = new Call<Answer>;
  const bool submitted = submit([shared = shared_, call] {
    call->answer = shared->thread->take_slot();
    call->done.set();
    call->leave();
  });
  if (!submitted) {
    delete call;
    return refuse(ControlError::kNoAnswer);
  }
  const bool answered = call->done.wait(shared_->options.now, shared_->options.call_patience);
  const Result<SlotNumber, ControlError> slot =
      answered ? *call->answer : refuse(ControlError::kNoAnswer);
  call->leave();
  return slot;
}

void Control::connect(SlotNumber slot) {
  VERBENA_ASSERT(on_control_thread());
  shared_->thread->links().connect(slot);
}

bool Control::send(PeerId to, std::span<const std::byte> bytes, const PrivateFd* attachment) {
  VERBENA_ASSERT(on_control_thread());
  return shared_->thread->links().send(to, bytes, attachment);
}

bool Control::has_queued(PeerId to) const {
  VERBENA_ASSERT(on_control_thread());
  return shared_->thread->links().has_queued(to);
}

void Control::call_at(Instant when) {
  VERBENA_ASSERT(on_control_thread());
  shared_->thread->call_at(when);
}

std::optional<PeerId> Control::holder(SlotNumber slot) const {
  VERBENA_ASSERT(on_control_thread());
  return shared_->thread->links().holder(slot);
}

Result<SharedMemory::Created, MemoryError> Control::make_memory(std::size_t size, Backing backing,
                                                                Writers writers) {
  VERBENA_ASSERT(on_control_thread());
  return shared_->thread->make_memory(size, backing, writers);
}

DescriptorTable& Control::descriptors() {
  VERBENA_ASSERT(on_control_thread());
  return shared_->thread->descriptors();
}

const char* to_string(ControlError error) {
  switch (error) {
    case ControlError::kNoSlot: return "no slot is free";
    case ControlError::kNoThread: return "no thread can be made";
    case ControlError::kNoDescriptor: return "no descriptor left";
    case ControlError::kNoMemory: return "no memory left";
    case ControlError::kDenied: return "denied by the system";
    case ControlError::kNoAnswer: return "the control thread does not answer";
  }
  return "?";
}

const char* to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNobody: return "nobody holds it";
    case Refusal::kSelf: return "it is our own";
    case Refusal::kOtherUser: return "another user's process holds it";
    case Refusal::kOtherLayout: return "a process with another version holds it";
    case Refusal::kBusy: return "it does not answer";
  }
  return "?";
}

}  // namespace verbena::host
