// SPDX-License-Identifier: MIT
// The layouts that programs were compiled with: sizes and places in <infiniband/verbs.h> of
// rdma-core 44, on 64-bit Linux where a mutex has 40 bytes. layout_check.cc asserts it of the
// header that we are built with, as C++; tests/abi asks a C compiler. Usable from both languages.
//
// VERBENA_SIZES(SIZE, GROWS): SIZE(struct, bytes) is fixed for ever. GROWS(struct, bytes) may have
// got longer at its end in
//   a later header: at least so long.
// VERBENA_PLACES(AT, FROM_END): AT(struct, member, offset). FROM_END(struct, member, bytes) counts
// back from the end of a
//   struct that grows at its front.
#pragma once

// clang-format off
#define VERBENA_SIZES(SIZE, GROWS) \
  SIZE(ibv_device, 664) \
  SIZE(ibv_context, 328) \
  GROWS(verbs_context, 648) \
  SIZE(ibv_pd, 16) \
  SIZE(ibv_mr, 48) \
  SIZE(ibv_mw, 32) \
  SIZE(ibv_ah, 24) \
  SIZE(ibv_cq, 128) \
  GROWS(ibv_cq_ex, 288) \
  SIZE(ibv_qp, 160) \
  GROWS(ibv_qp_ex, 352) \
  SIZE(ibv_srq, 128) \
  SIZE(ibv_comp_channel, 16) \
  SIZE(ibv_wq, 152) \
  SIZE(ibv_dm, 32) \
  SIZE(ibv_xrcd, 8) \
  SIZE(ibv_td, 8) \
  SIZE(ibv_counters, 8) \
  SIZE(ibv_flow, 24) \
  SIZE(ibv_wc, 48) \
  SIZE(ibv_send_wr, 128) \
  SIZE(ibv_recv_wr, 32) \
  SIZE(ibv_sge, 16) \
  SIZE(ibv_device_attr, 232) \
  GROWS(ibv_device_attr_ex, 400) \
  GROWS(ibv_port_attr, 52) \
  GROWS(ibv_qp_attr, 144) \
  SIZE(ibv_qp_init_attr, 64) \
  GROWS(ibv_qp_init_attr_ex, 136) \
  GROWS(ibv_gid_entry, 32) \
  SIZE(ibv_async_event, 16) \
  SIZE(ibv_ah_attr, 32) \
  SIZE(ibv_global_route, 24) \
  SIZE(ibv_grh, 40) \
  SIZE(ibv_srq_attr, 12) \
  SIZE(ibv_srq_init_attr, 24) \
  GROWS(ibv_srq_init_attr_ex, 64) \
  GROWS(ibv_cq_init_attr_ex, 56) \
  SIZE(ibv_ops_wr, 72) \
  SIZE(ibv_mw_bind, 48) \
  SIZE(ibv_mw_bind_info, 32) \
  SIZE(ibv_ece, 12) \
  SIZE(ibv_context_ops, 256) \
  SIZE(ibv_alloc_dm_attr, 16) \
  SIZE(ibv_parent_domain_init_attr, 48) \
  SIZE(ibv_td_init_attr, 4) \
  SIZE(ibv_xrcd_init_attr, 12) \
  SIZE(ibv_qp_open_attr, 32) \
  SIZE(ibv_wc_tm_info, 16) \
  SIZE(ibv_poll_cq_attr, 4) \
  SIZE(ibv_modify_cq_attr, 8) \
  SIZE(ibv_moderate_cq, 4) \
  SIZE(ibv_cq_moderation_caps, 4) \
  SIZE(ibv_tm_caps, 20) \
  SIZE(ibv_tm_cap, 8) \
  SIZE(ibv_tmh, 16) \
  SIZE(ibv_rvh, 16) \
  SIZE(ibv_packet_pacing_caps, 12) \
  SIZE(ibv_counters_init_attr, 4) \
  SIZE(ibv_counter_attach_attr, 12) \
  SIZE(ibv_values_ex, 24) \
  SIZE(ibv_data_buf, 16) \
  SIZE(ibv_wq_init_attr, 48) \
  SIZE(ibv_wq_attr, 20) \
  SIZE(ibv_rwq_ind_table, 24) \
  SIZE(ibv_rwq_ind_table_init_attr, 24) \
  SIZE(ibv_qp_cap, 20) \
  SIZE(ibv_qp_rate_limit_attr, 16) \
  SIZE(ibv_flow_attr, 20) \
  SIZE(ibv_flow_spec_eth, 40) \
  SIZE(ibv_flow_spec_ipv4, 24) \
  SIZE(ibv_flow_spec_ipv4_ext, 32) \
  SIZE(ibv_flow_spec_ipv6, 88) \
  SIZE(ibv_flow_spec_tcp_udp, 16) \
  SIZE(ibv_flow_spec_action_drop, 8) \
  SIZE(ibv_flow_spec_counter_action, 16) \
  SIZE(ibv_flow_action, 8)

