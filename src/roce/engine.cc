// SPDX-License-Identifier: MIT
#include "roce/engine.h"

#include "base/assert.h"
#include "roce/agreement.h"
#include "roce/datagram_engine.h"
#include "roce/rc_engine.h"
#include "roce/uc_engine.h"

namespace verbena::roce {

std::unique_ptr<Engine> make_engine(const Settings& settings, Wire& wire, Paths* paths,
                                    Congestion* congestion, Congestion* when_agreed) {
  VERBENA_ASSERT(wire::is_path_mtu(settings.path_mtu));
  VERBENA_ASSERT(!settings.asks_for_agreement || settings.reorder_packets >= kAgreedSpan);
  switch (settings.type) {
    case qp::QpType::kRc:
      return std::make_unique<RcEngine>(settings, wire, congestion, when_agreed);
    case qp::QpType::kUc: return std::make_unique<UcEngine>(settings, wire, congestion);
    case qp::QpType::kUd:
      VERBENA_ASSERT(paths != nullptr);
      return std::make_unique<DatagramEngine>(settings, wire, *paths);
    case qp::QpType::kRawPacket: break;  // no RoCE at all
  }
  return nullptr;
}

}  // namespace verbena::roce
