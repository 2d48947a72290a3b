// SPDX-License-Identifier: MIT
// The memory of a session: areas with guards between them, registered as two regions. Only the
// window and the cells may be touched by the peer; guards never change.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "shape.h"

namespace chaos {

struct Cells {
  std::uint64_t counter;  // the peer's FETCH AND ADD
  std::uint64_t swapped;  // the peer's COMPARE AND SWAP
};

class Arena {
 public:
  Arena(const Shape& shape, std::uint64_t seed);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool register_at(ibv_pd* pd);
  void deregister();

  std::span<std::byte> source(std::uint32_t place) { return at(source_, place); }
  // Those of the second shared queue follow those of the first.
  std::span<std::byte> receive(std::uint32_t place) { return at(receive_, place); }
  std::span<std::byte> back(std::uint32_t place) { return at(back_, place); }
  std::span<std::byte> window() { return {base_ + window_, stride_ * places_}; }
  Cells& cells() { return *reinterpret_cast<Cells*>(base_ + cells_); }
  std::size_t stride() const { return stride_; }

  ibv_mr* remote_region() const { return remote_; }
  // The peer may not touch anything any more.
  int revoke();
  std::uint32_t local_key() const;
  std::uint32_t remote_key() const;
  std::uint64_t window_address() const { return reinterpret_cast<std::uint64_t>(base_ + window_); }
  std::uint64_t cells_address() const { return reinterpret_cast<std::uint64_t>(base_ + cells_); }

  // Which guard was written to, if any.
  bool guards_are_whole(std::string& what) const;

 private:
  std::span<std::byte> at(std::size_t area, std::uint32_t place) {
    return {base_ + area + stride_ * place, stride_};
  }

  static constexpr std::size_t kGuard = 256;
  static constexpr std::size_t kGuards = 6;
  std::uint64_t key_;
  std::size_t stride_;
  std::size_t places_;
  std::size_t size_ = 0;
  std::size_t source_ = 0, receive_ = 0, back_ = 0, window_ = 0, cells_ = 0;
  std::size_t guards_[kGuards] = {};
  std::byte* base_ = nullptr;
  ibv_mr* local_ = nullptr;
  ibv_mr* remote_ = nullptr;
};

}  // namespace chaos
