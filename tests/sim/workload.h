// SPDX-License-Identifier: MIT
// What a run is like: everything that its seed decides in advance, and the work requests of its
// programs.
#pragma once

#include <cstdint>
#include <string>

#include "base/random.h"
#include "endpoint.h"
#include "qp/operation.h"
#include "send_ledger.h"

namespace verbena::sim {

// What goes wrong in a run, besides the link.
enum class Mischief : std::uint8_t {
  kNone,
  kBadLocalKey,
  kBadRequest,  // keys, ranges, rights, alignment, lengths
  kBadReceive,  // too short, or a bad key
  kNotEnabled,  // the responder's access flags
  kModifyToError,
  kPeerDies,
  kRevoke,
  kPause,
  kSmallCompletionQueue,
  kCount,
};

struct Plan {
  qp::QpType type = qp::QpType::kRc;
  unsigned connections = 1;
  unsigned lives = 1;
  Mischief mischief = Mischief::kNone;
  bool shared_receives = false;
  bool signal_all = false;
  bool stays_in_rtr = false;  // the second side, for a while
  bool drains = false;        // SQD now and then
  unsigned loss_percent = 0;
  unsigned duplicate_percent = 0;
  unsigned delay_max_us = 1;
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;
  std::uint8_t reads_out_max = 4;
  std::uint8_t reads_in_max = 8;
  std::uint32_t send_depth = 16;
  std::uint32_t sends = 20;  // of each side in one life
  std::uint32_t receives_max = 8;
  std::uint32_t piece = 4096;
  unsigned bogus_answers_percent = 0;
  unsigned pauses_in_messages_percent = 0;
};

Plan plan_of(SeededRandom& random);
std::string describe(const Plan& plan);

inline constexpr std::uint32_t kSgeMax = 4;
inline constexpr std::uint32_t kInlineMax = 128;
inline constexpr std::uint32_t kQkey = 0x11110000;
inline constexpr std::uint32_t kReceiveSize =
    640;  // room of a receive, header of a datagram included
inline constexpr std::uint32_t kDatagramMax = 512;

// Makes work requests of one side.
class Workload {
 public:
  Workload(SeededRandom& random, const Plan& plan, Endpoint& mine, Endpoint& theirs)
      : random_(random), plan_(plan), mine_(mine), theirs_(theirs) {}

  PostedSend next_send(std::uint64_t wr_id, QpNum peer);
  PostedReceive next_receive(std::uint64_t wr_id);

 private:
  queues::SendOpcode pick_opcode();
  bool spoil_now(Mischief mischief, unsigned one_in) {
    return plan_.mischief == mischief && random_.one_in(one_in);
  }
  std::vector<Sge> pick_sges(Part part, std::uint64_t length, MemoryKey key);
  void aim(PostedSend& send);
  void spoil_request(PostedSend& send);
  void spoil_locally(PostedSend& send);

  SeededRandom& random_;
  const Plan& plan_;
  Endpoint& mine_;
  Endpoint& theirs_;
  std::uint32_t landed_ = 0;    // next free place of kLanding
  std::uint32_t received_ = 0;  // next place of kReceives
};

}  // namespace verbena::sim
