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
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + (end - name.sun_path));
}

}  // namespace verbena::host
