// SPDX-License-Identifier: MIT
// What the program at one end of a connection asks of the other (tests/workload), and the model
// that knows what must come of it: each byte in its place, each completion once, in order, and with
// a status that something explains.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "pair.h"
#include "queues/work_queue.h"
#include "workload/generator.h"
#include "workload/ledger.h"

namespace verbena::fabric {

class Flow {
 public:
  Flow(World& world, Pair& from, Pair& to);

  // What a program does now and then.
  void step();
  void completed(const queues::Completion& completion);  // of what was sent
  void received(const queues::Completion& completion);   // at the other end
  // After a poll.
  void conclude();
  // Everything was posted, and has ended; or nobody is left to do so.
  bool is_settled() const;
  // Both ends live and have nothing to do: every message is where it should be.
  void check_arrived() const;
  // Nothing happens any more: all of it is where it should be.
  void finish();

 private:
  enum class State : std::uint8_t { kPosted, kDone, kFailed, kFlushed };
  struct Operation : workload::Request {
    std::uint64_t id = 0;
    State state = State::kPosted;
    std::uint32_t source = 0;               // where its bytes are
    std::optional<std::uint32_t> where{};   // they go, or the result of an atomic
    std::optional<std::uint64_t> result{};  // that an atomic must give
    std::optional<std::uint32_t> immediate{};
    bool is_message = false;  // takes a receive
  };

  static workload::Habits habits_of(const Plan& plan, const Pair& from);
  void post();
  Operation choose();
  void make_room(Operation& operation);
  void aim(Operation& operation);
  static std::uint32_t queue_of(const Operation& operation);
  qp::SendRequest request_of(const Operation& operation);
  void submit(const Operation& operation);
  void post_receives();
  void post_receives(unsigned queue);

  void forget();
  void end(Operation& operation, queues::Status status);
  bool is_excused(const Operation& operation, queues::Status status) const;
  bool has_bad_write() const;
  bool is_silence_excused() const;
  void check_result(const Operation& operation);
  Node& place_of(const Operation& operation) const;
  Node& source_of(const Operation& operation) const;
  bool has_arrived(const Operation& operation) const;

  bool fits(const Operation& message, const queues::Completion& completion,
            const ReceiveSlot& slot) const;
  std::optional<std::size_t> next_message(const queues::Completion& completion,
                                          const ReceiveSlot& slot) const;
  void check_earlier(std::size_t upto);
  void settle(const Operation& operation);
  void settle_unused(const ReceiveSlot& slot);
  void fail(const char* what) const;

  World& world_;
  Pair& from_;
  Pair& to_;
  workload::Generator wanted_;
  workload::SendLedger ledger_;
  std::vector<Operation> all_;
  std::array<Sge, workload::Request::kPiecesMax> sges_{};
  std::size_t reported_ = 0;  // those before have ended
  bool has_failed_ = false;

  std::size_t seen_ = 0;     // messages before this one have arrived, or never will
  std::size_t checked_ = 0;  // WRITEs before this one were looked at
  std::uint64_t messages_posted_ = 0;
  std::uint64_t messages_received_ = 0;
  bool has_begun_one_ = false;

  std::optional<std::uint32_t> swap_word_;  // of ours alone, at the peer
  std::uint64_t swaps_ = 0;
};

}  // namespace verbena::fabric
