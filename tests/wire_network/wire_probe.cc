// SPDX-License-Identifier: MIT
// Small programs over verbs on the wire, one a name: each has both of its sides.
// run_wire_network.py runs them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "environment/node.h"
#include "verbena/dv.h"

namespace {

using namespace probe;

// A program that ends as soon as it has what it wants, without destroying anything: what it has
// taken is acknowledged all the same.
bool leave_after_the_last_message() {
  constexpr unsigned kRounds = 30;
  constexpr unsigned kMessages = 40;  // so that the receiver is known as one that polls
  for (unsigned round = 0; round < kRounds; ++round) {
    const auto send = [](Wire& wire) {
      Node node;
      std::byte* const memory = map_pages(4096);
      ibv_mr* const mr = node.reg(memory, 4096);
      Address peer;
      ibv_qp* const qp = node.meet(wire, {}, peer);
      wire.meet();
      for (unsigned message = 0; message < kMessages; ++message) {
        require(post(qp, {.opcode = IBV_WR_SEND,
                          .id = message,
                          .memory = memory,
                          .length = 64,
                          .local_key = mr->lkey}) == 0,
                "ibv_post_send");
        node.wait_success(message);
      }
    };
    const auto receive = [](Wire& wire) {
      Node node;
      std::byte* const memory = map_pages(4096);
      ibv_mr* const mr = node.reg(memory, 4096);
      Address peer;
      ibv_qp* const qp = node.meet(wire, {}, peer);
      for (unsigned message = 0; message < kMessages; ++message)
        require(post_receive(qp, memory, 4096, mr->lkey, message) == 0, "ibv_post_recv");
      wire.meet();
      for (unsigned message = 0; message < kMessages; ++message)
        node.wait_success(message);
      exit(0);
    };
    if (!run_two(send, receive)) return false;
  }
  return true;
}

verbena_dv_qp service_of(ibv_qp* qp) {
  verbena_dv_qp service = {};
  service.comp_mask = VERBENA_DV_QP_WIRE;
  require(verbena_dv_query_qp(qp, &service) == 0, "verbena_dv_query_qp");
  require(service.comp_mask == VERBENA_DV_QP_WIRE, "nothing about the wire");
  require(service.carrier == VERBENA_DV_CARRIER_WIRE, "not by the wire, but by %u",
          service.carrier);
  return service;
}

// Two ends agree when both may; a caller that knows nothing of later fields keeps its memory.
bool agree() {
  constexpr std::uint32_t kMessages = 10;
  const auto side = [](Wire& wire, const char* mine, const char* others) {
    setenv("VERBENA_AGREE", mine, 1);
    Node node;
    std::byte* const memory = map_pages(8192);
    ibv_mr* const mr = node.reg(memory, 8192);
    Address peer;
    const Address own{0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}};
    ibv_qp* const qp = node.meet(wire, own, peer);
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      require(post(qp, {.id = i,
                        .memory = memory,
                        .length = 64,
                        .local_key = mr->lkey,
                        .remote = peer.memory + 4096,
                        .remote_key = peer.key}) == 0,
              "ibv_post_send");
      node.wait_success(i);
    }
    wire.meet();
    const verbena_dv_qp service = service_of(qp);
    const bool may = std::strcmp(mine, "auto") == 0 && std::strcmp(others, "auto") == 0;
    require(service.wire_agreed == (may ? 1u : 0u), "agreed: %u", service.wire_agreed);
    require(service.wire_packets >= kMessages, "%u packets",
            static_cast<unsigned>(service.wire_packets));
    verbena_dv_qp older;
    std::memset(&older, 0x5a, sizeof older);
    older.comp_mask = 0;
    require(verbena_dv_query_qp(qp, &older) == 0 && older.comp_mask == 0, "verbena_dv_query_qp");
    require(older.wire_packets == 0x5a5a5a5a5a5a5a5a, "a later field was written");
    wire.meet();
  };
  const auto run = [&](const char* one, const char* other) {
    return run_two([&](Wire& wire) { side(wire, one, other); },
                   [&](Wire& wire) { side(wire, other, one); });
  };
  return run("auto", "auto") && run("auto", "never") && run("never", "never");
}

