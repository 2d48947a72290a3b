// SPDX-License-Identifier: MIT
// rdma_set_option(3), and the names of events.
#include <cstring>
#include <memory>
#include <optional>

#include "rdmacm/ids.h"
#include "rdmacm/manager.h"
#include "rdmacm/path.h"

namespace verbena::rdmacm {
namespace {

constexpr std::uint8_t kTimeoutMax = 31;  // five bits
constexpr std::uint32_t kPathWanted =
    IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;

template <class Value>
std::optional<Value> read(const void* value, std::size_t length) {
  Value read;
  if (!value || length != sizeof read) return std::nullopt;
  std::memcpy(&read, value, sizeof read);
  return read;
}

int set_of_id(Id& id, int option, const void* value, std::size_t length) {
  switch (option) {
    case RDMA_OPTION_ID_TOS: {
      const auto tos = read<std::uint8_t>(value, length);
      if (!tos) return EINVAL;
      id.traffic_class = *tos;
      id.way.traffic_class = *tos;
      return 0;
    }
    case RDMA_OPTION_ID_REUSEADDR: {
      const auto reuse = read<int>(value, length);
      if (!reuse || id.stage != Stage::kIdle) return EINVAL;
      id.reuses_address = *reuse != 0;
      return 0;
    }
    case RDMA_OPTION_ID_AFONLY: {
      const auto only = read<int>(value, length);
      if (!only || id.stage != Stage::kIdle) return EINVAL;
      id.is_ipv6_only = *only != 0;
      return 0;
    }
    case RDMA_OPTION_ID_ACK_TIMEOUT: {
      const auto timeout = read<std::uint8_t>(value, length);
      if (!timeout || *timeout > kTimeoutMax) return EINVAL;
      id.ack_timeout = timeout;
      return 0;
    }
    default: return ENOSYS;
  }
}

// A path that the program found in its own way. On Ethernet it says no more than the addresses do.
int set_path(Id& id, const void* value, std::size_t length) {
  if (!value || length == 0 || length % sizeof(ibv_path_data) != 0) return EINVAL;
  if (id.stage != Stage::kAddressed) return EINVAL;
  const auto* const paths = static_cast<const std::byte*>(value);
  for (std::size_t at = 0; at < length; at += sizeof(ibv_path_data)) {
    ibv_path_data path;
    std::memcpy(&path, paths + at, sizeof path);
    if ((path.flags & kPathWanted) != kPathWanted) continue;
    id.path = path_record_of(id);
    id.route.path_rec = &id.path;
    id.route.num_paths = 1;
    id.stage = Stage::kRouted;
    id.events().push(std::make_unique<Event>(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    return 0;
  }
  return EINVAL;
}

int set_option(Id& id, int level, int option, const void* value, std::size_t length) {
  if (!id.manager.in_owner()) return EIO;
  switch (level) {
    case RDMA_OPTION_ID: return set_of_id(id, option, value, length);
    case RDMA_OPTION_IB:
      return option == RDMA_OPTION_IB_PATH ? set_path(id, value, length) : ENOSYS;
    default: return ENOSYS;
  }
}

}  // namespace
}  // namespace verbena::rdmacm

using namespace verbena::rdmacm;

extern "C" {

int rdma_set_option(rdma_cm_id* id, int level, int option, void* value, size_t length) {
  if (!id) return answer(EINVAL);
  return answer(set_option(Id::of(id), level, option, value, length));
}

const char* rdma_event_str(rdma_cm_event_type event) {
  switch (event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: return "RDMA_CM_EVENT_ADDR_RESOLVED";
    case RDMA_CM_EVENT_ADDR_ERROR: return "RDMA_CM_EVENT_ADDR_ERROR";
    case RDMA_CM_EVENT_ROUTE_RESOLVED: return "RDMA_CM_EVENT_ROUTE_RESOLVED";
    case RDMA_CM_EVENT_ROUTE_ERROR: return "RDMA_CM_EVENT_ROUTE_ERROR";
    case RDMA_CM_EVENT_CONNECT_REQUEST: return "RDMA_CM_EVENT_CONNECT_REQUEST";
    case RDMA_CM_EVENT_CONNECT_RESPONSE: return "RDMA_CM_EVENT_CONNECT_RESPONSE";
    case RDMA_CM_EVENT_CONNECT_ERROR: return "RDMA_CM_EVENT_CONNECT_ERROR";
    case RDMA_CM_EVENT_UNREACHABLE: return "RDMA_CM_EVENT_UNREACHABLE";
    case RDMA_CM_EVENT_REJECTED: return "RDMA_CM_EVENT_REJECTED";
    case RDMA_CM_EVENT_ESTABLISHED: return "RDMA_CM_EVENT_ESTABLISHED";
    case RDMA_CM_EVENT_DISCONNECTED: return "RDMA_CM_EVENT_DISCONNECTED";
    case RDMA_CM_EVENT_DEVICE_REMOVAL: return "RDMA_CM_EVENT_DEVICE_REMOVAL";
    case RDMA_CM_EVENT_MULTICAST_JOIN: return "RDMA_CM_EVENT_MULTICAST_JOIN";
    case RDMA_CM_EVENT_MULTICAST_ERROR: return "RDMA_CM_EVENT_MULTICAST_ERROR";
    case RDMA_CM_EVENT_ADDR_CHANGE: return "RDMA_CM_EVENT_ADDR_CHANGE";
    case RDMA_CM_EVENT_TIMEWAIT_EXIT: return "RDMA_CM_EVENT_TIMEWAIT_EXIT";
    default: return "UNKNOWN EVENT";
  }
}

}  // extern "C"
