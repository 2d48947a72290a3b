// SPDX-License-Identifier: MIT
#include "port/steering.h"

#include <algorithm>
#include <array>
#include <utility>

#include "wire/headers.h"
#include "wire/opcode.h"

namespace verbena::port {
namespace {

using wire::Opcode;

// Where things are in a CM message: behind the BTH and the DETH comes the head of the MAD (IBTA vol
// 1, 13.4.3), behind that the message (12.6).
constexpr std::size_t kMad = wire::kBthBytes + wire::kDethBytes;
constexpr std::size_t kClass = kMad + 1;
constexpr std::size_t kAttribute = kMad + 16;
constexpr std::size_t kMessage = kMad + 24;
constexpr std::size_t kSidrRequestId = kMessage;
constexpr std::size_t kRemoteId = kMessage + 4;
constexpr std::size_t kServiceId = kMessage + 8;  // of REQ and SIDR_REQ alike

constexpr std::uint8_t kDatagram = Opcode::of(wire::Service::kUd, wire::Code::kSendOnly).value;
constexpr std::uint8_t kCmClass = 0x07;
// Attribute ids, 12.6 and 12.11.
constexpr std::uint16_t kRequest = 0x10;
constexpr std::uint16_t kRejection = 0x12;
constexpr std::uint16_t kSidrRequest = 0x17;
constexpr std::uint16_t kSidrAnswer = 0x18;
constexpr std::uint16_t kLastOfCm = 0x1A;

constexpr QpNum kManagementQp{1};
constexpr unsigned kIdShift = 22;

// The caller has seen to it that there are that many bytes.
template <class T>
T read(std::span<const std::byte> bytes, std::size_t offset) {
  wire::BigEndian<T> value;
  __builtin_memcpy(&value, bytes.data() + offset, sizeof value);
  return value.value();
}
std::uint8_t read_byte(std::span<const std::byte> bytes, std::size_t offset) {
  return std::to_integer<std::uint8_t>(bytes[offset]);
}

// A part of a program.
using Code = std::vector<sock_filter>;

sock_filter statement(unsigned code, std::uint32_t k) {
  return {static_cast<std::uint16_t>(code), 0, 0, k};
}
sock_filter load(unsigned size, std::size_t offset) {
  return statement(BPF_LD | size | BPF_ABS, static_cast<std::uint32_t>(offset));
}
sock_filter give(std::uint16_t position) { return statement(BPF_RET | BPF_K, position); }

void append(Code& to, const Code& part) { to.insert(to.end(), part.begin(), part.end()); }

// `test` (BPF_JEQ, BPF_JGE, BPF_JGT) of the accumulator with k, then `yes` or `no`. A conditional
// jump reaches 255 instructions, an unconditional one all.
Code branch(unsigned test, std::uint32_t k, const Code& yes, const Code& no) {
  Code code;
  const auto code_of_test = static_cast<std::uint16_t>(BPF_JMP | test | BPF_K);
  if (no.size() <= 255) {
    code.push_back({code_of_test, static_cast<std::uint8_t>(no.size()), 0, k});
  } else {
    code.push_back({code_of_test, 0, 1, k});
    code.push_back(statement(BPF_JMP | BPF_JA, static_cast<std::uint32_t>(no.size())));
  }
  append(code, no);
  append(code, yes);
  return code;
}

// Puts parts together that jump forward to labels.
class Assembler {
 public:
  void put(const Code& part) { append(code_, part); }
  void here(std::size_t label) { labels_[label] = code_.size(); }
  void go(std::size_t label) {
    jumps_.emplace_back(code_.size(), label);
    code_.push_back(statement(BPF_JMP | BPF_JA, 0));
  }
  // Goes on behind it if not.
  void test(unsigned how, std::uint32_t k, std::size_t label) {
    code_.push_back({static_cast<std::uint16_t>(BPF_JMP | how | BPF_K), 0, 1, k});
    go(label);
  }
  std::vector<sock_filter> take() {
    for (const auto& [from, label] : jumps_)
      code_[from].k = static_cast<std::uint32_t>(labels_[label] - from - 1);
    return std::move(code_);
  }

