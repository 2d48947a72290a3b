// SPDX-License-Identifier: MIT
#include "nic/raw_carrier.h"

#include <cstring>

namespace verbena::nic {
namespace {

constexpr std::uint32_t kUsualBurst = 16 * 1024;
// An interface that takes no more is full of frames that leave in less.
constexpr Duration kInterfacePause = Duration::microseconds(50);

bool is_tagged(std::span<const std::byte> frame) {
  wire::be16 type;
  std::memcpy(&type, frame.data() + raw::kEthernetBytes - sizeof type, sizeof type);
  return type.value() == raw::kEtherVlan || type.value() == raw::kEtherServiceVlan;
}

}  // namespace

RawCarrier::RawCarrier(RawPort& port, Now::Clock clock)
    : port_(port), clock_(clock), bytes_(std::make_unique_for_overwrite<std::byte[]>(kBytes)) {}

void RawCarrier::pace(std::uint32_t rate, std::uint32_t burst_bytes) {
  pacer_.set(rate, burst_bytes != 0 ? burst_bytes : kUsualBurst);
}

void RawCarrier::issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  if (!depart(now)) return;
  std::optional<Instant> paced_until;
  while (!budget.spent()) {
    const qp::Operation* const op = window.next(now);
    if (!op) break;
    if (pacer_.is_limited()) paced_until = pacer_.waits_until(now);
    if (paced_until) break;
    const qp::OpIndex index = op->index;
    const auto length = static_cast<std::size_t>(op->length);
    if ((count_ == kFrames || length > kBytes - used_) && !depart(now)) return;
    const std::span<std::byte> frame(bytes_.get() + used_, length);
    if (!window.gather(index, 0, frame)) continue;
    if (!fits(frame)) {
      window.too_long(index);
      continue;
    }
    frames_[count_++] = frame;
    used_ += length;
    if (pacer_.is_limited()) pacer_.sent(length, now);
    window.issued(now);
    budget.take(length);
  }
  if (depart(now)) deadline_ = paced_until;
}

// The interface's MTU may have been raised meanwhile.
bool RawCarrier::fits(std::span<const std::byte> frame) {
  const std::size_t tag = is_tagged(frame) ? raw::kVlanBytes : 0;
  if (frame.size() <= longest_ + tag) return true;
  longest_ = port_.longest_frame();
  return frame.size() <= longest_ + tag;
}

// False: the train, or the rest of it, has to wait.
bool RawCarrier::depart(const Now& now) {
  while (departed_ < count_) {
    std::size_t sent = 0;
    const auto left = std::span(frames_).subspan(departed_, count_ - departed_);
    const RawPort::Outcome outcome = port_.send(left, sent);
    departed_ += sent;
    switch (outcome) {
      case RawPort::Outcome::kSent: break;
      case RawPort::Outcome::kFull: deadline_ = now + kInterfacePause; return false;
      // The MTU was lowered this moment.
      case RawPort::Outcome::kTooLong: longest_ = 0; [[fallthrough]];
      // Like a cable that is not plugged in: nobody hears of it.
      case RawPort::Outcome::kLost: ++departed_; break;
    }
  }
  if (count_ != 0 && pacer_.is_limited()) pacer_.had_left(used_, clock_());
  used_ = count_ = departed_ = 0;
  deadline_.reset();
  return true;
}

}  // namespace verbena::nic
