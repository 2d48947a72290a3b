// SPDX-License-Identifier: MIT
#include "generator.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace verbena::workload {
namespace {

constexpr std::uint32_t kMany = 2000;

// Everything that there is.
Habits all_of(Service service) {
  return {.service = service,
          .requests = kMany,
          .length_max = 1000,
          .inline_max = 64,
          .pieces_max = Request::kPiecesMax,
          .places = 5,
          .queues = 2,
          .unsignaled = true,
          .fences = true,
          .invalidates = true,
          .bad_requests = true,
          .revokes = true};
}
std::vector<Request> requests_of(std::uint64_t seed, const Habits& habits) {
  std::vector<Request> all;
  for (Generator generator(seed, habits); !generator.is_over();)
    all.push_back(generator.next());
  return all;
}
std::set<Verb> verbs_of(const std::vector<Request>& requests) {
  std::set<Verb> verbs;
  for (const Request& request : requests)
    verbs.insert(request.verb);
  return verbs;
}

TEST(Generator, RepeatsItselfForASeed) {
  const auto first = requests_of(7, all_of(Service::kExtended));
  const auto second = requests_of(7, all_of(Service::kExtended));
  const auto other = requests_of(8, all_of(Service::kExtended));
  std::size_t differences = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].content, second[i].content);
    EXPECT_EQ(first[i].verb, second[i].verb);
    EXPECT_EQ(first[i].pieces, second[i].pieces);
    EXPECT_EQ(first[i].spoiled, second[i].spoiled);
    differences += first[i].content != other[i].content;
  }
  EXPECT_EQ(kMany, differences);
}

TEST(Generator, CutsEachLengthIntoPieces) {
  for (const Service service : {Service::kReliable, Service::kDatagrams}) {
    for (const Request& request : requests_of(1, all_of(service))) {
      const auto begin = request.pieces.begin();
      EXPECT_EQ(request.length, std::accumulate(begin, begin + request.piece_count, 0u));
      EXPECT_LE(request.length, 1000u);
      EXPECT_TRUE(!request.is_inline || request.length <= 64);
    }
  }
}

TEST(Generator, KnowsWhatEachServiceHas) {
  EXPECT_EQ(verbs_of(requests_of(1, all_of(Service::kDatagrams))),
            (std::set{Verb::kSend, Verb::kSendWithImmediate}));
  EXPECT_EQ(
      verbs_of(requests_of(1, all_of(Service::kUnreliable))),
      (std::set{Verb::kSend, Verb::kSendWithImmediate, Verb::kWrite, Verb::kWriteWithImmediate}));
  EXPECT_EQ(10u, verbs_of(requests_of(1, all_of(Service::kReliable))).size());
  Habits older = all_of(Service::kReliable);
  older.placement = older.invalidates = false;
  EXPECT_EQ(7u, verbs_of(requests_of(1, older)).size());
}

TEST(Generator, SpoilsOnlyWhatSomebodyLooksAt) {
  std::set<Spoiled> seen;
  for (const Request& request : requests_of(1, all_of(Service::kExtended))) {
    seen.insert(request.spoiled);
    const bool has_key = request.verb == Verb::kFlush || request.length > 0;
    if (refusal_of(request.spoiled) == Refusal::kAccess) {
      EXPECT_TRUE(has_key && !is_send(request.verb));
    }
    if (request.spoiled == Spoiled::kAlignment) {
      EXPECT_TRUE(is_word(request.verb));
    }
  }
  EXPECT_EQ(5u, seen.size());
}

TEST(Generator, AsksForACompletionAtTheEnd) {
  for (std::uint64_t seed = 1; seed < 20; ++seed)
    EXPECT_TRUE(requests_of(seed, all_of(Service::kReliable)).back().is_signaled);
}

}  // namespace
}  // namespace verbena::workload
