// SPDX-License-Identifier: MIT
// Operations as they stand in a conduit's records.
#pragma once

#include <cstdint>

#include "local/conduit.h"
#include "qp/operation.h"

namespace verbena::local {

constexpr RequestKind kind_of(qp::OpKind kind) {
  switch (kind) {
    case qp::OpKind::kSend:
    case qp::OpKind::kBindWindow:
    case qp::OpKind::kLocalInvalidate: return RequestKind::kSend;
    case qp::OpKind::kWrite: return RequestKind::kWrite;
    case qp::OpKind::kAtomicWrite: return RequestKind::kAtomicWrite;
    case qp::OpKind::kFlush: return RequestKind::kFlush;
    case qp::OpKind::kRead: return RequestKind::kRead;
    case qp::OpKind::kCompareSwap: return RequestKind::kCompareSwap;
    case qp::OpKind::kFetchAdd: return RequestKind::kFetchAdd;
  }
  return RequestKind::kSend;
}

constexpr qp::OpKind op_kind_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::kSend:
    case RequestKind::kSendRow: return qp::OpKind::kSend;
    case RequestKind::kWrite: return qp::OpKind::kWrite;
    case RequestKind::kAtomicWrite: return qp::OpKind::kAtomicWrite;
    case RequestKind::kFlush: return qp::OpKind::kFlush;
    case RequestKind::kRead: return qp::OpKind::kRead;
    case RequestKind::kCompareSwap: return qp::OpKind::kCompareSwap;
    case RequestKind::kFetchAdd: return qp::OpKind::kFetchAdd;
  }
  return qp::OpKind::kSend;
}

constexpr std::uint32_t what_of(const qp::Flush& flush) {
  return (flush.global_visibility ? std::uint32_t{kGlobalVisibility} : 0) |
         (flush.persistence ? std::uint32_t{kPersistence} : 0) |
         (flush.whole_region ? std::uint32_t{kWholeRegion} : 0);
}

inline qp::Flush flush_of(const RequestRecord& record) {
  return {.length = record.flush.length,
          .global_visibility = (record.flush.what & kGlobalVisibility) != 0,
          .persistence = (record.flush.what & kPersistence) != 0,
          .whole_region = (record.flush.what & kWholeRegion) != 0};
}

constexpr bool has_payload(RequestKind kind) {
  return kind == RequestKind::kSend || kind == RequestKind::kSendRow ||
         kind == RequestKind::kWrite || kind == RequestKind::kAtomicWrite;
}

}  // namespace verbena::local
