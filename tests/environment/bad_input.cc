// SPDX-License-Identifier: MIT
// Bad input between two processes: each case has to end with the specification's error on the right
// side, and leave all memory alone that is not named by it. After each, the same two processes talk
// over a queue pair of their own as if nothing had happened.
#include "bad_input.h"

#include <poll.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "node.h"

namespace {

using probe::Address;
using probe::kPage;
using probe::kSize;
using probe::Node;
using probe::QpOptions;
using probe::require;
using probe::Target;
using probe::Wire;
using probe::Work;

// What the two agree on for a case.
struct Case {
  std::string name;
  // What the initiator sends, given the peer's target.
  Work work;
  ibv_wc_status expected;
  ibv_wc_status or_else;
  // What the target does with its region before: 0 nothing, else a letter.
  char target = ' ';
  unsigned access = probe::kAllAccess;
  QpOptions options{};
  char source = ' ';
  // A posted receive: its length, and what is wrong with it.
  std::uint32_t receive = 0;
  char receive_is = ' ';
  ibv_wc_status receiver_expected = IBV_WC_SUCCESS;
  ibv_event_type event = IBV_EVENT_DEVICE_FATAL;  // of the target's queue pair; this one: none
};

// Offsets and lengths of `work.remote` are relative to the target.
Work write_of(std::uint64_t offset, std::uint32_t length) {
  return {.opcode = IBV_WR_RDMA_WRITE, .length = length, .remote = offset};
}
Work with(Work work, ibv_wr_opcode opcode) {
  work.opcode = opcode;
  return work;
}

constexpr ibv_wc_status kAccess = IBV_WC_REM_ACCESS_ERR;
constexpr ibv_wc_status kRequest = IBV_WC_REM_INV_REQ_ERR;
constexpr ibv_wc_status kLocal = IBV_WC_LOC_PROT_ERR;
constexpr unsigned kLocalOnly = IBV_ACCESS_LOCAL_WRITE;
constexpr std::uint64_t kEndOfSpace = ~std::uint64_t{0} - 63;

std::vector<Case> remote_cases() {
  const Work write = write_of(0, 256);
  const Work read = with(write, IBV_WR_RDMA_READ);
  const Work add = with(write_of(0, 8), IBV_WR_ATOMIC_FETCH_AND_ADD);
  const Work swap = with(write_of(0, 8), IBV_WR_ATOMIC_CMP_AND_SWP);
  const ibv_event_type access = IBV_EVENT_QP_ACCESS_ERR;
  std::vector<Case> cases;
  const auto add_case = [&](const std::string& name, const Work& work, char target,
                            unsigned rights) {
    cases.push_back({.name = name,
                     .work = work,
                     .expected = kAccess,
                     .or_else = kAccess,
                     .target = target,
                     .access = rights,
                     .event = access});
  };
  const std::pair<const char*, Work> verbs[] = {
      {"WRITE", write}, {"READ", read}, {"FETCH_ADD", add}, {"CMP_SWP", swap}};
  for (const auto& verb : verbs) {
    const std::string what = verb.first;
    const Work& work = verb.second;
    const auto name = [&](const char* rest) { return what + rest; };
    add_case(name(" with a wrong key"), work, 'k', probe::kAllAccess);
    add_case(name(" with a key of another PD"), work, 'p', probe::kAllAccess);
    add_case(name(" to a deregistered region"), work, 'd', probe::kAllAccess);
    add_case(name(" without the right"), work, ' ', kLocalOnly);
    Work before = work, behind = work, wraps = work;
    before.remote = ~std::uint64_t{7};  // 8 bytes before
    behind.remote = kSize + 8 - work.length;
    wraps.remote = kEndOfSpace;
    add_case(name(" that begins before the region"), before, ' ', probe::kAllAccess);
    add_case(name(" that ends behind the region"), behind, ' ', probe::kAllAccess);
    add_case(name(" that wraps"), wraps, 'w', probe::kAllAccess);
    cases.push_back({.name = name(" to memory that was unmapped"),
                     .work = work,
                     .expected = kAccess,
                     .or_else = IBV_WC_REM_OP_ERR,
                     .target = 'u'});
    QpOptions closed;
    closed.access = IBV_ACCESS_LOCAL_WRITE;
    cases.push_back({.name = name(" to a queue pair that does not allow it"),
                     .work = work,
                     .expected = kRequest,
                     .or_else = kAccess,
                     .options = closed});
  }
  Work crooked = add;
  crooked.remote = 4;
  cases.push_back({.name = "FETCH_ADD at an odd address",
                   .work = crooked,
                   .expected = kRequest,
                   .or_else = kRequest});
  return cases;
}

std::vector<Case> local_cases() {
  const Work write = write_of(0, 256);
  const Work read = with(write, IBV_WR_RDMA_READ);
  std::vector<Case> cases;
  const auto add = [&](const char* name, const Work& work, char source) {
    cases.push_back(
        {.name = name, .work = work, .expected = kLocal, .or_else = kLocal, .source = source});
  };
  add("WRITE from a wrong local key", write, 'k');
  add("WRITE from a region of another PD", write, 'p');
  add("WRITE from behind a region", write, 'b');
  add("WRITE from a deregistered region", write, 'd');
  add("WRITE from memory that was unmapped", write, 'u');
  add("SEND from memory that was unmapped", with(write, IBV_WR_SEND), 'u');
  add("READ into a region without local write", read, 'r');
  add("READ into memory that was unmapped", read, 'u');
  add("READ into a wrong local key", read, 'k');
  return cases;
}

std::vector<Case> receive_cases() {
  const Work send = with(write_of(0, 256), IBV_WR_SEND);
  QpOptions impatient;
  impatient.rnr_retry = 0;
  QpOptions patient;
  patient.rnr_retry = 2;
  return {
      {.name = "SEND longer than the receive",
       .work = send,
       .expected = kRequest,
       .or_else = kRequest,
       .receive = 255,
       .receiver_expected = IBV_WC_LOC_LEN_ERR},
      {.name = "SEND to a receive with a wrong key",
       .work = send,
       .expected = IBV_WC_REM_OP_ERR,
       .or_else = IBV_WC_REM_OP_ERR,
       .receive = 256,
       .receive_is = 'k',
       .receiver_expected = kLocal},
      {.name = "SEND to a receive in memory that was unmapped",
       .work = send,
       .expected = IBV_WC_REM_OP_ERR,
       .or_else = IBV_WC_REM_OP_ERR,
       .target = 'u',
       .receive = 256,
       .receiver_expected = kLocal},
      {.name = "SEND without a receive",
       .work = send,
       .expected = IBV_WC_RNR_RETRY_EXC_ERR,
       .or_else = IBV_WC_RNR_RETRY_EXC_ERR,
       .options = impatient},
      {.name = "SEND without a receive, with retries",
       .work = send,
       .expected = IBV_WC_RNR_RETRY_EXC_ERR,
       .or_else = IBV_WC_RNR_RETRY_EXC_ERR,
       .options = patient},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = remote_cases();
  for (const auto& more : {local_cases(), receive_cases()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

// -- the side that is written to -----------------------------------------------------------------

void expect_event(Node& node, ibv_event_type expected, const char* name) {
  if (expected == IBV_EVENT_DEVICE_FATAL) return;
  pollfd ready{node.context->async_fd, POLLIN, 0};
  require(poll(&ready, 1, 5000) == 1, "%s: no asynchronous event", name);
  ibv_async_event event;
  require(ibv_get_async_event(node.context, &event) == 0, "ibv_get_async_event");
  require(event.event_type == expected, "%s: event %s", name, ibv_event_type_str(event.event_type));
  ibv_ack_async_event(&event);
}

void be_target(Node& node, Wire& wire, const Case& each) {
  Target target = Target::make();
  ibv_pd* other = ibv_alloc_pd(node.context);
  ibv_mr* mr = each.target == 'p' ? ibv_reg_mr(other, target.data(), kSize, probe::kAllAccess)
                                  : node.reg(target.data(), kSize, each.access);
  require(mr != nullptr, "ibv_reg_mr");
  Address mine{0, mr->rkey, reinterpret_cast<std::uint64_t>(target.data()), {}};
  if (each.target == 'k') mine.key ^= 0x55;
  Address peer;
  ibv_qp* qp = node.meet(wire, mine, peer, each.options);
  if (each.receive != 0) {
    const std::uint32_t key = each.receive_is == 'k' ? mr->lkey ^ 0x55 : mr->lkey;
    require(probe::post_receive(qp, target.data(), each.receive, key) == 0, "ibv_post_recv");
  }
  if (each.target == 'd') require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
  if (each.target == 'u') munmap(target.data(), kSize);
  wire.meet();
  // The other one works.
  wire.meet();
  if (each.receiver_expected != IBV_WC_SUCCESS) {
    const ibv_wc completion = node.wait();
    require(completion.status == each.receiver_expected, "%s: the receive ends with %s",
            each.name.c_str(), ibv_wc_status_str(completion.status));
  }
  expect_event(node, each.event, each.name.c_str());
  if (each.target == 'u') {
    void* again = mmap(target.data(), kSize, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    require(again != MAP_FAILED, "mmap");
    std::memset(target.data(), static_cast<int>(probe::kCanary), kSize);
  }
  require(target.is_untouched(), "%s: memory was touched", each.name.c_str());
  probe::drain_events(node);
  require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  if (each.target != 'd') require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
  require(ibv_dealloc_pd(other) == 0, "ibv_dealloc_pd");
  munmap(target.base, kSize + 2 * kPage);
}

// -- the side that asks for it -------------------------------------------------------------------

void be_initiator(Node& node, Wire& wire, const Case& each) {
  Target source = Target::make();
  ibv_pd* other = ibv_alloc_pd(node.context);
  const unsigned access = each.source == 'r' ? 0 : kLocalOnly;
  ibv_mr* mr = each.source == 'p' ? ibv_reg_mr(other, source.data(), kSize, kLocalOnly)
                                  : node.reg(source.data(), kSize, access);
  require(mr != nullptr, "ibv_reg_mr");
  Address peer;
  ibv_qp* qp = node.meet(wire, {}, peer, each.options);
  wire.meet();
  Work work = each.work;
  work.memory = source.data();
  work.local_key = mr->lkey;
  work.remote_key = peer.key;
  work.remote = each.target == 'w' ? work.remote : peer.memory + work.remote;
  if (each.source == 'k') work.local_key ^= 0x55;
  if (each.source == 'b') work.memory = source.data() + kSize - 8;
  if (each.source == 'd') require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
  if (each.source == 'u') munmap(source.data(), kSize);
  require(probe::post(qp, work) == 0, "%s: ibv_post_send refuses", each.name.c_str());
  const ibv_wc completion = node.wait();
  require(completion.wr_id == work.id &&
              (completion.status == each.expected || completion.status == each.or_else),
          "%s: ends with %s (%u), not %s", each.name.c_str(), ibv_wc_status_str(completion.status),
          completion.vendor_err, ibv_wc_status_str(each.expected));
  require(completion.qp_num == qp->qp_num, "%s: of another queue pair", each.name.c_str());
  // The queue pair is in error now: what follows is flushed.
  work.id = 2;
  require(probe::post(qp, work) == 0, "%s: ibv_post_send in error refuses", each.name.c_str());
  const ibv_wc flushed = node.wait();
  require(flushed.wr_id == 2 && flushed.status == IBV_WC_WR_FLUSH_ERR, "%s: not flushed but %s",
          each.name.c_str(), ibv_wc_status_str(flushed.status));
  wire.meet();
  if (each.source != 'u')
    require(source.is_untouched(), "%s: own memory changed", each.name.c_str());
  require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  if (each.source != 'd') require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
  require(ibv_dealloc_pd(other) == 0, "ibv_dealloc_pd");
  munmap(source.base, kSize + 2 * kPage);
}

}  // namespace

int main() {
  unsigned passed = 0, failed = 0;
  const auto note = [&](const char* name, bool is_good) {
    std::printf("%s %s\n", is_good ? "ok  " : "FAIL", name);
    std::fflush(stdout);
    ++(is_good ? passed : failed);
  };
  for (const Case& each : all_cases()) {
    note(each.name.c_str(), probe::run_two(
                                [&](Wire& wire) {
                                  Node node;
                                  be_target(node, wire, each);
                                  probe::talk(node, wire, 2);
                                },
                                [&](Wire& wire) {
                                  Node node;
                                  be_initiator(node, wire, each);
                                  probe::talk(node, wire, 2);
                                }));
  }
  for (const probe::Scene& scene : probe::bad_input_scenes()) {
    note(scene.name, probe::run_two(
                         [&](Wire& wire) {
                           Node node;
                           scene.target(node, wire);
                           probe::talk(node, wire, 2);
                         },
                         [&](Wire& wire) {
                           Node node;
                           scene.initiator(node, wire);
                           probe::talk(node, wire, 2);
                         }));
  }
  std::printf("%u passed, %u failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
