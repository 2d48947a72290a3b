// SPDX-License-Identifier: MIT
// How many READ and atomic requests are with the responder, which has resources for
// max_dest_rd_atomic of them (IBTA vol 1, 9.4.4 and 11.2.4.2): a long READ is asked for in parts,
// and each part is one.
#pragma once

#include <array>
#include <cstdint>

#include "qp/state.h"
#include "wire/sequence.h"

namespace verbena::roce {

class ReadQuota {
 public:
  void set_most(std::uint32_t most) { most_ = most < kRoom ? most : kRoom; }
  // Everything before `finished` has come.
  bool has_room(wire::Psn finished) {
    while (size_ != 0 && ends_[head_ % kRoom] - finished <= 0) {
      ++head_;
      --size_;
    }
    return size_ < most_;
  }
  void asked_upto(wire::Psn end) {
    if (size_ < kRoom) ends_[(head_ + size_++) % kRoom] = end;
  }
  // What goes beyond will be asked for again.
  void go_back(wire::Psn to) {
    while (size_ != 0 && ends_[(head_ + size_ - 1) % kRoom] - to > 0)
      --size_;
  }
  std::uint32_t most() const { return most_; }

 private:
  static constexpr std::uint32_t kRoom = qp::kReadsMax;
  std::array<wire::Psn, kRoom> ends_{};
  std::uint32_t head_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t most_ = 1;
};

}  // namespace verbena::roce
