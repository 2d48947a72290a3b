// SPDX-License-Identifier: MIT
// The words for the enumerations of the header (ibv_event_type_str(3), ibv_wc_status_str). Programs
// print them and people search logs for them, so they are those of rdma-core 44; tests/abi
// compares.
#include <iterator>

#include "verbs/abi/entry.h"

namespace {

constexpr const char* kUnknown = "unknown";

constexpr const char* kNodeTypes[] = {
    nullptr,
    "InfiniBand channel adapter",
    "InfiniBand switch",
    "InfiniBand router",
    "iWARP NIC",
    "usNIC",
    "usNIC UDP",
    "unspecified",
};
static_assert(std::size(kNodeTypes) == IBV_NODE_UNSPECIFIED + 1);

constexpr const char* kPortStates[] = {
    "no state change (NOP)", "down", "init", "armed", "active", "active defer",
};
static_assert(std::size(kPortStates) == IBV_PORT_ACTIVE_DEFER + 1);

constexpr const char* kEventTypes[] = {
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
    "WQ fatal",
};
static_assert(std::size(kEventTypes) == IBV_EVENT_WQ_FATAL + 1);

constexpr const char* kCompletionStatuses[] = {
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
};
static_assert(std::size(kCompletionStatuses) == IBV_WC_TM_RNDV_INCOMPLETE + 1);

// The caller's value may be anything, so it is taken as a number.
template <std::size_t kCount>
const char* word_for(int value, const char* const (&words)[kCount]) {
  if (value < 0 || static_cast<std::size_t>(value) >= kCount || !words[value]) return kUnknown;
  return words[value];
}

}  // namespace

VERBENA_ANY_VALUE const char* ibv_node_type_str(ibv_node_type node_type) {
  return word_for(node_type, kNodeTypes);
}

VERBENA_ANY_VALUE const char* ibv_port_state_str(ibv_port_state port_state) {
  return word_for(port_state, kPortStates);
}

VERBENA_ANY_VALUE const char* ibv_event_type_str(ibv_event_type event) {
  return word_for(static_cast<int>(event), kEventTypes);
}

VERBENA_ANY_VALUE const char* ibv_wc_status_str(ibv_wc_status status) {
  return word_for(static_cast<int>(status), kCompletionStatuses);
}
