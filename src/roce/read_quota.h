// SPDX-License-Identifier: MIT
// How many READ and atomic requests are with the responder, which has resources for
// max_dest_rd_atomic of them (IBTA vol 1, 9.4.4 and 11.2.4.2): a long READ is asked for in parts,
// and each part is one. Everything counts that was asked for behind the oldest answer that is
// missing, also what has come meanwhile: of so many, in the order of their numbers, does the
// responder remember what it needs to answer them again.
#pragma once

#include <array>
#include <cstdint>

#include "qp/state.h"
#include "wire/sequence.h"

namespace verbena::roce {

class ReadQuota {
 public:
  void set_most(std::uint32_t most) { most_ = most < kRoom ? most : kRoom; }
  // For a request that begins at `psn`.
  bool has_room(wire::Psn psn) const { return size_ < most_ || (size_ != 0 && psn - newest() < 0); }
  void asked_upto(wire::Psn end) {
    const bool is_new = size_ == 0 || end - newest() > 0;
    if (is_new && size_ < kRoom) ends_[(head_ + size_++) % kRoom] = end;
  }
  // Everything before `finished` has come. To be told each time: half of all numbers later, what
  // is over looks as if it were to come.
  void finished_upto(wire::Psn finished) {
    while (size_ != 0 && ends_[head_ % kRoom] - finished <= 0) {
      ++head_;
      --size_;
    }
  }
  std::uint32_t most() const { return most_; }
  bool is_empty() const { return size_ == 0; }  // nothing that was asked for is missing

 private:
  wire::Psn newest() const { return ends_[(head_ + size_ - 1) % kRoom]; }

  static constexpr std::uint32_t kRoom = qp::kReadsMax;
  std::array<wire::Psn, kRoom> ends_{};
  std::uint32_t head_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t most_ = 1;
};

}  // namespace verbena::roce
