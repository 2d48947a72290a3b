// SPDX-License-Identifier: MIT
#include "nic/dv.h"

#include <mutex>

#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/sharing.h"
#include "nic/wire_qp.h"

namespace verbena::nic {

Result<void*, Error> allocate_shared(Context& context, std::size_t length) {
  if (!context.is_usable()) return refuse(Error::kGone);
  const auto made = context.nic().sharing().allocate(length);
  if (!made) return refuse(made.error());
  return *made;
}

Result<void, Error> free_shared(Context& context, void* memory) {
  if (!context.is_usable()) return refuse(Error::kGone);
  return context.nic().sharing().free(static_cast<std::byte*>(memory));
}

Result<Reach, Error> reach_of(const Mr& mr) {
  if (!mr.pd->context->is_usable()) return refuse(Error::kGone);
  Sharing& sharing = mr.pd->context->nic().sharing();
  Reach reach;
  reach.by_process = sharing.can_be_reached(mr.key);
  if (const auto part = sharing.mapped_part(mr.key)) {
    reach.mapped_offset = part->begin;
    reach.mapped_length = part->end - part->begin;
  }
  return reach;
}

Result<Service, Error> service_of(Qp& qp) {
  if (!qp.pd().context->is_usable()) return refuse(Error::kGone);
  const std::lock_guard guard(qp.pair.lock());
  Service service;
  if (WireQp* const wire = qp.wire(); wire && qp.pair.config().type != qp::QpType::kUd) {
    const roce::Engine::Sendings sendings = wire->engine().sendings();
    return Service{.by = Service::By::kWire,
                   .wire_packets = sendings.packets,
                   .wire_repeated = sendings.repeated,
                   .has_agreed = wire->engine().has_agreed()};
  }
  const local::RingCarrier* const carrier = qp.ring();
  if (!carrier) return service;
  service.mapped_operations = carrier->counts().mapped;
  service.process_operations = carrier->counts().reached;
  service.ring_operations = carrier->counts().ring;
  if (!carrier->is_attached()) return service;
  service.by = carrier->is_direct() ? Service::By::kOurselves : Service::By::kRing;
  return service;
}

}  // namespace verbena::nic
