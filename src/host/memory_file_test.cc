// SPDX-License-Identifier: MIT
// The memory of a process as a file, and programs that do with their descriptors what they like.
#include "host/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/ticks.h"

namespace verbena::host {
namespace {

// Ours, under whatever number.
std::vector<int> memory_files() {
  std::vector<int> found;
  for (int fd = 3; fd < MemoryFile::kNumbers; ++fd) {
    std::array<char, 64> path{};
    const std::string name = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t size = readlink(name.c_str(), path.data(), path.size() - 1);
    if (size > 0 && std::string(path.data()).ends_with("/mem")) found.push_back(fd);
  }
  return found;
}

int temporary_file() { return open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); }

off_t size_of(int fd) {
  struct stat status{};
  EXPECT_EQ(fstat(fd, &status), 0);
  return status.st_size;
}

class MemoryFileTest : public testing::Test {
 protected:
  MemoryFileTest() {
    if (ticks() == 0) skip_ = "there is no count of time";
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < MemoryFile::kNumbers) skip_ = "there are too few descriptors";
    if (!MemoryFile::is_sound_here()) skip_ = "the kernel does not copy in order";
  }
  void SetUp() override {
    if (skip_) GTEST_SKIP() << skip_;
    make_room();
    EXPECT_TRUE(memory_files().empty());
  }

  // As the NIC's thread does when somebody wants it.
  void make_room() const {
    MemoryFile first(owner());
    first.look();
    MemoryFile::make_room_if_wanted();
  }
  static std::uint64_t address_of(const void* at) { return reinterpret_cast<std::uint64_t>(at); }
  MemoryOwner owner() const { return {getpid(), address_of(&nonce), nonce}; }
  static bool may_use(const MemoryFile& file) { return file.may_use(ticks()); }
  // The machine may take the processor away for longer than a moment, but not all the time.
  template <class Call>
  static bool soon(MemoryFile& file, const Call& call) {
    for (int i = 0; i < 1000; ++i) {
      file.look();
      if (call()) return true;
    }
    return false;
  }
  static bool sees(MemoryFile& file) {
    return soon(file, [&] { return may_use(file); });
  }
  // Eight bytes of ours to `to`.
  bool write(MemoryFile& file, void* to) {
    const iovec piece{bytes.data(), bytes.size()};
    return file.write(&piece, bytes.size(), address_of(to));
  }

  const std::uint64_t nonce = 0x123456789abcdef0;
  std::array<char, 8> bytes{'o', 'n', 'e', ' ', 't', 'w', 'o', '\0'};
  std::array<char, 8> target{};

 private:
  const char* skip_ = nullptr;
};

TEST_F(MemoryFileTest, MovesWhatWasAskedFor) {
  MemoryFile file(owner());
  EXPECT_FALSE(may_use(file)) << "before it was seen";
  EXPECT_TRUE(file.is_due(ticks()));
  errno = 77;
  EXPECT_TRUE(sees(file));
  EXPECT_TRUE(soon(file, [&] { return !file.is_due(ticks()); }));
  EXPECT_TRUE(write(file, target.data()));
  EXPECT_STREQ(target.data(), "one two");
  EXPECT_EQ(errno, 77);
}

