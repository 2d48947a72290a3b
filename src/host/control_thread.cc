// SPDX-License-Identifier: MIT
#include "host/control_thread.h"

#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <new>
#include <utility>

#include "base/log.h"
#include "host/raw_calls.h"

namespace verbena::host {
namespace {

// Finds what a lost signal left in the mailbox (mailbox.h). In the program's table it also finds
// that the program closed our descriptors: a wait that is under way does not end by that.
constexpr Duration kHeartbeat = Duration::seconds(10);
constexpr Duration kHeartbeatInSharedTable = Duration::seconds(1);
// When there is no descriptor for those who come, they wait in the kernel.
constexpr Duration kAcceptPause = Duration::milliseconds(50);
constexpr unsigned kAcceptsPerTurn = 16;

ControlError reason_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE: return ControlError::kNoDescriptor;
    case ENOMEM:
    case ENOBUFS: return ControlError::kNoMemory;
    default: return ControlError::kDenied;
  }
}

ControlError reason_of(MemoryError error) {
  switch (error) {
    case MemoryError::kNoDescriptor: return ControlError::kNoDescriptor;
    case MemoryError::kNoMemory: return ControlError::kNoMemory;
    case MemoryError::kDenied:
    case MemoryError::kNotSealed:
    case MemoryError::kWrongSize: return ControlError::kDenied;
  }
  return ControlError::kDenied;
}

}  // namespace

ControlThread::ControlThread(ControlEvents& events, const ControlOptions& options, Mailbox& mailbox)
    : events_(events),
      options_(options),
      mailbox_(mailbox),
      table_(options.own_table),
      poller_(table_),
      links_(events, options_, table_, poller_) {
  table_.set_spare([this] { return events_.spare_descriptors(); });
}

auto ControlThread::open(const Self& self) -> Result<Opened, ControlError> {
  now_ = options_.now();
  links_.begin(now_);
  if (!poller_) return refuse(reason_of(errno));
  if (const auto opened = open_mailbox(); !opened) return refuse(opened.error());
  auto page = make_page(self);
  if (!page) return refuse(page.error());
  if (!table_.is_own()) {
    // Refused in some containers: then a peer whose children live on is not seen to die.
    pidfd_ = table_.make([] { return raw::open_process(getpid()); });
  }
  links_.introduce(
      {.id = self.id, .nonce = self.nonce, .page_fd = page_fd_.get(), .pidfd = pidfd_.get()});
  slot_seed_ = self.slot_seed;
  user_ = geteuid();
  const auto slot = take_slot();
  if (!slot) return refuse(slot.error());
  if (table_.is_own()) interfaces_.open(table_, poller_);
  return Opened{*slot, std::move(*page)};
}

Result<void, ControlError> ControlThread::open_mailbox() {
  constexpr std::uint64_t kMask = std::uint64_t{1} << (Mailbox::kSignal - 1);
  signals_ = table_.make([] { return raw::signal_descriptor(kMask); });
  if (!signals_ || !poller_.add(signals_.get(), {Source::kMailbox})) {
    return refuse(reason_of(errno));
  }
  mailbox_.open();
  return {};
}

Result<SharedMemory, ControlError> ControlThread::make_page(const Self& self) {
  auto created = SharedMemory::create(sizeof(ProcessPage));
  if (!created) return refuse(reason_of(created.error()));
  ProcessPage& page = created->memory.at<ProcessPage>(0);
  page.magic = ProcessPage::kMagic;
  page.id = self.id;
  page.layout_version = kLayoutVersion;
  page.pid = static_cast<std::uint32_t>(getpid());
  page_fd_ = table_.settle(created->fd.release());
  return std::move(created->memory);
}

Result<SlotNumber, ControlError> ControlThread::take_slot() {
  if (listeners_.size() >= options_.slots_max) return refuse(ControlError::kNoSlot);
  for (unsigned tried = 0; tried < kSlotCount; ++tried, ++slot_seed_) {
    const SlotNumber slot{static_cast<std::uint16_t>(slot_seed_ % kSlotCount)};
    if (links_.own_slots().has(slot)) continue;
    const auto listens = listen_on(slot);
    if (listens) return slot;
    if (listens.error() != ControlError::kNoSlot) return refuse(listens.error());
  }
  return refuse(ControlError::kNoSlot);
}

