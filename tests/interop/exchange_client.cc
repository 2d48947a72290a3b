// SPDX-License-Identifier: MIT
// The client's side of a scenario: work requests, and what must be true after them.
#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "exchange.h"

namespace exchange {

void Client::begin(const char* name, const Plan& plan) {
  name_ = name;
  has_failed_ = false;
  posted_ = 0;
  talk_.put(Request{.verb = Request::kConnect, .plan = plan});
  fill(end_.memory(), 1);
  here.resize(kRegion);
  there.resize(kRegion);
  fill(here.data(), 1);
  fill(there.data(), 2);
  peer_ = end_.connect(talk_, plan, true);
}

void Client::finish() {
  (has_failed_ ? failures_ : passed_) += 1;
  if (!has_failed_) std::printf("ok   %s\n", name_.c_str());
  std::fflush(stdout);
}

void Client::expect(bool holds, const char* format, ...) {
  if (holds || has_failed_) return;
  has_failed_ = true;
  std::printf("FAIL %s: ", name_.c_str());
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

void Client::post(const Work& work) {
  if (has_failed_) return;
  ibv_sge pieces[4] = {};
  const std::uint32_t count = std::clamp(work.pieces, 1u, 4u);
  const std::uint32_t step = work.length / count;
  for (std::uint32_t i = 0; i < count; ++i) {
    pieces[i].addr = reinterpret_cast<std::uint64_t>(end_.memory()) + work.local + i * step;
    pieces[i].length = i + 1 == count ? work.length - i * step : step;
    pieces[i].lkey = end_.key();
  }
  ibv_send_wr wr{};
  wr.wr_id = posted_++;
  wr.opcode = work.opcode;
  wr.sg_list = pieces;
  wr.num_sge = work.length == 0 ? 0 : static_cast<int>(count);
  wr.send_flags = work.flags;
  wr.imm_data = htobe32(work.immediate);
  const std::uint64_t remote = peer_.memory + work.remote;
  const std::uint32_t key = peer_.key ^ work.key_change;
  if (work.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || work.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    wr.wr.atomic.remote_addr = remote;
    wr.wr.atomic.rkey = key;
    wr.wr.atomic.compare_add = work.compare_or_add;
    wr.wr.atomic.swap = work.swap;
  } else if (end_.address() != nullptr) {
    wr.wr.ud.ah = end_.address();
    wr.wr.ud.remote_qpn = peer_.qpn;
    wr.wr.ud.remote_qkey = work.qkey;
  } else {
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = key;
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(end_.qp(), &wr, &bad);
  expect(error == 0, "ibv_post_send: %s", strerror(error));
}

void Client::receive(std::uint32_t offset, std::uint32_t length, std::uint32_t pieces) {
  if (has_failed_) return;
  talk_.put(
      Request{.verb = Request::kReceive, .offset = offset, .length = length, .pieces = pieces});
  talk_.get<bool>();
}

void Client::await(std::initializer_list<ibv_wc_status> wanted) {
  if (has_failed_) return;
  const auto found = end_.poll(static_cast<std::uint32_t>(wanted.size()));
  expect(found.size() == wanted.size(), "%zu completions of %zu", found.size(), wanted.size());
  const auto* status = wanted.begin();
  for (const Completion& one : found) {
    expect(one.status == *status, "request %llu ends with %s, not %s",
           static_cast<unsigned long long>(one.id),
           ibv_wc_status_str(static_cast<ibv_wc_status>(one.status)), ibv_wc_status_str(*status));
    ++status;
  }
}

void Client::await_refusal(std::initializer_list<ibv_wc_status> allowed) {
  if (has_failed_) return;
  const auto found = end_.poll(1);
  expect(found.size() == 1, "no completion");
  if (has_failed_) return;
  const auto status = static_cast<ibv_wc_status>(found[0].status);
  expect(std::ranges::find(allowed, status) != allowed.end(), "ends with %s, not %s",
         ibv_wc_status_str(status), ibv_wc_status_str(*allowed.begin()));
  post({.length = 1});
  await({IBV_WC_WR_FLUSH_ERR});
}

std::vector<Completion> Client::server_completions(std::uint32_t count) {
  if (has_failed_) return std::vector<Completion>(count);
  talk_.put(Request{.verb = Request::kPoll, .count = count});
  std::vector<Completion> found(talk_.get<std::uint32_t>());
  talk_.get_bytes(found.data(), found.size() * sizeof(Completion));
  for (Completion& one : found)
    one.immediate = be32toh(one.immediate);
  expect(found.size() == count, "the server has %zu completions of %u", found.size(), count);
  found.resize(count);
  return found;
}

void Client::compare(const std::byte* seen, const std::vector<std::byte>& model,
                     const char* where) {
  const auto differs = std::mismatch(model.begin(), model.end(), seen);
  if (differs.first == model.end()) return;
  const auto at = differs.first - model.begin();
  const auto wrong =
      std::inner_product(model.begin(), model.end(), seen, std::size_t{0}, std::plus<>(),
                         [](std::byte a, std::byte b) { return static_cast<std::size_t>(a != b); });
  expect(false, "%s: %zu bytes are wrong, the first is %td: %#x, not %#x", where, wrong, at,
         static_cast<unsigned>(seen[at]),
         static_cast<unsigned>(model[static_cast<std::size_t>(at)]));
}

std::vector<std::byte> Client::look() {
  std::vector<std::byte> seen(kRegion);
  talk_.put(Request{.verb = Request::kLook});
  talk_.get_bytes(seen.data(), kRegion);
  return seen;
}

void Client::check(const char* what, std::uint32_t size) {
  if (has_failed_) return;
  const std::string name = std::string(what) + " of " + std::to_string(size) + " bytes, ";
  compare(look().data(), there, (name + "at the server").c_str());
  compare(end_.memory(), here, (name + "at the client").c_str());
}

void Client::check_beside(std::uint32_t offset, std::uint32_t count, std::uint32_t size) {
  if (has_failed_) return;
  const auto seen = look();
  std::copy_n(seen.begin() + offset, count, there.begin() + offset);
  check("SEND", size);
}

void Client::model_copy(const Work& work, std::uint32_t remote) {
  std::copy_n(here.begin() + work.local, work.length, there.begin() + remote);
}

void Client::model_read(const Work& work) {
  std::copy_n(there.begin() + work.remote, work.length, here.begin() + work.local);
}

}  // namespace exchange
