// SPDX-License-Identifier: MIT
#include "verbs/translate.h"

#include <cstring>

#include "base/enum_number.h"

namespace verbena::verbs {
namespace {

using qp::QpAttributes;
using qp::QpState;

static_assert(int{IBV_QPS_ERR} == static_cast<int>(QpState::kError));
static_assert(int{IBV_QPS_SQD} == static_cast<int>(QpState::kDrained));
static_assert(int{IBV_QP_DEST_QPN} == qp::kDestinationQp && int{IBV_QP_AV} == qp::kAddressVector &&
              int{IBV_QP_MAX_DEST_RD_ATOMIC} == qp::kReadsInMax &&
              int{IBV_QP_MAX_QP_RD_ATOMIC} == qp::kReadsOutMax &&
              int{IBV_QP_RATE_LIMIT} == qp::kRateLimit);
static_assert(int{IBV_QPT_RC} == static_cast<int>(qp::QpType::kRc) &&
              int{IBV_QPT_UC} == static_cast<int>(qp::QpType::kUc) &&
              int{IBV_QPT_UD} == static_cast<int>(qp::QpType::kUd) &&
              int{IBV_QPT_RAW_PACKET} == static_cast<int>(qp::QpType::kRawPacket));

constexpr int kMtuMax = IBV_MTU_4096;
constexpr int kMigrationMax = IBV_MIG_ARMED;

bool is_state(int number) { return number >= IBV_QPS_RESET && number <= IBV_QPS_ERR; }

void take_path(const ibv_qp_attr& from, std::uint32_t mask, QpAttributes& to) {
  if (mask & IBV_QP_AV) to.path = path_from(from.ah_attr);
  if (mask & IBV_QP_DEST_QPN) to.destination = {from.dest_qp_num};
  if (mask & IBV_QP_PKEY_INDEX) to.pkey_index = from.pkey_index;
  if (mask & IBV_QP_PORT) to.port = from.port_num;
  if (mask & IBV_QP_QKEY) to.qkey = from.qkey;
  if (mask & IBV_QP_RATE_LIMIT) to.rate_limit = from.rate_limit;
}

void take_reliability(const ibv_qp_attr& from, std::uint32_t mask, QpAttributes& to) {
  if (mask & IBV_QP_TIMEOUT) to.timeout = from.timeout;
  if (mask & IBV_QP_RETRY_CNT) to.retry_count = from.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) to.rnr_retry = from.rnr_retry;
  if (mask & IBV_QP_MIN_RNR_TIMER) to.rnr_timer = from.min_rnr_timer;
  if (mask & IBV_QP_RQ_PSN) to.receive_psn = from.rq_psn;
  if (mask & IBV_QP_SQ_PSN) to.send_psn = from.sq_psn;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to.reads_out_max = from.max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to.reads_in_max = from.max_dest_rd_atomic;
}

// False when a number is none of its enumeration.
bool take_enumerations(const ibv_qp_attr& from, std::uint32_t mask, QpAttributes& to) {
  if (mask & IBV_QP_STATE) {
    if (!is_state(enum_number(from.qp_state))) return false;
    to.state = static_cast<QpState>(enum_number(from.qp_state));
  }
  if (mask & IBV_QP_CUR_STATE) {
    if (!is_state(enum_number(from.cur_qp_state))) return false;
    to.current_state = static_cast<QpState>(enum_number(from.cur_qp_state));
  }
  if (mask & IBV_QP_PATH_MTU) {
    const int mtu = enum_number(from.path_mtu);
    if (mtu < IBV_MTU_256 || mtu > kMtuMax) return false;
    to.path_mtu = static_cast<std::uint8_t>(mtu);
  }
  if (mask & IBV_QP_PATH_MIG_STATE) {
    const int state = enum_number(from.path_mig_state);
    if (state < 0 || state > kMigrationMax) return false;
    to.path_migration = static_cast<std::uint8_t>(state);
  }
  return true;
}

}  // namespace

