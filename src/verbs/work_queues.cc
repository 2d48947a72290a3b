// SPDX-License-Identifier: MIT
// Work queues and their tables (ibv_create_wq(3), ibv_modify_wq(3), ibv_create_rwq_ind_table(3)).
#include <cstring>
#include <span>
#include <vector>

#include "base/enum_number.h"
#include "verbs/border.h"
#include "verbs/objects.h"
#include "verbs/post.h"

namespace verbena::verbs {
namespace {

static_assert(int{IBV_WQS_RESET} == static_cast<int>(nic::WqState::kReset) &&
              int{IBV_WQS_RDY} == static_cast<int>(nic::WqState::kReady) &&
              int{IBV_WQS_ERR} == static_cast<int>(nic::WqState::kError));

bool is_wq_state(int number) { return number >= IBV_WQS_RESET && number <= IBV_WQS_ERR; }

int post_to_wq(ibv_wq* wq, ibv_recv_wr* first, ibv_recv_wr** bad) {
  const bool is_refused = is_inherited(wq);
  return post_each(first, bad, [&](const ibv_recv_wr& request) {
    if (is_refused) return EIO;
    const auto count = static_cast<std::size_t>(request.num_sge);
    const auto done =
        nic::post_receive(*own(wq).nic, request.wr_id, sges_from(request.sg_list, count));
    return done ? 0 : errno_of(done.error());
  });
}

Result<ibv_wq*, nic::Error> create(ibv_context* context, ibv_wq_init_attr& wanted) {
  constexpr std::uint32_t kKnown = IBV_WQ_INIT_ATTR_FLAGS;
  if (wanted.comp_mask & ~kKnown || enum_number(wanted.wq_type) != IBV_WQT_RQ) {
    return refuse(nic::Error::kInvalid);
  }
  if (wanted.comp_mask & IBV_WQ_INIT_ATTR_FLAGS && wanted.create_flags != 0) {
    return refuse(nic::Error::kNotSupported);
  }
  const bool is_of_context =
      wanted.pd && wanted.cq && wanted.pd->context == context && wanted.cq->context == context;
  if (!is_of_context || wanted.max_wr == 0) return refuse(nic::Error::kInvalid);
  auto wq = std::make_unique<Wq>();
  const auto made = nic::create_wq(*own(wanted.pd).nic, {.cq = own(wanted.cq).nic,
                                                         .depth = wanted.max_wr,
                                                         .sge_max = wanted.max_sge,
                                                         .cookie = wq.get()});
  if (!made) return refuse(made.error());
  wq->nic = *made;
  ibv_wq& face = wq->face;
  face.context = context;
  face.pd = wanted.pd;
  face.cq = wanted.cq;
  face.wq_num = nic::number_of(*wq->nic->qp).value;
  face.handle = own(context).new_handle();
  face.state = IBV_WQS_RESET;
  face.wq_type = IBV_WQT_RQ;
  face.post_recv = post_to_wq;
  return &wq.release()->face;
}

Result<void, nic::Error> modify(Wq& wq, const ibv_wq_attr& wanted) {
  constexpr std::uint32_t kKnown = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS;
  if (wanted.attr_mask & ~kKnown) return refuse(nic::Error::kInvalid);
  if (wanted.attr_mask & IBV_WQ_ATTR_FLAGS && wanted.flags_mask != 0) {
    return refuse(nic::Error::kNotSupported);
  }
  const bool names_current = wanted.attr_mask & IBV_WQ_ATTR_CURR_STATE;
  const int state = enum_number(wanted.wq_state);
  const int current = enum_number(wanted.curr_wq_state);
  if (names_current && !is_wq_state(current)) return refuse(nic::Error::kInvalid);
  if (!(wanted.attr_mask & IBV_WQ_ATTR_STATE)) return {};
  if (!is_wq_state(state)) return refuse(nic::Error::kInvalid);
  const auto to = static_cast<nic::WqState>(state);
  const auto from = static_cast<nic::WqState>(current);
  const auto done = nic::modify_wq(*wq.nic, to, names_current ? &from : nullptr);
  if (done) wq.face.state = static_cast<ibv_wq_state>(state);
  return done;
}

Result<ibv_rwq_ind_table*, nic::Error> create(ibv_context* context,
                                              const ibv_rwq_ind_table_init_attr& wanted) {
  constexpr std::uint32_t kLogMax = 16;  // the limit of the NIC is below that
  if (wanted.comp_mask != 0 || wanted.log_ind_tbl_size > kLogMax || !wanted.ind_tbl) {
    return refuse(nic::Error::kInvalid);
  }
  std::vector<nic::Wq*> queues;
  for (ibv_wq* const wq : std::span(wanted.ind_tbl, std::size_t{1} << wanted.log_ind_tbl_size)) {
    if (!wq) return refuse(nic::Error::kInvalid);
    queues.push_back(own(wq).nic);
  }
  auto table = std::make_unique<RwqTable>();
  const auto made = nic::create_rwq_table(*own(context).nic, queues);
  if (!made) return refuse(made.error());
  table->nic = *made;
  const std::uint32_t handle = own(context).new_handle();
  table->face = {.context = context,
                 .ind_tbl_handle = static_cast<int>(handle),
                 .ind_tbl_num = static_cast<int>(handle),
                 .comp_mask = 0};
  hold(own(context));
  return &table.release()->face;
}

}  // namespace

ibv_wq* create_wq(ibv_context* context, ibv_wq_init_attr* wanted) noexcept {
  return pointer_at_border([&] { return create(context, *wanted); });
}

int modify_wq(ibv_wq* wq, ibv_wq_attr* wanted) noexcept {
  return at_border([&] { return modify(own(wq), *wanted); });
}

int destroy_wq(ibv_wq* wq) noexcept {
  Wq* const ours = &own(wq);
  const bool is_inherited = verbs::is_inherited(wq);
  return destroy_at_border(is_inherited, nic::destroy_wq(ours->nic), [&] { delete ours; });
}

ibv_rwq_ind_table* create_rwq_table(ibv_context* context,
                                    ibv_rwq_ind_table_init_attr* wanted) noexcept {
  return pointer_at_border([&] { return create(context, *wanted); });
}

int destroy_rwq_table(ibv_rwq_ind_table* table) noexcept {
  RwqTable* const ours = &own(table);
  Context* const context = &own(table->context);
  const bool is_inherited = verbs::is_inherited(table);
  return destroy_at_border(is_inherited, nic::destroy_rwq_table(ours->nic), [&] {
    delete ours;
    release(context);
  });
}

}  // namespace verbena::verbs
