// SPDX-License-Identifier: MIT
// One side of a conversation between two processes: a queue pair (of XRC two), its memory, what it
// posts and what it checks.
//
//   made ─► connected ─► running ─► done     all of ours is completed; the peer may still send
//                           │         │
//                           ▼         ▼
//                        failed ───► draining ─► over
//
// `failed`: a completion said that the peer is gone, or the driver did, and then a completion has
// to say so too. Where one of the two asks for something bad, `failed` drains by itself.
// `draining`: the queue pair is in the error state, and everything that is open has to come back.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena.h"
#include "pool.h"
#include "shape.h"
#include "workload/ledger.h"
#include "workload/receives.h"

namespace chaos {

using Clock = std::chrono::steady_clock;

inline constexpr std::uint32_t kQkey = 0x11223344;

// Of the numbers of work requests.
inline constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kProbe = std::uint64_t{1} << 32;
inline constexpr std::uint64_t kLast = std::uint64_t{3} << 32;
inline constexpr std::uint64_t kBind = std::uint64_t{2} << 32;

std::string text(const ibv_wc& completion);

struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_gid gid{};
  ibv_xrcd* domain = nullptr;
  ibv_srq* foreign = nullptr;  // of a protection domain that has no regions
};

struct Settings {
  std::uint32_t id = 0;
  Service service = Service::kReliable;
  std::uint64_t seed = 0;
  unsigned role = 0;
  std::uint32_t steps = 20;
  unsigned timeout = 17;  // of a try, as the attribute counts it: 4.096 us * 2^17 = 0.5 s
  bool is_wire = false;   // what was sent to a queue pair may arrive after its RESET
};

// What the peer has to know.
struct Address {
  std::uint32_t qpn = 0;     // that takes requests
  std::uint32_t sender = 0;  // that makes them
  ibv_gid gid{};
  std::uint64_t window = 0;
  std::uint64_t cells = 0;
  std::uint32_t key = 0;
  std::array<std::uint32_t, Shape::kQueues> queues{};  // of XRC
  std::uint32_t foreign_queue = 0;
  std::array<std::uint32_t, Shape::kWindows> windows{};
};

class Session {
 public:
  enum class State : std::uint8_t {
    kMade,
    kConnected,
    kRunning,
    kDone,
    kFailed,
    kDraining,
    kOver,
  };

  // `used`: a queue pair of an earlier session, in RESET; none: a new one. `pool`: where its
  // receives come from; none: its own.
  Session(const Device& device, ibv_cq* cq, const Settings& settings, Pool* pool, ibv_qp* used);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Settings& settings() const { return settings_; }
  State state() const { return state_; }
  bool was_lost() const { return was_told_lost_; }
  bool may_be_refused() const { return our_bad_ || peers_bad_ || was_revoked_ || is_pardoned_; }
  bool can_revoke() const;
  bool posts_late() const { return !late_.empty(); }
  bool is_pooled() const { return pool_ != nullptr; }
  bool is_extended() const { return settings_.service == Service::kExtended; }
  Pool* pool() const { return pool_; }
  ibv_cq* cq() const { return cq_; }
  ibv_qp* qp() const { return qp_; }
  std::uint32_t qpn() const { return qp_->qp_num; }
  std::uint32_t target_qpn() const { return target_ ? target_->qp_num : qp_->qp_num; }
  Address address() const;

  void connect(const Address& peer);
  // From now on it sends.
  void start();
  void take(const ibv_wc& completion);
  // As the responder tells it: of what came, something was wrong.
  void take_failure(ibv_event_type event);
  // Posts what there is room for.
  void pump();
  // The peer's process or queue pair is gone.
  void peer_is_lost();
  // The peer has taken its memory away.
  void peer_has_revoked();
  // Takes ours away; it stays as it is then.
  void revoke();
  // Both sides are done: our memory must be what the peer's schedule says.
  void check_peers_work();
  void check_guards();
  // Into the error state; is over when all has come back.
  void drain();
  // Nothing more comes to a target of XRC.
  void end_target();
  // The queue pair, with whatever is open.
  void destroy();
  // Gives the queue pair away, in RESET, for another session. Only when nothing is open.
  ibv_qp* release();
  // What is wrong when nothing has moved for so long.
  std::optional<std::string> stuck_for(Clock::duration patience) const;

