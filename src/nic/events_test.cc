// SPDX-License-Identifier: MIT
#include "nic/events.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "nic/test_readable.h"

namespace verbena::nic {
namespace {

const auto kNothing = [](int) {};

TEST(EventQueue, GivesWhatWasPushedInOrder) {
  auto queue = EventQueue<int>::create();
  ASSERT_TRUE(queue);
  EXPECT_FALSE(is_readable((*queue)->fd()));
  (*queue)->push(1);
  (*queue)->push(2);
  EXPECT_EQ(*(*queue)->take(kNothing), 1);
  EXPECT_TRUE(is_readable((*queue)->fd()));
  EXPECT_EQ(*(*queue)->take(kNothing), 2);
  EXPECT_FALSE(is_readable((*queue)->fd()));
}

// Who polls the descriptor and then reads would wait for ever on a count without an event.
TEST(EventQueue, LeavesNoCountOfWhatIsWithdrawnWhileItIsPushed) {
  auto queue = EventQueue<int>::create();
  ASSERT_TRUE(queue);
  constexpr int kPushes = 20'000;
  std::atomic<bool> is_over{false};
  std::thread pusher([&] {
    for (int i = 0; i < kPushes; ++i)
      (*queue)->push(i);
    is_over = true;
  });
  while (!is_over) {
    (*queue)->withdraw([](int) { return true; });
  }
  pusher.join();
  (*queue)->withdraw([](int) { return true; });
  EXPECT_FALSE(is_readable((*queue)->fd()));
}

TEST(EventQueue, KeepsTheCountOfWhatStays) {
  auto queue = EventQueue<int>::create();
  ASSERT_TRUE(queue);
  for (int i = 0; i < 4; ++i)
    (*queue)->push(i);
  (*queue)->withdraw([](int event) { return event % 2 == 0; });
  EXPECT_EQ(*(*queue)->take(kNothing), 1);
  EXPECT_EQ(*(*queue)->take(kNothing), 3);
  EXPECT_FALSE(is_readable((*queue)->fd()));
}

// As a program does that closes what told it of its end.
TEST(EventQueue, MayEndAsSoonAsItsEventIsTaken) {
  for (int i = 0; i < 2000; ++i) {
    auto queue = EventQueue<int>::create();
    ASSERT_TRUE(queue);
    std::thread pusher([pushed = queue->get()] { pushed->push(1); });
    EXPECT_EQ(*(*queue)->take(kNothing), 1);
    queue->reset();
    pusher.join();
  }
}

// Whoever polls a queue may push the event of another: that is no place where a thread ends.
TEST(EventQueue, EndsNoThreadThatIsToBeCancelled) {
  auto queue = EventQueue<int>::create();
  ASSERT_TRUE(queue);
  struct Told {
    EventQueue<int>* queue;
    bool has_pushed = false;
  } told{queue->get()};
  pthread_t thread{};
  const auto run = [](void* argument) -> void* {
    auto* const mine = static_cast<Told*>(argument);
    pthread_cancel(pthread_self());
    mine->queue->push(1);
    mine->queue->withdraw([](int) { return true; });
    mine->has_pushed = true;
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, run, &told), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_TRUE(told.has_pushed);
}

// What nobody fetched before a fork is the parent's.
TEST(EventQueue, OfAChildBeginsEmpty) {
  auto queue = EventQueue<int>::create();
  ASSERT_TRUE(queue);
  (*queue)->push(1);
  const pid_t child = fork();
  if (child == 0) {
    const bool has_left = (*queue)->leave_parent();
    const bool was_empty = !is_readable((*queue)->fd());
    (*queue)->push(2);
    const bool is_own = *(*queue)->take(kNothing) == 2;
    _exit(has_left && was_empty && is_own && !is_readable((*queue)->fd()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*(*queue)->take(kNothing), 1);
}

// Who waited takes the count away at once.
TEST(EventCount, EndsWithTheLastAcknowledgement) {
  constexpr int kRounds = 2'000;
  for (int i = 0; i < kRounds; ++i) {
    auto owned = std::make_unique<EventCount>();
    EventCount& count = *owned;
    count.delivered();
    count.delivered();
    std::thread waiter([mine = std::move(owned)]() mutable {
      mine->wait_until_acknowledged();
      mine.reset();
    });
    count.acknowledged(1);
    count.acknowledged(1);
    waiter.join();
  }
}

TEST(EventCount, WaitsForNothingWhereAllIsAcknowledged) {
  EventCount count;
  count.wait_until_acknowledged();
  count.delivered();
  count.acknowledged(1);
  count.wait_until_acknowledged();
}

}  // namespace
}  // namespace verbena::nic
