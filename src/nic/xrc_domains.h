// SPDX-License-Identifier: MIT
// The XRC domains of this process (IBTA vol 1, annex A14.2.2): which shared receive queues and
// which targets belong together. Domains of one file are one
// (docs/decisions/0019-xrc-domains-are-of-a-process.md).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/types.h"
#include "qp/responder.h"

namespace verbena::nic {

class Qp;
class Srq;
struct Xrcd;

struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

class XrcDomain final : public qp::SharedQueues {
 public:
  std::optional<qp::SharedQueue> find(std::uint32_t number) override;
  void add(Srq& srq);
  void remove(const Srq& srq);

  // A program's hold on a target: who made it, and who opened it.
  struct Hold {
    void* cookie = nullptr;
    Xrcd* xrcd = nullptr;
  };
  void add(Qp& target, const Hold& hold);
  // Null: no such target.
  Qp* open(QpNum number, const Hold& hold);
  struct Left {
    Xrcd* xrcd = nullptr;              // of the hold that has ended
    std::optional<void*> next_cookie;  // of another one; none: that was the last
  };
  Left leave(QpNum number, void* cookie);

 private:
  struct Target {
    Qp* qp = nullptr;
    std::vector<Hold> holds;
  };
  Mutex lock_;
  std::map<std::uint32_t, Srq*> queues_;
  std::map<std::uint32_t, Target> targets_;
};

class XrcDomains {
 public:
  // Null: it is not there and may not be made, or is there and must not be.
  XrcDomain* open(const std::optional<FileIdentity>& file, bool may_create, bool must_create);
  void close(XrcDomain& domain);

 private:
  struct Entry {
    std::optional<FileIdentity> file;
    std::uint32_t holders = 0;
    std::unique_ptr<XrcDomain> domain;
  };
  Mutex lock_;
  std::vector<Entry> entries_;
};

}  // namespace verbena::nic
