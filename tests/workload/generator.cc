// SPDX-License-Identifier: MIT
#include "generator.h"

#include <algorithm>
#include <array>

namespace verbena::workload {
namespace {

// As often as they are here.
constexpr std::array kVerbs{Verb::kSend,       Verb::kSendWithImmediate,  Verb::kWrite,
                            Verb::kWrite,      Verb::kWriteWithImmediate, Verb::kRead,
                            Verb::kFetchAdd,   Verb::kCompareSwap,        Verb::kFlush,
                            Verb::kAtomicWrite};
constexpr std::uint32_t kOfDatagrams = 2;  // of these
constexpr std::uint32_t kUnreliable = 5;
constexpr std::uint32_t kWithoutPlacement = 8;
constexpr std::uint32_t kShort = 300;
constexpr std::uint32_t kTiny = 17;

}  // namespace

Request Generator::next() {
  Request request{.index = next_++};
  request.verb = pick_verb();
  request.content = random_.next();
  request.length = pick_length(request.verb);
  cut_into_pieces(request);
  if (habits_.places > 1) request.place = below(habits_.places);
  if (habits_.queues > 1) request.queue = below(habits_.queues);
  request.is_inline = !comes_back(request.verb) && request.verb != Verb::kFlush &&
                      request.length <= habits_.inline_max && random_.one_in(2);
  request.is_fenced = habits_.fences && is_reliable(habits_.service) && random_.one_in(6);
  // Only a completion at the end tells that the rest are done.
  request.is_signaled = !habits_.unsignaled || is_over() ||
                        habits_.service == Service::kDatagrams || random_.one_in(2);
  if (habits_.revokes) choose_regions(request);
  if (habits_.bad_requests && random_.one_in(12)) request.spoiled = spoil(request);
  return request;
}

Verb Generator::pick_verb() {
  if (habits_.service == Service::kDatagrams) return kVerbs[below(kOfDatagrams)];
  if (habits_.service == Service::kUnreliable) return kVerbs[below(kUnreliable)];
  const Verb verb = kVerbs[below(habits_.placement ? kVerbs.size() : kWithoutPlacement)];
  if (habits_.invalidates && verb == Verb::kSendWithImmediate && random_.one_in(2))
    return Verb::kSendWithInvalidate;
  return verb;
}

std::uint32_t Generator::pick_length(Verb verb) {
  if (is_word(verb)) return 8;
  if (verb == Verb::kFlush) return 0;
  std::uint32_t length = below(habits_.length_max + 1);
  if (random_.one_in(3)) length %= random_.one_in(3) ? kTiny : kShort;
  return std::max(length, habits_.length_min);
}

void Generator::cut_into_pieces(Request& request) {
  // An answer of an atomic is in one piece as well as in two.
  request.piece_count = 1 + below(habits_.pieces_max);
  std::uint32_t left = request.length;
  for (std::uint32_t i = 0; i + 1 < request.piece_count; ++i) {
    request.pieces[i] = below(left + 1);
    left -= request.pieces[i];
  }
  request.pieces[request.piece_count - 1] = left;
}

void Generator::choose_regions(Request& request) {
  if (request.length == 0) return;
  const bool is_remote = !is_send(request.verb) && !is_atomic(request.verb);
  if (is_remote) request.uses_revocable_there = random_.one_in(3);
  request.uses_revocable_here = !request.is_inline && random_.one_in(6);
}

Spoiled Generator::spoil(const Request& request) {
  const bool touches = request.length > 0 && !takes_receive(request.verb);
  if (habits_.service == Service::kExtended && random_.one_in(3))
    return touches && random_.one_in(2) ? Spoiled::kAnothersQueue : Spoiled::kMissingQueue;
  if (is_word(request.verb)) return random_.one_in(2) ? Spoiled::kAlignment : Spoiled::kKey;
  // Of nothing no key is looked at.
  if (request.verb == Verb::kRead || is_write(request.verb))
    return request.length > 0 ? Spoiled::kKey : Spoiled::kNo;
  return request.verb == Verb::kFlush ? Spoiled::kKey : Spoiled::kNo;
}

}  // namespace verbena::workload
