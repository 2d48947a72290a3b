// SPDX-License-Identifier: MIT
// The XRC domains of this process (IBTA vol 1, annex A14.2.2): which shared receive queues and
// which targets belong together. Domains of one file are one, also those of other processes of this
// host: all agree on whether a file has one, and a target reaches the queues of all
// (docs/decisions/0019-xrc-targets-relay-between-processes.md).
//
// Abstract unix names tell who has a domain open (abstract_name.h):
//
//   @verbena/xrc/<device>/<inode>          somebody opens it just now
//   @verbena/xrc/<device>/<inode>/<slot>   the process of this slot has it
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/open_file.h"
#include "base/result.h"
#include "base/types.h"
#include "host/control.h"
#include "nic/error.h"
#include "qp/responder.h"

namespace verbena::nic {

class Qp;
class QpTable;
class Srq;
struct Xrcd;

struct XrcOpen {
  std::optional<FileIdentity> file;  // none: shared with nobody
  bool may_create = true;
  bool must_create = false;
};

class XrcDomain final : public qp::SharedQueues {
 public:
  XrcDomain(const QpTable& numbers, const std::optional<FileIdentity>& file);
  XrcDomain(const XrcDomain&) = delete;
  XrcDomain& operator=(const XrcDomain&) = delete;
  ~XrcDomain();
  Result<qp::SharedQueue, qp::Reason> find(std::uint32_t number) override;
  // A number of another process, which may have it in its own domain of the same file.
  bool is_elsewhere(std::uint32_t number) const override;
  const std::optional<FileIdentity>& file() const { return file_; }
  // The programs' handles.
  void add(Xrcd& handle);
  void remove(const Xrcd& handle);
  // The domain's own handle, by which its hidden targets are made (nic/xrc.h), so that they do not
  // end with one of the program's. Null: it has no such queue. These two on the control thread.
  Xrcd* own_handle_for(std::uint32_t queue);
  // A context that the program may close is another one's from now on. False: there is none left.
  bool keep_own_handle();
  bool has_own_handle();
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
  const QpTable& numbers_;
  std::optional<FileIdentity> file_;
  Mutex lock_;
  std::vector<Xrcd*> handles_;
  std::unique_ptr<Xrcd> own_handle_;
  std::map<std::uint32_t, Srq*> queues_;
  std::map<std::uint32_t, Target> targets_;
};

class XrcDomains {
 public:
  explicit XrcDomains(const QpTable& numbers) : numbers_(numbers) {}
  // kAgain: it is not there, and not to be made. kInvalid: it is there, and had to be made. kBusy:
  // another process opens it, and is not through. `control`: of a file's domain.
  Result<XrcDomain*, Error> open(const XrcOpen& how, host::Control* control);
  void close(XrcDomain& domain, host::Control* control);
  // As XrcDomain::own_handle_for, in that file's. On the control thread.
  Xrcd* own_handle_for(const FileIdentity& file, std::uint32_t queue);

 private:
  struct Entry {
    std::optional<FileIdentity> file;
    std::uint32_t holders = 0;
    std::unique_ptr<XrcDomain> domain;
  };
  Result<void, Error> open_file(const FileIdentity& file, const XrcOpen& how,
                                host::Control& control);

  const QpTable& numbers_;
  Mutex lock_;  // before the control thread's
  std::vector<Entry> entries_;
  std::map<FileIdentity, host::PrivateFd> names_;  // the control thread's
  Mutex files_lock_;                               // before the domains'
  std::map<FileIdentity, XrcDomain*> of_files_;
};

}  // namespace verbena::nic
