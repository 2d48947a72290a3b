// SPDX-License-Identifier: MIT
// A program at each end of a test world that does everything at random, and knows what must come of
// it: each byte in its place, each completion once and in order. For tests only.
#pragma once

#include <cstring>
#include <deque>
#include <sstream>
#include <string>

#include "roce/test_world.h"

namespace verbena::roce {

// The memory of an end. What lies outside is never written.
inline constexpr std::size_t kSourceArea = 0;           // never written
inline constexpr std::size_t kTargetArea = 256 * 1024;  // WRITEs of the peer
inline constexpr std::size_t kReceiveArea = 512 * 1024;
inline constexpr std::size_t kLandingArea = 768 * 1024;  // READs
inline constexpr std::size_t kAreaSize = 256 * 1024;
inline constexpr std::size_t kAtomic = 1024 * 1024;
inline constexpr std::size_t kAtomicResults = kAtomic + 64;
inline constexpr std::size_t kWord = kAtomicResults + 4096;  // ATOMIC WRITEs of the peer
inline constexpr std::size_t kWords = kWord + 64;
inline constexpr std::size_t kProgramMemory = kWords + 512;

// One direction: operations from one end to the other.
class TestProgram {
 public:
  TestProgram(TestEnd& from, TestEnd& to, SeededRandom& random, unsigned operations,
              std::uint32_t size_max)
      : from_(from), to_(to), random_(random), left_(operations), size_max_(size_max) {
    for (std::size_t i = 0; i < kAreaSize; ++i)
      from.memory[kSourceArea + i] = static_cast<std::byte>(random.next());
  }

  bool is_done() const { return left_ == 0 && posted_.empty(); }
  const std::string& failure() const { return failure_; }
  std::uint64_t completed() const { return next_id_; }
  bool has_failed_work() const { return has_failed_; }

  // Posts what has room, now and then; receives too late now and then.
  void step() {
    std::uint64_t word = 0;
    std::memcpy(&word, &to_.memory[kWord], sizeof word);
    if (word < word_seen_) fail("a word that was written again");
    word_seen_ = word;
    while (left_ != 0 && posted_.size() < 48 && random_.below(4) != 0)
      post();
    while (receives_posted_ < receives_wanted_ && receives_.size() < 60 && random_.below(3) != 0)
      post_receive();
    poll();
  }
  // At the end: all of the target, and nothing else.
  void check_memory() {
    for (const Move& move : moves_)
      compare(*move.at, move.offset, move.source, move.length, "an operation's bytes");
    if (word_seen_ != words_posted_) fail("the last word is not there");
    for (std::size_t i = target_; i < kAreaSize; ++i)
      if (to_.memory[kTargetArea + i] != std::byte{0}) return fail("a byte behind the target");
    for (std::size_t i = landing_; i < kAreaSize; ++i)
      if (from_.memory[kLandingArea + i] != std::byte{0}) return fail("a byte behind the landing");
  }

 private:
  struct Move {  // bytes that must be in a place when the operation is over
    const TestEnd* at;
    std::size_t offset;
    const std::byte* source;
    std::size_t length;
  };
  struct Posted {
    std::uint64_t id;
    queues::SendOpcode opcode;
    std::uint32_t length;
    std::size_t result = 0;
  };
  struct Receive {
    std::uint64_t id;
    std::size_t offset;
  };
  struct Expected {  // of a receive
    bool has_immediate;
    std::uint32_t immediate;
    bool has_bytes;
    std::size_t source;
    std::uint32_t length;
    std::size_t moves;  // those before it are done
  };

