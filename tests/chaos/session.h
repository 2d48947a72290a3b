// SPDX-License-Identifier: MIT
// One side of a conversation between two processes: a queue pair, its memory, what it posts and
// what it checks.
//
//   made ─► running ─► done        all of ours is completed; the peer may still send
//              │         │
//              ▼         ▼
//           failed ───► draining ─► over
//
// `failed`: a completion said that the peer is gone, or the driver did, and then a completion has
// to say so too. `draining`: the queue pair is in the error state, and everything that is open has
// to come back.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arena.h"
#include "ledger.h"
#include "schedule.h"

namespace chaos {

using Clock = std::chrono::steady_clock;

struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_gid gid{};
};

struct Settings {
  std::uint32_t id = 0;
  Kind kind = Kind::kRc;
  std::uint64_t seed = 0;
  unsigned role = 0;
  std::uint32_t steps = 20;
};

struct Address {
  std::uint32_t qpn = 0;
  ibv_gid gid{};
  std::uint64_t window = 0;
  std::uint64_t cells = 0;
  std::uint32_t key = 0;
};

class Session {
 public:
  enum class State : std::uint8_t { kMade, kRunning, kDone, kFailed, kDraining, kOver };

  // `used`: a queue pair of an earlier session, in RESET; none: a new one.
  Session(const Device& device, ibv_cq* cq, const Settings& settings, ibv_qp* used);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Settings& settings() const { return settings_; }
  State state() const { return state_; }
  bool was_lost() const { return was_told_lost_; }
  ibv_cq* cq() const { return cq_; }
  ibv_qp* qp() const { return qp_; }
  std::uint32_t qpn() const { return qp_->qp_num; }
  Address address() const;

  void connect(const Address& peer);
  void take(const ibv_wc& completion);
  // Posts what there is room for.
  void pump();
  // The peer's process or queue pair is gone.
  void peer_is_lost();
  // Both sides are done: our memory must be what the peer's schedule says.
  void check_peers_work();
  void check_guards();
  // Into the error state; is over when all has come back.
  void drain();
  // The queue pair, with whatever is open.
  void destroy();
  // Gives the queue pair away, in RESET, for another session. Only when nothing is open.
  ibv_qp* release();
  // What is wrong when nothing has moved for so long.
  std::optional<std::string> stuck_for(Clock::duration patience) const;

  // Set when something is wrong; nothing else is worth looking at then.
  const std::string& complaint() const { return complaint_; }

 private:
  struct Read {
    std::vector<std::byte> expected;
  };
  void create_qp();
  void complain(const std::string& what);
  void require(int error, const char* what);
  void post_receive(std::uint32_t place);
  void post(const Step& step);
  void post_probe();
  void to_init();
  void to_rts();
  void note_sent(const Step& step, ibv_send_wr& request);
  void take_send(const ibv_wc& completion);
  void take_receive(const ibv_wc& completion);
  void check_data(std::uint64_t index);
  bool check_message(const Step& step, const ibv_wc& completion);
  std::optional<Step> peers_next(std::uint32_t number);
  bool is_open() const { return sends_.open() + receives_.open() != 0; }

  const Device& device_;
  ibv_cq* cq_;
  Settings settings_;
  Shape shape_;
  Arena arena_;
  Schedule schedule_;
  Schedule peers_;       // what has arrived
  Schedule peers_copy_;  // from its beginning, for the check at the end
  State state_ = State::kMade;
  ibv_qp* qp_ = nullptr;
  ibv_ah* ah_ = nullptr;
  Address peer_;
  SendLedger sends_;
  ReceiveLedger receives_;
  Clock::time_point moved_ = Clock::now();
  std::string complaint_;
  std::string first_failure_ = "none";

  std::uint32_t posted_ = 0;
  std::uint32_t received_ = 0;
  bool was_told_lost_ = false;
  bool has_probed_ = false;
  // What the peer's memory holds, for what we read from it.
  std::vector<std::byte> shadow_;
  Cells shadow_cells_{};
  std::map<std::uint64_t, Read> reads_;            // READs under way, by number
  std::map<std::uint64_t, std::uint64_t> values_;  // atomics under way: what they must bring
};

}  // namespace chaos
