// SPDX-License-Identifier: MIT
// Flow steering (ibv_create_flow(3)): from the list of specs behind the attributes to a value and a
// mask. Numbers are in network order on both sides.
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "base/enum_number.h"
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

constexpr auto kAll = std::uint8_t{0xFF};

template <class To, class From>
void copy(To& to, const From& from) {
  static_assert(sizeof to == sizeof from);
  to = std::bit_cast<To>(from);
}

// What every spec begins with.
struct Head {
  std::uint32_t type;
  std::uint16_t size;
};

// Takes the specs one after the other. Each layer is told of once at most.
class Specs {
 public:
  explicit Specs(raw::Flow& flow) : flow_(flow) {}
  const std::vector<nic::Counters*>& counters() const { return counters_; }

  Result<void, nic::Error> take(const std::byte* at, const Head& head) {
    switch (head.type) {
      case IBV_FLOW_SPEC_ETH: return layer<ibv_flow_spec_eth>(at, head, has_link_);
      case IBV_FLOW_SPEC_IPV4: return layer<ibv_flow_spec_ipv4>(at, head, has_network_);
      case IBV_FLOW_SPEC_IPV4_EXT: return layer<ibv_flow_spec_ipv4_ext>(at, head, has_network_);
      case IBV_FLOW_SPEC_IPV6: return layer<ibv_flow_spec_ipv6>(at, head, has_network_);
      case IBV_FLOW_SPEC_TCP:
      case IBV_FLOW_SPEC_UDP: return layer<ibv_flow_spec_tcp_udp>(at, head, has_transport_);
      case IBV_FLOW_SPEC_ACTION_DROP: {
        if (head.size != sizeof(ibv_flow_spec_action_drop)) return refuse(nic::Error::kInvalid);
        flow_.drops = true;
        return {};
      }
      case IBV_FLOW_SPEC_ACTION_COUNT: return count(at, head);
      default:
        return refuse(is_known(head.type) ? nic::Error::kNotSupported : nic::Error::kInvalid);
    }
  }

  // Whether the layers can stand on one another.
  bool is_consistent() const {
    const raw::Key& value = flow_.value;
    const raw::Key& mask = flow_.mask;
    const std::uint16_t type =
        value.network == raw::Network::kIpv4 ? raw::kEtherIpv4 : raw::kEtherIpv6;
    const bool is_other_type =
        has_network_ && ((value.ether_type.value() ^ type) & mask.ether_type.value()) != 0;
    const auto protocol = static_cast<std::uint8_t>(value.transport);
    const bool is_other_protocol =
        has_transport_ && ((value.protocol ^ protocol) & mask.protocol) != 0;
    return !is_other_type && !is_other_protocol;
  }

 private:
  static bool is_known(std::uint32_t type) {
    switch (type & ~std::uint32_t{IBV_FLOW_SPEC_INNER}) {
      case IBV_FLOW_SPEC_ETH:
      case IBV_FLOW_SPEC_IPV4:
      case IBV_FLOW_SPEC_IPV6:
      case IBV_FLOW_SPEC_IPV4_EXT:
      case IBV_FLOW_SPEC_ESP:
      case IBV_FLOW_SPEC_TCP:
      case IBV_FLOW_SPEC_UDP:
      case IBV_FLOW_SPEC_VXLAN_TUNNEL:
      case IBV_FLOW_SPEC_GRE:
      case IBV_FLOW_SPEC_MPLS:
      case IBV_FLOW_SPEC_ACTION_TAG:
      case IBV_FLOW_SPEC_ACTION_HANDLE: return true;
      default: return false;
    }
  }

  Result<void, nic::Error> count(const std::byte* at, const Head& head) {
    ibv_flow_spec_counter_action spec;
    if (head.size != sizeof spec) return refuse(nic::Error::kInvalid);
    std::memcpy(&spec, at, sizeof spec);
    if (!spec.counters) return refuse(nic::Error::kInvalid);
    counters_.push_back(own(spec.counters).nic);
    return {};
  }

  template <class Spec>
  Result<void, nic::Error> layer(const std::byte* at, const Head& head, bool& has) {
    if (head.size != sizeof(Spec) || has) return refuse(nic::Error::kInvalid);
    has = true;
    Spec spec;
    std::memcpy(&spec, at, sizeof spec);
    read(spec, head.type);
    return {};
  }

  void read(const ibv_flow_spec_eth& spec, std::uint32_t) {
    const auto fill = [](raw::Key& key, const ibv_flow_eth_filter& from) {
      copy(key.destination_mac, from.dst_mac);
      copy(key.source_mac, from.src_mac);
      copy(key.ether_type, from.ether_type);
      copy(key.vlan_tag, from.vlan_tag);
    };
    fill(flow_.value, spec.val);
    fill(flow_.mask, spec.mask);
    if (spec.mask.vlan_tag == 0) return;
    flow_.value.has_vlan = 1;
    flow_.mask.has_vlan = kAll;
  }

  void expect(raw::Network network) {
    flow_.value.network = network;
    flow_.mask.network = static_cast<raw::Network>(kAll);
  }

