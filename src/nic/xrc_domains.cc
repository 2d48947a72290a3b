// SPDX-License-Identifier: MIT
#include "nic/xrc_domains.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "host/raw_calls.h"
#include "nic/abstract_name.h"
#include "nic/nic_qp.h"
#include "nic/objects.h"
#include "nic/qp_table.h"
#include "nic/xrc.h"

namespace verbena::nic {
namespace {

// Whoever opens a file's domain is through in a millisecond, unless it is stopped.
constexpr Duration kOpenerPatience = Duration::seconds(1);
constexpr Duration kOpenerPause = Duration::milliseconds(1);

AbstractName name_of_opening(const FileIdentity& file) {
  return AbstractName("verbena/xrc/%llx/%llx", static_cast<unsigned long long>(file.device),
                      static_cast<unsigned long long>(file.inode));
}

AbstractName name_of_holder(const FileIdentity& file, SlotNumber slot) {
  return AbstractName("verbena/xrc/%llx/%llx/%u", static_cast<unsigned long long>(file.device),
                      static_cast<unsigned long long>(file.inode), slot.value);
}

// One process at a time opens this file's domain. Empty: another one does, for too long.
UniqueFd begin_opening(const FileIdentity& file) {
  const AbstractName name = name_of_opening(file);
  for (Duration waited; waited < kOpenerPatience; waited = waited + kOpenerPause) {
    UniqueFd socket = name_socket();
    if (!socket || host::raw::bind(socket.get(), name.get(), name.size()) == 0) return socket;
    const timespec pause{.tv_sec = 0, .tv_nsec = kOpenerPause.count_nanoseconds()};
    nanosleep(&pause, nullptr);
  }
  return {};
}

bool is_held_elsewhere(const FileIdentity& file) {
  const UniqueFd socket = name_socket();
  for (std::uint16_t slot = 0; slot < kSlotCount; ++slot) {
    if (is_bound(socket, name_of_holder(file, SlotNumber{slot}))) return true;
  }
  return false;
}

}  // namespace

// -- a domain -----------------------------------------------------------------------------------

XrcDomain::XrcDomain(const QpTable& numbers, const std::optional<FileIdentity>& file)
    : numbers_(numbers), file_(file) {}

XrcDomain::~XrcDomain() = default;

Result<qp::SharedQueue, qp::Reason> XrcDomain::find(std::uint32_t number) {
  const std::lock_guard guard(lock_);
  const auto at = queues_.find(number);
  if (at == queues_.end()) {
    return refuse(is_elsewhere(number) ? qp::Reason::kSharedQueueElsewhere
                                       : qp::Reason::kNoSharedQueue);
  }
  Srq& srq = *at->second;
  return qp::SharedQueue{&srq.queue, &srq.cq->queue, srq.pd->id};
}

void XrcDomain::add(Srq& srq) {
  const std::lock_guard guard(lock_);
  queues_.emplace(srq.number.value, &srq);
}

void XrcDomain::remove(const Srq& srq) {
  const std::lock_guard guard(lock_);
  queues_.erase(srq.number.value);
}

void XrcDomain::add(Qp& target, const Hold& hold) {
  const std::lock_guard guard(lock_);
  targets_.emplace(target.number().value, Target{&target, {hold}});
}

Qp* XrcDomain::open(QpNum number, const Hold& hold) {
  const std::lock_guard guard(lock_);
  const auto at = targets_.find(number.value);
  if (at == targets_.end()) return nullptr;
  at->second.holds.push_back(hold);
  return at->second.qp;
}

XrcDomain::Left XrcDomain::leave(QpNum number, void* cookie) {
  const std::lock_guard guard(lock_);
  Left left;
  const auto at = targets_.find(number.value);
  if (at == targets_.end()) return left;
  std::vector<Hold>& holds = at->second.holds;
  const auto mine = std::ranges::find(holds, cookie, &Hold::cookie);
  if (mine != holds.end()) {
    left.xrcd = mine->xrcd;
    holds.erase(mine);
  }
  if (holds.empty())
    targets_.erase(at);
  else
    left.next_cookie = holds.front().cookie;
  return left;
}

bool XrcDomain::is_elsewhere(std::uint32_t number) const {
  const QpNum queue{number};
  return file_ && !queue.is_reserved() && !numbers_.has_slot(queue.slot());
}

void XrcDomain::add(Xrcd& handle) {
  const std::lock_guard guard(lock_);
  handles_.push_back(&handle);
}

void XrcDomain::remove(const Xrcd& handle) {
  const std::lock_guard guard(lock_);
  std::erase(handles_, &handle);
}

Xrcd* XrcDomain::own_handle_for(std::uint32_t queue) {
  const std::lock_guard guard(lock_);
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return nullptr;
  Context& context = *found->second->xrcd->pd.context;
  if (!own_handle_) own_handle_ = std::make_unique<Xrcd>(context, *this);
  own_handle_->pd.context = own_handle_->cq.context = &context;
  return own_handle_.get();
}

bool XrcDomain::keep_own_handle() {
  const std::lock_guard guard(lock_);
  if (handles_.empty()) return false;
  own_handle_->pd.context = own_handle_->cq.context = handles_.front()->pd.context;
  return true;
}

bool XrcDomain::has_own_handle() {
  const std::lock_guard guard(lock_);
  return own_handle_ != nullptr;
}

// -- all of them --------------------------------------------------------------------------------

Result<XrcDomain*, Error> XrcDomains::open(const XrcOpen& how, host::Control* control) {
  const std::lock_guard guard(lock_);
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return how.file && entry.file == how.file; });
  if (found != entries_.end()) {
    if (how.must_create) return refuse(Error::kInvalid);
    ++found->holders;
    return found->domain.get();
  }
  if (how.file) {
    if (const auto done = open_file(*how.file, how, *control); !done) return refuse(done.error());
  } else if (!how.may_create) {
    return refuse(Error::kAgain);
  }
  auto domain = std::make_unique<XrcDomain>(numbers_, how.file);
  if (how.file) {
    const std::lock_guard files(files_lock_);
    of_files_[*how.file] = domain.get();
  }
  entries_.push_back({how.file, 1, std::move(domain)});
  return entries_.back().domain.get();
}

