// SPDX-License-Identifier: MIT
#include "raw/filter.h"

#include <cstring>

namespace verbena::raw {
namespace {

constexpr std::uint32_t kWhole = 0x40000;  // more than any frame has
// A jump over part of a test is at most 255 instructions, and a test takes less than half of that.
constexpr std::size_t kInstructionsMax = BPF_MAXINSNS;

constexpr std::uint32_t kTypeAt = 12;
constexpr std::uint32_t kIpAt = kEthernetBytes;
constexpr std::uint32_t kIpv6Payload = kIpAt + 40;

std::uint16_t code(unsigned bits) { return static_cast<std::uint16_t>(bits); }

std::uint32_t number(const std::uint8_t* bytes, unsigned size) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < size; ++i)
    value = value << 8 | bytes[i];
  return value;
}

// The test of one flow: falls through to its end where the frame may be for it. Where a comparison
// fails it jumps behind that end.
class Test {
 public:
  // `size` bytes of the frame at `offset`: 1, 2 or 4.
  void load(std::uint32_t offset, unsigned size, unsigned mode = BPF_ABS) {
    const unsigned width = size == 1 ? BPF_B : size == 2 ? BPF_H : BPF_W;
    add({code(BPF_LD | width | mode), 0, 0, offset});
  }
  // What was loaded, under the mask.
  void expect(std::uint32_t value, std::uint32_t mask, unsigned size) {
    if (mask == 0) return;
    if (mask != (size == 4 ? ~0u : (1u << 8 * size) - 1)) {
      add({code(BPF_ALU | BPF_AND | BPF_K), 0, 0, mask});
    }
    expect_exactly(value & mask);
  }
  void expect_exactly(std::uint32_t value) {
    add({code(BPF_JMP | BPF_JEQ | BPF_K), 0, kFails, value});
  }
  // The bytes of the frame from `offset` on, four at a time, and the rest.
  void compare(std::uint32_t offset, const std::uint8_t* value, const std::uint8_t* mask,
               unsigned size, unsigned mode = BPF_ABS) {
    for (unsigned done = 0; done < size;) {
      const unsigned piece = size - done >= 4 ? 4 : size - done >= 2 ? 2 : 1;
      if (number(mask + done, piece) != 0) {
        load(offset + done, piece, mode);
        expect(number(value + done, piece), number(mask + done, piece), piece);
      }
      done += piece;
    }
  }
  void accept() { add({code(BPF_RET | BPF_K), 0, 0, kWhole}); }
  void add(const sock_filter& instruction) { program_.push_back(instruction); }

  std::vector<sock_filter> finish() {
    accept();
    for (std::size_t i = 0; i < program_.size(); ++i) {
      sock_filter& each = program_[i];
      const auto to_end = static_cast<std::uint8_t>(program_.size() - i - 1);
      if (BPF_CLASS(each.code) == BPF_JMP && each.jf == kFails) each.jf = to_end;
    }
    return std::move(program_);
  }

 private:
  static constexpr std::uint8_t kFails = 0xFF;
  std::vector<sock_filter> program_;
};

template <class Field>
const std::uint8_t* begin_of(const Field& field) {
  return reinterpret_cast<const std::uint8_t*>(&field);
}

template <class Field>
void compare(Test& test, std::uint32_t offset, const Field& value, const Field& mask,
             unsigned mode = BPF_ABS) {
  test.compare(offset, begin_of(value), begin_of(mask), sizeof value, mode);
}

void test_ports(Test& test, const Flow& flow, std::uint32_t offset, unsigned mode) {
  compare(test, offset, flow.value.source_port, flow.mask.source_port, mode);
  compare(test, offset + 2, flow.value.destination_port, flow.mask.destination_port, mode);
}

