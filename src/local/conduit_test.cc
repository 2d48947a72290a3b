// SPDX-License-Identifier: MIT
// Several conduits in one file: apart from each other, refused where there is none, and with their
// pages given back when both ends have gone.
#include "local/conduit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <optional>

namespace verbena::local {
namespace {

constexpr std::uint32_t kConduits = 4;

class ConduitsOfAFile : public ::testing::Test {
 protected:
  ConduitsOfAFile() {
    auto created =
        host::SharedMemory::create(ConduitFile::bytes_for(kConduits), host::Backing::kWhenTouched);
    auto again = host::SharedMemory::adopt(created->fd, ConduitFile::bytes_for(kConduits));
    fd = std::move(created->fd);
    ours = ConduitFile(std::move(created->memory));
    theirs = ConduitFile(std::move(*again));
  }
  blkcnt_t blocks() const {
    struct stat status{};
    EXPECT_EQ(fstat(fd.get(), &status), 0);
    return status.st_blocks;
  }
  static void use(const Conduit& conduit) {
    std::memset(reinterpret_cast<std::byte*>(&conduit.header()) + kRingsOffset, 1,
                kConduitSize / 2);
  }

  host::PrivateFd fd;
  ConduitFile ours;
  ConduitFile theirs;
};

TEST_F(ConduitsOfAFile, AreThereOnce) {
  EXPECT_EQ(ours.conduits(), kConduits);
  EXPECT_EQ(ours.at(kConduits), nullptr);
  EXPECT_EQ(ConduitFile().conduits(), 0u);
  EXPECT_FALSE(Conduit::accept(theirs, kConduits, 7));
  EXPECT_FALSE(Conduit::accept(ConduitFile(), 0, 7));
}

TEST_F(ConduitsOfAFile, AreToldApart) {
  const Conduit first = Conduit::prepare(ours, 0, 7);
  const Conduit second = Conduit::prepare(ours, 1, 8);
  EXPECT_FALSE(Conduit::accept(theirs, 0, 8));
  EXPECT_FALSE(Conduit::accept(theirs, 2, 7));
  const Conduit taken = Conduit::accept(theirs, 1, 8);
  ASSERT_TRUE(taken);
  second.header().executed.store(5);
  EXPECT_EQ(taken.header().executed.load(), 5u);
  EXPECT_EQ(first.header().executed.load(), 0u);
}

TEST_F(ConduitsOfAFile, GiveTheirPagesBackWhenBothEndsHaveGone) {
  std::optional<Conduit> ends[2] = {Conduit::prepare(ours, 1, 7), Conduit::accept(theirs, 1, 7)};
  const Conduit other = Conduit::prepare(ours, 2, 8);
  const blkcnt_t without = blocks();
  use(*ends[0]);
  const blkcnt_t full = blocks();
  EXPECT_GT(full, without);
  ends[1].reset();
  EXPECT_EQ(blocks(), full);
  EXPECT_EQ(ends[0]->header().id, 7u);
  ends[0].reset();
  EXPECT_LT(blocks(), without);
  EXPECT_EQ(other.header().id, 8u);
}

TEST_F(ConduitsOfAFile, StayMappedAsLongAsOneIsUsed) {
  const Conduit last = Conduit::prepare(ours, 3, 7);
  ours = {};
  use(last);
  EXPECT_TRUE(Conduit::accept(theirs, 3, 7));
}

TEST_F(ConduitsOfAFile, AreLeftAloneByAForkedChild) {
  std::optional<Conduit> conduit = Conduit::prepare(ours, 0, 7);
  const pid_t child = fork();
  if (child == 0) {
    conduit.reset();
    ours = {};
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(conduit->header().ends_gone.load(), 0u);
}

}  // namespace
}  // namespace verbena::local
