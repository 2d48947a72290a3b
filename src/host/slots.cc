// SPDX-License-Identifier: MIT
#include "host/slots.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace verbena::host {

SlotAddress::SlotAddress(std::string_view prefix, SlotNumber slot) {
  name.sun_family = AF_UNIX;
  const std::string number = std::to_string(slot.value);
  prefix = prefix.substr(0, sizeof name.sun_path - 1 - number.size());
  char* end = std::copy(prefix.begin(), prefix.end(), name.sun_path + 1);
  end = std::copy(number.begin(), number.end(), end);
  const auto used = static_cast<std::size_t>(end - name.sun_path);
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + used);
}

}  // namespace verbena::host
