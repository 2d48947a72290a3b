// SPDX-License-Identifier: MIT
#include "wire/cm.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "wire/ip.h"

namespace verbena::wire {
namespace {

constexpr std::uint8_t kCmClass = 0x07;    // 16.7
constexpr std::uint8_t kClassVersion = 2;  // 12.5
constexpr std::uint8_t kMethodSend = 0x03;

// The tables. `Message` is const when written.

template <class Message, class Visit>
void visit_ids(Message& m, const Visit& visit) {
  visit(m.local_comm_id, MadField{0, 0, 32});
  visit(m.remote_comm_id, MadField{4, 0, 32});
}

// REP has no three bytes in a row for it.
template <class Message, class Visit>
void visit_vendor_id(Message& m, const Visit& visit) {
  constexpr MadField kFields[] = {{15, 0, 8}, {19, 0, 8}, {23, 0, 8}};
  std::uint32_t id = 0;
  for (unsigned i = 0; i < 3; ++i) {
    auto part = static_cast<std::uint8_t>(m.ece.vendor_id >> (16 - 8 * i));
    visit(part, kFields[i]);
    id = id << 8 | part;
  }
  if constexpr (!std::is_const_v<Message>) m.ece.vendor_id = id;
}

// Primary at byte 52, alternate at 96.
template <class Path, class Visit>
void visit_req_path(Path& p, unsigned at, const Visit& visit) {
  const auto field = [at](unsigned byte, unsigned bit, unsigned width) {
    return MadField{static_cast<std::uint8_t>(at + byte), static_cast<std::uint8_t>(bit),
                    static_cast<std::uint8_t>(width)};
  };
  visit(p.local_lid, field(0, 0, 16));
  visit(p.remote_lid, field(2, 0, 16));
  visit(p.local_gid, at + 4);
  visit(p.remote_gid, at + 20);
  visit(p.flow_label, field(36, 0, 20));
  visit(p.packet_rate, field(39, 2, 6));
  visit(p.traffic_class, field(40, 0, 8));
  visit(p.hop_limit, field(41, 0, 8));
  visit(p.sl, field(42, 0, 4));
  visit(p.subnet_local, field(42, 4, 1));
  visit(p.ack_timeout, field(43, 0, 5));
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Req>
{
  visit(m.local_comm_id, MadField{0, 0, 32});
  visit(m.ece.vendor_id, MadField{5, 0, 24});
  visit(m.service_id, MadField{8, 0, 64});
  visit(m.local_ca_guid, MadField{16, 0, 64});
  visit(m.local_qkey, MadField{28, 0, 32});
  visit(m.local_qp, MadField{32, 0, 24});
  visit(m.responder_resources, MadField{35, 0, 8});
  visit(m.local_eecn, MadField{36, 0, 24});
  visit(m.initiator_depth, MadField{39, 0, 8});
  visit(m.remote_eecn, MadField{40, 0, 24});
  visit(m.remote_cm_response_timeout, MadField{43, 0, 5});
  visit(m.transport_type, MadField{43, 5, 2});
  visit(m.end_to_end_flow_control, MadField{43, 7, 1});
  visit(m.starting_psn, MadField{44, 0, 24});
  visit(m.local_cm_response_timeout, MadField{47, 0, 5});
  visit(m.retry_count, MadField{47, 5, 3});
  visit(m.pkey, MadField{48, 0, 16});
  visit(m.path_mtu, MadField{50, 0, 4});
  visit(m.rdc_exists, MadField{50, 4, 1});
  visit(m.rnr_retry_count, MadField{50, 5, 3});
  visit(m.max_cm_retries, MadField{51, 0, 4});
  visit(m.srq, MadField{51, 4, 1});
  visit(m.extended_transport, MadField{51, 5, 3});
  visit_req_path(m.primary, 52, visit);
  visit_req_path(m.alternate, 96, visit);
  visit(m.private_data, 140);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Mra>
{
  visit_ids(m, visit);
  visit(m.message, MadField{8, 0, 2});
  visit(m.service_timeout, MadField{9, 0, 5});
  visit(m.private_data, 10);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Rej>
{
  visit_ids(m, visit);
  visit(m.message, MadField{8, 0, 2});
  visit(m.info_length, MadField{9, 0, 7});
  visit(m.reason, MadField{10, 0, 16});
  visit(m.info, 12);
  visit(m.private_data, 84);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Rep>
{
  visit_ids(m, visit);
  visit_vendor_id(m, visit);
  visit(m.local_qkey, MadField{8, 0, 32});
  visit(m.local_qp, MadField{12, 0, 24});
  visit(m.local_eecn, MadField{16, 0, 24});
  visit(m.starting_psn, MadField{20, 0, 24});
  visit(m.responder_resources, MadField{24, 0, 8});
  visit(m.initiator_depth, MadField{25, 0, 8});
  visit(m.target_ack_delay, MadField{26, 0, 5});
  visit(m.failover_accepted, MadField{26, 5, 2});
  visit(m.end_to_end_flow_control, MadField{26, 7, 1});
  visit(m.rnr_retry_count, MadField{27, 0, 3});
  visit(m.srq, MadField{27, 3, 1});
  visit(m.local_ca_guid, MadField{28, 0, 64});
  visit(m.private_data, 36);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Rtu> ||
           std::is_same_v<std::remove_const_t<Message>, Drep>
{
  visit_ids(m, visit);
  visit(m.private_data, 8);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Dreq>
{
  visit_ids(m, visit);
  visit(m.remote_qp, MadField{8, 0, 24});
  visit(m.private_data, 12);
}

// Not laid out like the paths of REQ.
template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Lap>
{
  visit_ids(m, visit);
  visit(m.remote_qp, MadField{12, 0, 24});
  visit(m.remote_cm_response_timeout, MadField{15, 0, 5});
  auto& path = m.alternate;
  visit(path.local_lid, MadField{20, 0, 16});
  visit(path.remote_lid, MadField{22, 0, 16});
  visit(path.local_gid, 24);
  visit(path.remote_gid, 40);
  visit(path.flow_label, MadField{56, 0, 20});
  visit(path.traffic_class, MadField{59, 0, 8});
  visit(path.hop_limit, MadField{60, 0, 8});
  visit(path.packet_rate, MadField{61, 2, 6});
  visit(path.sl, MadField{62, 0, 4});
  visit(path.subnet_local, MadField{62, 4, 1});
  visit(path.ack_timeout, MadField{63, 0, 5});
  visit(m.private_data, 64);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, Apr>
{
  visit_ids(m, visit);
  visit(m.info_length, MadField{8, 0, 8});
  visit(m.status, MadField{9, 0, 8});
  visit(m.info, 12);
  visit(m.private_data, 84);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, SidrReq>
{
  visit(m.request_id, MadField{0, 0, 32});
  visit(m.pkey, MadField{4, 0, 16});
  visit(m.service_id, MadField{8, 0, 64});
  visit(m.private_data, 16);
}

template <class Message, class Visit>
void visit_fields(Message& m, const Visit& visit)
  requires std::is_same_v<std::remove_const_t<Message>, SidrRep>
{
  visit(m.request_id, MadField{0, 0, 32});
  visit(m.status, MadField{4, 0, 8});
  visit(m.info_length, MadField{5, 0, 8});
  visit(m.qp, MadField{8, 0, 24});
  visit(m.service_id, MadField{12, 0, 64});
  visit(m.qkey, MadField{20, 0, 32});
  visit(m.info, 24);
  visit(m.private_data, 96);
}

// The part of Ece that is no field of the message.
template <class Message>
auto* ece_of(Message& message) {
  using Found = std::conditional_t<std::is_const_v<Message>, const Ece, Ece>;
  Found* ece = nullptr;
  if (auto* const req = std::get_if<Req>(&message)) ece = &req->ece;
  if (auto* const rep = std::get_if<Rep>(&message)) ece = &rep->ece;
  return ece;
}

// Puts the message of `attribute` in place and reads it; false when there is none.
template <std::size_t... kIndex>
bool read(CmAttribute attribute, const MadData& data, CmMessage& message,
          std::index_sequence<kIndex...> /*all of the variant*/) {
  const auto read_one = [&]<class Message>(std::type_identity<Message>) {
    if (Message::kAttribute != attribute) return false;
    visit_fields(message.emplace<Message>(), MadReader(data));
    return true;
  };
  return (read_one(std::type_identity<std::variant_alternative_t<kIndex, CmMessage>>{}) || ...);
}

// RDMA IP CM, A11.3. IPv4 addresses are the last four bytes of their sixteen.
struct IpCmHeader {
  std::uint8_t version = 0;     // major:4 minor:4
  std::uint8_t ip_version = 0;  // IPV:4 reserved:4
  be16 source_port;
  std::array<std::uint8_t, 16> source{};
  std::array<std::uint8_t, 16> destination{};
};
static_assert(sizeof(IpCmHeader) == IpCm::kBytes);

Gid gid_from(const std::array<std::uint8_t, 16>& address, bool is_v4) {
  if (!is_v4) return gid_of(address);
  return gid_of(std::array<std::uint8_t, 4>{address[12], address[13], address[14], address[15]});
}

std::array<std::uint8_t, 16> address_from(const Gid& gid, bool is_v4) {
  std::array<std::uint8_t, 16> address{};
  const std::size_t first = is_v4 ? 12 : 0;
  std::memcpy(address.data() + first, gid.bytes + first, address.size() - first);
  return address;
}

}  // namespace

const char* name_of(MalformedMad reason) {
  switch (reason) {
    case MalformedMad::kLength: return "MAD length";
    case MalformedMad::kVersion: return "MAD version";
    case MalformedMad::kClass: return "MAD class";
    case MalformedMad::kMethod: return "MAD method";
    case MalformedMad::kAttribute: return "MAD attribute";
  }
  return "unknown";
}

const char* name_of(CmAttribute attribute) {
  switch (attribute) {
    case CmAttribute::kReq: return "REQ";
    case CmAttribute::kMra: return "MRA";
    case CmAttribute::kRej: return "REJ";
    case CmAttribute::kRep: return "REP";
    case CmAttribute::kRtu: return "RTU";
    case CmAttribute::kDreq: return "DREQ";
    case CmAttribute::kDrep: return "DREP";
    case CmAttribute::kSidrReq: return "SIDR_REQ";
    case CmAttribute::kSidrRep: return "SIDR_REP";
    case CmAttribute::kLap: return "LAP";
    case CmAttribute::kApr: return "APR";
  }
  return "unknown";
}

CmAttribute attribute_of(const CmMessage& message) {
  return std::visit([](const auto& m) { return m.kAttribute; }, message);
}

Result<CmMad, MalformedMad> parse_cm(std::span<const std::byte> payload) {
  if (payload.size() != kMadBytes) return refuse(MalformedMad::kLength);
  View view(payload);
  const MadHeader& head = *view.take<MadHeader>();
  if (head.base_version != MadHeader::kBaseVersion) return refuse(MalformedMad::kVersion);
  if (head.management_class != kCmClass) return refuse(MalformedMad::kClass);
  if (head.class_version != kClassVersion) return refuse(MalformedMad::kVersion);
  if (head.method != kMethodSend) return refuse(MalformedMad::kMethod);
  MadData data;
  std::memcpy(data.data(), view.rest().data(), data.size());
  CmMad mad{.transaction_id = head.transaction_id.value(), .message = {}};
  if (!read(static_cast<CmAttribute>(head.attribute_id.value()), data, mad.message,
            std::make_index_sequence<std::variant_size_v<CmMessage>>{})) {
    return refuse(MalformedMad::kAttribute);
  }
  if (Ece* const ece = ece_of(mad.message)) ece->options = head.attribute_modifier.value();
  return mad;
}

std::array<std::byte, kMadBytes> encode_cm(const CmMad& mad) {
  MadHeader head;
  head.management_class = kCmClass;
  head.class_version = kClassVersion;
  head.method = kMethodSend;
  head.transaction_id = be64(mad.transaction_id);
  head.attribute_id = be16(static_cast<std::uint16_t>(attribute_of(mad.message)));
  if (const Ece* const ece = ece_of(mad.message)) head.attribute_modifier = be32(ece->options);
  MadData data{};
  std::visit([&](const auto& message) { visit_fields(message, MadWriter(data)); }, mad.message);
  std::array<std::byte, kMadBytes> bytes;
  Put put(bytes.data());
  put(head);
  put(data);
  return bytes;
}

std::optional<IpCm> parse_ip_cm(std::span<const std::byte> private_data) {
  const auto* const header = View(private_data).take<IpCmHeader>();
  if (header == nullptr || header->version != 0) return {};
  const unsigned ip_version = header->ip_version >> 4;
  if (ip_version != 4 && ip_version != 6) return {};
  const bool is_v4 = ip_version == 4;
  IpCm ip_cm{.source_port = header->source_port.value(),
             .source = gid_from(header->source, is_v4),
             .destination = gid_from(header->destination, is_v4)};
  // IPv4 in the guise of IPv6 would go around whoever tells the two apart.
  if (!is_v4 && (is_ipv4(ip_cm.source) || is_ipv4(ip_cm.destination))) return {};
  return ip_cm;
}

void encode_ip_cm(const IpCm& ip_cm, std::span<std::byte, IpCm::kBytes> to) {
  const bool is_v4 = is_ipv4(ip_cm.destination);
  IpCmHeader header;
  header.ip_version = is_v4 ? 4 << 4 : 6 << 4;
  header.source_port = be16(ip_cm.source_port);
  header.source = address_from(ip_cm.source, is_v4);
  header.destination = address_from(ip_cm.destination, is_v4);
  Put(to.data())(header);
}

}  // namespace verbena::wire