  template <class Filter>
  static void fill_ipv4(raw::Key& key, const Filter& from) {
    std::memcpy(key.source_ip.data(), &from.src_ip, sizeof from.src_ip);
    std::memcpy(key.destination_ip.data(), &from.dst_ip, sizeof from.dst_ip);
  }
  void read(const ibv_flow_spec_ipv4& spec, std::uint32_t) {
    expect(raw::Network::kIpv4);
    fill_ipv4(flow_.value, spec.val);
    fill_ipv4(flow_.mask, spec.mask);
  }
  void read(const ibv_flow_spec_ipv4_ext& spec, std::uint32_t) {
    const auto fill = [](raw::Key& key, const ibv_flow_ipv4_ext_filter& from) {
      fill_ipv4(key, from);
      key.protocol = from.proto;
      key.traffic_class = from.tos;
      key.hop_limit = from.ttl;
      key.ip_flags = from.flags;
    };
    expect(raw::Network::kIpv4);
    fill(flow_.value, spec.val);
    fill(flow_.mask, spec.mask);
  }
  void read(const ibv_flow_spec_ipv6& spec, std::uint32_t) {
    const auto fill = [](raw::Key& key, const ibv_flow_ipv6_filter& from) {
      copy(key.source_ip, from.src_ip);
      copy(key.destination_ip, from.dst_ip);
      copy(key.flow_label, from.flow_label);
      key.protocol = from.next_hdr;
      key.traffic_class = from.traffic_class;
      key.hop_limit = from.hop_limit;
    };
    expect(raw::Network::kIpv6);
    fill(flow_.value, spec.val);
    fill(flow_.mask, spec.mask);
  }
  void read(const ibv_flow_spec_tcp_udp& spec, std::uint32_t type) {
    const auto fill = [](raw::Key& key, const ibv_flow_tcp_udp_filter& from) {
      copy(key.source_port, from.src_port);
      copy(key.destination_port, from.dst_port);
    };
    fill(flow_.value, spec.val);
    fill(flow_.mask, spec.mask);
    flow_.value.transport = type == IBV_FLOW_SPEC_TCP ? raw::Transport::kTcp : raw::Transport::kUdp;
    flow_.mask.transport = static_cast<raw::Transport>(kAll);
  }

  raw::Flow& flow_;
  std::vector<nic::Counters*> counters_;
  bool has_link_ = false;
  bool has_network_ = false;
  bool has_transport_ = false;
};

std::optional<raw::FlowKind> kind_from(const ibv_flow_attr_type& type) {
  switch (enum_number(type)) {
    case IBV_FLOW_ATTR_NORMAL: return raw::FlowKind::kNormal;
    case IBV_FLOW_ATTR_ALL_DEFAULT: return raw::FlowKind::kAllDefault;
    case IBV_FLOW_ATTR_MC_DEFAULT: return raw::FlowKind::kMulticastDefault;
    case IBV_FLOW_ATTR_SNIFFER: return raw::FlowKind::kSniffer;
    default: return std::nullopt;
  }
}

struct Wanted {
  raw::Flow flow;
  std::vector<nic::Counters*> counters;
};

Result<Wanted, nic::Error> flow_from(const ibv_flow_attr& wanted) {
  constexpr std::uint32_t kKnown = IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS;
  const auto kind = kind_from(wanted.type);
  if (!kind || wanted.comp_mask != 0 || wanted.port != kPort || wanted.flags & ~kKnown) {
    return refuse(nic::Error::kInvalid);
  }
  if (wanted.flags & IBV_FLOW_ATTR_FLAGS_EGRESS) return refuse(nic::Error::kNotSupported);
  Wanted made;
  raw::Flow& flow = made.flow;
  flow.kind = *kind;
  flow.priority = wanted.priority;
  flow.passes_on = (wanted.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP) != 0;
  // Defaults take what is left, and sniffers all: there is nothing to say more.
  const bool is_rule = *kind == raw::FlowKind::kNormal;
  if (!is_rule && (wanted.num_of_specs != 0 || flow.passes_on)) return refuse(nic::Error::kInvalid);
  Specs specs(flow);
  const auto* at = reinterpret_cast<const std::byte*>(&wanted + 1);
  for (unsigned i = 0; i < wanted.num_of_specs; ++i) {
    Head head{};
    std::memcpy(&head, at, sizeof head);
    if (const auto taken = specs.take(at, head); !taken) return refuse(taken.error());
    at += head.size;
  }
  if (!specs.is_consistent()) return refuse(nic::Error::kInvalid);
  made.counters = specs.counters();
  return made;
}

Result<ibv_flow*, nic::Error> create(Qp& qp, const ibv_flow_attr& wanted) {
  const auto asked = flow_from(wanted);
  if (!asked) return refuse(asked.error());
  auto ours = std::make_unique<Flow>();
  const auto made = nic::create_flow(*qp.nic, asked->flow, asked->counters);
  if (!made) return refuse(made.error());
  ours->nic = *made;
  ours->face = {.comp_mask = 0,
                .context = qp.plain()->context,
                .handle = own(qp.plain()->context).new_handle()};
  return &ours.release()->face;
}

}  // namespace

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* wanted) noexcept {
  return pointer_at_border([&] { return create(own(qp), *wanted); });
}

int destroy_flow(ibv_flow* flow) noexcept {
  Flow* const ours = &own(flow);
  const bool is_inherited = verbs::is_inherited(flow);
  return destroy_at_border(is_inherited, nic::destroy_flow(ours->nic), [&] { delete ours; });
}

}  // namespace verbena::verbs