  void post() {
    --left_;
    std::uint32_t length = static_cast<std::uint32_t>(random_.below(size_max_));
    if (random_.one_in(3)) length %= 300;
    const std::size_t source = random_.below(kAreaSize - size_max_);
    switch (random_.below(8)) {
      case 0: return post_send(queues::SendOpcode::kSend, source, length);
      case 1: return post_send(queues::SendOpcode::kSendWithImmediate, source, length);
      case 2: return post_write(queues::SendOpcode::kWrite, source, length);
      case 3: return post_write(queues::SendOpcode::kWriteWithImmediate, source, length);
      case 4: return post_read(source, length);
      case 5: return post_flush();
      case 6: return post_atomic_write();
      default: return post_add();
    }
  }
  qp::SendRequest request(queues::SendOpcode opcode) {
    qp::SendRequest one{.wr_id = ids_++, .opcode = opcode, .remote_key = to_.key};
    one.immediate = static_cast<std::uint32_t>(random_.next());
    if (random_.one_in(8)) one.flags = queues::kFence;
    return one;
  }
  void note(const qp::SendRequest& one, std::uint32_t length, std::size_t result = 0) {
    posted_.push_back({one.wr_id, one.opcode, length, result});
  }
  void post_send(queues::SendOpcode opcode, std::size_t source, std::uint32_t length) {
    const qp::SendRequest one = request(opcode);
    from_.post(one, kSourceArea + source, length);
    note(one, length);
    expected_.push_back({opcode == queues::SendOpcode::kSendWithImmediate, one.immediate, true,
                         source, length, moves_.size()});
    ++receives_wanted_;
  }
  void post_write(queues::SendOpcode opcode, std::size_t source, std::uint32_t length) {
    if (target_ + length > kAreaSize) length = 0;
    qp::SendRequest one = request(opcode);
    one.remote_address = to_.address(kTargetArea + target_);
    from_.post(one, kSourceArea + source, length);
    note(one, length);
    moves_.push_back({&to_, kTargetArea + target_, &from_.memory[kSourceArea + source], length});
    target_ += length;
    if (opcode == queues::SendOpcode::kWrite) return;
    expected_.push_back({true, one.immediate, false, 0, length, moves_.size()});
    ++receives_wanted_;
  }
  void post_read(std::size_t source, std::uint32_t length) {
    if (landing_ + length > kAreaSize) length = 0;
    qp::SendRequest one = request(queues::SendOpcode::kRead);
    one.remote_address = to_.address(kSourceArea + source);
    from_.post(one, kLandingArea + landing_, length);
    note(one, length);
    moves_.push_back({&from_, kLandingArea + landing_, &to_.memory[kSourceArea + source], length});
    landing_ += length;
  }
  void post_add() {
    qp::SendRequest one = request(queues::SendOpcode::kFetchAdd);
    one.remote_address = to_.address(kAtomic);
    one.compare_add = 1;
    const std::size_t result = kAtomicResults + adds_posted_++ % 500 * 8;
    from_.post(one, result, 8);
    note(one, 8, result);
  }
  void post_flush() {
    qp::SendRequest one = request(queues::SendOpcode::kFlush);
    one.remote_address = to_.address(kTargetArea);
    one.flush = {.length = static_cast<std::uint32_t>(target_), .global_visibility = true};
    one.flush.whole_region = random_.one_in(2);
    from_.post(one, 0, 0);
    note(one, 0);
  }
  // Counts up: a word that was written twice would go back.
  void post_atomic_write() {
    qp::SendRequest one = request(queues::SendOpcode::kAtomicWrite);
    one.remote_address = to_.address(kWord);
    const std::size_t source = kWords + words_posted_ % 64 * 8;
    const std::uint64_t value = ++words_posted_;
    std::memcpy(&from_.memory[source], &value, sizeof value);
    from_.post(one, source, 8);
    note(one, 8);
  }
  void post_receive() {
    const std::size_t offset = kReceiveArea + receives_posted_ % 32 * 8192;
    // Those that are still waiting must not share memory.
    if (receives_.size() >= 32) return;
    to_.post_receive(receives_posted_, offset, size_max_);
    receives_.push_back({receives_posted_++, offset});
  }

  void poll() {
    for (const queues::Completion& done : from_.poll())
      completed(done);
    for (const queues::Completion& done : to_.poll_receives())
      received(done);
  }
  void completed(const queues::Completion& done) {
    if (posted_.empty()) return fail("a completion too many");
    const Posted posted = posted_.front();
    posted_.pop_front();
    ++next_id_;
    if (done.wr_id != posted.id) return fail("completions out of order");
    if (done.status != queues::Status::kSuccess) {
      has_failed_ = true;
      return;
    }
    if (has_failed_) return fail("success after a failure");
    if (posted.opcode != queues::SendOpcode::kFetchAdd) return;
    std::uint64_t before = 0;
    std::memcpy(&before, &from_.memory[posted.result], sizeof before);
    if (before != adds_done_++) fail("an atomic executed not once");
  }
  void received(const queues::Completion& done) {
    if (done.status != queues::Status::kSuccess) return;
    if (receives_.empty() || expected_.empty()) return fail("a receive too many");
    const Receive receive = receives_.front();
    receives_.pop_front();
    const Expected expected = expected_.front();
    expected_.pop_front();
    if (done.wr_id != receive.id) return fail("receives out of order");
    if (done.byte_length != expected.length) return fail("another length");
    if (expected.has_immediate && done.immediate != expected.immediate) {
      return fail("another immediate");
    }
    if (expected.has_bytes) {
      compare(to_, receive.offset, &from_.memory[kSourceArea + expected.source], expected.length,
              "a message's bytes");
    }
    // What was written before a message is there when it is.
    for (; moves_seen_ < expected.moves; ++moves_seen_) {
      const Move& move = moves_[moves_seen_];
      if (move.at == &to_) compare(to_, move.offset, move.source, move.length, "a WRITE before");
    }
  }
  void compare(const TestEnd& at, std::size_t offset, const std::byte* source, std::size_t length,
               const char* what) {
    if (std::memcmp(&at.memory[offset], source, length) != 0) fail(what);
  }
  void fail(const char* what) {
    if (!failure_.empty()) return;
    std::ostringstream text;
    text << what << " (completion " << next_id_ << ")";
    failure_ = text.str();
  }

  TestEnd& from_;
  TestEnd& to_;
  SeededRandom& random_;
  unsigned left_;
  std::uint32_t size_max_;
  std::uint64_t ids_ = 0;
  std::uint64_t next_id_ = 0;
  std::deque<Posted> posted_;
  std::deque<Receive> receives_;
  std::deque<Expected> expected_;
  std::deque<Move> moves_;
  std::size_t moves_seen_ = 0;
  std::size_t target_ = 0;
  std::size_t landing_ = 0;
  std::uint64_t receives_posted_ = 0;
  std::uint64_t receives_wanted_ = 0;
  std::uint64_t words_posted_ = 0;
  std::uint64_t word_seen_ = 0;
  std::uint64_t adds_posted_ = 0;
  std::uint64_t adds_done_ = 0;
  bool has_failed_ = false;
  std::string failure_;
};

}  // namespace verbena::roce
