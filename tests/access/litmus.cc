// SPDX-License-Identifier: MIT
// Hazard against key, between two processes: whoever enters a section after a region was hidden
// finds it hidden, or the owner waits for that section. With the real lock, the real tables and the
// real look-up; a race test through verbs cannot tell, as system calls hide the window.
//
//   access_litmus ROUNDS [no-fence]      prints the violations; no-fence: the section begins with a
//                                        plain store, and the litmus must notice
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/fence.h"
#include "local/direct.h"
#include "local/published.h"

namespace verbena::local {
namespace {

constexpr SlotNumber kOwnersSlot{3};
constexpr SlotNumber kUsersSlot{6};
constexpr QpNum kOwners = QpNum::of(kOwnersSlot, 33);
constexpr QpNum kUsers = QpNum::of(kUsersSlot, 21);
constexpr MemoryKey kKey{0x12340007};
constexpr std::uint64_t kConnection = 1;
constexpr std::size_t kSize = 4096;

// What both processes see outside of the tables; each word in a line of its own.
struct Score {
  alignas(64) std::atomic<std::uint32_t> is_mine{0};
  alignas(64) std::atomic<std::uint32_t> stop{0};
  alignas(64) std::atomic<std::uint64_t> violations{0};
  alignas(64) std::atomic<std::uint64_t> sections{0};
  alignas(64) std::atomic<std::uint64_t> uses{0};
  // Both ask for its line all the time: what the user stores after a store to it stays in the
  // processor that long, on machines too whose stores are seen at once otherwise.
  alignas(64) std::atomic<std::uint64_t> crowded{0};
};

void require(bool is_right, const char* what) {
  if (is_right) return;
  std::perror(what);
  std::_Exit(2);
}

struct Side {
  host::SharedMemory view;  // as the other side maps it
  Published published;
};

Side make_side(SlotNumber slot) {
  auto created = host::SharedMemory::create(kPublishedSize, host::Backing::kWhenTouched,
                                            host::Writers::kMaker);
  require(created.has_value(), "tables");
  auto view = host::SharedMemory::adopt_read_only(created->fd, kPublishedSize);
  require(view.has_value(), "view");
  // The mappings are not inherited otherwise.
  for (const host::SharedMemory* memory : {&created->memory, &*view})
    require(madvise(memory->data(), memory->size(), MADV_DOFORK) == 0, "madvise");
  return {std::move(*view), Published(std::move(created->memory), slot)};
}

class NoRequests final : public MappingRequests {
  void want_mapping(MemoryKey) override {}
  void want_room() override {}
};

// What SectionLock::lock() would be without its fence.
class Section {
 public:
  Section(SectionLock& lock, bool has_fence)
      : lock_(lock), word_(*reinterpret_cast<std::atomic<std::uint32_t>*>(&lock)) {
    if (has_fence) {
      lock_.lock();
    } else {
      word_.store(word_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
  }
  ~Section() { lock_.unlock(); }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  SectionLock& lock_;
  std::atomic<std::uint32_t>& word_;
};

[[noreturn]] void use(Side& owner, const Side& user, int file, Score& score, bool has_fence) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  NoRequests requests;
  memory::SectionList sections;
  PeerMemory peer({}, requests, sections);
  peer.take_tables(std::move(owner.view));
  PeerFiles files;
  files.take(FileId::of(1, true), host::PrivateFd(dup(file)));
  while (peer.tables() && !peer.find(kKey))
    sched_yield();
  peer.map_now(kKey, files);
  ConduitHeader header{};
  Direct direct;
  direct.attach(peer, kUsers, kOwners, header, kConnection);
  SectionLock& lock = *user.published.lock_of(kUsers);
  std::uint64_t violations = 0;
  std::uint64_t uses = 0;
  while (!score.stop.load(std::memory_order_relaxed)) {
    score.crowded.store(uses, std::memory_order_relaxed);
    {
      const Section section(lock, has_fence);
      if (direct.target_of_write(kKey, 0, 8)) {
        ++uses;
        // A use lasts, and none of it may come after the memory was taken back.
        std::uint32_t is_violated = 0;
        for (std::uint64_t i = 0; i <= uses % 16; ++i) {
          is_violated |= score.is_mine.load(std::memory_order_relaxed);
          spin_pause();
        }
        violations += is_violated;
      }
    }
    score.sections.store(score.sections.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
    score.uses.store(uses, std::memory_order_relaxed);
  }
  score.violations = violations;
  std::_Exit(0);
}

// Like nic::Sharing; what is ours is seen by nobody who may not.
void take_and_give(Side& owner, const Side& user, std::uint64_t rounds, Score& score) {
  const Published::Region region{
      .pd = {1},
      .access = memory::kRemoteWrite,
      .iova = 0,
      .length = kSize,
      .address = nullptr,
      .mapped = {.begin = 0, .end = kSize, .offset = 0, .file = FileId::of(1, true).value}};
  owner.published.grant(
      kOwners,
      {.pd = {1}, .to = kUsers, .rights = memory::kRemoteWrite, .connection = kConnection});
  owner.published.show(kKey, region);
  while (score.uses.load(std::memory_order_relaxed) == 0)
    sched_yield();
  const SectionLock& lock = user.view.at<PublishedTables>(0).queue_pairs[kUsers.index()].lock;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    // Different lengths, so that the two do not keep step.
    for (std::uint64_t i = 0; i <= round % 16; ++i) {
      spin_pause();
      (void)score.crowded.load(std::memory_order_relaxed);
    }
    owner.published.hide(kKey);
    full_fence();
    const SectionLock::Watch watch(lock);
    while (!watch.is_over())
      spin_pause();
    score.is_mine.store(1, std::memory_order_relaxed);
    for (std::uint64_t i = 0; i < round % 8; ++i)
      spin_pause();
    score.is_mine.store(0, std::memory_order_relaxed);
    owner.published.show(kKey, region);
  }
  score.stop = 1;
}

}  // namespace
}  // namespace verbena::local

int main(int argc, char** argv) {
  using namespace verbena::local;
  require(argc >= 2, "access_litmus ROUNDS [no-fence]");
  const std::uint64_t rounds = std::strtoull(argv[1], nullptr, 10);
  const bool has_fence = argc < 3 || std::string_view(argv[2]) != "no-fence";
  auto* const score =
      new (mmap(nullptr, sizeof(Score), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Score;
  const int file = memfd_create("verbena-litmus", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  require(file >= 0 && ftruncate(file, kSize) == 0 &&
              fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
          "memfd");
  Side owner = make_side(kOwnersSlot);
  Side user = make_side(kUsersSlot);
  const pid_t child = fork();
  require(child >= 0, "fork");
  if (child == 0) use(owner, user, file, *score, has_fence);
  take_and_give(owner, user, rounds, *score);
  int status = 0;
  require(waitpid(child, &status, 0) == child && status == 0, "the user");
  std::printf("%llu violations, %llu rounds, %llu sections, %llu uses\n",
              static_cast<unsigned long long>(score->violations.load()),
              static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(score->sections.load()),
              static_cast<unsigned long long>(score->uses.load()));
  return score->violations.load() == 0 ? 0 : 1;
}
