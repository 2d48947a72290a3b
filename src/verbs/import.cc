// SPDX-License-Identifier: MIT
// Using the objects of one open device from another (ibv_import_device(3), ibv_import_pd(3),
// ibv_import_mr(3), ibv_import_dm(3)), inside one process. The descriptor of another process's
// device is refused: what is behind its handles lies there
// (docs/decisions/0023-imports-are-of-a-process.md).
#include "nic/import.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "nic/nic.h"
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

constinit std::atomic<Shareables*> of_process{nullptr};

bool is_same_file(int a, int b) {
  const long self = getpid();
  return syscall(SYS_kcmp, self, self, static_cast<long>(KCMP_FILE), static_cast<long>(a),
                 static_cast<long>(b)) == 0;
}

bool is_same_device(const Context& a, const Context& b) {
  return a.device->description.name == b.device->description.name;
}

Result<ibv_context*, nic::Error> import_device(int fd) {
  Device* device = nullptr;
  shareables().contexts.find(
      [fd](const Context& open) { return is_same_file(open.table.context.cmd_fd, fd); },
      [&device](const Context& open) {
        device = open.device;
        hold(*device);
      });
  if (!device) return refuse(nic::Error::kNotSupported);
  ibv_context* const context = ibv_open_device(reinterpret_cast<ibv_device*>(device));
  release(device);
  if (!context) return refuse(nic::Error::kNoRoom);
  context->cmd_fd = fd;
  own(context).owns_command_fd = true;
  return context;
}

Result<ibv_pd*, nic::Error> import_pd(Context& context, std::uint32_t handle) {
  if (!context.is_usable()) return refuse(nic::Error::kGone);
  Result<nic::Pd*, nic::Error> made = refuse(nic::Error::kInvalid);
  auto pd = std::make_unique<Pd>();
  shareables().domains.find(
      [&](const Pd& one) {
        return one.face.handle == handle && is_same_device(own(one.face.context), context);
      },
      [&](const Pd& one) { made = nic::import_pd(*context.nic, *one.nic); });
  if (!made) return refuse(made.error());
  pd->nic = *made;
  pd->is_imported = true;
  pd->face = {.context = &context.table.context, .handle = handle};
  hold(context);
  return &pd.release()->face;
}

// The program does not know where its memory lies.
Result<ibv_mr*, nic::Error> import_mr(Pd& pd, std::uint32_t handle) {
  if (is_inherited(&pd.face)) return refuse(nic::Error::kGone);
  auto mr = std::make_unique<Mr>();
  const bool is_found = shareables().regions.find(
      [&](const Mr& one) { return one.face.handle == handle && one.nic->pd->id == pd.nic->id; },
      [&](const Mr& one) {
        mr->nic = one.nic;
        mr->face = one.face;
      });
  if (!is_found) return refuse(nic::Error::kInvalid);
  mr->is_imported = true;
  mr->face.context = pd.face.context;
  mr->face.pd = &pd.face;
  mr->face.addr = nullptr;
  return &mr.release()->face;
}

Result<ibv_dm*, nic::Error> import_dm(Context& context, std::uint32_t handle) {
  if (!context.is_usable()) return refuse(nic::Error::kGone);
  auto dm = std::make_unique<Dm>();
  const bool is_found = shareables().device_memory.find(
      [&](const Dm& one) {
        return one.face.handle == handle && is_same_device(own(one.face.context), context);
      },
      [&](const Dm& one) {
        dm->nic = one.nic;
        dm->face = one.face;
      });
  if (!is_found) return refuse(nic::Error::kInvalid);
  dm->is_imported = true;
  dm->face.context = &context.table.context;
  hold(context);
  return &dm.release()->face;
}

void dispose(Pd* pd) {
  Context* const context = &own(pd->face.context);
  delete pd;
  release(context);
}

}  // namespace

// No lock: in a forked child it might be held by a thread that is not there.
Shareables& shareables() {
  const nic::Nic* const nic = &nic::Nic::current();
  Shareables* known = of_process.load(std::memory_order_acquire);
  while (!known || known->nic != nic) {
    auto* fresh = new Shareables;
    fresh->nic = nic;
    if (of_process.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *known;
}

void free_abandoned() {
  for (;;) {
    Pd* done = nullptr;
    shareables().abandoned.find([](Pd& pd) { return nic::dealloc_pd(pd.nic).has_value(); },
                                [&](Pd& pd) { done = &pd; });
    if (!done) return;
    shareables().abandoned.remove(*done);
    dispose(done);
  }
}

}  // namespace verbena::verbs

using namespace verbena;

// The descriptor is the context's from then on.
ibv_context* ibv_import_device(int cmd_fd) {
  return verbs::pointer_at_border([&] { return verbs::import_device(cmd_fd); });
}

ibv_pd* ibv_import_pd(ibv_context* context, std::uint32_t pd_handle) {
  return verbs::pointer_at_border([&] { return verbs::import_pd(verbs::own(context), pd_handle); });
}

// What was made on it goes on.
void ibv_unimport_pd(ibv_pd* pd) {
  verbs::Pd& ours = verbs::own(pd);
  if (nic::dealloc_pd(ours.nic)) return verbs::dispose(&ours);
  verbs::shareables().abandoned.add(ours);
}

ibv_mr* ibv_import_mr(ibv_pd* pd, std::uint32_t mr_handle) {
  return verbs::pointer_at_border([&] { return verbs::import_mr(verbs::own(pd), mr_handle); });
}

void ibv_unimport_mr(ibv_mr* mr) { delete &verbs::own(mr); }

ibv_dm* ibv_import_dm(ibv_context* context, std::uint32_t dm_handle) {
  return verbs::pointer_at_border([&] { return verbs::import_dm(verbs::own(context), dm_handle); });
}

void ibv_unimport_dm(ibv_dm* dm) {
  verbs::Context* const context = &verbs::own(dm->context);
  delete &verbs::own(dm);
  verbs::release(context);
}
