#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>
#include <map>

#include "host/interfaces.h"
namespace verbena::host {
static std::map<std::string, Interface> all() {
  std::map<std::string, Interface> m;
  ifaddrs* l;
  getifaddrs(&l);
  for (auto* i = l; i; i = i->ifa_next) {
    auto& x = m[i->ifa_name];
    x.name = i->ifa_name;
    x.index = if_nametoindex(i->ifa_name);
    x.mtu = x.name == "lo" ? 65536 : 1500;
    x.is_up = i->ifa_flags & IFF_UP;
    x.is_loopback = i->ifa_flags & IFF_LOOPBACK;
    if (!i->ifa_addr) continue;
    Gid g;
    if (i->ifa_addr->sa_family == AF_INET) {
      g.bytes[10] = g.bytes[11] = 0xff;
      memcpy(g.bytes + 12, &((sockaddr_in*)i->ifa_addr)->sin_addr, 4);
      x.addresses.push_back(g);
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      memcpy(g.bytes, &((sockaddr_in6*)i->ifa_addr)->sin6_addr, 16);
      x.addresses.push_back(g);
    }
  }
  freeifaddrs(l);
  return m;
}
std::vector<Interface> device_interfaces() {
  auto m = all();
  std::vector<Interface> v;
  if (m.count("eth0")) v.push_back(m["eth0"]);
  v.push_back(m["lo"]);
  return v;
}
bool is_local_address(const Gid& g) {
  for (auto& [n, i] : all())
    for (auto& a : i.addresses)
      if (a == g) return true;
  return false;
}
}  // namespace verbena::host
