// SPDX-License-Identifier: MIT
#include "host/descriptor_limit.h"

#include <sys/resource.h>

#include <cerrno>

namespace verbena::host {

RaisedDescriptorLimit::RaisedDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  before_ = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  raised_ = setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

RaisedDescriptorLimit::~RaisedDescriptorLimit() {
  if (!raised_) return;
  const int saved = errno;
  rlimit limit{};
  // Only what is still as we left it: the program may have set another limit meanwhile.
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == limit.rlim_max) {
    limit.rlim_cur = before_;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  errno = saved;
}

}  // namespace verbena::host
