// SPDX-License-Identifier: MIT
#include "nic/sharing.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/fence.h"
#include "base/log.h"
#include "host/raw_calls.h"
#include "memory/fault_guard.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"

namespace verbena::nic {
namespace {

// A running peer leaves its section within microseconds.
constexpr Duration kPeerPatience = Duration::milliseconds(10);
// One that runs, and was about to make a system call, has made it by then.
constexpr Duration kPatienceWithCalls = Duration::seconds(1);
constexpr std::uint32_t kPeersWrite = memory::kRemoteWrite | memory::kRemoteAtomic;
constexpr memory::ArenaKind kArenas[] = {memory::ArenaKind::kPeersWrite,
                                         memory::ArenaKind::kPeersRead};

int open_to_read(int folder, const char* path, int flags) {
  return static_cast<int>(syscall(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC | flags));
}

bool is_thread_stopped(int tasks, const char* thread) {
  std::array<char, 32> path;
  const int length = std::snprintf(path.data(), path.size(), "%s/stat", thread);
  if (length < 0 || static_cast<std::size_t>(length) >= path.size()) return false;
  const int file = open_to_read(tasks, path.data(), 0);
  if (file < 0) return false;
  std::array<char, 256> text;
  const ssize_t size = host::raw::read(file, text.data(), text.size());
  host::raw::close(file);
  const std::string_view line(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  const std::size_t name_end = line.rfind(')');
  if (name_end == line.npos || name_end + 2 >= line.size()) return false;
  const char state = line[name_end + 2];
  return state == 'T' || state == 't' || state == 'Z' || state == 'X';
}

// Whether none of its threads runs: a stopped process makes no call, nor does one that has ended.
// The first thread may have ended, or be the only one that is stopped, so each is asked. Where we
// cannot see, it runs.
// Without the heap.
bool is_stopped(pid_t process) {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/task", static_cast<int>(process));
  const int tasks = open_to_read(AT_FDCWD, path.data(), O_DIRECTORY);
  if (tasks < 0) return kill(process, 0) != 0 && errno == ESRCH;
  // linux_dirent64: length of the entry at 16, name at 19.
  alignas(8) std::array<char, 4096> entries;
  bool all = true;
  bool any = false;
  for (;;) {
    const long size = syscall(SYS_getdents64, tasks, entries.data(), entries.size());
    if (size <= 0) break;
    for (long at = 0; at < size && all;) {
      const char* const entry = entries.data() + at;
      std::uint16_t length = 0;
      std::memcpy(&length, entry + 16, sizeof length);
      at += length;
      if (entry[19] == '.') continue;
      any = true;
      all = is_thread_stopped(tasks, entry + 19);
    }
    if (!all) break;
  }
  host::raw::close(tasks);
  return any && all;
}

class SignalsBlocked {
 public:
  SignalsBlocked() {
    const sigset_t all = memory::signals_but_faults();
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Sharing::Sharing(Nic& nic) : nic_(nic), policy_(Policy::from_environment()) {}
Sharing::~Sharing() = default;

// -- the control thread ---------------------------------------------------------------------------

void Sharing::start(host::Control& control, Links& links) {
  control_ = &control;
  links_ = &links;
  control_thread_ = gettid();
  if (!policy_.is_direct()) return;
  auto made = control.make_memory(local::kPublishedSize, host::Backing::kWhenTouched,
                                  host::Writers::kMaker);
  if (!made) {
    LOG_INFO("nothing is published to peers: %s", host::to_string(made.error()));
    const std::lock_guard guard(lock_);
    has_nothing_to_show_ = true;
    return;
  }
  tables_ = std::move(made->fd);
  if (policy_.adopts) adoption();
  const std::lock_guard guard(lock_);
  published_ = local::Published(std::move(made->memory), control.first_slot());
  is_started_ = true;
  // These were registered without us: too late to adopt them.
  for (auto& [key, record] : records_)
    show(record);
}

void Sharing::stop() {
  const std::lock_guard guard(lock_);
  is_started_ = false;
  for (auto& [key, record] : records_)
    record.is_shown = false;
  published_ = {};
}

void Sharing::introduce(host::PeerId peer) {
  if (!tables_) return;
  links_->pass_tables(peer, tables_);
  for (const memory::ArenaKind kind : kArenas)
    if (announced(kind) != 0) pass(peer, kind);
}

void Sharing::pass(host::PeerId peer, memory::ArenaKind kind) {
  const int file = adoption_->descriptor(kind);
  if (file < 0) return;
  const host::PrivateFd copy(host::raw::duplicate(file, 0));
  const auto id =
      local::FileId::of(adoption_->generation(), kind == memory::ArenaKind::kPeersWrite);
  if (copy) links_->pass_file(peer, id, copy);
}

void Sharing::announce() {
  // Each is made when the first region needs it.
  for (const memory::ArenaKind kind : kArenas) {
    if (announced(kind) == adoption_->generation() || adoption_->descriptor(kind) < 0) continue;
    announced(kind) = adoption_->generation();
    for (const host::PeerId peer : links_->peers())
      pass(peer, kind);
  }
}

void Sharing::show(Record& record) {
  if (!published_ || record.is_shown || record.is_going) return;
  if (record.address < moving_.end && moving_.begin < record.address + record.length) {
    record.is_moving = true;
    return;
  }
  record.region.mapped = {};
  if (const auto& adopted = record.adopted; adopted && record.is_mapped) {
    const auto begin = static_cast<std::uint64_t>(adopted->begin - record.address);
    record.region.mapped = {
        .begin = begin,
        .end = begin + adopted->length,
        .offset = adopted->offset,
        .file =
            local::FileId::of(adopted->generation, adopted->kind == memory::ArenaKind::kPeersWrite)
                .value};
  }
  published_.show(record.key, record.region);
  record.is_shown = true;
}

// Adopts what may be adopted of a new region, and shows it.
void Sharing::place(MemoryKey key, const void* stack) {
  std::byte* address = nullptr;
  std::size_t length = 0;
  bool peers_write = false;
  {
    const std::lock_guard guard(lock_);
    const auto found = records_.find(key);
    if (found == records_.end() || found->second.placing != Record::Placing::kAsked) return;
    found->second.placing = Record::Placing::kRunning;
    address = found->second.address;
    length = found->second.length;
    peers_write = (found->second.region.access & kPeersWrite) != 0;
  }
  std::optional<memory::Adopted> adopted;
  const bool is_shared = adoption_ && adoption_->overlaps(address, length);
  if (is_shared || policy_.adopts) {
    widen(address, length);
    auto moved = adoption().adopt(address, length, peers_write, stack);
    if (moved) {
      adopted = *moved;
      LOG_DEBUG("region of %zu bytes: %zu shared", length, moved->length);
      announce();
    } else {
      LOG_DEBUG("region of %zu bytes: not shared: %s", length, memory::to_string(moved.error()));
    }
  }
  std::unique_lock guard(lock_);
  const auto found = records_.find(key);
  if (found == records_.end()) {
    guard.unlock();
    // By a program that takes down what it has not got yet.
    if (adopted) adoption_->release(adopted->id);
    return;
  }
  found->second.placing = Record::Placing::kNo;
  found->second.adopted = adopted;
  found->second.is_mapped = adopted.has_value();
  show(found->second);
}

// The control thread did not answer in time. What it has not begun it shall leave alone, as nobody
// waits for it; what it has begun ends.
void Sharing::stop_placing(MemoryKey key) {
  for (;;) {
    {
      const std::lock_guard guard(lock_);
      const auto found = records_.find(key);
      if (found == records_.end()) return;
      Record& record = found->second;
      if (record.placing == Record::Placing::kAsked) record.placing = Record::Placing::kNo;
      if (record.placing == Record::Placing::kNo) return show(record);
    }
    sched_yield();
  }
}

void Sharing::release(std::optional<memory::Adopted> adopted, bool is_stuck) {
  if (!adopted || !adoption_) return;
  if (is_stuck) adoption_->undo_range(adopted->begin, adopted->length);
  adoption_->release(adopted->id);
}

// -- regions --------------------------------------------------------------------------------------

namespace {

// It stays here: peers would otherwise reach what the program never meant.
bool is_everything(const Mr& mr) { return mr.address == nullptr && mr.length == kWholeMemory; }

}  // namespace

void Sharing::add(const Mr& mr) {
  if (!policy_.is_direct()) return;
  if (mr.length == 0) return;
  if (is_everything(mr)) {
    const std::lock_guard guard(lock_);
    ++whole_memories_;
    return;
  }
  const bool adopts = policy_.adopts && !(mr.access & memory::kOnDemand);
  // Only here may memory be adopted, so the control thread is needed now.
  if (adopts) static_cast<void>(nic_.start_engine());
  Record fresh;
  fresh.region = {.pd = mr.pd->id,
                  .access = mr.access,
                  .iova = mr.iova,
                  .length = mr.length,
                  .address = mr.address,
                  .mapped = {}};
  fresh.key = mr.key;
  fresh.address = mr.address;
  fresh.length = mr.length;
  std::map<MemoryKey, Record> made;
  Record& made_record = made.emplace(mr.key, fresh).first->second;
  Places made_place;
  made_place.emplace(fresh.address, &made_record);
  {
    const std::lock_guard guard(lock_);
    const auto placed = records_.insert(made.extract(made.begin()));
    VERBENA_ASSERT(placed.inserted);  // settle() forgot what had this key before
    places_.insert(made_place.extract(made_place.begin()));
    longest_ = std::max(longest_, fresh.length);
    Record& record = placed.position->second;
    if (!is_started_) return;
    if (!adopts && !overlaps(mr.address, mr.length)) return show(record);
    record.placing = Record::Placing::kAsked;
  }
  const SignalsBlocked blocked;
  const auto task = [this, key = mr.key, &blocked] { place(key, &blocked); };
  if (!control_->call(task)) stop_placing(mr.key);
}

void Sharing::hide(const Mr& mr) {
  if (!policy_.is_direct()) return;
  const std::lock_guard guard(lock_);
  const auto found = records_.find(mr.key);
  if (found == records_.end()) return;
  if (found->second.is_shown) published_.hide(mr.key);
  found->second.is_shown = found->second.is_moving = false;
  // The control thread may be about to show it (again).
  found->second.is_going = true;
}

void Sharing::settle(const Mr& mr) {
  if (!policy_.is_direct()) return;
  std::map<MemoryKey, Record>::node_type gone;
  Places::node_type gone_place;
  {
    const std::lock_guard guard(lock_);
    gone = records_.extract(mr.key);
    if (gone.empty()) {
      if (is_everything(mr)) --whole_memories_;
      return;
    }
    gone_place = places_.extract(place_of(gone.mapped()));
    if (places_.empty()) longest_ = 0;
    if (!published_) return;
  }
  const bool is_stuck = wait_for_everybody(Locking::kWaits) != Left::kAll;
  const std::optional<memory::Adopted> adopted = gone.mapped().adopted;
  if (!adopted) return;
  const SignalsBlocked blocked;
  static_cast<void>(control_->call([this, adopted, is_stuck] { release(adopted, is_stuck); }));
}

std::optional<local::MappedPart> Sharing::mapped_part(MemoryKey key) {
  const std::lock_guard guard(lock_);
  const auto found = records_.find(key);
  const bool is_mapped =
      found != records_.end() && found->second.is_shown && found->second.region.mapped.file != 0;
  if (!is_mapped) return std::nullopt;
  return found->second.region.mapped;
}

bool Sharing::can_be_reached(MemoryKey key) {
  const std::lock_guard guard(lock_);
  return records_.contains(key) && !has_nothing_to_show_;
}

// -- waiting --------------------------------------------------------------------------------------

bool Sharing::take_soon(SectionLock& lock) {
  const Instant begin = clock_now();
  while (!lock.try_lock()) {
    if (clock_now() - begin > kThreadPatience) return false;
    sched_yield();
  }
  return true;
}

// Without the heap.
Sharing::Left Sharing::wait_for_everybody(Locking locking) {
  full_fence();
  const Instant begin = clock_now();
  Left left = Left::kAll;
  const QpTable::Reading reading(nic_.queue_pairs());
  nic_.queue_pairs().each([&](Qp& qp) {
    if (!qp.has_peer.load(std::memory_order_relaxed)) return;
    PeerSection now, before;
    if (!with_lock(qp, locking, [&] {
          now = qp.peer_section();
          before = qp.leaving;
        })) {
      left = Left::kUnknown;
      return;
    }
    for (const PeerSection& section : {std::cref(now), std::cref(before)})
      if (section.lock) left = std::max(left, wait(section, begin, locking));
  });
  return left;
}

void Sharing::wait_until_left(const PeerSection& section) {
  if (!section.lock) return;
  full_fence();
  const Left left = wait(section, clock_now(), Locking::kWaits);
  if (left == Left::kAll || !shared_.load(std::memory_order_acquire)) return;
  const SignalsBlocked blocked;
  static_cast<void>(control_->call([this] { adoption_->expel(); }));
}

Sharing::Left Sharing::wait(const PeerSection& section, Instant begin, Locking locking) {
  const SectionLock::Watch watch(*section.lock);
  if (watch.is_over()) return Left::kAll;
  // Each is waited for once: a program that takes down a thousand regions shall not wait a thousand
  // times for one stopped peer.
  if (is_given_up(section, locking)) return Left::kNotAll;
  constexpr int kSpins = 1000;
  for (int i = 0; i < kSpins; ++i) {
    if (watch.is_over()) return Left::kAll;
    spin_pause();
  }
  while (clock_now() - begin < kPeerPatience) {
    sched_yield();
    if (watch.is_over()) return Left::kAll;
  }
  if (!give_up(section, watch, false, locking)) return Left::kUnknown;
  const pid_t process = section.link->memory().process();
  while (clock_now() - begin < kPatienceWithCalls && process != 0 && !is_stopped(process)) {
    sched_yield();
    if (watch.is_over()) return Left::kAll;
  }
  if (!give_up(section, watch, true, locking)) return Left::kUnknown;
  LOG_WARN("a peer does not leave our memory: stopped, or hostile");
  return Left::kNotAll;
}

template <class Body>
bool Sharing::with_lock(Qp& qp, Locking locking, const Body& body) {
  SectionLock& lock = qp.pair.lock();
  if (locking == Locking::kWaits)
    lock.lock();
  else if (!take_soon(lock))
    return false;
  const std::lock_guard guard(lock, std::adopt_lock);
  body();
  return true;
}

bool Sharing::is_given_up(const PeerSection& section, Locking locking) {
  const QpTable::Reading reading(nic_.queue_pairs());
  Qp* const qp = nic_.queue_pairs().find(section.ours);
  bool is_so = false;
  return qp && with_lock(*qp, locking, [&] { is_so = qp->has_given_up_for_good(section); }) &&
         is_so;
}

bool Sharing::give_up(const PeerSection& section, const SectionLock::Watch& watch, bool is_for_good,
                      Locking locking) {
  const QpTable::Reading reading(nic_.queue_pairs());
  Qp* const qp = nic_.queue_pairs().find(section.ours);
  return !qp || with_lock(*qp, locking, [&] { qp->give_up(section, watch, is_for_good); });
}

// -- changes --------------------------------------------------------------------------------------

Sharing::Change::Change(Sharing& sharing) : sharing_(sharing) {
  const std::lock_guard guard(sharing_.lock_);
  ++sharing_.changing_;
}

Sharing::Change::~Change() {
  const std::lock_guard guard(sharing_.lock_);
  --sharing_.changing_;
}

}  // namespace verbena::nic
