// SPDX-License-Identifier: MIT
// Queue pair 1, for librdmacm.so (base/contracts.h).
#include "nic/gsi.h"

#include <cerrno>

#include "base/contracts.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "verbs/border.h"

namespace verbena::verbs {
namespace {

using nic::ServiceNames;
using nic::ServicePlace;

// Null: this process has no place on the host. After fork: not yet.
nic::Gsi* gsi() {
  nic::Engine* const engine = nic::Nic::current().engine();
  return engine ? &engine->gsi() : nullptr;
}

ServicePlace place_of(const GsiPlace& place) {
  const auto kind = place.kind == GsiPlace::kAllIpv4   ? ServicePlace::Kind::kAllIpv4
                    : place.kind == GsiPlace::kAllIpv6 ? ServicePlace::Kind::kAllIpv6
                                                       : ServicePlace::Kind::kAddress;
  const Gid address = kind == ServicePlace::Kind::kAddress ? place.address : Gid{};
  return {.service = place.service, .kind = kind, .address = address};
}

int errno_of_claim(ServiceNames::Claimed claimed) {
  switch (claimed) {
    case ServiceNames::Claimed::kYes: return 0;
    case ServiceNames::Claimed::kTaken: return EADDRINUSE;
    case ServiceNames::Claimed::kNoDescriptor: return EMFILE;
    case ServiceNames::Claimed::kGone: return EIO;
  }
  return EIO;
}

int open(const GsiEvents* events, std::uint32_t* slot) {
  return at_border([&] {
    auto engine = nic::Nic::current().start_engine();
    if (!engine) return Result<void, nic::Error>(refuse(engine.error()));
    (*engine)->gsi().open(*events);
    *slot = (*engine)->gsi().slot().value;
    return Result<void, nic::Error>();
  });
}

void send(const GsiMad* mad) {
  static_cast<void>(at_border([&] {
    if (nic::Gsi* const ours = gsi()) ours->send(*mad);
    return Result<void, nic::Error>();
  }));
}

int listen_on_wire(bool is_loopback) {
  int error = EIO;
  const int failed = at_border([&] {
    nic::Gsi* const ours = gsi();
    if (ours) error = ours->listen_on_wire(is_loopback) ? 0 : ENETUNREACH;
    return Result<void, nic::Error>();
  });
  return failed ? failed : error;
}

// `body` is one of the two ways to take a name.
template <class Body>
int take(const GsiPlace* place, Body body) {
  int error = EIO;
  const int failed = at_border([&] {
    nic::Gsi* const ours = gsi();
    if (ours) error = errno_of_claim(body(*ours, place_of(*place)));
    return Result<void, nic::Error>();
  });
  return failed ? failed : error;
}

int claim(const GsiPlace* place) {
  return take(place,
              [](nic::Gsi& ours, const ServicePlace& where) { return ours.names().claim(where); });
}

int serve(const GsiPlace* place) {
  return take(place, [](nic::Gsi& ours, const ServicePlace& where) {
    return ours.names().serve(where, ours.slot());
  });
}

void release_place(const GsiPlace* place) {
  static_cast<void>(at_border([&] {
    if (nic::Gsi* const ours = gsi()) ours->names().release(place_of(*place));
    return Result<void, nic::Error>();
  }));
}

void flush() {
  if (nic::Gsi* const ours = gsi()) ours->flush();
}

bool is_claimed(const GsiPlace* place) { return ServiceNames::is_claimed(place_of(*place)); }

}  // namespace
}  // namespace verbena::verbs

extern "C" {

// NOLINTNEXTLINE(readability-identifier-naming): a name for C and for dlsym
[[gnu::visibility("default")]] extern const verbena::GsiTable verbena_gsi_table;
constinit const verbena::GsiTable verbena_gsi_table = {
    .open = verbena::verbs::open,
    .send = verbena::verbs::send,
    .listen_on_wire = verbena::verbs::listen_on_wire,
    .claim = verbena::verbs::claim,
    .serve = verbena::verbs::serve,
    .release = verbena::verbs::release_place,
    .is_claimed = verbena::verbs::is_claimed,
    .flush = verbena::verbs::flush};

}  // extern "C"