Xrcd* XrcDomains::own_handle_for(const FileIdentity& file, std::uint32_t queue) {
  const std::lock_guard guard(files_lock_);
  const auto found = of_files_.find(file);
  return found == of_files_.end() ? nullptr : found->second->own_handle_for(queue);
}

Result<void, Error> XrcDomains::open_file(const FileIdentity& file, const XrcOpen& how,
                                          host::Control& control) {
  const UniqueFd opening = begin_opening(file);
  if (!opening) return refuse(Error::kBusy);
  const bool is_there = is_held_elsewhere(file);
  if (is_there && how.must_create) return refuse(Error::kInvalid);
  if (!is_there && !how.may_create) return refuse(Error::kAgain);
  // The task may outlive the call.
  auto* const result = new std::atomic<bool>(false);
  const AbstractName name = name_of_holder(file, control.first_slot());
  const bool is_done = control.call([=, this, &control] {
    // Of a call that nobody waited for in the end.
    if (names_.contains(file)) return result->store(true);
    host::PrivateFd socket =
        control.descriptors().make([] { return host::raw::datagram_socket(); });
    if (!socket || host::raw::bind(socket.get(), name.get(), name.size()) != 0) return;
    names_[file] = std::move(socket);
    result->store(true);
  });
  if (!is_done) return refuse(Error::kGone);
  const bool is_held = result->load();
  delete result;
  if (!is_held) return refuse(Error::kNoDescriptors);
  return {};
}

void XrcDomains::close(XrcDomain& domain, host::Control* control) {
  const std::lock_guard guard(lock_);
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.domain.get() == &domain; });
  if (found == entries_.end() || --found->holders != 0) return;
  if (found->file) {
    const std::lock_guard files(files_lock_);
    of_files_.erase(*found->file);
  }
  // Waits, so that the domain is gone for whoever is told that we have left it.
  if (const auto file = found->file; file && control)
    static_cast<void>(control->call([file, this] { names_.erase(*file); }));
  entries_.erase(found);
}

}  // namespace verbena::nic
