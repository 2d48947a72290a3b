// SPDX-License-Identifier: MIT
#include "memory/process_map.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

TEST(ProcessMap, TextAndQuerySayTheSame) {
  const ProcessMap map;
  ASSERT_TRUE(map.is_open());
  char name[64];
  Mapping queried;
  if (map.find_by_query(0, queried, name) == MapAnswer::kUnknown) {
    GTEST_SKIP() << "SKIP the query: this kernel has none";
  }
  int mappings = 0;
  for (std::uintptr_t at = 0;; at = queried.end) {
    char text_name[64];
    Mapping read;
    // The text also has the gate of old system calls, above everything.
    if (map.find_by_query(at, queried, name) != MapAnswer::kFound) break;
    ASSERT_EQ(map.find_in_text(at, read, text_name), MapAnswer::kFound);
    ++mappings;
    EXPECT_EQ(read.begin, queried.begin);
    EXPECT_EQ(read.end, queried.end);
    EXPECT_EQ(read.offset, queried.offset);
    EXPECT_EQ(read.device, queried.device);
    EXPECT_EQ(read.inode, queried.inode);
    EXPECT_EQ(read.rights, queried.rights);
    EXPECT_EQ(read.is_shared, queried.is_shared);
    if (std::string(name) != "[anon:long]") {
      EXPECT_STREQ(text_name, name);
    }
  }
  EXPECT_GT(mappings, 10);
}

TEST(ProcessMap, FindsWhichFileIsMappedWhere) {
  const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 1 << 20), 0);
  void* const at = mmap(nullptr, 4 * kPage, PROT_READ, MAP_SHARED, file.get(), 7 * kPage);
  ASSERT_NE(at, MAP_FAILED);
  struct stat status{};
  ASSERT_EQ(fstat(file.get(), &status), 0);
  const ProcessMap map;
  Mapping mapping;
  ASSERT_EQ(map.find(number(at) + kPage + 1, mapping), MapAnswer::kFound);
  EXPECT_EQ(mapping.begin, number(at));
  EXPECT_EQ(mapping.end, number(at) + 4 * kPage);
  EXPECT_EQ(mapping.offset, 7 * kPage);
  EXPECT_EQ(mapping.inode, status.st_ino);
  EXPECT_EQ(mapping.device, status.st_dev);
  EXPECT_EQ(mapping.rights, PROT_READ);
  EXPECT_TRUE(mapping.is_shared);
  EXPECT_FALSE(map.plain(number(at), number(at) + kPage));
  munmap(at, 4 * kPage);
}

TEST(ProcessMap, PlainMemory) {
  const ProcessMap map;
  const TestPages pages(8);
  EXPECT_TRUE(map.plain(pages.address(), pages.address() + pages.size()));
  EXPECT_TRUE(map.plain(pages.address() + kPage, pages.address() + 2 * kPage));
  EXPECT_FALSE(map.plain(pages.address() + 7 * kPage, pages.address() + 9 * kPage));
  const int local = 0;
#ifndef VERBENA_SANITIZED  // which keep locals elsewhere
  EXPECT_FALSE(map.plain(number(&local) / kPage * kPage, number(&local) / kPage * kPage + kPage));
#endif
  EXPECT_NE(local, 1);
  EXPECT_FALSE(map.plain(0, kPage));
}

TEST(ProcessMap, CountsMappings) {
  const ProcessMap map;
  const auto before = map.survey();
  const TestPages pages(9);
  for (std::size_t page = 1; page < 9; page += 2)
    pages.protect(page, 1, PROT_READ);
  const auto after = map.survey();
  ASSERT_TRUE(before && after);
  EXPECT_GE(after->mappings, before->mappings + 8);
}

TEST(ProcessStatus, CountsThreadsAndLockedMemory) {
  const ProcessStatus status;
  const auto before = status.read();
  ASSERT_TRUE(before);
  EXPECT_GT(before->address_bytes, 0u);
  EXPECT_GT(before->data_bytes, 0u);
  EXPECT_EQ(before->locked_bytes, 0u);
  std::thread([&] {
    const auto during = status.read();
    // Descriptors are those of one thread.
    EXPECT_FALSE(during);
    const auto own = ProcessStatus().read();
    ASSERT_TRUE(own);
    EXPECT_GE(own->threads, before->threads + 1);
  }).join();
}

TEST(TouchedPages, BothWaysFindTheSameRuns) {
  const TouchedPages touched;
  ASSERT_TRUE(touched.is_open());
  const TestPages pages(2000);
  struct Run {
    std::size_t page, count;
  };
  const Run runs[] = {{0, 1}, {3, 4}, {511, 2}, {600, 600}, {1999, 1}};
  for (const Run& run : runs) {
    for (std::size_t i = 0; i < run.count; ++i)
      pages.begin()[(run.page + i) * kPage] = std::byte{1};
  }
  PageRun found;
  const bool can_scan = touched.first_by_scan(pages.begin(), pages.end(), found);
  if (!can_scan) std::puts("SKIP the scan: this kernel has none");
  for (const bool by_scan : {false, true}) {
    if (by_scan && !can_scan) continue;
    std::byte* at = pages.begin();
    for (const Run& run : runs) {
      ASSERT_TRUE(by_scan ? touched.first_by_scan(at, pages.end(), found)
                          : touched.first_in_pagemap(at, pages.end(), found));
      EXPECT_EQ(found.begin, pages.begin() + run.page * kPage);
      EXPECT_EQ(found.length, run.count * kPage);
      at = found.begin + found.length;
    }
    ASSERT_TRUE(touched.first(at, pages.end(), found));
    EXPECT_EQ(found.length, 0u);
  }
}

}  // namespace
}  // namespace verbena::memory
