// SPDX-License-Identifier: MIT
// A carrier over the simulated link: go-back-N in whole operations, so that every fault of a link
// is a fault of operations.
//
// The requester numbers its rounds: an answer "not ready" of a round that is over is not for this
// one. The responder executes each index once, in order, and repeats the answer of what it has
// executed. Everything that it asks of the responder it predicts from the model first.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "qp/carrier.h"

namespace verbena::sim {

class Side;  // NOLINT(cppcoreguidelines-virtual-class-destructor): it is final

struct Request {
  std::uint32_t index = 0;
  std::uint32_t round = 0;
  QpNum source{};
  qp::Operation op{};
  std::vector<std::byte> payload{};
};

struct Reply {
  std::uint32_t index = 0;
  std::uint32_t round = 0;
  qp::Answer answer = qp::Answer::kDone;
  std::uint8_t rnr_timer = 0;
  std::vector<std::byte> data{};
};

struct Packet {
  unsigned life = 0;
  QpNum to{};
  std::optional<Request> request{};  // or a reply
  Reply reply{};
};

class SimCarrier final : public qp::Carrier {
 public:
  explicit SimCarrier(Side& side) : side_(side) {}

  void arrived(Packet packet);
  void lose_peer() { lost_ = true; }
  bool wants_more() const { return wants_more_; }
  bool is_idle() const { return requests_.empty() && replies_.empty(); }

  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  void collect(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  bool serve(qp::Responder& responder, qp::Budget& budget, const Now& now) override;
  std::optional<Instant> next_deadline() const override;
  bool quiesced() override { return true; }

 private:
  enum class Step : std::uint8_t { kPaused, kFinished };
  using Outcome = Result<void, qp::Refusal>;

  // Requester.
  bool gather(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget);
  void send(qp::SendWindow& window, const qp::Operation& op, Instant now);
  void take(qp::SendWindow& window, const Reply& reply, Instant now);
  bool scatter(qp::SendWindow& window, const Reply& reply);
  void tell(qp::SendWindow& window, std::uint32_t index, qp::Answer answer, Instant now,
            std::uint8_t rnr_timer = 0);
  void tell_nonsense(qp::SendWindow& window, Instant now);

  // Responder.
  bool is_next(const Request& request);
  Step execute(const Request& request, qp::Responder& responder, qp::Budget& budget);
  std::optional<qp::Refusal> begin(const Request& request, qp::Responder& responder);
  std::optional<qp::Refusal> begin_receive(const Request& request, qp::Responder& responder);
  std::optional<qp::Refusal> piece(const Request& request, qp::Responder& responder,
                                   std::size_t size);
  std::optional<qp::Refusal> place(qp::Responder& responder, std::span<const std::byte> bytes,
                                   std::uint64_t offset);
  std::optional<qp::Refusal> finish(const Request& request, qp::Responder& responder);
  std::optional<qp::Refusal> do_atomic(const Request& request, qp::Responder& responder);
  std::optional<qp::Refusal> predict(const qp::Operation& op) const;
  // Compares and takes the consequences: whether the queue pair goes to its error state.
  std::optional<qp::Refusal> compare(const Outcome& outcome, std::optional<qp::Refusal> expected,
                                     const char* what);
  void conclude(const Request& request, std::optional<qp::Refusal> refusal, std::uint8_t rnr_timer);

  Side& side_;
  bool wants_more_ = false;
  bool lost_ = false;

  std::deque<Reply> replies_;
  std::vector<std::byte> partial_;  // payload gathered so far, of the operation partial_of_
  std::optional<std::uint32_t> partial_of_;
  std::uint32_t round_ = 0;
  Instant last_progress_;

  struct Execution {
    bool has_begun = false;
    std::uint64_t offset = 0;
    std::vector<std::byte> data{};
    std::vector<Sge> receive;
  };
  std::deque<Request> requests_;
  Execution execution_;
  std::uint32_t expected_ = 0;
  std::map<std::uint32_t, Reply> answered_;
};

}  // namespace verbena::sim
