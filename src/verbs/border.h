// SPDX-License-Identifier: MIT
// The C border: refusals become errno values here and nowhere else, and nothing is thrown across
// it. How each function says no is its manual page's affair (abi/entry.h has the list).
#pragma once

#include <cerrno>
#include <new>
#include <type_traits>

#include "base/result.h"
#include "nic/error.h"
#include "qp/queue_pair.h"
#include "queues/receive_queue.h"

namespace verbena::verbs {

int errno_of(nic::Error error) noexcept;
int errno_of(qp::PostError error) noexcept;
int errno_of(queues::ReceiveQueue::PostError error) noexcept;

// For functions that return a positive errno. `body` gives a Result<void, E>.
template <class Body>
int at_border(Body body) noexcept try {
  const auto done = body();
  return done ? 0 : errno_of(done.error());
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

// For functions that return an object or null, with errno. `body` gives a Result<T*, nic::Error>.
template <class Body>
auto pointer_at_border(Body body) noexcept -> typename std::invoke_result_t<Body>::value_type try {
  const auto made = body();
  if (made) return *made;
  errno = errno_of(made.error());
  return nullptr;
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return nullptr;
}

// For functions that return 0, or -1 with errno.
template <class Body>
int minus_one_at_border(Body body) noexcept {
  const int error = at_border(body);
  if (!error) return 0;
  errno = error;
  return -1;
}

// For destroying. A child after fork frees what it inherited, unless something else that it
// inherited depends on it, without touching what it shares with the parent, and hears EIO.
// `dispose` frees the border's own part.
template <class Dispose>
int destroy_at_border(bool is_inherited, const Result<void, nic::Error>& done, Dispose dispose) {
  if (!done) return is_inherited ? EIO : errno_of(done.error());
  dispose();
  return is_inherited ? EIO : 0;
}

}  // namespace verbena::verbs
