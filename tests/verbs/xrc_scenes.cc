// SPDX-License-Identifier: MIT
// What other processes do in the tests of XRC domains.
#include "xrc_processes.h"

namespace verbena::verbs::testing {
namespace {

using XrcScene = XrcProcesses;

// Has a domain of the file that it is given until it hears something.
TEST_F(XrcScene, HaveADomain) {
  const Talk parent = OtherProcess::parent();
  const auto file = parent.hear();
  ASSERT_TRUE(file);
  const Domain shared = open(file->fd.get(), O_CREAT | O_EXCL);
  ASSERT_TRUE(shared);
  parent.say(1);
  parent.hear();
}

// And a target in it, for an initiator that it is told of. In the end it says how that one is.
TEST_F(XrcScene, HaveATarget) {
  const Talk parent = OtherProcess::parent();
  const auto file = parent.hear();
  ASSERT_TRUE(file);
  const Domain shared = open(file->fd.get(), O_CREAT);
  const Own<ibv_qp> target = make_target(shared.get());
  ASSERT_TRUE(target);
  parent.say(target->qp_num);
  connect_to(target.get(), parent.number());
  parent.say(1);
  parent.hear();
  parent.say(state_of(target.get()));
  parent.hear();
}

class QueueScene : public XrcProcesses {
 protected:
  void be_there(const Talk& parent) {
    const auto file = parent.hear();
    ASSERT_TRUE(file);
    channel.reset(ibv_create_comp_channel(context.get()));
    cq.reset(ibv_create_cq(context.get(), 256, nullptr, channel.get(), 0));
    shared = open(file->fd.get(), O_CREAT);
    srq = make_srq(shared.get(), pd.get());
    ASSERT_TRUE(srq);
    region.reset(ibv_reg_mr(pd.get(), bytes.data, SharedBytes::kSize, kEveryAccess));
    ASSERT_TRUE(region);
    parent.say(number_of(srq.get()), bytes.file());
    parent.say(reinterpret_cast<std::uintptr_t>(bytes.data));
    parent.say(region->rkey);
  }
  void post_receive(std::uint32_t length) {
    post(srq.get(),
         {.addr = reinterpret_cast<std::uintptr_t>(bytes.data) + next,
          .length = length,
          .lkey = region->lkey},
         posted++);
    next += length;
  }
  static void tell(const Talk& parent, const ibv_wc& wc) {
    parent.say(in_one(wc.status, wc.byte_len));
    parent.say(in_one(wc.qp_num, wc.wc_flags & IBV_WC_WITH_IMM ? wc.imm_data : 0));
  }
  void wait_for_event(const Talk& parent) {
    ASSERT_EQ(0, ibv_req_notify_cq(cq.get(), 0));
    parent.say(1);
    ibv_cq* of = nullptr;
    void* cookie = nullptr;
    ASSERT_EQ(0, ibv_get_cq_event(channel.get(), &of, &cookie));
    ibv_ack_cq_events(of, 1);
  }

  SharedBytes bytes;
  Own<ibv_comp_channel> channel;
  Domain shared;
  Own<ibv_mr> region;
  Own<ibv_srq> srq;
  std::uint32_t next = 0;
  std::uint64_t posted = 0;
};

// Has a shared receive queue in it, memory that it shows, and does what it is told.
TEST_F(QueueScene, HaveAQueue) {
  const Talk parent = OtherProcess::parent();
  be_there(parent);
  for (;;) {
    const auto word = parent.hear();
    if (!word) return;
    switch (static_cast<QueueTask>(upper_of(word->number))) {
      case QueueTask::kEnd: {
        srq.reset();
        cq.reset();
        return;
      }
      case QueueTask::kPost:
        post_receive(lower_of(word->number));
        parent.say(1);
        break;
      case QueueTask::kNext: tell(parent, next_completion()); break;
      case QueueTask::kWaitFor:
        wait_for_event(parent);
        tell(parent, next_completion());
        break;
      case QueueTask::kNothing: parent.say(no_completion()); break;
    }
  }
}

}  // namespace
}  // namespace verbena::verbs::testing
