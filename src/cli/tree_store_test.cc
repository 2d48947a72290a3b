// SPDX-License-Identifier: MIT
#include "cli/tree_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace verbena::cli {
namespace {

using Kind = TreeEntry::Kind;
namespace fs = std::filesystem;

class TreeStore : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tree_store_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    base = name;
  }
  void TearDown() override { fs::remove_all(base); }

  fs::path store() const { return base / ("verbena-" + std::to_string(geteuid())); }
  long trees() const {
    return std::distance(fs::directory_iterator(store()), fs::directory_iterator());
  }

  fs::path base;
  const std::vector<TreeEntry> entries = {{Kind::kFolder, "a/empty", ""},
                                          {Kind::kFile, "a/b/file", "content\n"},
                                          {Kind::kLink, "a/link", "b/file"}};
};

TEST_F(TreeStore, MakesWhatIsDescribed) {
  const auto tree = store_tree(base, entries);
  ASSERT_TRUE(tree) << tree.error();
  std::string content;
  std::getline(std::ifstream(*tree + "/a/link"), content);
  EXPECT_EQ(content, "content");
  EXPECT_TRUE(fs::is_directory(*tree + "/a/empty"));
  EXPECT_EQ(fs::status(store()).permissions(), fs::perms::owner_all);
}

TEST_F(TreeStore, HasOneTreeForOneContent) {
  const auto first = store_tree(base, entries);
  const auto second = store_tree(base, entries);
  EXPECT_EQ(first, second);
  EXPECT_EQ(trees(), 1);
  std::vector<TreeEntry> others = entries;
  others[1].content = "another\n";
  const auto third = store_tree(base, others);
  EXPECT_NE(first, third);
  EXPECT_EQ(trees(), 2);
}

TEST_F(TreeStore, MakesADamagedTreeAgain) {
  const auto tree = store_tree(base, entries);
  fs::remove(*tree + "/a/b/file");
  EXPECT_EQ(store_tree(base, entries), tree);
  EXPECT_TRUE(fs::exists(*tree + "/a/b/file"));
  EXPECT_EQ(trees(), 1);
}

TEST_F(TreeStore, FollowsNoLinkOfOthers) {
  fs::create_directory(base / "victim");
  fs::create_directory_symlink(base / "victim", store());
  EXPECT_FALSE(store_tree(base, entries));
  EXPECT_TRUE(fs::is_empty(base / "victim"));
}

TEST_F(TreeStore, TakesNoFolderOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's folder";
  fs::create_directory(store());
  ASSERT_EQ(chown(store().c_str(), 65534, 65534), 0);
  const auto tree = store_tree(base, entries);
  ASSERT_FALSE(tree);
  EXPECT_NE(tree.error().find("belongs to another user"), std::string::npos);
}

TEST_F(TreeStore, SaysWhyThereIsNone) {
  const auto tree = store_tree("/proc/no/such/folder", entries);
  ASSERT_FALSE(tree);
  EXPECT_NE(tree.error().find("No such file"), std::string::npos) << tree.error();
}

TEST_F(TreeStore, IsSharedByProgramsThatStartTogether) {
  std::vector<std::thread> threads;
  std::vector<std::string> trees_found(8);
  for (std::string& found : trees_found) {
    threads.emplace_back([&] { found = store_tree(base, entries).value_or("none"); });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const std::string& found : trees_found)
    EXPECT_EQ(found, trees_found[0]);
  EXPECT_NE(trees_found[0], "none");
  EXPECT_EQ(trees(), 1);
}

}  // namespace
}  // namespace verbena::cli
