// SPDX-License-Identifier: MIT
// What other processes do in the tests of XRC domains.
#include <chrono>
#include <thread>
#include <utility>

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
    auto first = parent.hear();
    ASSERT_TRUE(first);
    file = std::move(first->fd);
    channel.reset(ibv_create_comp_channel(context.get()));
    cq.reset(ibv_create_cq(context.get(), 256, nullptr, channel.get(), 0));
    shared = open(file.get(), O_CREAT);
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
  // Of another context, whose device is closed, too.
  void have_another_handle(int fd) {
    another.context.reset(ibv_open_device(context->device));
    another.pd.reset(ibv_alloc_pd(another.context.get()));
    another.cq.reset(ibv_create_cq(another.context.get(), 16, nullptr, nullptr, 0));
    another.domain = open(fd, O_CREAT, another.context.get());
    another.srq = make_srq(another.domain.get(), another.pd.get(), another.cq.get());
    ASSERT_TRUE(another.srq);
  }
  void leave_when_written(std::size_t at) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const volatile std::uint8_t& byte = bytes.data[at];
    while (byte == 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    another = {};
  }
  void wait_for_event(const Talk& parent) {
    ASSERT_EQ(0, ibv_req_notify_cq(cq.get(), 0));
    parent.say(1);
    ibv_cq* of = nullptr;
    void* cookie = nullptr;
    ASSERT_EQ(0, ibv_get_cq_event(channel.get(), &of, &cookie));
    ibv_ack_cq_events(of, 1);
  }

  void obey(const Talk& parent) {
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
        case QueueTask::kLeave:
          leave_when_written(lower_of(word->number));
          parent.say(1);
          break;
      }
    }
  }

  UniqueFd file;
  SharedBytes bytes;
  Own<ibv_comp_channel> channel;
  Domain shared;
  Own<ibv_mr> region;
  Own<ibv_srq> srq;
  // What comes last goes first.
  struct Another {
    Own<ibv_context> context;
    Own<ibv_pd> pd;
    Own<ibv_cq> cq;
    Domain domain;
    Own<ibv_srq> srq;
    Another& operator=(Another&& other) noexcept {
      srq = std::move(other.srq);
      domain = std::move(other.domain);
      cq = std::move(other.cq);
      pd = std::move(other.pd);
      context = std::move(other.context);
      return *this;
    }
  } another;
  std::uint32_t next = 0;
  std::uint64_t posted = 0;
};

// Has a shared receive queue in it, memory that it shows, and does what it is told.
TEST_F(QueueScene, HaveAQueue) {
  const Talk parent = OtherProcess::parent();
  be_there(parent);
  obey(parent);
}

// And one by another handle on the same domain.
TEST_F(QueueScene, HaveTwoQueues) {
  const Talk parent = OtherProcess::parent();
  be_there(parent);
  have_another_handle(file.get());
  parent.say(number_of(another.srq.get()));
  obey(parent);
}

}  // namespace
}  // namespace verbena::verbs::testing