  // Set when something is wrong; nothing else is worth looking at then.
  const std::string& complaint() const { return complaint_; }

 private:
  // A request that was posted, and what must come of it here.
  struct Posted {
    workload::Request request;
    std::vector<std::byte> expected{};  // of a READ
    std::uint64_t value = 0;            // of an atomic
  };

  void make();
  void create_queues();
  void create_qp();
  void create_windows();
  void complain(const std::string& what);
  void require(int error, const char* what);
  ibv_srq* queue_of(std::uint32_t place) const;
  std::span<std::byte> receive_area(std::uint32_t place);
  void post_receive(std::uint32_t place);
  void post_late();
  void post_binds();
  void post(const workload::Request& step);
  int post_flush(const ibv_send_wr& request, std::uint64_t choice);
  void post_probe();
  void post_last();
  void to_init();
  // False: it is in the error state already.
  bool to_rts();
  std::uint32_t psn_of(unsigned role) const;
  std::uint32_t key_for(const workload::Request& step) const;
  void note_sent(Posted& posted, ibv_send_wr& request);
  void note_atomic(Posted& posted, ibv_send_wr& request);
  void take_send(const ibv_wc& completion);
  bool fits_failure(const ibv_wc& completion, bool is_first, const workload::Request& step) const;
  void take_receive(const ibv_wc& completion);
  bool fits_failed_receive(ibv_wc_status status);
  // The receive that it ends; its place.
  std::optional<std::uint32_t> take_place(const ibv_wc& completion);
  std::uint32_t number_of(const ibv_wc& completion, std::span<const std::byte> area) const;
  void check_data(const Posted& posted);
  bool check_message(const workload::Request& step, const ibv_wc& completion,
                     std::span<const std::byte> area);
  const char* wrong_flags(const workload::Request& step, const ibv_wc& completion);
  std::optional<workload::Request> peers_next(std::uint32_t number);
  bool is_reliable() const { return workload::is_reliable(settings_.service); }
  bool is_datagram() const { return settings_.service == Service::kDatagrams; }
  bool is_open() const { return sends_.open() + own_receives() != 0; }
  std::size_t own_receives() const;

  const Device& device_;
  ibv_cq* cq_;
  Settings settings_;
  Shape shape_;
  Arena arena_;
  workload::Generator schedule_;
  workload::Generator peers_;       // what has arrived
  workload::Generator peers_copy_;  // from its beginning, for the check at the end
  Pool* pool_;
  State state_ = State::kMade;
  ibv_qp* qp_ = nullptr;
  ibv_qp* target_ = nullptr;  // of XRC: takes the peer's requests
  ibv_ah* ah_ = nullptr;
  std::array<ibv_srq*, Shape::kQueues> queues_{};
  std::array<ibv_mw*, Shape::kWindows> windows_{};
  Address peer_;
  workload::SendLedger sends_;
  std::array<workload::Receives, Shape::kQueues> receives_;  // not those of the pool
  std::uint64_t next_receive_ = 0;
  std::deque<std::uint32_t> late_;  // places of receives that are to be posted
  Clock::time_point late_until_;
  Clock::time_point moved_ = Clock::now();
  std::string complaint_;
  std::string first_failure_ = "none";
  std::optional<std::uint32_t> our_bad_;  // the first request that has to be refused
  std::optional<std::uint32_t> peers_bad_;

  std::uint32_t posted_ = 0;
  std::uint32_t received_ = 0;
  std::uint32_t invalidated_ = 0;       // windows of the peer
  std::uint32_t invalidated_here_ = 0;  // ours
  bool was_told_lost_ = false;
  bool was_revoked_ = false;
  bool is_pardoned_ = false;
  bool awaits_pardon_ = false;  // refused what was good: the peer must have revoked its memory
  bool has_probed_ = false;
  bool has_target_ended_ = false;  // amid a message, perhaps
  // What the peer's memory holds, for what we read from it.
  std::vector<std::byte> shadow_;
  Cells shadow_cells_{};
  std::deque<Posted> under_way_;
  unsigned reads_ = 0;                   // of them
  std::vector<std::byte> when_revoked_;  // the window
  Cells cells_when_revoked_{};
};

}  // namespace chaos
