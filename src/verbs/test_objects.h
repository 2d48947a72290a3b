// SPDX-License-Identifier: MIT
// Objects of the verbs that an input makes and destroys in any order: domains, memory, windows. In
// the end everything can be destroyed. For tests only.
#pragma once

#include "verbs/abi/entry.h"

// After entry.h, which wants to be first.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/assert.h"
#include "base/test_input.h"

namespace verbena::verbs {

// What outlives an input: the device, and memory to register.
struct CallsWorld {
  static constexpr std::size_t kBytes = 64 * 1024;

  ibv_context* context = nullptr;
  std::byte* memory = nullptr;

  CallsWorld() {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    for (int i = 0; i < count && !context; ++i) {
      if (std::string_view(ibv_get_device_name(list[i])) == "vrb_lo")
        context = ibv_open_device(list[i]);
    }
    ibv_free_device_list(list);
    VERBENA_ASSERT(context != nullptr);
    // Behind it is nothing: what is registered is ours to be written.
    void* const at =
        mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    VERBENA_ASSERT(at != MAP_FAILED);
    memory = static_cast<std::byte*>(at);
    VERBENA_ASSERT(mprotect(memory + kBytes, kBytes, PROT_NONE) == 0);
    VERBENA_ASSERT(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
  }
};

class CallsObjects {
 public:
  CallsObjects(CallsWorld& of, TestInput from) : world(of), input(from) {}
  ~CallsObjects() { destroy_all(); }
  CallsObjects(const CallsObjects&) = delete;
  CallsObjects& operator=(const CallsObjects&) = delete;

 protected:
  static constexpr std::size_t kMost = 3;  // of each kind
  template <class T>
  using Some = std::array<T*, kMost>;

  template <class T>
  T*& any(Some<T>& all) {
    return all[input.below(kMost)];
  }
  int number() {
    const std::uint8_t code = input.take();
    return code < 0xF8 ? code : input.take<int>();
  }
  std::byte* place() { return world.memory + input.take<std::uint16_t>() % CallsWorld::kBytes; }

  ibv_sge sge() {
    const std::uint8_t how = input.take();
    ibv_sge one{};
    one.addr = how == 0xFF ? input.take<std::uint64_t>() : reinterpret_cast<std::uint64_t>(place());
    one.length = how >= 0xF0 ? input.take<std::uint32_t>() : input.take<std::uint16_t>() & 0xFFF;
    const ibv_mr* const region = regions[how % kMost];
    one.lkey = region && (how & 0x40) == 0 ? region->lkey : how;
    return one;
  }

