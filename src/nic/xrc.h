// SPDX-License-Identifier: MIT
// Extended Reliable Connections (IBTA vol 1, annex A14): domains, their shared receive queues, and
// targets, which have neither a protection domain nor completion queues of their own.
#pragma once

#include <memory>
#include <optional>

#include "nic/objects.h"
#include "nic/xrc_domains.h"

namespace verbena::nic {

// A program's handle on a domain, or the domain's own.
struct Xrcd {
  explicit Xrcd(Context& context, XrcDomain& of);
  XrcDomain* domain;
  Pd pd;  // of targets: no region is in it
  Cq cq;  // of targets: nothing completes there
};

// Errors as those of XrcDomains::open.
Result<Xrcd*, Error> open_xrcd(Context& context, const XrcOpen& how);
Result<void, Error> close_xrcd(Xrcd* xrcd);  // kBusy while it has queues or targets

// A new shared receive queue gets its number there.
Result<void, Error> join_domain(Srq& srq, Xrcd& xrcd, Cq& cq);
// Before it is destroyed: no message takes its receives from now on.
void leave_domain(Srq& srq);

Result<Qp*, Error> create_target(Xrcd& xrcd, void* cookie);
// Another hold on a target of this domain. kInvalid: there is none of this number. kNotSupported:
// it is another process's, and lives with it.
Result<Qp*, Error> open_target(Xrcd& xrcd, QpNum number, void* cookie);
// Of the one with this cookie. True: that was the last, and the target is to be destroyed.
bool close_target(Qp& target, void* cookie);

// A hidden target, which no program knows of, executes here what the target `relayed_by` of another
// process of the same domain gets for shared receive queues of this one, and completes it as that
// one's (qp/relay.h). On the control thread. Null: there is no such queue, or no room.
Qp* create_hidden_target(Nic& nic, const FileIdentity& file, std::uint32_t queue, QpNum relayed_by);
void destroy_hidden_target(Qp* target);

}  // namespace verbena::nic
