// SPDX-License-Identifier: MIT
// The entries that refuse: all that only drivers call, and all of libibverbs 1.0, each found in the
// list of symbols and called with rubbish. They answer, touch nothing, and do not crash.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "verbs/abi/entry.h"

namespace {

struct Symbol {
  std::string name;
  std::string node;
  bool is_default;
};

// The functions of tests/abi/libibverbs-44.symbols: `FUNC name@@node` or `FUNC name@node`.
std::vector<Symbol> listed_functions() {
  std::ifstream list(VERBENA_ABI_SYMBOLS);
  std::vector<Symbol> functions;
  for (std::string type, rest; list >> type && std::getline(list, rest);) {
    if (type != "FUNC") continue;
    const auto at = rest.find('@');
    const bool is_default = rest.compare(at, 2, "@@") == 0;
    functions.push_back(
        {rest.substr(1, at - 1), rest.substr(at + (is_default ? 2 : 1)), is_default});
  }
  return functions;
}

std::uintptr_t call_with_rubbish(void* function) {
  using Function = std::uintptr_t (*)(std::uintptr_t, std::uintptr_t, std::uintptr_t,
                                      std::uintptr_t, std::uintptr_t, std::uintptr_t);
  return reinterpret_cast<Function>(function)(~0UL, 1, 0xdead0001, ~0UL, 3, 0xdead0003);
}

class Entries : public testing::Test {
 protected:
  void* find(const Symbol& symbol) {
    return dlvsym(library, symbol.name.c_str(), symbol.node.c_str());
  }
  void* library = dlopen(VERBENA_ABI_STUB, RTLD_NOW | RTLD_LOCAL);
};

TEST_F(Entries, EveryListedFunctionIsFoundByNameAndVersion) {
  ASSERT_TRUE(library) << dlerror();
  std::size_t found = 0;
  for (const Symbol& symbol : listed_functions()) {
    EXPECT_TRUE(find(symbol)) << symbol.name << "@" << symbol.node;
    ++found;
  }
  EXPECT_EQ(found, 179U);
}

TEST_F(Entries, ANameWithoutVersionIsTheDefaultOne) {
  for (const Symbol& symbol : listed_functions()) {
    if (!symbol.is_default) continue;
    EXPECT_EQ(dlsym(library, symbol.name.c_str()), find(symbol)) << symbol.name;
  }
}

TEST_F(Entries, DriverCommandsRefuse) {
  std::size_t called = 0;
  for (const Symbol& symbol : listed_functions()) {
    if (!symbol.name.starts_with("ibv_cmd_")) continue;
    const int answer = static_cast<int>(call_with_rubbish(find(symbol)));
    EXPECT_EQ(answer, symbol.name == "ibv_cmd_poll_cq" ? -EOPNOTSUPP : EOPNOTSUPP) << symbol.name;
    ++called;
  }
  EXPECT_EQ(called, 59U);
}

TEST_F(Entries, OtherDriverEntriesRefuseOrIgnore) {
  const auto entry = [this](const char* name) { return find({name, "IBVERBS_PRIVATE_34", true}); };
  EXPECT_EQ(static_cast<int>(call_with_rubbish(entry("execute_ioctl"))), EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ(call_with_rubbish(entry("_verbs_init_and_alloc_context")), 0U);
  EXPECT_EQ(errno, EOPNOTSUPP);
  call_with_rubbish(entry("verbs_set_ops"));
  call_with_rubbish(entry("verbs_uninit_context"));
  call_with_rubbish(entry("verbs_register_driver_34"));

  using Count = unsigned (*)(unsigned, const void*);
  const auto count = reinterpret_cast<Count>(entry("__ioctl_final_num_attrs"));
  EXPECT_EQ(count(5, nullptr), 5U);
  EXPECT_GE(count(5, this), 5U + 16U);

  using ReadFile = int (*)(char*, std::size_t, void*, const char*, ...);
  char buffer[8] = "garbage";
  const auto read_file = reinterpret_cast<ReadFile>(entry("ibv_read_ibdev_sysfs_file"));
  EXPECT_EQ(read_file(buffer, sizeof(buffer), nullptr, "ports/%d/x", 1), -1);
  EXPECT_STREQ(buffer, "");
  EXPECT_EQ(read_file(nullptr, 0, nullptr, "x"), -1);

  using Log = void (*)(void*, std::uint32_t, const char*, ...);
  const auto log = reinterpret_cast<Log>(entry("__verbs_log"));
  testing::internal::CaptureStderr();
  for (std::uint32_t level = 0; level < 10; ++level)
    log(nullptr, level, "%s %d", "a driver", 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // nobody asked
}

TEST_F(Entries, TheFirstVersionRefuses) {
  const std::set<std::string> pointers = {
      "ibv_get_device_name", "ibv_get_device_guid", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr",
      "ibv_create_cq",       "ibv_create_srq",      "ibv_create_qp",   "ibv_create_ah"};
  const std::set<std::string> minus_one = {"ibv_query_gid", "ibv_query_pkey", "ibv_get_cq_event",
                                           "ibv_get_async_event"};
  const std::set<std::string> silent = {"ibv_free_device_list", "ibv_ack_cq_events",
                                        "ibv_ack_async_event", "ibv_register_driver"};
  std::size_t called = 0;
  for (const Symbol& symbol : listed_functions()) {
    if (symbol.is_default || symbol.name == "ibv_get_device_list") continue;
    ++called;
    errno = 0;
    const std::uintptr_t answer = call_with_rubbish(find(symbol));
    if (silent.contains(symbol.name)) continue;
    EXPECT_EQ(errno, ENOSYS) << symbol.name;
    if (pointers.contains(symbol.name)) {
      EXPECT_EQ(answer, 0U) << symbol.name;
    } else {
      EXPECT_EQ(static_cast<int>(answer), minus_one.contains(symbol.name) ? -1 : ENOSYS)
          << symbol.name;
    }
  }
  EXPECT_EQ(called, 33U);
}

TEST_F(Entries, TheFirstVersionHasNoDevices) {
  using GetList = void* (*)(int*);
  const auto get_list =
      reinterpret_cast<GetList>(find({"ibv_get_device_list", "IBVERBS_1.0", false}));
  int count = 7;
  errno = 0;
  EXPECT_EQ(get_list(&count), nullptr);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(errno, ENOSYS);
  EXPECT_EQ(get_list(nullptr), nullptr);
}

}  // namespace
