// SPDX-License-Identifier: MIT
#include "port/port.h"

namespace verbena::port {

const char* to_string(RouteError error) {
  switch (error) {
    case RouteError::kNoRoute: return "no route to the address";
    case RouteError::kNotOurs: return "the source is not an address of this host";
    case RouteError::kNoSockets: return "the system gives no socket";
  }
  return "?";
}

}  // namespace verbena::port
