// SPDX-License-Identifier: MIT
// The kernel's rxe talks to our engines from captures: our responder gets the requests of a capture
// and has to answer as rxe did, our requester does the same operations, gets rxe's answers, and has
// to send what rxe sent.
#include "replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;
using testing::ElementsAreArray;
using wire::Kind;

constexpr std::size_t kReceives = 128 * 1024;
constexpr std::size_t kPeerMemory = 64 * 1024;

bool contains(const std::string& name, const char* what) {
  return name.find(what) != std::string::npos;
}

struct Side {
  Side(const Exchange& exchange, const EndOptions& options) : link(1), end(0, link, options) {
    link.tap = [this, &exchange](int, const wire::Packet& packet) {
      sent.push_back(text_of(packet, exchange.first));
      return false;
    };
  }
  void turn() {
    while (end.turn()) {
    }
  }
  void receive(const wire::Packet& packet) {
    end.give(packet, end.from_peer());
    turn();
    link.now = link.now + Duration::milliseconds(1);
  }
  Link link;
  TestEnd end;
  std::vector<std::string> sent;
};

EndOptions options_for(const Exchange& exchange) {
  EndOptions options;
  options.path_mtu = exchange.path_mtu;
  options.first_psn = exchange.first.value();
  options.reads_max = 16;
  options.timeout = 0;
  if (contains(exchange.name, "nak-invalid-req")) options.access = 0;
  if (contains(exchange.name, "norecv")) options.rnr_retry = 2;  // as rxe was told
  return options;
}

// -- responder ----------------------------------------------------------------------------------

class ResponderReplay {
 public:
  explicit ResponderReplay(const Exchange& exchange)
      : exchange_(exchange), side_(exchange, options_for(exchange)) {
    for (const wire::Packet& packet : exchange.packets)
      if (packet.shape->reth || packet.shape->atomic_eth) note_memory(packet);
    // What the peer finds too short is too short.
    const std::uint32_t length = contains(exchange.name, "nak-remote-op") ? 100 : 32 * 1024;
    const bool is_late = contains(exchange.name, "rnr") || contains(exchange.name, "norecv") ||
                         contains(exchange.name, "pdata");
    for (unsigned i = 0; i < 32 && !is_late; ++i)
      side_.end.post_receive(i, kReceives, length);
  }
  std::vector<std::string> answers() {
    for (std::size_t i = 0; i < exchange_.packets.size(); ++i) {
      if (exchange_.packets[i].shape->is_response) continue;
      wire::Packet packet = exchange_.packets[i];
      prepare(packet, i);
      side_.receive(packet);
    }
    return side_.sent;
  }

 private:
  void note_memory(const wire::Packet& packet) {
    const auto known = base_.try_emplace(packet.remote_key.value, packet.remote_address).first;
    known->second = std::min(known->second, packet.remote_address & ~std::uint64_t{7});
  }
  // The capture's memory is ours: what READs and atomics found there, they find again. A key that
  // was refused is none.
  void prepare(wire::Packet& packet, std::size_t at) {
    const wire::Packet* const answer = answer_to(packet, at);
    const bool is_refused_for_room = answer && answer->syndrome.kind() == wire::AethKind::kRnrNak;
    if (packet.shape->consumes_receive() && !is_refused_for_room && is_ready_late()) {
      side_.end.post_receive(at, kReceives, 32 * 1024);
    }
    if (!packet.shape->reth && !packet.shape->atomic_eth) return;
    const std::size_t offset = packet.remote_address - base_.at(packet.remote_key.value);
    packet.remote_address = side_.end.address(kPeerMemory + offset);
    packet.remote_key = side_.end.key;
    if (contains(exchange_.name, "nak-access")) packet.remote_key.value ^= 0x5000;
    if (answer && answer->shape->atomic_ack_eth && seen_.insert(offset).second) {
      std::memcpy(&side_.end.memory[kPeerMemory + offset], &answer->original, 8);
    }
    if (packet.shape->kind == Kind::kReadRequest) put_answers(packet, at, kPeerMemory + offset);
  }
  bool is_ready_late() const {
    return contains(exchange_.name, "rnr") || contains(exchange_.name, "norecv") ||
           contains(exchange_.name, "pdata");
  }
  const wire::Packet* answer_to(const wire::Packet& packet, std::size_t at) const {
    for (std::size_t i = at; i < exchange_.packets.size(); ++i) {
      const wire::Packet& answer = exchange_.packets[i];
      if (answer.shape->is_response && answer.psn == packet.psn) return &answer;
    }
    return nullptr;
  }
  void put_answers(const wire::Packet& read, std::size_t at, std::size_t offset) {
    for (std::size_t i = at; i < exchange_.packets.size(); ++i) {
      const wire::Packet& answer = exchange_.packets[i];
      if (answer.shape->kind != Kind::kReadResponse || answer.psn - read.psn < 0) continue;
      const auto place = static_cast<std::size_t>(answer.psn - read.psn) * exchange_.path_mtu;
      if (place + answer.payload.size() > read.dma_length) continue;
      std::ranges::copy(answer.payload,
                        side_.end.memory.begin() + static_cast<std::ptrdiff_t>(offset + place));
    }
  }