qp::AddressVector path_from(const ibv_ah_attr& attributes) {
  qp::AddressVector path;
  std::memcpy(path.destination.bytes, attributes.grh.dgid.raw, sizeof path.destination.bytes);
  path.has_grh = attributes.is_global != 0;
  path.source_gid_index = attributes.grh.sgid_index;
  path.hop_limit = attributes.grh.hop_limit;
  path.traffic_class = attributes.grh.traffic_class;
  path.flow_label = attributes.grh.flow_label;
  path.service_level = attributes.sl;
  path.port = attributes.port_num;
  path.dlid = attributes.dlid;
  path.source_path_bits = attributes.src_path_bits;
  path.static_rate = attributes.static_rate;
  return path;
}

ibv_ah_attr path_to(const qp::AddressVector& path) {
  ibv_ah_attr attributes = {};
  std::memcpy(attributes.grh.dgid.raw, path.destination.bytes, sizeof attributes.grh.dgid.raw);
  attributes.is_global = path.has_grh;
  attributes.grh.sgid_index = path.source_gid_index;
  attributes.grh.hop_limit = path.hop_limit;
  attributes.grh.traffic_class = path.traffic_class;
  attributes.grh.flow_label = path.flow_label;
  attributes.sl = path.service_level;
  attributes.port_num = path.port;
  attributes.dlid = path.dlid;
  attributes.src_path_bits = path.source_path_bits;
  attributes.static_rate = path.static_rate;
  return attributes;
}

std::optional<QpAttributes> attributes_from(const ibv_qp_attr& attributes, std::uint32_t mask) {
  QpAttributes result;
  if (!take_enumerations(attributes, mask, result)) return std::nullopt;
  take_path(attributes, mask, result);
  take_reliability(attributes, mask, result);
  if (mask & IBV_QP_ACCESS_FLAGS) result.access = attributes.qp_access_flags;
  if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) {
    result.notify_drained = attributes.en_sqd_async_notify != 0;
  }
  return result;
}

ibv_qp_attr attributes_to(const QpAttributes& from, const qp::QpConfig& config) {
  ibv_qp_attr to = {};
  to.qp_state = to.cur_qp_state = static_cast<ibv_qp_state>(from.state);
  to.path_mtu = static_cast<ibv_mtu>(from.path_mtu);
  to.path_mig_state = static_cast<ibv_mig_state>(from.path_migration);
  to.qkey = from.qkey;
  to.rq_psn = from.receive_psn;
  to.sq_psn = from.send_psn;
  to.dest_qp_num = from.destination.value;
  to.qp_access_flags = from.access;
  to.cap = capabilities_of(config);
  to.ah_attr = path_to(from.path);
  to.pkey_index = from.pkey_index;
  to.en_sqd_async_notify = from.notify_drained;
  to.max_rd_atomic = from.reads_out_max;
  to.max_dest_rd_atomic = from.reads_in_max;
  to.min_rnr_timer = from.rnr_timer;
  to.port_num = from.port;
  to.timeout = from.timeout;
  to.retry_cnt = from.retry_count;
  to.rnr_retry = from.rnr_retry;
  to.rate_limit = from.rate_limit;
  return to;
}

ibv_qp_cap capabilities_of(const qp::QpConfig& config) {
  const bool has_receives = config.shared_receives == nullptr;
  return {.max_send_wr = config.send_depth,
          .max_recv_wr = has_receives ? config.receive_depth : 0,
          .max_send_sge = config.send_sge_max,
          .max_recv_sge = has_receives ? config.receive_sge_max : 0,
          .max_inline_data = config.inline_max};
}

std::optional<qp::QpType> type_from(ibv_qp_type type) {
  switch (enum_number(type)) {
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
    case IBV_QPT_RC: return qp::QpType::kRc;
    case IBV_QPT_UC: return qp::QpType::kUc;
    case IBV_QPT_UD: return qp::QpType::kUd;
    case IBV_QPT_RAW_PACKET: return qp::QpType::kRawPacket;
    default: return std::nullopt;
  }
}

qp::Xrc xrc_from(ibv_qp_type type) {
  switch (enum_number(type)) {
    case IBV_QPT_XRC_SEND: return qp::Xrc::kInitiator;
    case IBV_QPT_XRC_RECV: return qp::Xrc::kTarget;
    default: return qp::Xrc::kNo;
  }
}

}  // namespace verbena::verbs