 private:
  Code code_;
  std::array<std::size_t, 16> labels_{};
  std::vector<std::pair<std::size_t, std::size_t>> jumps_;
};

using Entry = std::pair<SlotNumber, std::uint16_t>;

// The accumulator has a slot. A slot that nobody has goes to a neighbour, who will drop the packet.
Code search(std::span<const Entry> entries) {
  if (entries.size() == 1) return {give(entries.front().second)};
  const std::size_t half = entries.size() / 2;
  return branch(BPF_JGE, entries[half].first.value, search(entries.subspan(half)),
                search(entries.first(half)));
}

}  // namespace

std::optional<SlotNumber> plain_slot(std::span<const std::byte> payload) {
  const auto* const bth = wire::View(payload).take<wire::Bth>();
  if (!bth) return std::nullopt;
  const QpNum to{bth->dest_qp.value()};
  if (to.is_reserved()) return std::nullopt;
  return to.slot();
}

void Steering::set_positions(std::span<const SlotNumber> slots) {
  by_slot_.clear();
  for (std::size_t i = 0; i < slots.size(); ++i)
    by_slot_.emplace_back(slots[i], static_cast<std::uint16_t>(i));
  // Should two positions name one slot, the later one counts.
  std::ranges::sort(by_slot_, [](const Entry& a, const Entry& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  });
  const auto repeated = std::ranges::unique(by_slot_, {}, &Entry::first);
  by_slot_.erase(repeated.begin(), repeated.end());
}

bool Steering::add_service(Service service) {
  const auto at = std::ranges::lower_bound(services_, service.id, {}, &Service::id);
  if (at != services_.end() && at->id == service.id) return at->slot == service.slot;
  if (services_.size() >= kServicesMax) return false;
  services_.insert(at, service);
  return true;
}

void Steering::remove_service(Service service) { std::erase(services_, service); }

void Steering::remove_services(SlotNumber slot) {
  std::erase_if(services_, [&](const Service& each) { return each.slot == slot; });
}

std::optional<std::size_t> Steering::position(SlotNumber slot) const {
  const auto at = std::ranges::lower_bound(by_slot_, slot, {}, &Entry::first);
  if (at == by_slot_.end() || at->first != slot) return std::nullopt;
  return at->second;
}

auto Steering::owner_by_slot(SlotNumber slot) const -> Owner {
  return position(slot) ? Owner{Whose::kSlot, slot} : Owner{Whose::kNobody, slot};
}

auto Steering::owner_of_cm(std::span<const std::byte> payload) const -> Owner {
  constexpr Owner kAnybody{Whose::kEverybody, {}};
  if (payload.size() < kServiceId + sizeof(std::uint64_t)) return kAnybody;
  if (read_byte(payload, 0) != kDatagram) return kAnybody;
  if (read_byte(payload, kClass) != kCmClass) return kAnybody;
  const auto attribute = read<std::uint16_t>(payload, kAttribute);
  if (attribute == kRequest || attribute == kSidrRequest) {
    const auto id = read<std::uint64_t>(payload, kServiceId);
    const auto at = std::ranges::lower_bound(services_, id, {}, &Service::id);
    return at != services_.end() && at->id == id ? owner_by_slot(at->slot) : kAnybody;
  }
  if (attribute < kRequest || attribute > kLastOfCm) return kAnybody;
  const std::size_t offset = attribute == kSidrAnswer ? kSidrRequestId : kRemoteId;
  const auto id = read<std::uint32_t>(payload, offset);
  if (id == 0) return {attribute == kRejection ? Whose::kOneOfAll : Whose::kNobody, {}};
  return owner_by_slot(slot_of_id(id));
}

auto Steering::owner(std::span<const std::byte> payload) const -> Owner {
  const auto* const bth = wire::View(payload).take<wire::Bth>();
  if (!bth) return {};
  const QpNum to{bth->dest_qp.value()};
  if (to == kMulticastQp) return {Whose::kEverybody, {}};
  if (to == kManagementQp) return owner_of_cm(payload);
  if (to.is_reserved()) return {};
  return owner_by_slot(to.slot());
}

// Looks the service id up: by the upper half, then by the lower one. Those of rdma_cm are all alike
// in the upper half (annex A11).
std::vector<sock_filter> Steering::service_program(std::uint16_t fallback) const {
  Code code{give(fallback)};
  for (auto group = services_.begin(); group != services_.end();) {
    const auto upper = static_cast<std::uint32_t>(group->id >> 32);
    Code lookup{load(BPF_W, kServiceId + 4)};
    for (; group != services_.end() && group->id >> 32 == upper; ++group) {
      const auto at = position(group->slot);
      if (!at) continue;
      lookup.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(group->id)});
      lookup.push_back(give(static_cast<std::uint16_t>(*at)));
    }
    lookup.push_back(give(fallback));
    code = branch(BPF_JEQ, upper, lookup, code);
  }
  code.insert(code.begin(), load(BPF_W, kServiceId));
  return code;
}

std::vector<sock_filter> Steering::program(std::uint16_t fallback) const {
  if (by_slot_.empty()) return {};
  enum Label : std::size_t {
    kManagement,
    kDatagramSeen,
    kCm,
    kOther,
    kSidr,
    kId,
    kServices,
    kUnnamed,
    kTree
  };
  Assembler code;
  const auto test = [&](unsigned how, std::uint32_t k, Label then) { code.test(how, k, then); };
  code.put(
      {load(BPF_W, wire::Bth::kCongestionOffset), statement(BPF_ALU | BPF_AND | BPF_K, 0xFFFFFF)});
  test(BPF_JEQ, kManagementQp.value, kManagement);
  code.put({statement(BPF_ALU | BPF_RSH | BPF_K, QpNum::kSlotShift)});
  code.go(kTree);

  code.here(kManagement);
  code.put({load(BPF_B, 0)});
  test(BPF_JEQ, kDatagram, kDatagramSeen);
  code.put({give(fallback)});
  code.here(kDatagramSeen);
  code.put({load(BPF_B, kClass)});
  test(BPF_JEQ, kCmClass, kCm);
  code.put({give(fallback)});
  code.here(kCm);
  code.put({load(BPF_H, kAttribute)});
  test(BPF_JEQ, kRequest, kServices);
  test(BPF_JEQ, kSidrRequest, kServices);
  test(BPF_JEQ, kSidrAnswer, kSidr);
  test(BPF_JGT, kLastOfCm, kOther);
  test(BPF_JGE, kRequest, kId);
  code.here(kOther);
  code.put({give(fallback)});

  code.here(kSidr);
  code.put({load(BPF_W, kSidrRequestId), statement(BPF_ALU | BPF_RSH | BPF_K, kIdShift)});
  code.go(kTree);
  code.here(kId);
  code.put({load(BPF_W, kRemoteId)});
  test(BPF_JEQ, 0, kUnnamed);
  code.put({statement(BPF_ALU | BPF_RSH | BPF_K, kIdShift)});
  code.go(kTree);
  code.here(kServices);
  code.put(service_program(fallback));
  code.here(kUnnamed);
  code.put({give(fallback)});
  code.here(kTree);
  code.put(search(by_slot_));
  return code.take();
}

}  // namespace verbena::port