  // -- domains and memory
  void step_of_memory(unsigned what) {
    switch (what) {
      case 0: return create(domains, [&] { return ibv_alloc_pd(world.context); });
      case 1: return destroy(any(domains), ibv_dealloc_pd);
      case 2:
      case 3: return reg();
      case 4: return destroy(any(regions), ibv_dereg_mr);
      case 5: return rereg();
      case 6: return alloc_window();
      case 7: return destroy(any(windows), ibv_dealloc_mw);
      case 8: return bind();
      case 9: return alloc_device_memory();
      case 10: return destroy(any(memories), ibv_free_dm);
      case 11: return advise();
      case 12: return open_xrc();
      case 13: return destroy(any(xrc_domains), ibv_close_xrcd);
      case 14: return query();
      default: return copy_device_memory();
    }
  }
  template <class T, class Make>
  void create(Some<T>& all, Make make) {
    T*& object = any(all);
    if (!object) object = make();
  }
  template <class T>
  static void destroy(T*& object, int (*how)(T*)) {
    if (object && how(object) == 0) object = nullptr;
  }
  static void destroy(ibv_mw*& object, int (*how)(ibv_mw*)) { destroy<ibv_mw>(object, how); }
  void reg() {
    ibv_mr*& region = any(regions);
    ibv_pd* const domain = any(domains);
    if (region || !domain) return;
    const std::uint8_t how = input.take();
    const int access = (how & 1) != 0 ? input.take<int>() : kAllAccess;
    const std::size_t length = input.take<std::uint16_t>();
    if ((how & 0xE0) == 0xE0) {
      auto* const nowhere = reinterpret_cast<void*>(input.take<std::uint16_t>() * 4096ULL);
      region = ibv_reg_mr(domain, nowhere, input.take<std::uint64_t>(), kAllAccess);
    } else if ((how & 2) != 0) {
      region = ibv_reg_mr_iova2(domain, place(), length, input.take<std::uint64_t>(),
                                static_cast<unsigned>(access));
    } else if ((how & 4) != 0) {
      region = ibv_reg_mr(domain, place(), length, access & ~IBV_ACCESS_HUGETLB);
    } else {
      region = ibv_reg_mr(domain, world.memory, CallsWorld::kBytes, access);
    }
  }
  void rereg() {
    ibv_mr* const region = any(regions);
    if (!region) return;
    const int flags = input.take<int>();
    static_cast<void>(ibv_rereg_mr(region, flags, any(domains), place(),
                                   input.take<std::uint16_t>(), kAllAccess));
  }
  void alloc_window() {
    ibv_pd* const domain = any(domains);
    const auto type = input.one_in(2) ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;
    if (domain) create(windows, [&] { return ibv_alloc_mw(domain, type); });
  }
  void bind() {
    ibv_qp* const qp = any(qps);
    ibv_mw* const window = any(windows);
    if (!qp || !window) return;
    ibv_mw_bind request{};
    request.send_flags = input.take() & ~unsigned{IBV_SEND_INLINE};
    request.bind_info = bind_info();
    static_cast<void>(ibv_bind_mw(qp, window, &request));
  }
  ibv_mw_bind_info bind_info() {
    return {.mr = any(regions),
            .addr = reinterpret_cast<std::uint64_t>(place()),
            .length = input.take<std::uint16_t>(),
            .mw_access_flags = input.take()};
  }
  void alloc_device_memory() {
    ibv_alloc_dm_attr wanted{};
    wanted.length = input.take<std::uint16_t>();
    wanted.comp_mask = input.one_in(8);
    create(memories, [&] { return ibv_alloc_dm(world.context, &wanted); });
    ibv_dm* const memory = any(memories);
    ibv_pd* const domain = any(domains);
    if (!memory || !domain || !input.one_in(2)) return;
    create(regions, [&] {
      return ibv_reg_dm_mr(domain, memory, input.take<std::uint16_t>(), input.take<std::uint16_t>(),
                           IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
    });
  }
  void copy_device_memory() {
    ibv_dm* const memory = any(memories);
    if (!memory) return;
    std::array<std::byte, 256> here{};
    const std::uint64_t offset = input.one_in(8) ? input.take<std::uint64_t>() : input.take();
    static_cast<void>(ibv_memcpy_to_dm(memory, offset, here.data(), input.take()));
    static_cast<void>(ibv_memcpy_from_dm(here.data(), memory, offset, input.take()));
  }
  void advise() {
    ibv_pd* const domain = any(domains);
    if (!domain) return;
    std::array<ibv_sge, 2> list{sge(), sge()};
    static_cast<void>(ibv_advise_mr(domain, static_cast<ibv_advise_mr_advice>(input.below(4)),
                                    input.take(), list.data(), input.below(3)));
  }
  void open_xrc() {
    ibv_xrcd_init_attr wanted{};
    wanted.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    wanted.fd = -1;
    wanted.oflags = input.one_in(4) ? input.take() : O_CREAT;
    create(xrc_domains, [&] { return ibv_open_xrcd(world.context, &wanted); });
  }
  void query() {
    ibv_port_attr port{};
    static_cast<void>(___ibv_query_port(world.context, input.take(), &port));
    ibv_gid gid{};
    static_cast<void>(ibv_query_gid(world.context, input.take(), number(), &gid));
    __be16 pkey = 0;
    static_cast<void>(ibv_query_pkey(world.context, input.take(), number(), &pkey));
    ibv_async_event event{};
    if (ibv_get_async_event(world.context, &event) == 0) ibv_ack_async_event(&event);
  }

  // Those that are there, which must be possible now.
  template <class T>
  static void destroy_each(Some<T>& objects, int (*how)(T*)) {
    for (T*& each : objects) {
      if (!each) continue;
      const int error = how(each);
      VERBENA_ASSERT(error == 0);
      each = nullptr;
    }
  }
  void destroy_all() {
    destroy_each(qps, ibv_destroy_qp);
    destroy_each(addresses, ibv_destroy_ah);
    destroy_each(windows, ibv_dealloc_mw);
    destroy_each(srqs, ibv_destroy_srq);
    destroy_each(cqs, ibv_destroy_cq);
    destroy_each(channels, ibv_destroy_comp_channel);
    destroy_each(regions, ibv_dereg_mr);
    destroy_each(memories, ibv_free_dm);
    destroy_each(xrc_domains, ibv_close_xrcd);
    destroy_each(domains, ibv_dealloc_pd);
  }

  static constexpr std::uint32_t kQkey = 0x1234;
  static constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                    IBV_ACCESS_MW_BIND;

  CallsWorld& world;
  TestInput input;
  Some<ibv_pd> domains{};
  Some<ibv_mr> regions{};
  Some<ibv_mw> windows{};
  Some<ibv_dm> memories{};
  Some<ibv_xrcd> xrc_domains{};
  Some<ibv_comp_channel> channels{};
  Some<ibv_cq> cqs{};
  const ibv_cq* extended = nullptr;  // the last one that was made as such
  Some<ibv_srq> srqs{};
  Some<ibv_qp> qps{};
  Some<ibv_ah> addresses{};
};

}  // namespace verbena::verbs