#define VERBENA_PLACES(AT, FROM_END) \
  AT(ibv_device, node_type, 16) \
  AT(ibv_device, transport_type, 20) \
  AT(ibv_device, name, 24) \
  AT(ibv_device, dev_name, 88) \
  AT(ibv_device, dev_path, 152) \
  AT(ibv_device, ibdev_path, 408) \
  AT(ibv_context, device, 0) \
  AT(ibv_context, ops, 8) \
  AT(ibv_context, cmd_fd, 264) \
  AT(ibv_context, async_fd, 268) \
  AT(ibv_context, num_comp_vectors, 272) \
  AT(ibv_context, mutex, 280) \
  AT(ibv_context, abi_compat, 320) \
  AT(ibv_context_ops, _compat_query_device, 0) \
  AT(ibv_context_ops, _compat_query_port, 8) \
  AT(ibv_context_ops, alloc_mw, 56) \
  AT(ibv_context_ops, bind_mw, 64) \
  AT(ibv_context_ops, dealloc_mw, 72) \
  AT(ibv_context_ops, poll_cq, 88) \
  AT(ibv_context_ops, req_notify_cq, 96) \
  AT(ibv_context_ops, post_srq_recv, 160) \
  AT(ibv_context_ops, post_send, 200) \
  AT(ibv_context_ops, post_recv, 208) \
  FROM_END(verbs_context, query_port, 648) \
  FROM_END(verbs_context, advise_mr, 640) \
  FROM_END(verbs_context, alloc_null_mr, 632) \
  FROM_END(verbs_context, read_counters, 624) \
  FROM_END(verbs_context, attach_counters_point_flow, 616) \
  FROM_END(verbs_context, create_counters, 608) \
  FROM_END(verbs_context, destroy_counters, 600) \
  FROM_END(verbs_context, reg_dm_mr, 592) \
  FROM_END(verbs_context, alloc_dm, 584) \
  FROM_END(verbs_context, free_dm, 576) \
  FROM_END(verbs_context, modify_flow_action_esp, 568) \
  FROM_END(verbs_context, destroy_flow_action, 560) \
  FROM_END(verbs_context, create_flow_action_esp, 552) \
  FROM_END(verbs_context, modify_qp_rate_limit, 544) \
  FROM_END(verbs_context, alloc_parent_domain, 536) \
  FROM_END(verbs_context, dealloc_td, 528) \
  FROM_END(verbs_context, alloc_td, 520) \
  FROM_END(verbs_context, modify_cq, 512) \
  FROM_END(verbs_context, post_srq_ops, 504) \
  FROM_END(verbs_context, destroy_rwq_ind_table, 496) \
  FROM_END(verbs_context, create_rwq_ind_table, 488) \
  FROM_END(verbs_context, destroy_wq, 480) \
  FROM_END(verbs_context, modify_wq, 472) \
  FROM_END(verbs_context, create_wq, 464) \
  FROM_END(verbs_context, query_rt_values, 456) \
  FROM_END(verbs_context, create_cq_ex, 448) \
  FROM_END(verbs_context, priv, 440) \
  FROM_END(verbs_context, query_device_ex, 432) \
  FROM_END(verbs_context, ibv_destroy_flow, 424) \
  FROM_END(verbs_context, ibv_create_flow, 408) \
  FROM_END(verbs_context, open_qp, 392) \
  FROM_END(verbs_context, create_qp_ex, 384) \
  FROM_END(verbs_context, get_srq_num, 376) \
  FROM_END(verbs_context, create_srq_ex, 368) \
  FROM_END(verbs_context, open_xrcd, 360) \
  FROM_END(verbs_context, close_xrcd, 352) \
  FROM_END(verbs_context, sz, 336) \
  FROM_END(verbs_context, context, 328) \
  AT(ibv_mr, addr, 16) \
  AT(ibv_mr, length, 24) \
  AT(ibv_mr, handle, 32) \
  AT(ibv_mr, lkey, 36) \
  AT(ibv_mr, rkey, 40) \
  AT(ibv_mw, rkey, 16) \
  AT(ibv_mw, type, 24) \
  AT(ibv_comp_channel, fd, 8) \
  AT(ibv_comp_channel, refcnt, 12) \
  AT(ibv_cq, channel, 8) \
  AT(ibv_cq, cq_context, 16) \
  AT(ibv_cq, handle, 24) \
  AT(ibv_cq, cqe, 28) \
  AT(ibv_cq, mutex, 32) \
  AT(ibv_cq, cond, 72) \
  AT(ibv_cq, comp_events_completed, 120) \
  AT(ibv_cq, async_events_completed, 124) \
  AT(ibv_cq_ex, comp_mask, 128) \
  AT(ibv_cq_ex, status, 132) \
  AT(ibv_cq_ex, wr_id, 136) \
  AT(ibv_cq_ex, start_poll, 144) \
  AT(ibv_cq_ex, next_poll, 152) \
  AT(ibv_cq_ex, end_poll, 160) \
  AT(ibv_cq_ex, read_opcode, 168) \
  AT(ibv_cq_ex, read_wc_flags, 216) \
  AT(ibv_cq_ex, read_completion_ts, 248) \
  AT(ibv_cq_ex, read_cvlan, 256) \
  AT(ibv_cq_ex, read_flow_tag, 264) \
  AT(ibv_cq_ex, read_tm_info, 272) \
  AT(ibv_cq_ex, read_completion_wallclock_ns, 280) \
  AT(ibv_wc_tm_info, tag, 0) \
  AT(ibv_wc_tm_info, priv, 8) \
  AT(ibv_modify_cq_attr, attr_mask, 0) \
  AT(ibv_modify_cq_attr, moderate, 4) \
  AT(ibv_moderate_cq, cq_count, 0) \
  AT(ibv_moderate_cq, cq_period, 2) \
  AT(ibv_values_ex, comp_mask, 0) \
  AT(ibv_values_ex, raw_clock, 8) \
  AT(ibv_ops_wr, next, 8) \
  AT(ibv_ops_wr, opcode, 16) \
  AT(ibv_ops_wr, flags, 20) \
  AT(ibv_ops_wr, tm.unexpected_cnt, 24) \
  AT(ibv_ops_wr, tm.handle, 28) \
  AT(ibv_ops_wr, tm.add.recv_wr_id, 32) \
  AT(ibv_ops_wr, tm.add.sg_list, 40) \
  AT(ibv_ops_wr, tm.add.num_sge, 48) \
  AT(ibv_ops_wr, tm.add.tag, 56) \
  AT(ibv_ops_wr, tm.add.mask, 64) \
  AT(ibv_tm_cap, max_num_tags, 0) \
  AT(ibv_tm_cap, max_ops, 4) \
  AT(ibv_tm_caps, max_rndv_hdr_size, 0) \
  AT(ibv_tm_caps, max_num_tags, 4) \
  AT(ibv_tm_caps, flags, 8) \
  AT(ibv_tm_caps, max_ops, 12) \
  AT(ibv_tm_caps, max_sge, 16) \
  AT(ibv_tmh, opcode, 0) \
  AT(ibv_tmh, app_ctx, 4) \
  AT(ibv_tmh, tag, 8) \
  AT(ibv_rvh, va, 0) \
  AT(ibv_rvh, rkey, 8) \
  AT(ibv_rvh, len, 12) \
  AT(ibv_qp_rate_limit_attr, rate_limit, 0) \
  AT(ibv_qp_rate_limit_attr, max_burst_sz, 4) \
  AT(ibv_qp_rate_limit_attr, typical_pkt_sz, 8) \
  AT(ibv_qp_rate_limit_attr, comp_mask, 12) \
  AT(ibv_counter_attach_attr, counter_desc, 0) \
  AT(ibv_counter_attach_attr, index, 4) \
  AT(ibv_counters, context, 0) \
  AT(ibv_flow_spec_counter_action, size, 4) \
  AT(ibv_flow_spec_counter_action, counters, 8) \
  AT(ibv_qp, qp_context, 8) \
  AT(ibv_qp, pd, 16) \
  AT(ibv_qp, send_cq, 24) \
  AT(ibv_qp, recv_cq, 32) \
  AT(ibv_qp, srq, 40) \
  AT(ibv_qp, handle, 48) \
  AT(ibv_qp, qp_num, 52) \
  AT(ibv_qp, state, 56) \
  AT(ibv_qp, qp_type, 60) \
  AT(ibv_qp, mutex, 64) \
  AT(ibv_qp, cond, 104) \
  AT(ibv_qp, events_completed, 152) \
  AT(ibv_qp_ex, qp_base, 0) \
  AT(ibv_qp_ex, comp_mask, 160) \
  AT(ibv_qp_ex, wr_id, 168) \
  AT(ibv_qp_ex, wr_flags, 176) \
  AT(ibv_qp_ex, wr_atomic_cmp_swp, 184) \
  AT(ibv_qp_ex, wr_rdma_write, 224) \
  AT(ibv_qp_ex, wr_send, 240) \
  AT(ibv_qp_ex, wr_set_sge, 304) \
  AT(ibv_qp_ex, wr_start, 320) \
  AT(ibv_qp_ex, wr_complete, 328) \
  AT(ibv_qp_ex, wr_abort, 336) \
  AT(ibv_qp_ex, wr_atomic_write, 344) \
  AT(ibv_srq, srq_context, 8) \
  AT(ibv_srq, pd, 16) \
  AT(ibv_srq, handle, 24) \
  AT(ibv_srq, mutex, 32) \
  AT(ibv_srq, cond, 72) \
  AT(ibv_srq, events_completed, 120) \
  AT(ibv_wq, wq_num, 32) \
  AT(ibv_wq, handle, 36) \
  AT(ibv_wq, state, 40) \
  AT(ibv_wq, wq_type, 44) \
  AT(ibv_wq, post_recv, 48) \
  AT(ibv_wq, events_completed, 144) \
  AT(ibv_wq, comp_mask, 148) \
  AT(ibv_dm, memcpy_to_dm, 8) \
  AT(ibv_dm, memcpy_from_dm, 16) \
  AT(ibv_dm, comp_mask, 24) \
  AT(ibv_dm, handle, 28) \
  AT(ibv_wc, wr_id, 0) \
  AT(ibv_wc, status, 8) \
  AT(ibv_wc, opcode, 12) \
  AT(ibv_wc, vendor_err, 16) \
  AT(ibv_wc, byte_len, 20) \
  AT(ibv_wc, imm_data, 24) \
  AT(ibv_wc, qp_num, 28) \
  AT(ibv_wc, src_qp, 32) \
  AT(ibv_wc, wc_flags, 36) \
  AT(ibv_wc, pkey_index, 40) \
  AT(ibv_wc, slid, 42) \
  AT(ibv_wc, sl, 44) \
  AT(ibv_wc, dlid_path_bits, 45) \
  AT(ibv_send_wr, next, 8) \
  AT(ibv_send_wr, sg_list, 16) \
  AT(ibv_send_wr, num_sge, 24) \
  AT(ibv_send_wr, opcode, 28) \
  AT(ibv_send_wr, send_flags, 32) \
  AT(ibv_send_wr, imm_data, 36) \
  AT(ibv_send_wr, wr, 40) \
  AT(ibv_send_wr, wr.rdma.rkey, 48) \
  AT(ibv_send_wr, wr.atomic.swap, 56) \
  AT(ibv_send_wr, wr.atomic.rkey, 64) \
  AT(ibv_send_wr, wr.ud.remote_qpn, 48) \
  AT(ibv_send_wr, wr.ud.remote_qkey, 52) \
  AT(ibv_send_wr, qp_type, 72) \
  AT(ibv_send_wr, bind_mw, 80) \
  AT(ibv_send_wr, tso, 80) \
  AT(ibv_recv_wr, next, 8) \
  AT(ibv_recv_wr, sg_list, 16) \
  AT(ibv_recv_wr, num_sge, 24) \
  AT(ibv_sge, addr, 0) \
  AT(ibv_sge, length, 8) \
  AT(ibv_sge, lkey, 12) \
  AT(ibv_device_attr, node_guid, 64) \
  AT(ibv_device_attr, max_mr_size, 80) \
  AT(ibv_device_attr, vendor_id, 96) \
  AT(ibv_device_attr, max_qp, 108) \
  AT(ibv_device_attr, device_cap_flags, 116) \
  AT(ibv_device_attr, atomic_cap, 164) \
  AT(ibv_device_attr, max_pkeys, 224) \
  AT(ibv_device_attr, phys_port_cnt, 227) \
  AT(ibv_device_attr_ex, comp_mask, 232) \
  AT(ibv_device_attr_ex, odp_caps, 240) \
  AT(ibv_device_attr_ex, completion_timestamp_mask, 264) \
  AT(ibv_device_attr_ex, hca_core_clock, 272) \
  AT(ibv_device_attr_ex, device_cap_flags_ex, 280) \
  AT(ibv_device_attr_ex, tso_caps, 288) \
  AT(ibv_device_attr_ex, packet_pacing_caps, 332) \
  AT(ibv_device_attr_ex, tm_caps, 348) \
  AT(ibv_device_attr_ex, cq_mod_caps, 368) \
  AT(ibv_device_attr_ex, max_dm_size, 376) \
  AT(ibv_device_attr_ex, pci_atomic_caps, 384) \
  AT(ibv_device_attr_ex, xrc_odp_caps, 392) \
  AT(ibv_device_attr_ex, phys_port_cnt_ex, 396) \
  AT(ibv_port_attr, gid_tbl_len, 12) \
  AT(ibv_port_attr, max_msg_sz, 20) \
  AT(ibv_port_attr, pkey_tbl_len, 32) \
  AT(ibv_port_attr, lid, 34) \
  AT(ibv_port_attr, phys_state, 45) \
  AT(ibv_port_attr, link_layer, 46) \
  AT(ibv_port_attr, flags, 47) \
  AT(ibv_port_attr, port_cap_flags2, 48) \
  AT(ibv_qp_attr, dest_qp_num, 28) \
  AT(ibv_qp_attr, cap, 36) \
  AT(ibv_qp_attr, ah_attr, 56) \
  AT(ibv_qp_attr, alt_ah_attr, 88) \
  AT(ibv_qp_attr, pkey_index, 120) \
  AT(ibv_qp_attr, max_rd_atomic, 126) \
  AT(ibv_qp_attr, min_rnr_timer, 128) \
  AT(ibv_qp_attr, alt_timeout, 134) \
  AT(ibv_qp_attr, rate_limit, 136) \
  AT(ibv_qp_init_attr, cap, 32) \
  AT(ibv_qp_init_attr, qp_type, 52) \
  AT(ibv_qp_init_attr, sq_sig_all, 56) \
  AT(ibv_qp_init_attr_ex, comp_mask, 60) \
  AT(ibv_qp_init_attr_ex, pd, 64) \
  AT(ibv_qp_init_attr_ex, xrcd, 72) \
  AT(ibv_qp_init_attr_ex, create_flags, 80) \
  AT(ibv_qp_init_attr_ex, source_qpn, 120) \
  AT(ibv_qp_init_attr_ex, send_ops_flags, 128) \
  AT(ibv_srq_init_attr_ex, comp_mask, 20) \
  AT(ibv_srq_init_attr_ex, srq_type, 24) \
  AT(ibv_srq_init_attr_ex, pd, 32) \
  AT(ibv_srq_init_attr_ex, xrcd, 40) \
  AT(ibv_srq_init_attr_ex, cq, 48) \
  AT(ibv_srq_init_attr_ex, tm_cap, 56) \
  AT(ibv_cq_init_attr_ex, channel, 16) \
  AT(ibv_cq_init_attr_ex, wc_flags, 32) \
  AT(ibv_cq_init_attr_ex, comp_mask, 40) \
  AT(ibv_cq_init_attr_ex, flags, 44) \
  AT(ibv_cq_init_attr_ex, parent_domain, 48) \
  AT(ibv_gid_entry, gid_index, 16) \
  AT(ibv_gid_entry, port_num, 20) \
  AT(ibv_gid_entry, gid_type, 24) \
  AT(ibv_gid_entry, ndev_ifindex, 28) \
  AT(ibv_async_event, event_type, 8) \
  AT(ibv_ah_attr, dlid, 24) \
  AT(ibv_ah_attr, sl, 26) \
  AT(ibv_ah_attr, static_rate, 28) \
  AT(ibv_ah_attr, is_global, 29) \
  AT(ibv_ah_attr, port_num, 30) \
  AT(ibv_global_route, flow_label, 16) \
  AT(ibv_global_route, sgid_index, 20) \
  AT(ibv_global_route, hop_limit, 21) \
  AT(ibv_global_route, traffic_class, 22)
// clang-format on
