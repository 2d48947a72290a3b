// SPDX-License-Identifier: MIT
// For upstream's datagram rsockets on RoCE, by LD_PRELOAD. They begin with an address handle that
// has a LID and no GRH, which RoCE refuses, so that on RoCE they do not even reach themselves. Here
// it gets a GRH, with the address of the device itself; what they send afterwards is all their own.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <cstdint>

namespace {

constexpr std::uint8_t kHops = 64;

// The first address of RoCEv2 that is one of IPv4.
bool find_gid(ibv_context* context, std::uint8_t port, ibv_global_route& route) {
  for (std::uint32_t index = 0; index < 16; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port, index, &entry, 0) != 0) continue;
    const bool is_ipv4 = entry.gid.global.subnet_prefix == 0;
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || !is_ipv4) continue;
    route.dgid = entry.gid;
    route.sgid_index = static_cast<std::uint8_t>(index);
    route.hop_limit = kHops;
    return true;
  }
  return false;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] ibv_ah* ibv_create_ah(ibv_pd* domain,
                                                                ibv_ah_attr* wanted) {
  static const auto real =
      reinterpret_cast<decltype(&ibv_create_ah)>(dlsym(RTLD_NEXT, "ibv_create_ah"));
  ibv_ah_attr attributes = *wanted;
  if (!attributes.is_global && find_gid(domain->context, attributes.port_num, attributes.grh)) {
    attributes.is_global = 1;
  }
  return real(domain, &attributes);
}
