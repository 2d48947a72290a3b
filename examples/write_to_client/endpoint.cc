// SPDX-License-Identifier: MIT
#include "write_to_client/endpoint.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace write_to_client {
namespace {

constexpr std::uint8_t kPort = 1;
constexpr std::uint8_t kTimeoutCode = 14;  // 67 ms to an acknowledgement (IBTA vol 1, 9.7.6.1.3)
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kRnrRetries = 7;     // without end
constexpr std::uint8_t kRnrTimerCode = 12;  // 0.64 ms
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint32_t kPsnMask = 0xFFFFFF;

std::uint32_t random_psn() {
  std::uint32_t psn = 0;
  if (getrandom(&psn, sizeof psn, 0) != sizeof psn) fail("getrandom: %s", std::strerror(errno));
  return psn & kPsnMask;
}

bool is_ipv4(const ibv_gid& gid) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0;
}

}  // namespace

Endpoint::Endpoint(const Options& options, unsigned sends, unsigned receives) {
  open(options);
  domain_.reset(ibv_alloc_pd(context_.get()));
  if (!domain_) fail("ibv_alloc_pd: %s", std::strerror(errno));
  channel_.reset(ibv_create_comp_channel(context_.get()));
  if (!channel_) fail("ibv_create_comp_channel: %s", std::strerror(errno));
  const auto room = static_cast<int>(sends + receives);
  completions_.reset(ibv_create_cq(context_.get(), room, nullptr, channel_.get(), 0));
  if (!completions_) fail("ibv_create_cq: %s", std::strerror(errno));

  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = completions_.get();
  init.qp_type = IBV_QPT_RC;
  init.cap = {.max_send_wr = sends,
              .max_recv_wr = receives,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  queue_pair_.reset(ibv_create_qp(domain_.get(), &init));
  if (!queue_pair_) fail("ibv_create_qp: %s", std::strerror(errno));
  address_.queue_pair = queue_pair_->qp_num;
  address_.first_psn = random_psn();
}

void Endpoint::open(const Options& options) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (!list || count == 0) fail("no RDMA device here; try `verbena run -- ...`");
  ibv_device** const found = std::find_if(list, list + count, [&](ibv_device* device) {
    return options.device.empty() || options.device == ibv_get_device_name(device);
  });
  if (found == list + count) fail("no device is called %s", options.device.c_str());
  context_.reset(ibv_open_device(*found));
  if (!context_) fail("cannot open %s: %s", ibv_get_device_name(*found), std::strerror(errno));
  ibv_free_device_list(list);
  if (ibv_query_port(context_.get(), kPort, &port_) != 0) fail("ibv_query_port failed");
  if (port_.state != IBV_PORT_ACTIVE) fail("the port of %s is not active", device());
  address_.lid = port_.lid;
  choose_gid(options.gid_index);
}

// On Ethernet an address is a GID, of which a port has several.
void Endpoint::choose_gid(int wanted) {
  if (wanted >= 0) {
    gid_index_ = wanted;
    if (ibv_query_gid(context_.get(), kPort, wanted, &address_.gid) != 0) {
      fail("%s has no GID number %d", device(), wanted);
    }
    return;
  }
  bool is_chosen = false;
  for (int i = 0; i < port_.gid_tbl_len; ++i) {
    ibv_gid_entry entry = {};
    if (ibv_query_gid_ex(context_.get(), kPort, static_cast<std::uint32_t>(i), &entry, 0) != 0) {
      continue;
    }
    const bool is_best = entry.gid_type == IBV_GID_TYPE_ROCE_V2 && is_ipv4(entry.gid);
    if (is_chosen && !is_best) continue;
    gid_index_ = i;
    address_.gid = entry.gid;
    is_chosen = true;
    if (is_best) break;
  }
  if (!is_chosen) fail("%s has no GID: does its interface have an address?", device());
}

Region Endpoint::register_memory(void* data, std::size_t size, int access) const {
  Region region(ibv_reg_mr(domain_.get(), data, size, access));
  if (!region) fail("cannot register %zu bytes: %s", size, std::strerror(errno));
  return region;
}

void Endpoint::connect(const Address& peer) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = kPort;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (const int error = ibv_modify_qp(queue_pair_.get(), &attributes, mask)) {
    fail("queue pair to INIT: %s", std::strerror(error));
  }
  make_ready_to_receive(peer);
  make_ready_to_send();
}

void Endpoint::make_ready_to_receive(const Address& peer) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = port_.active_mtu;
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.first_psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kRnrTimerCode;
  attributes.ah_attr.port_num = kPort;
  attributes.ah_attr.dlid = peer.lid;
  if (port_.link_layer == IBV_LINK_LAYER_ETHERNET) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = peer.gid;
    attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
  }
  const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (const int error = ibv_modify_qp(queue_pair_.get(), &attributes, mask)) {
    fail("queue pair to RTR: %s", std::strerror(error));
  }
}

void Endpoint::make_ready_to_send() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = address_.first_psn;
  attributes.timeout = kTimeoutCode;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRnrRetries;
  attributes.max_rd_atomic = 1;
  const int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  if (const int error = ibv_modify_qp(queue_pair_.get(), &attributes, mask)) {
    fail("queue pair to RTS: %s", std::strerror(error));
  }
}

}  // namespace write_to_client