// In a child, whose table is smaller again.
TEST_F(MemoryFileTest, WaitsForRoom) {
  const pid_t child = fork();
  if (child == 0) {
    MemoryFile file(owner());
    MemoryFile::make_room_if_wanted();
    file.look();
    const bool waits = !may_use(file) && file.is_due(ticks()) && memory_files().empty();
    MemoryFile::make_room_if_wanted();
    _exit(!waits ? 1 : sees(file) ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(MemoryFileTest, IsSeenForAMoment) {
  MemoryFile file(owner());
  file.look();
  const std::uint64_t now = ticks();
  EXPECT_TRUE(file.is_due(now + MemoryFile::kMoment / 2 + 1));
  EXPECT_FALSE(file.may_use(now + MemoryFile::kMoment));
  EXPECT_FALSE(file.may_use(now - (std::uint64_t{1} << 40)))
      << "another processor counts otherwise";
}

TEST_F(MemoryFileTest, WhatOneThreadHasSeenIsNothingToAnother) {
  MemoryFile file(owner());
  file.look();
  bool may = true;
  bool may_later = false;
  std::thread([&] {
    may = file.may_use(ticks());
    may_later = sees(file);
  }).join();
  EXPECT_FALSE(may);
  EXPECT_TRUE(may_later);
}

TEST_F(MemoryFileTest, ANumberThatIsNotGivenOutByChance) {
  {
    MemoryFile file(owner());
    EXPECT_TRUE(memory_files().empty()) << "before anybody wants it";
    file.look();
    const std::vector<int> numbers = memory_files();
    ASSERT_EQ(numbers.size(), 1u);
    EXPECT_GE(numbers[0], MemoryFile::kLowest);
    EXPECT_EQ(fcntl(numbers[0], F_GETFD), FD_CLOEXEC);
  }
  EXPECT_TRUE(memory_files().empty()) << "it is closed";
}

TEST_F(MemoryFileTest, AnotherProcessIsToldApart) {
  MemoryOwner other = owner();
  other.nonce ^= 1;
  MemoryFile file(other);
  file.look();
  EXPECT_FALSE(may_use(file));
  EXPECT_FALSE(file.is_due(ticks())) << "it is tried once";
  EXPECT_TRUE(memory_files().empty());
}

TEST_F(MemoryFileTest, WhoCannotBeKnownIsNotOpened) {
  for (const MemoryOwner& nobody : {MemoryOwner{}, MemoryOwner{.pid = getpid()}}) {
    const MemoryFile file(nobody);
    EXPECT_FALSE(file.is_due(ticks()));
  }
}

TEST_F(MemoryFileTest, AfterAFailureItIsLookedAtFirst) {
  MemoryFile file(owner());
  file.look();
  void* const gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, 4096);
  EXPECT_FALSE(write(file, gone));
  EXPECT_FALSE(may_use(file));
  EXPECT_TRUE(sees(file));
}

TEST_F(MemoryFileTest, AProgramMayCloseIt) {
  MemoryFile file(owner());
  file.look();
  ASSERT_EQ(memory_files().size(), 1u);
  close(memory_files()[0]);
  EXPECT_FALSE(write(file, target.data()));
  file.look();
  EXPECT_FALSE(may_use(file));
  EXPECT_FALSE(file.is_due(ticks())) << "it is not opened again";
  EXPECT_EQ(target[0], 0);
}

TEST_F(MemoryFileTest, AFileOfTheProgramUnderItsNumberIsLeftAlone) {
  const int programs = temporary_file();
  ASSERT_GE(programs, 0);
  int number = -1;
  {
    MemoryFile file(owner());
    file.look();
    ASSERT_EQ(memory_files().size(), 1u);
    number = dup2(programs, memory_files()[0]);
    // As who uses it does, when a moment is over.
    file.look();
    EXPECT_FALSE(may_use(file));
  }
  EXPECT_EQ(size_of(number), 0) << "and is open";
  MemoryFile next(owner());
  next.look();
  EXPECT_EQ(size_of(number), 0);
  close(number);
  close(programs);
}

// Also another file of the same process's memory: it may have been opened by the program to write
// elsewhere, at its own position.
TEST_F(MemoryFileTest, KnowsItsOwnFile) {
  MemoryFile file(owner());
  file.look();
  const std::vector<int> numbers = memory_files();
  ASSERT_EQ(numbers.size(), 1u);
  const int own = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  const int number = dup2(own, numbers[0]);
  file.look();
  EXPECT_FALSE(may_use(file));
  close(own);
  close(number);
}

TEST_F(MemoryFileTest, AChildDoesNotKeepIt) {
  MemoryFile file(owner());
  file.look();
  ASSERT_EQ(memory_files().size(), 1u);
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(memory_files().size()));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(memory_files().size(), 1u);
}

TEST_F(MemoryFileTest, FewAreOpenAtATime) {
  std::vector<std::unique_ptr<MemoryFile>> files;
  for (std::size_t i = 0; i < MemoryFile::kMost; ++i) {
    files.push_back(std::make_unique<MemoryFile>(owner()));
    EXPECT_TRUE(sees(*files.back()));
  }
  MemoryFile surplus(owner());
  surplus.look();
  EXPECT_FALSE(may_use(surplus));
  EXPECT_EQ(memory_files().size(), MemoryFile::kMost);
  files.pop_back();
  MemoryFile next(owner());
  EXPECT_TRUE(sees(next));
}

TEST_F(MemoryFileTest, NeedsHighNumbers) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{MemoryFile::kNumbers - 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  MemoryFile file(owner());
  file.look();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_FALSE(may_use(file));
  EXPECT_TRUE(memory_files().empty());
}

TEST_F(MemoryFileTest, NeedsAProgramWithFewFiles) {
  std::vector<int> files;
  while (files.empty() || files.back() < MemoryFile::kFew)
    files.push_back(dup(0));
  MemoryFile file(owner());
  file.look();
  EXPECT_FALSE(may_use(file));
  EXPECT_TRUE(memory_files().empty());
  for (const int fd : files)
    close(fd);
}

// As on the control thread, which has a table of its own.
TEST_F(MemoryFileTest, WhatCouldNotBeClosedIsClosedByTheNext) {
  auto file = std::make_unique<MemoryFile>(owner());
  file->look();
  const std::vector<int> numbers = memory_files();
  ASSERT_EQ(numbers.size(), 1u);
  bool has_own_table = false;
  std::thread([&] {
    has_own_table = unshare(CLONE_FILES) == 0;
    if (!has_own_table) return;
    const int other = temporary_file();
    dup2(other, numbers[0]);
    file.reset();
    EXPECT_EQ(size_of(numbers[0]), 0) << "open, and empty";
  }).join();
  if (!has_own_table) GTEST_SKIP() << "unshare is refused";
  EXPECT_EQ(memory_files(), numbers);
  MemoryFile next(owner());
  EXPECT_TRUE(sees(next));
  EXPECT_EQ(memory_files().size(), 1u);
}

}  // namespace
}  // namespace verbena::host
