// SPDX-License-Identifier: MIT
// Listens by rdma_cm, and never answers a request: prints `asked`, and sleeps until it is killed.
//
//   silent PORT
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

int main(int count, char** words) {
  rdma_event_channel* const events = rdma_create_event_channel();
  rdma_cm_id* listener = nullptr;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htobe16(static_cast<std::uint16_t>(count > 1 ? std::atoi(words[1]) : 0));
  rdma_cm_event* event = nullptr;
  if (!events || rdma_create_id(events, &listener, nullptr, RDMA_PS_TCP) != 0 ||
      rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&any)) != 0 ||
      rdma_listen(listener, 1) != 0 || rdma_get_cm_event(events, &event) != 0) {
    std::perror("silent");
    return 1;
  }
  std::puts("asked");
  std::fflush(stdout);
  for (;;)
    pause();
}
