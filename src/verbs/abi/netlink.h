// SPDX-License-Identifier: MIT
// One question and one answer over rtnetlink (rtnetlink(7)). Messages from the kernel are still
// walked with every length checked.
#pragma once

#include <linux/netlink.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace verbena::verbs {

// A request with the fixed part `Body` (rtmsg, ndmsg, ifinfomsg) and a few attributes.
template <class Body>
class NetlinkRequest {
 public:
  NetlinkRequest(std::uint16_t type, const Body& body) {
    nlmsghdr header = {};
    header.nlmsg_type = type;
    header.nlmsg_flags = NLM_F_REQUEST;
    std::memcpy(bytes_.data(), &header, sizeof(header));
    std::memcpy(bytes_.data() + NLMSG_HDRLEN, &body, sizeof(body));
    length_ = NLMSG_HDRLEN + NLMSG_ALIGN(sizeof(body));
  }

  void add(std::uint16_t type, std::span<const std::byte> value) {
    const nlattr attribute = {static_cast<std::uint16_t>(NLA_HDRLEN + value.size()), type};
    std::memcpy(bytes_.data() + length_, &attribute, sizeof(attribute));
    std::memcpy(bytes_.data() + length_ + NLA_HDRLEN, value.data(), value.size());
    length_ += NLA_HDRLEN + NLA_ALIGN(value.size());
  }

  std::span<const std::byte> finished() {
    const auto length = static_cast<std::uint32_t>(length_);
    std::memcpy(bytes_.data() + offsetof(nlmsghdr, nlmsg_len), &length, sizeof(length));
    return std::span(bytes_).first(length_);
  }

 private:
  std::array<std::byte, 128> bytes_ = {};
  std::size_t length_ = 0;
};

// The attribute of this type in `attributes`, without its header.
std::optional<std::span<const std::byte>> find_attribute(std::span<const std::byte> attributes,
                                                         std::uint16_t type);

// The value of an attribute that holds a T, if it is there and long enough.
template <class T>
std::optional<T> read_attribute(std::span<const std::byte> attributes, std::uint16_t type) {
  const auto value = find_attribute(attributes, type);
  if (!value || value->size() < sizeof(T)) return std::nullopt;
  T read;
  std::memcpy(&read, value->data(), sizeof(T));
  return read;
}

// The payload of an answer (fixed part and attributes). A refusal is an errno value, the kernel's
// or EBADMSG.
Result<std::span<const std::byte>, int> netlink_payload(std::span<const std::byte> answer);

class NetlinkSocket {
 public:
  // A refusal is an errno value.
  static Result<NetlinkSocket, int> open();

  // Sends the request and returns the payload of the answer (fixed part and attributes), valid
  // until the next question.
  Result<std::span<const std::byte>, int> ask(std::span<const std::byte> request);

 private:
  explicit NetlinkSocket(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
  std::array<std::byte, 8192> answer_ = {};
};

}  // namespace verbena::verbs
