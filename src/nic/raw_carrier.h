// SPDX-License-Identifier: MIT
// The sending half of a raw packet queue pair. Its payload is copied into a train of frames, so the
// program's memory is free at once, and the train leaves in one system call. What comes in goes
// from RawNic to the responder.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "nic/pacer.h"
#include "nic/raw_port.h"
#include "qp/carrier.h"

namespace verbena::nic {

class RawCarrier final : public qp::Carrier {
 public:
  // The longest frame of any interface: 64 KiB of the loopback one, header and tag.
  static constexpr std::uint32_t kFrameMax = 65536 + raw::kEthernetBytes + raw::kVlanBytes;

  // The clock says when frames have left, where that has to be known.
  RawCarrier(RawPort& port, Now::Clock clock);
  // As Pacer::set; a burst of 0 is that of a usual queue of an adapter.
  void pace(std::uint32_t rate, std::uint32_t burst_bytes);

  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  void collect(qp::SendWindow&, qp::Budget&, const Now&) override {}
  bool serve(qp::Responder&, qp::Budget&, const Now&) override { return false; }
  std::optional<Instant> next_deadline() const override { return deadline_; }
  bool quiesced() override { return true; }

 private:
  bool fits(std::span<const std::byte> frame);
  bool depart(const Now& now);

  static constexpr std::size_t kFrames = 64;
  static constexpr std::size_t kBytes = 2 * kFrameMax;

  RawPort& port_;
  Now::Clock clock_;
  Pacer pacer_;
  std::size_t longest_ = 0;  // without a tag, when it was last looked at
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t used_ = 0;
  std::array<std::span<const std::byte>, kFrames> frames_;  // [departed_, count_) are to leave
  std::size_t count_ = 0;
  std::size_t departed_ = 0;
  std::optional<Instant> deadline_;  // when the train that waits, or the next frame, is tried again
};

}  // namespace verbena::nic