// WRITEs over a line that loses one packet in a hundred.
bool write_with_loss(const char* agree_on) {
  constexpr std::uint32_t kBytes = 64 * 1024;
  constexpr std::uint32_t kWrites = 300;
  const auto side = [agree_on](Wire& wire, bool sends) {
    setenv("VERBENA_AGREE", agree_on, 1);
    setenv("VERBENA_FAULT", "in.drop=1%", 1);
    Node node;
    std::byte* const memory = map_pages(2 * kBytes);
    ibv_mr* const mr = node.reg(memory, 2 * kBytes);
    Address peer;
    const Address own{0, mr->rkey, reinterpret_cast<std::uint64_t>(memory + kBytes), {}};
    ibv_qp* const qp = node.meet(wire, own, peer);
    for (std::uint32_t i = 0; sends && i < kWrites; ++i) {
      std::memset(memory, static_cast<int>(i), kBytes);
      require(post(qp, {.id = i,
                        .memory = memory,
                        .length = kBytes,
                        .local_key = mr->lkey,
                        .remote = peer.memory,
                        .remote_key = peer.key}) == 0,
              "ibv_post_send");
      node.wait_success(i);
    }
    wire.meet();
    if (!sends) {
      const bool is_whole = std::all_of(memory + kBytes, memory + 2 * kBytes, [](std::byte each) {
        return each == static_cast<std::byte>((kWrites - 1) & 0xff);
      });
      require(is_whole, "another content than the last WRITE's");
      return;
    }
    const verbena_dv_qp service = service_of(qp);
    const bool agrees = std::strcmp(agree_on, "auto") == 0;
    require(service.wire_agreed == (agrees ? 1u : 0u), "agreed: %u", service.wire_agreed);
    const auto part = 100.0 * static_cast<double>(service.wire_repeated) /
                      static_cast<double>(service.wire_packets);
    std::printf("%s: %.1f %% of %u packets were repeated\n", agree_on, part,
                static_cast<unsigned>(service.wire_packets));
    std::fflush(stdout);
    require(service.wire_repeated > 0, "nothing was lost");
    require(agrees ? part < 4 : part > 4, "%.1f %% repeated", part);
  };
  return run_two([&](Wire& wire) { side(wire, true); }, [&](Wire& wire) { side(wire, false); });
}

// Agreed, what is repeated is what was lost; otherwise it is all that was sent since.
bool loss() { return write_with_loss("auto") && write_with_loss("never"); }

// Where the two sides are, if not where we are: WIRE_PROBE_OTHER is a network namespace,
// WIRE_PROBE_DEVICES the interfaces of the one and the other.
void go_to(bool is_other) {
  const char* const place = std::getenv("WIRE_PROBE_OTHER");
  const char* const devices = std::getenv("WIRE_PROBE_DEVICES");
  if (!place || !devices) return;
  const std::string both(devices);
  const std::size_t comma = both.find(',');
  const std::string mine = is_other ? both.substr(comma + 1) : both.substr(0, comma);
  setenv("VERBENA_DEVICES", mine.c_str(), 1);
  if (!is_other) return;
  const int fd = open(place, O_RDONLY | O_CLOEXEC);
  require(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, "setns: %s", std::strerror(errno));
}

ibv_gid gid_of(const char* address) {
  ibv_gid gid{};
  require(inet_pton(AF_INET6, address, gid.raw) == 1, "%s is no address", address);
  return gid;
}

