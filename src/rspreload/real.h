// SPDX-License-Identifier: MIT
// libc's own functions, behind ours.
#pragma once

#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <csignal>

namespace verbena::rspreload {

// Finds the next one of that name, once.
template <class Function>
class Real {
 public:
  explicit constexpr Real(const char* name) : name_(name) {}
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    void* found = found_.load(std::memory_order_acquire);
    if (!found) {
      found = dlsym(RTLD_NEXT, name_);
      found_.store(found, std::memory_order_release);
    }
    return reinterpret_cast<Function*>(found)(arguments...);
  }

 private:
  const char* name_;
  std::atomic<void*> found_{nullptr};
};

namespace real {

inline constinit Real<int(int, int, int)> socket("socket");
inline constinit Real<int(int, const sockaddr*, socklen_t)> bind("bind");
inline constinit Real<int(int, int)> listen("listen");
inline constinit Real<int(int, sockaddr*, socklen_t*)> accept("accept");
inline constinit Real<int(int, sockaddr*, socklen_t*, int)> accept4("accept4");
inline constinit Real<int(int, const sockaddr*, socklen_t)> connect("connect");
inline constinit Real<ssize_t(int, void*, size_t, int)> recv("recv");
inline constinit Real<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)> recvfrom("recvfrom");
inline constinit Real<ssize_t(int, msghdr*, int)> recvmsg("recvmsg");
inline constinit Real<int(int, mmsghdr*, unsigned, int, timespec*)> recvmmsg("recvmmsg");
inline constinit Real<ssize_t(int, void*, size_t)> read("read");
inline constinit Real<ssize_t(int, const iovec*, int)> readv("readv");
inline constinit Real<ssize_t(int, const void*, size_t, int)> send("send");
inline constinit Real<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> sendto(
    "sendto");
inline constinit Real<ssize_t(int, const msghdr*, int)> sendmsg("sendmsg");
inline constinit Real<int(int, mmsghdr*, unsigned, int)> sendmmsg("sendmmsg");
inline constinit Real<ssize_t(int, const void*, size_t)> write("write");
inline constinit Real<ssize_t(int, const iovec*, int)> writev("writev");
inline constinit Real<ssize_t(int, int, off64_t*, size_t)> sendfile("sendfile64");
inline constinit Real<int(pollfd*, nfds_t, int)> poll("poll");
inline constinit Real<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> ppoll("ppoll");
inline constinit Real<int(int, fd_set*, fd_set*, fd_set*, timeval*)> select("select");
inline constinit Real<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)>
    pselect("pselect");
inline constinit Real<int(int)> epoll_create1("epoll_create1");
inline constinit Real<int(int, int, int, epoll_event*)> epoll_ctl("epoll_ctl");
inline constinit Real<int(int, epoll_event*, int, int)> epoll_wait("epoll_wait");
inline constinit Real<int(int, epoll_event*, int, int, const sigset_t*)> epoll_pwait("epoll_pwait");
inline constinit Real<int(int, epoll_event*, int, const timespec*, const sigset_t*)> epoll_pwait2(
    "epoll_pwait2");
inline constinit Real<int(int, int)> shutdown("shutdown");
inline constinit Real<int(int)> close("close");
inline constinit Real<int(unsigned, unsigned, int)> close_range("close_range");
inline constinit Real<int(int)> dup("dup");
inline constinit Real<int(int, int)> dup2("dup2");
inline constinit Real<int(int, int, int)> dup3("dup3");
inline constinit Real<int(int, sockaddr*, socklen_t*)> getpeername("getpeername");
inline constinit Real<int(int, sockaddr*, socklen_t*)> getsockname("getsockname");
inline constinit Real<int(int, int, int, const void*, socklen_t)> setsockopt("setsockopt");
inline constinit Real<int(int, int, int, void*, socklen_t*)> getsockopt("getsockopt");
inline constinit Real<int(int, int, long)> fcntl("fcntl64");
inline constinit Real<int(int, unsigned long, void*)> ioctl("ioctl");

}  // namespace real
}  // namespace verbena::rspreload
