// SPDX-License-Identifier: MIT
// Debian's libibverbs.so.1 and ours, side by side: the functions that need no device answer the
// same to everything.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "base/test_seed.h"
#include "verbs/abi/entry.h"

namespace {

constexpr const char* kInstalled = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

class Installed : public testing::Test {
 protected:
  void SetUp() override {
    std::error_code gone;
    const auto file = std::filesystem::canonical(kInstalled, gone).filename().string();
    if (gone || file.find(".44.") == std::string::npos) {
      GTEST_SKIP() << kInstalled << " is " << (gone ? "not there" : file)
                   << ", not of rdma-core 44";
    }
    their_library = dlopen(kInstalled, RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(their_library) << dlerror();
    our_library = dlopen(VERBENA_ABI_STUB, RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(our_library) << dlerror();
    ASSERT_NE(dlsym(our_library, "ibv_fork_init"), dlsym(their_library, "ibv_fork_init"));
  }

  template <class Function>
  struct Pair {
    Function* ours;
    Function* theirs;
  };
  template <class Function>
  Pair<Function> pair(const char* name) {
    return {reinterpret_cast<Function*>(dlsym(our_library, name)),
            reinterpret_cast<Function*>(dlsym(their_library, name))};
  }

  // Both libraries convert the same random bytes over the same background: members that one leaves
  // alone show as well.
  template <class To, class From>
  void convert_alike(const char* name, std::mt19937_64& random) {
    const auto convert = pair<void(To*, From*)>(name);
    for (int round = 0; round < 1000; ++round) {
      alignas(From) std::array<unsigned char, sizeof(From)> source;
      for (auto& byte : source) {
        byte = static_cast<unsigned char>(random());
      }
      alignas(To) std::array<unsigned char, sizeof(To)> ours;
      ours.fill(static_cast<unsigned char>(random()));
      alignas(To) auto theirs = ours;
      convert.ours(reinterpret_cast<To*>(ours.data()), reinterpret_cast<From*>(source.data()));
      convert.theirs(reinterpret_cast<To*>(theirs.data()), reinterpret_cast<From*>(source.data()));
      ASSERT_THAT(ours, testing::ElementsAreArray(theirs)) << name << ", round " << round;
    }
  }

  void* their_library = nullptr;
  void* our_library = nullptr;
};

TEST_F(Installed, TheWordsAreTheSame) {
  for (const char* name :
       {"ibv_node_type_str", "ibv_port_state_str", "ibv_event_type_str", "ibv_wc_status_str"}) {
    const auto function = pair<const char*(int)>(name);
    for (int value = -3; value < 300; ++value) {
      EXPECT_STREQ(function.ours(value), function.theirs(value)) << name << "(" << value << ")";
    }
    EXPECT_STREQ(function.ours(INT32_MIN), "unknown");
    EXPECT_STREQ(function.ours(INT32_MAX), "unknown");
  }
}

TEST_F(Installed, TheRatesAreTheSame) {
  for (const char* name : {"ibv_rate_to_mult", "ibv_rate_to_mbps"}) {
    const auto function = pair<int(int)>(name);
    for (int value = -3; value < 300; ++value) {
      ASSERT_EQ(function.ours(value), function.theirs(value)) << name << "(" << value << ")";
    }
  }
  for (const char* name : {"mult_to_ibv_rate", "mbps_to_ibv_rate"}) {
    const auto function = pair<int(int)>(name);
    for (int value = -3; value < 2'000'000; ++value) {
      ASSERT_EQ(function.ours(value), function.theirs(value)) << name << "(" << value << ")";
    }
  }
}

TEST_F(Installed, TheKernelsFormIsReadAlike) {
  std::mt19937_64 random(verbena::test_seed());
  convert_alike<ibv_ah_attr, ib_uverbs_ah_attr>("ibv_copy_ah_attr_from_kern", random);
  convert_alike<ibv_qp_attr, ib_uverbs_qp_attr>("ibv_copy_qp_attr_from_kern", random);
  convert_alike<ibv_sa_path_rec, ib_user_path_rec>("ibv_copy_path_rec_from_kern", random);
  convert_alike<ib_user_path_rec, ibv_sa_path_rec>("ibv_copy_path_rec_to_kern", random);
}

TEST_F(Installed, FilesAreReadAlike) {
  std::string directory = testing::TempDir() + "sysfsXXXXXX";
  ASSERT_TRUE(mkdtemp(directory.data()));
  const auto read = pair<int(const char*, const char*, char*, std::size_t)>("ibv_read_sysfs_file");
  for (const std::string content : {"", "\n", "a", "a\n", "four", "four\n", "fives", "fives\n",
                                    "longer than the room\n", "two\nlines\n"}) {
    std::ofstream(directory + "/file", std::ios::binary) << content;
    for (std::size_t size = 1; size <= 8; ++size) {
      char ours[9] = "????????";
      char theirs[9] = "????????";
      const int length = read.ours(directory.c_str(), "file", ours, size);
      ASSERT_EQ(length, read.theirs(directory.c_str(), "file", theirs, size))
          << "'" << content << "' into " << size;
      EXPECT_EQ(std::string(ours, 8), std::string(theirs, 8))
          << "'" << content << "' into " << size;
    }
  }
  char buffer[8];
  EXPECT_EQ(read.ours(directory.c_str(), "none", buffer, 8), -1);
  EXPECT_EQ(read.theirs(directory.c_str(), "none", buffer, 8), -1);
  std::filesystem::remove_all(directory);
}

TEST_F(Installed, SysfsIsInTheSamePlace) {
  const auto path = pair<const char*()>("ibv_get_sysfs_path");
  EXPECT_STREQ(path.ours(), path.theirs());
}

}  // namespace
