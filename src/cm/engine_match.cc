// SPDX-License-Identifier: MIT
// Which connection a MAD is about. What does not belong to the connection that it names is taken as
// if there were no such connection, or is dropped.
#include <type_traits>

#include "cm/engine.h"
#include "wire/bytes.h"

namespace verbena::cm {
namespace {

Input input_of(wire::CmAttribute attribute) {
  switch (attribute) {
    case wire::CmAttribute::kReq: return Input::kReq;
    case wire::CmAttribute::kMra: return Input::kMra;
    case wire::CmAttribute::kRej: return Input::kRej;
    case wire::CmAttribute::kRep: return Input::kRep;
    case wire::CmAttribute::kRtu: return Input::kRtu;
    case wire::CmAttribute::kDreq: return Input::kDreq;
    case wire::CmAttribute::kDrep: return Input::kDrep;
    case wire::CmAttribute::kSidrReq: return Input::kSidrReq;
    case wire::CmAttribute::kSidrRep: return Input::kSidrRep;
    case wire::CmAttribute::kLap: return Input::kLap;
    case wire::CmAttribute::kApr: return Input::kApr;
  }
  return Input::kApr;
}

// Whether this side of a connection ever gets such a message.
template <class Message>
bool fits(const Connection& c, const Message& message) {
  if constexpr (std::is_same_v<Message, wire::Rep>) {
    return c.role == Role::kActive;
  } else if constexpr (std::is_same_v<Message, wire::Rtu>) {
    return c.role == Role::kPassive;
  } else if constexpr (std::is_same_v<Message, wire::Mra>) {
    return message.message == (c.role == Role::kActive ? wire::MraOf::kReq : wire::MraOf::kRep);
  } else if constexpr (std::is_same_v<Message, wire::Dreq>) {
    return message.remote_qp == c.local_qp;
  } else {
    return true;
  }
}

bool is_of_connections(const Connection& c) {
  return c.role == Role::kActive || c.role == Role::kPassive;
}

// A REQ that comes again is the same in every field.
bool is_same(const Connection& c, const wire::Req& req) {
  return c.remote_qp == req.local_qp && c.remote_psn == req.starting_psn &&
         c.service_id == req.service_id && c.remote_guid == req.local_ca_guid;
}

}  // namespace

void Engine::receive(const Route& route, std::span<const std::byte> payload, Instant now) {
  latest_ = now;
  ++counters_.received;
  const auto mad = wire::parse_cm(payload);
  if (!mad) {
    ++counters_.malformed;
    if (mad.error() == wire::MalformedMad::kVersion) refuse_version(route, payload);
    return;
  }
  const Arrival arrival{route, *mad, now};
  const auto [connection, is_discarded] = match(arrival);
  if (is_discarded || connection == nullptr) ++counters_.unmatched;
  if (is_discarded) return;
  const State state = connection != nullptr ? connection->state : State::kNone;
  act(decide(state, input_of(wire::attribute_of(mad->message))), connection, arrival);
}

template <class Message>
Engine::Match Engine::match_ids(const Arrival& arrival, const Message& message) {
  Connection* const c = connections_.by_id({message.remote_comm_id});
  if (c == nullptr || !is_of_connections(*c) || c->route.remote != arrival.route.remote) return {};
  if (c->knows_remote && c->remote_id != message.local_comm_id) return {};
  return {c, !fits(*c, message)};
}

auto Engine::match(const Arrival& arrival) -> Match {
  const auto match_one = [&](const auto& message) -> Match {
    using Message = std::remove_cvref_t<decltype(message)>;
    if constexpr (std::is_same_v<Message, wire::Req>) {
      return match_request(arrival, message);
    } else if constexpr (std::is_same_v<Message, wire::Rej>) {
      return match_rejection(arrival, message);
    } else if constexpr (std::is_same_v<Message, wire::SidrReq>) {
      Connection* const c =
          connections_.by_remote(arrival.route.remote, message.request_id, Role::kResolved);
      return {c != nullptr && c->service_id == message.service_id ? c : nullptr, false};
    } else if constexpr (std::is_same_v<Message, wire::SidrRep>) {
      return match_resolution(arrival, message);
    } else {
      return match_ids(arrival, message);
    }
  };
  return std::visit(match_one, arrival.mad.message);
}

auto Engine::match_request(const Arrival& arrival, const wire::Req& req) -> Match {
  Connection* const c =
      connections_.by_remote(arrival.route.remote, req.local_comm_id, Role::kPassive);
  if (c == nullptr || !is_same(*c, req)) return {};
  ++counters_.duplicates;
  return {c, false};
}

// Who rejects may not have an id, or not know ours.
auto Engine::match_rejection(const Arrival& arrival, const wire::Rej& rej) -> Match {
  const Gid& from = arrival.route.remote;
  Connection* const c = connections_.by_id({rej.remote_comm_id});
  if (c == nullptr && rej.remote_comm_id == 0) {
    return {connections_.by_remote(from, rej.local_comm_id, Role::kPassive), false};
  }
  if (c == nullptr || !is_of_connections(*c) || c->route.remote != from) return {};
  const bool may_be_nobodys = c->state == State::kRequestSent || c->state == State::kReplyWait;
  const bool is_his = !c->knows_remote || rej.local_comm_id == c->remote_id ||
                      (may_be_nobodys && rej.local_comm_id == 0);
  return {is_his ? c : nullptr, false};
}

auto Engine::match_resolution(const Arrival& arrival, const wire::SidrRep& rep) -> Match {
  Connection* const c = connections_.by_id({rep.request_id});
  const bool is_his =
      c != nullptr && c->role == Role::kResolver && c->route.remote == arrival.route.remote;
  return {is_his ? c : nullptr, false};
}

// A version of the class that we do not speak: the head is the same in all (13.4.3), and so are the
// ids.
void Engine::refuse_version(const Route& route, std::span<const std::byte> payload) {
  wire::View view(payload);
  const auto* const head = view.take<wire::MadHeader>();
  const auto* const id = view.take<wire::be32>();
  if (head == nullptr || id == nullptr) return;
  if (head->base_version != wire::MadHeader::kBaseVersion || head->management_class != 0x07 ||
      head->method != 0x03) {
    return;
  }
  const std::uint64_t transaction = head->transaction_id.value();
  const auto attribute = static_cast<wire::CmAttribute>(head->attribute_id.value());
  if (attribute == wire::CmAttribute::kReq) {
    say_aside(route,
              wire::Rej{.remote_comm_id = id->value(),
                        .message = wire::RejOf::kReq,
                        .reason = wire::RejReason::kInvalidClassVersion},
              transaction);
  } else if (attribute == wire::CmAttribute::kSidrReq) {
    say_aside(
        route,
        wire::SidrRep{.request_id = id->value(), .status = wire::SidrStatus::kUnsupportedVersion},
        transaction);
  }
}

}  // namespace verbena::cm