  const Exchange& exchange_;
  Side side_;
  std::map<std::uint32_t, std::uint64_t> base_;
  std::set<std::size_t> seen_;
};

// Where the specification has another answer than rxe gives, and where ours is another by right.
void allow(const std::string& name, std::vector<std::string>& answers) {
  // A receive that is too short is an invalid request (9.7.4.1, table 63), and is found out at the
  // first packet that does not fit.
  if (contains(name, "nak-remote-op")) {
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_TRUE(contains(answers[0], "63 MSN")) << answers[0];
    answers[0] = "Acknowledge +0, 0 bytes 811c9dc5, DMA 0, 61 MSN 0, 0 00000000";
  }
  // rxe lets the peer invalidate any region, we none (10.6.5): refused, and that is the end.
  if (contains(name, "send-inv")) {
    ASSERT_EQ(answers.size(), 3u);
    answers.resize(2);
    answers[1] = "Acknowledge +1, 0 bytes 811c9dc5, DMA 0, 62 MSN 1, 0 00000000";
  }
}

std::vector<std::string> texts(const Exchange& exchange, bool of_responses) {
  std::vector<std::string> all;
  for (const wire::Packet& packet : exchange.packets)
    if (packet.shape->is_response == of_responses) all.push_back(text_of(packet, exchange.first));
  for (std::string& text : all)
    if (text.starts_with("RC Ack")) text = text.substr(3);
  return all;
}

TEST(Replay, OurResponderAnswersAsRxeDid) {
  const std::vector<Exchange> all = exchanges();
  EXPECT_GT(all.size(), 15u);
  for (const Exchange& exchange : all) {
    SCOPED_TRACE(exchange.name);
    std::vector<std::string> expected = texts(exchange, true);
    allow(exchange.name, expected);
    std::vector<std::string> answers = ResponderReplay(exchange).answers();
    for (std::string& text : answers)
      if (text.starts_with("RC Ack")) text = text.substr(3);
    EXPECT_THAT(answers, ElementsAreArray(expected));
  }
}

// -- requester ----------------------------------------------------------------------------------

SendOpcode opcode_of(const wire::Packet& last) {
  const bool immediate = last.shape->immediate;
  switch (last.shape->kind) {
    case Kind::kSend:
      if (last.shape->ieth) return SendOpcode::kSendWithInvalidate;
      return immediate ? SendOpcode::kSendWithImmediate : SendOpcode::kSend;
    case Kind::kWrite: return immediate ? SendOpcode::kWriteWithImmediate : SendOpcode::kWrite;
    case Kind::kReadRequest: return SendOpcode::kRead;
    case Kind::kCompareSwap: return SendOpcode::kCompareSwap;
    case Kind::kFetchAdd: return SendOpcode::kFetchAdd;
    case Kind::kFlush:
    case Kind::kAtomicWrite:
    case Kind::kReadResponse:
    case Kind::kAcknowledge:
    case Kind::kAtomicAcknowledge:
    case Kind::kCongestionNotification: break;
  }
  return SendOpcode::kFlush;
}

