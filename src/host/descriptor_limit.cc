// SPDX-License-Identifier: MIT
#include "host/descriptor_limit.h"

#include <sys/resource.h>

#include <cerrno>

namespace verbena::host {

RaisedDescriptorLimit::RaisedDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == 0) return;
  // A program that raises it meanwhile goes to the hard one: that must not look like ours.
  raised_to_ = limit.rlim_max - 1;
  if (limit.rlim_cur >= raised_to_) return;
  limit.rlim_cur = raised_to_;
  rlimit before{};
  if (prlimit(0, RLIMIT_NOFILE, &limit, &before) != 0) return;
  before_ = before.rlim_cur;
  raised_ = true;
}

RaisedDescriptorLimit::~RaisedDescriptorLimit() {
  if (!raised_) return;
  const int saved = errno;
  rlimit limit{};
  // Only what is still as we left it: the program may have set another limit meanwhile.
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == raised_to_) {
    limit.rlim_cur = before_;
    rlimit found{};
    // Between the two calls, too.
    if (prlimit(0, RLIMIT_NOFILE, &limit, &found) == 0 && found.rlim_cur != raised_to_)
      setrlimit(RLIMIT_NOFILE, &found);
  }
  errno = saved;
}

}  // namespace verbena::host
