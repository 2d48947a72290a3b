// SPDX-License-Identifier: MIT
// A program that is not linked with libibverbs: loads and unloads it, also from threads, and uses
// it in between, as MPI and NCCL do.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "FAIL %s: %s\n", what, dlerror());
  std::_Exit(1);
}

template <class Function>
Function* find(void* library, const char* name) {
  void* found = dlvsym(library, name, "IBVERBS_1.1");
  if (!found) fail(name);
  return reinterpret_cast<Function*>(found);
}

void use(void* library, bool with_queue_pair) {
  int count = 0;
  ibv_device** list = find<decltype(ibv_get_device_list)>(library, "ibv_get_device_list")(&count);
  if (!list || count == 0) fail("no device");
  ibv_context* context = find<decltype(ibv_open_device)>(library, "ibv_open_device")(list[0]);
  find<decltype(ibv_free_device_list)>(library, "ibv_free_device_list")(list);
  if (!context) fail("ibv_open_device");
  if (with_queue_pair) {
    ibv_pd* pd = find<decltype(ibv_alloc_pd)>(library, "ibv_alloc_pd")(context);
    ibv_cq* cq = find<ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int)>(
        library, "ibv_create_cq")(context, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {1, 1, 1, 1, 0};
    ibv_qp* qp = find<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)>(library, "ibv_create_qp")(pd, &wanted);
    if (!qp) fail("ibv_create_qp");
    if (find<int(ibv_qp*)>(library, "ibv_destroy_qp")(qp) != 0) fail("ibv_destroy_qp");
    if (find<int(ibv_cq*)>(library, "ibv_destroy_cq")(cq) != 0) fail("ibv_destroy_cq");
    if (find<int(ibv_pd*)>(library, "ibv_dealloc_pd")(pd) != 0) fail("ibv_dealloc_pd");
  }
  if (find<int(ibv_context*)>(library, "ibv_close_device")(context) != 0) fail("ibv_close_device");
}

void load_once(const char* name, bool with_queue_pair) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(name);
  use(library, with_queue_pair);
  if (dlclose(library) != 0) fail("dlclose");
}

}  // namespace

int main() {
  for (int i = 0; i < 30; ++i)
    load_once(i % 2 == 0 ? "libibverbs.so.1" : "libibverbs.so", false);
  std::thread([] { load_once("libibverbs.so.1", false); }).join();
  std::thread([] { load_once("libibverbs.so.1", true); }).join();
  // The threads of the library live on in code that was "unloaded".
  for (int i = 0; i < 30; ++i)
    load_once("libibverbs.so", true);
  return 0;
}