// The first GID of the group's family that is not link-local.
std::uint8_t source_for(const Node& node, const ibv_gid& group) {
  for (std::uint8_t index = 0; index < 8; ++index) {
    ibv_gid gid{};
    if (ibv_query_gid(node.context, 1, index, &gid) != 0) break;
    const bool is_ipv4 = std::memcmp(gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0;
    if (is_ipv4 == (group.raw[0] == 0) && gid.raw[0] != 0xfe) return index;
  }
  fail("no address of this family");
}

// A queue pair for datagrams with four receives, and what has come.
class Listener {
 public:
  explicit Listener(Node& node) : node_(node) {
    memory_ = map_pages(8 * kPiece);
    mr_ = node.reg(memory_, 8 * kPiece);
    qp_ = node.create({.type = IBV_QPT_UD});
    node.connect(qp_, {}, {.type = IBV_QPT_UD});
    for (std::uint64_t i = 0; i < kReceives; ++i) {
      require(post_receive(qp_, memory_ + i * kPiece, kPiece, mr_->lkey, i) == 0, "ibv_post_recv");
    }
  }
  ibv_qp* qp() const { return qp_; }
  const std::byte* at(std::uint64_t id) const { return memory_ + id * kPiece; }
  void send(const ibv_gid& group, std::uint8_t content) {
    ibv_ah_attr to{};
    to.is_global = 1;
    to.port_num = 1;
    to.grh.dgid = group;
    to.grh.sgid_index = source_for(node_, group);
    to.grh.hop_limit = 1;
    ibv_ah* const ah = ibv_create_ah(node_.pd, &to);
    require(ah != nullptr, "ibv_create_ah: %s", std::strerror(errno));
    std::byte* const outbox = memory_ + kReceives * kPiece;
    std::memset(outbox, content, kBytes);
    ibv_sge piece{reinterpret_cast<std::uint64_t>(outbox), kBytes, mr_->lkey};
    ibv_send_wr request{};
    ibv_send_wr* bad = nullptr;
    request.wr_id = kSendId;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.ud = {ah, 0xffffff, kQkey};
    require(ibv_post_send(qp_, &request, &bad) == 0, "ibv_post_send");
  }

  static constexpr std::uint32_t kBytes = 100;
  static constexpr std::uint64_t kSendId = 77;

 private:
  static constexpr std::size_t kPiece = 2048;
  static constexpr std::uint64_t kReceives = 4;
  Node& node_;
  std::byte* memory_;
  ibv_mr* mr_;
  ibv_qp* qp_;
};

// Takes what comes for a while: just one datagram for each of `wanted`, and nothing else.
void expect_once(Node& node, const std::vector<Listener*>& wanted, std::uint8_t content) {
  constexpr std::uint32_t kGrh = 40;
  std::vector<std::uint32_t> came;
  for (int wait = 5000; auto completion = node.poll_for(wait);) {
    require(completion->status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(completion->status));
    if (completion->wr_id == Listener::kSendId) continue;
    require(completion->byte_len == kGrh + Listener::kBytes, "%u bytes", completion->byte_len);
    came.push_back(completion->qp_num);
    for (const Listener* each : wanted) {
      if (each->qp()->qp_num != completion->qp_num) continue;
      const std::byte* const last = each->at(completion->wr_id) + completion->byte_len - 1;
      require(*last == std::byte{content}, "another datagram came");
    }
    // All are there; whatever is too much shows soon.
    if (came.size() >= wanted.size()) wait = 200;
  }
  require(came.size() == wanted.size(), "%zu datagrams, not %zu", came.size(), wanted.size());
  for (const Listener* each : wanted) {
    require(std::count(came.begin(), came.end(), each->qp()->qp_num) == 1, "one is missing");
  }
}

// Two processes with three queue pairs each; `group` reaches those that are attached.
bool multicast_to(const char* address, const char* other_address) {
  const ibv_gid group = gid_of(address);
  const ibv_gid other_group = gid_of(other_address);
  const auto attach = [](Listener& to, const ibv_gid& gid) {
    const int error = ibv_attach_mcast(to.qp(), &gid, 0);
    require(error == 0, "ibv_attach_mcast: %s", std::strerror(error));
  };
  const auto one = [&](Wire& wire) {
    go_to(false);
    Node node;
    Listener sender(node);
    Listener attached(node);
    Listener bystander(node);
    attach(attached, group);
    attach(attached, group);  // once is enough
    attach(bystander, other_group);
    wire.meet();
    sender.send(group, 1);
    expect_once(node, {&attached}, 1);
    wire.meet();
    attach(sender, group);
    sender.send(group, 2);
    expect_once(node, {&sender, &attached}, 2);
    wire.meet();
    require(ibv_destroy_qp(attached.qp()) == EBUSY, "it is attached");
    require(ibv_detach_mcast(attached.qp(), &group, 0) == 0, "ibv_detach_mcast");
    require(ibv_detach_mcast(attached.qp(), &group, 0) == EINVAL, "it was detached");
    wire.meet();  // the other one sends
    expect_once(node, {&sender}, 3);
    wire.meet();
    require(ibv_destroy_qp(attached.qp()) == 0, "it is detached");
  };
  const auto other = [&](Wire& wire) {
    go_to(true);
    Node node;
    Listener first(node);
    Listener second(node);
    Listener bystander(node);
    attach(first, group);
    attach(second, group);
    attach(bystander, other_group);
    wire.meet();
    expect_once(node, {&first, &second}, 1);
    wire.meet();
    expect_once(node, {&first, &second}, 2);
    wire.meet();
    require(ibv_detach_mcast(first.qp(), &group, 0) == 0, "ibv_detach_mcast");
    wire.meet();
    bystander.send(group, 3);
    expect_once(node, {&second}, 3);
    wire.meet();
  };
  return run_two(one, other);
}

bool multicast_ipv4() { return multicast_to("::ffff:239.77.0.5", "::ffff:239.77.0.6"); }
bool multicast_ipv6() { return multicast_to("ff15::4d:5", "ff15::4d:6"); }

// What cannot be attached, and how many groups there are.
bool multicast_errors() {
  return run_one([] {
    Node node;
    ibv_qp* const connected = node.create();
    ibv_qp* const qp = node.create({.type = IBV_QPT_UD});
    const ibv_gid group = gid_of("::ffff:239.77.0.5");
    require(ibv_attach_mcast(connected, &group, 0) == EINVAL, "RC");
    for (const char* const wrong : {"::ffff:10.0.0.1", "fd00::1", "::"}) {
      const ibv_gid gid = gid_of(wrong);
      require(ibv_attach_mcast(qp, &gid, 0) == EINVAL, "%s is no group", wrong);
    }
    require(ibv_detach_mcast(qp, &group, 0) == EINVAL, "never attached");
    ibv_device_attr attributes{};
    require(ibv_query_device(node.context, &attributes) == 0, "ibv_query_device");
    require(attributes.max_mcast_grp > 0 && attributes.max_mcast_qp_attach > 1, "limits");
    ibv_gid each = group;
    for (int i = 0; i < attributes.max_mcast_grp; ++i) {
      each.raw[15] = static_cast<std::uint8_t>(i);
      require(ibv_attach_mcast(qp, &each, 0) == 0, "group %d", i);
    }
    each.raw[14] = 1;
    require(ibv_attach_mcast(qp, &each, 0) == ENOMEM, "more groups than there are");
    each.raw[14] = 0;
    for (int i = 0; i < attributes.max_mcast_grp; ++i) {
      each.raw[15] = static_cast<std::uint8_t>(i);
      require(ibv_detach_mcast(qp, &each, 0) == 0, "group %d", i);
    }
    require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  });
}

struct Scene {
  const char* name;
  bool (*run)();
};
constexpr Scene kScenes[] = {
    {"exit", leave_after_the_last_message},
    {"agree", agree},
    {"loss", loss},
    {"multicast-ipv4", multicast_ipv4},
    {"multicast-ipv6", multicast_ipv6},
    {"multicast-errors", multicast_errors},
};

}  // namespace

int main(int count, char** words) {
  for (const Scene& each : kScenes) {
    if (count == 2 && std::strcmp(each.name, words[1]) == 0) return each.run() ? 0 : 1;
  }
  std::fprintf(stderr, "usage: wire_probe SCENE, one of:\n");
  for (const Scene& each : kScenes)
    std::fprintf(stderr, "  %s\n", each.name);
  return 2;
}
