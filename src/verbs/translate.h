// SPDX-License-Identifier: MIT
// Between the attributes of <infiniband/verbs.h> and ours, field by field. Enumerations and masks
// are numbered alike on both sides.
#pragma once

#include <optional>

#include "qp/queue_pair.h"
#include "qp/state.h"
#include "verbs/abi/entry.h"

namespace verbena::verbs {

qp::AddressVector path_from(const ibv_ah_attr& attributes);
ibv_ah_attr path_to(const qp::AddressVector& path);

// Only the fields that `mask` names are read; the others may hold anything. Nothing when a named
// one has a value that ours cannot hold; whether it makes sense is the queue pair's affair.
std::optional<qp::QpAttributes> attributes_from(const ibv_qp_attr& attributes, std::uint32_t mask);

// All fields; `cap` from the configuration.
ibv_qp_attr attributes_to(const qp::QpAttributes& attributes, const qp::QpConfig& config);

ibv_qp_cap capabilities_of(const qp::QpConfig& config);

// Nothing when it is not one of ours.
std::optional<qp::QpType> type_from(ibv_qp_type type);
qp::Xrc xrc_from(ibv_qp_type type);

}  // namespace verbena::verbs