class RequesterReplay {
 public:
  explicit RequesterReplay(const Exchange& exchange)
      : exchange_(exchange), side_(exchange, options_for(exchange)), next_(exchange.first) {}

  void run() {
    for (std::size_t i = 0; i < exchange_.packets.size(); ++i) {
      const wire::Packet& packet = exchange_.packets[i];
      if (!packet.shape->is_response) {
        if (packet.psn - next_ >= 0 && packet.shape->starts_message()) post(i);
        continue;
      }
      refused_ |= packet.syndrome.kind() == wire::AethKind::kNak;
      side_.receive(packet);
      // After an RNR NAK, the time that it asks for.
      if (packet.syndrome.kind() != wire::AethKind::kRnrNak) continue;
      refused_ |= i + 1 == exchange_.packets.size();
      side_.link.now = side_.link.now + Duration::seconds(1);
      side_.turn();
    }
  }
  const std::vector<std::string>& sent() const { return side_.sent; }
  // All of them successfully, but for the last one where rxe refused it.
  void check_completions() {
    const auto done = side_.end.poll();
    ASSERT_EQ(done.size(), posted_);
    for (std::size_t i = 0; i < done.size(); ++i) {
      const bool is_refused = refused_ && i + 1 == done.size();
      EXPECT_EQ(done[i].status == Status::kSuccess, !is_refused) << i;
    }
  }

 private:
  void post(std::size_t at) {
    const wire::Packet& first = exchange_.packets[at];
    std::vector<std::byte> payload;
    const wire::Packet* last = nullptr;
    for (std::size_t i = at; !last; ++i) {
      const wire::Packet& packet = exchange_.packets.at(i);
      if (packet.shape->is_response) continue;
      payload.insert(payload.end(), packet.payload.begin(), packet.payload.end());
      if (packet.shape->ends_message()) last = &packet;
    }
    const bool is_read = first.shape->kind == Kind::kReadRequest;
    const bool is_atomic = first.shape->atomic_eth;
    next_ = is_read ? first.psn + wire::packets_of(first.dma_length, exchange_.path_mtu)
                    : last->psn.next();
    qp::SendRequest request{.wr_id = posted_++,
                            .opcode = opcode_of(*last),
                            .remote_address = first.remote_address,
                            .remote_key = first.remote_key};
    if (last->is_solicited) request.flags = queues::kSolicited;
    request.immediate = last->shape->ieth ? last->invalidate_key.value : last->immediate;
    const bool is_swap = first.shape->kind == Kind::kCompareSwap;
    request.compare_add = is_swap ? first.compare : first.swap_or_add;
    request.swap = first.swap_or_add;
    std::ranges::copy(payload, side_.end.memory.begin());
    const auto length = is_read ? first.dma_length : static_cast<std::uint32_t>(payload.size());
    side_.end.post(request, is_read || is_atomic ? kReceives : 0, is_atomic ? 8 : length);
    side_.turn();
  }

  const Exchange& exchange_;
  Side side_;
  Psn next_;
  std::uint64_t posted_ = 0;
  bool refused_ = false;
};

TEST(Replay, OurRequesterSendsWhatRxeSent) {
  for (const Exchange& exchange : exchanges()) {
    SCOPED_TRACE(exchange.name);
    const std::vector<std::string> expected = texts(exchange, false);
    if (expected.empty()) continue;
    RequesterReplay replay(exchange);
    replay.run();
    EXPECT_THAT(replay.sent(), ElementsAreArray(expected));
    replay.check_completions();
  }
}

}  // namespace
}  // namespace verbena::roce