// kNoSlot: somebody has it.
Result<void, ControlError> ControlThread::listen_on(SlotNumber slot) {
  PrivateFd socket = table_.make(raw::seqpacket_socket);
  if (!socket) return refuse(reason_of(errno));
  const SlotAddress address(options_.slot_name, slot);
  if (raw::bind(socket.get(), address.address(), address.size) != 0) {
    return refuse(errno == EADDRINUSE ? ControlError::kNoSlot : reason_of(errno));
  }
  if (raw::listen(socket.get(), SOMAXCONN) != 0) return refuse(reason_of(errno));
  if (is_listening_ && !poller_.add(socket.get(), {Source::kListener, slot.value})) {
    return refuse(reason_of(errno));
  }
  listeners_.push_back({slot, std::move(socket)});
  links_.add_own_slot(slot);
  return {};
}

void ControlThread::run() {
  while (!is_quitting_) {
    try {
      turn();
    } catch (const std::bad_alloc&) {
      LOG_ERROR("the control thread is out of memory");
    }
  }
  run_tasks(mailbox_.close());
  if (has_failed_) links_.end();
}

void ControlThread::turn() {
  const Instant deadline =
      std::min({links_.next_deadline(), tick_at_, interfaces_.next_deadline(),
                no_accept_before_ > now_ ? no_accept_before_ : Instant::never()});
  const Duration heartbeat = table_.is_own() ? kHeartbeat : kHeartbeatInSharedTable;
  const Duration limit =
      deadline == Instant::never() ? heartbeat : std::min(deadline - now_, heartbeat);
  std::array<Ready, 64> ready;
  const auto count = poller_.wait(ready, limit);
  if (mailbox_.take_nudge()) events_.nudged();
  now_ = options_.now();
  links_.begin(now_);
  if (!count) {
    // Our descriptors lie in the program's table, and it closed them; or a filter came later.
    LOG_ERROR("the control thread cannot wait any more: error %d", errno);
    links_.drop_all();
    is_quitting_ = has_failed_ = true;
  }
  for (const Ready& each : std::span(ready).first(count.value_or(0))) {
    switch (each.what.source) {
      case Source::kMailbox: read_signals(); break;
      case Source::kLink: links_.ready(each.what.number, each.writable); break;
      case Source::kInterfaces: interfaces_.heard(poller_, now_); break;
      case Source::kPeerProcess: links_.process_ended(each.what.number); break;
      case Source::kListener:
        for (Listener& listener : listeners_) {
          if (listener.slot.value == each.what.number) accept_from(listener);
        }
        break;
    }
  }
  run_tasks(mailbox_.take());
  if (tick_at_ <= now_) {
    tick_at_ = Instant::never();
    events_.tick(now_);
  }
  if (interfaces_.take_change(poller_, now_)) events_.interfaces_changed();
  links_.tend();
  update_listeners();
  follow_user();
}

// Programs drop privileges. A listener shows who called listen() last.
void ControlThread::follow_user() {
  if (geteuid() == user_) return;
  user_ = geteuid();
  for (const Listener& listener : listeners_)
    raw::listen(listener.socket.get(), SOMAXCONN);
}

void ControlThread::read_signals() {
  signalfd_siginfo info;
  while (raw::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const bool is_ours =
        info.ssi_code == SI_TKILL && info.ssi_pid == static_cast<std::uint32_t>(getpid());
    // One for the whole process, which the program wants to take by sigwait or signalfd itself.
    if (!is_ours) tgkill(getpid(), getpid(), Mailbox::kSignal);
  }
}

void ControlThread::accept_from(Listener& listener) {
  for (unsigned i = 0; i < kAcceptsPerTurn && links_.can_greet(); ++i) {
    PrivateFd socket = table_.make([&] { return raw::accept(listener.socket.get()); });
    if (!socket) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        LOG_WARN("somebody wants a link, and there is no descriptor: error %d", errno);
        no_accept_before_ = now_ + kAcceptPause;
      }
      return;
    }
    links_.accept(std::move(socket));
  }
}

void ControlThread::update_listeners() {
  const bool wanted = links_.can_greet() && no_accept_before_ <= now_;
  if (wanted == is_listening_) return;
  is_listening_ = wanted;
  for (const Listener& listener : listeners_) {
    if (wanted) {
      poller_.add(listener.socket.get(), {Source::kListener, listener.slot.value});
    } else {
      poller_.remove(listener.socket.get());
    }
  }
}

void ControlThread::run_tasks(std::vector<Mailbox::Task> tasks) {
  for (const Mailbox::Task& task : tasks) {
    try {
      task();
    } catch (const std::bad_alloc&) {
      LOG_ERROR("a task of the control thread found no memory");
    }
  }
}

}  // namespace verbena::host