void test_ipv4(Test& test, const Flow& flow) {
  const Key& value = flow.value;
  const Key& mask = flow.mask;
  compare(test, kIpAt + 1, value.traffic_class, mask.traffic_class);
  compare(test, kIpAt + 8, value.hop_limit, mask.hop_limit);
  compare(test, kIpAt + 9, value.protocol, mask.protocol);
  test.compare(kIpAt + 12, value.source_ip.data(), mask.source_ip.data(), 4);
  test.compare(kIpAt + 16, value.destination_ip.data(), mask.destination_ip.data(), 4);
  if (mask.transport == Transport::kOther) return;
  test.load(kIpAt + 9, 1);
  test.expect_exactly(static_cast<std::uint8_t>(value.transport));
  test.load(kIpAt + 6, 2);
  test.expect(0, 0x3FFF, 2);  // no fragment
  test.add({code(BPF_LDX | BPF_B | BPF_MSH), 0, 0, kIpAt});
  test_ports(test, flow, kIpAt, BPF_IND);
}

// What stands behind extension headers is left to the table.
void test_ipv6(Test& test, const Flow& flow) {
  const Key& value = flow.value;
  const Key& mask = flow.mask;
  compare(test, kIpAt + 7, value.hop_limit, mask.hop_limit);
  compare(test, kIpAt + 8, value.source_ip, mask.source_ip);
  compare(test, kIpAt + 24, value.destination_ip, mask.destination_ip);
  if (mask.transport == Transport::kOther) return;
  const auto protocol = static_cast<std::uint8_t>(value.transport);
  test.load(kIpAt + 6, 1);
  for (const std::uint32_t extension : {0u, 43u, 44u, 60u}) {
    test.add({code(BPF_JMP | BPF_JEQ | BPF_K), 0, 1, extension});
    test.accept();
  }
  test.expect_exactly(protocol);
  test_ports(test, flow, kIpv6Payload, BPF_ABS);
}

std::vector<sock_filter> rule(const Flow& flow) {
  Test test;
  const Key& value = flow.value;
  const Key& mask = flow.mask;
  // The kernel may have taken the tag out of the frame.
  if (mask.has_vlan) {
    test.load(static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT), 1);
    test.expect_exactly(1);
  }
  compare(test, 0, value.destination_mac, mask.destination_mac);
  compare(test, 6, value.source_mac, mask.source_mac);
  compare(test, kTypeAt, value.ether_type, mask.ether_type);
  if (mask.network != Network::kOther) {
    const bool is_ipv4 = value.network == Network::kIpv4;
    test.load(kTypeAt, 2);
    test.expect_exactly(is_ipv4 ? kEtherIpv4 : kEtherIpv6);
    is_ipv4 ? test_ipv4(test, flow) : test_ipv6(test, flow);
  } else if (mask.transport != Transport::kOther) {
    test.accept();
  }
  return test.finish();
}

std::vector<sock_filter> test_of(const Flow& flow) {
  Test test;
  switch (flow.kind) {
    case FlowKind::kNormal: return rule(flow);
    case FlowKind::kSniffer:
    case FlowKind::kAllDefault: break;
    case FlowKind::kMulticastDefault:
      test.load(0, 1);
      test.expect(1, 1, 1);
      break;
  }
  return test.finish();
}

}  // namespace

std::vector<sock_filter> filter_for(std::span<const Flow> flows) {
  const sock_filter drop{code(BPF_RET | BPF_K), 0, 0, 0};
  if (flows.empty()) return {drop};
  // A tag that is still in the frame moves everything behind it.
  std::vector<sock_filter> program = {{code(BPF_LD | BPF_H | BPF_ABS), 0, 0, kTypeAt},
                                      {code(BPF_JMP | BPF_JEQ | BPF_K), 1, 0, kEtherVlan},
                                      {code(BPF_JMP | BPF_JEQ | BPF_K), 0, 1, kEtherServiceVlan},
                                      {code(BPF_RET | BPF_K), 0, 0, kWhole}};
  for (const Flow& flow : flows) {
    const std::vector<sock_filter> test = test_of(flow);
    if (program.size() + test.size() >= kInstructionsMax) {
      return {{code(BPF_RET | BPF_K), 0, 0, kWhole}};
    }
    program.insert(program.end(), test.begin(), test.end());
  }
  program.push_back(drop);
  return program;
}

}  // namespace verbena::raw
