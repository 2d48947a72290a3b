// SPDX-License-Identifier: MIT
// The system calls on descriptors of ours, as such: libraries that interpose on
// libc's (socket accelerators, checkers) keep tables by number, for the whole process, and would
// take ours for the program's descriptor of that number. Like libc's: -1 and errno when refused.
#pragma once

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::host::raw {

// libc's syscall() for what is called once or twice a message, whose code has left the processor's
// nearest cache by the time the system returns: this one is a few bytes in the caller's own.
struct Arguments {
  long a;
  const void* b;
  std::size_t c;
  long d;
  const void* e;
  std::uintptr_t f;
};
inline long quick_call(long number, const Arguments& with) {
#if defined(__x86_64__)
  register long r10 __asm__("r10") = with.d;
  register const void* r8 __asm__("r8") = with.e;
  register std::uintptr_t r9 __asm__("r9") = with.f;
  long result = number;
  __asm__ volatile("syscall"
                   : "+a"(result)
                   : "D"(with.a), "S"(with.b), "d"(with.c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
#else
  return syscall(number, with.a, with.b, with.c, with.d, with.e, with.f);
#endif
}

inline int close(int fd) { return static_cast<int>(syscall(SYS_close, fd)); }
inline int duplicate(int fd, int from) {
  return static_cast<int>(syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, from));
}
inline ssize_t read(int fd, void* into, std::size_t size) {
  return syscall(SYS_read, fd, into, size);
}

// Files with positions.
inline int open(const char* path, int flags) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, 0));
}
inline off_t position(int fd) { return syscall(SYS_lseek, fd, off_t{0}, SEEK_CUR); }
inline bool set_position(int fd, std::uint64_t position) {
  return syscall(SYS_lseek, fd, position, SEEK_SET) >= 0;
}
inline ssize_t read_at(int fd, void* into, std::size_t size, std::uint64_t position) {
  return syscall(SYS_pread64, fd, into, size, position);
}
inline ssize_t write_piece_at(int fd, const iovec* piece, std::uint64_t position) {
  return syscall(SYS_pwritev, fd, piece, 1L, position, 0L);
}

// Sockets.
inline int seqpacket_socket() {
  constexpr int kType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
  return static_cast<int>(syscall(SYS_socket, AF_UNIX, kType, 0));
}
inline int bind(int fd, const sockaddr* name, socklen_t size) {
  return static_cast<int>(syscall(SYS_bind, fd, name, size));
}
inline int listen(int fd, int backlog) {
  return static_cast<int>(syscall(SYS_listen, fd, backlog));
}
inline int connect(int fd, const sockaddr* name, socklen_t size) {
  return static_cast<int>(syscall(SYS_connect, fd, name, size));
}
inline int accept(int fd) {
  constexpr int kFlags = SOCK_CLOEXEC | SOCK_NONBLOCK;
  return static_cast<int>(syscall(SYS_accept4, fd, nullptr, nullptr, kFlags));
}
inline int peer_credentials(int fd, ucred& who) {
  socklen_t size = sizeof who;
  return static_cast<int>(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &who, &size));
}
inline ssize_t receive_from(int fd, void* into, std::size_t size, int flags, void* name,
                            socklen_t& name_size) {
  const auto name_size_at = reinterpret_cast<std::uintptr_t>(&name_size);
  return quick_call(SYS_recvfrom, {fd, into, size, flags, name, name_size_at});
}
// Of a socket that is connected, without waiting: how long the packet was, which may be more than
// `size`.
inline ssize_t receive(int fd, void* into, std::size_t size) {
  return quick_call(SYS_recvfrom, {fd, into, size, MSG_DONTWAIT | MSG_TRUNC, nullptr, 0});
}
inline ssize_t send_to(int fd, const iovec& piece, int flags, const void* name, socklen_t size) {
  return quick_call(SYS_sendto, {fd, piece.iov_base, piece.iov_len, flags, name, size});
}
inline ssize_t sendmsg(int fd, const msghdr& message, int flags) {
  return syscall(SYS_sendmsg, fd, &message, flags);
}
inline ssize_t recvmsg(int fd, msghdr& message, int flags) {
  return syscall(SYS_recvmsg, fd, &message, flags);
}

// Pipes, as a way of pages to somewhere else.
inline bool make_pipe(std::array<int, 2>& ends) {  // to read, and to write
  return syscall(SYS_pipe2, ends.data(), O_CLOEXEC | O_NONBLOCK) == 0;
}
// In bytes, of whole pages.
inline long pipe_size(int fd) { return syscall(SYS_fcntl, fd, F_GETPIPE_SZ); }
// The system may refuse, or give more.
inline void set_pipe_size(int fd, std::size_t bytes) {
  syscall(SYS_fcntl, fd, F_SETPIPE_SZ, bytes);
}
// The pipe holds the pages themselves, and not a copy.
inline ssize_t lend_pages(int pipe, std::span<const iovec> pieces) {
  return quick_call(SYS_vmsplice,
                    {pipe, pieces.data(), pieces.size(), SPLICE_F_NONBLOCK, nullptr, 0});
}
inline ssize_t splice(int pipe, int to, std::size_t size) {
  return quick_call(SYS_splice, {pipe, nullptr, static_cast<std::size_t>(to), 0,
                                 reinterpret_cast<const void*>(size), SPLICE_F_NONBLOCK});
}

// Waiting.
inline int epoll_create() { return static_cast<int>(syscall(SYS_epoll_create1, EPOLL_CLOEXEC)); }
inline int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, fd, event));
}
inline int epoll_wait(int epoll, epoll_event* events, int most, int milliseconds) {
  return static_cast<int>(
      syscall(SYS_epoll_pwait, epoll, events, most, milliseconds, nullptr, std::size_t{8}));
}
// A descriptor that shows the signals of the mask (bit n - 1: signal n).
inline int signal_descriptor(std::uint64_t mask) {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  return static_cast<int>(syscall(SYS_signalfd4, -1, &mask, sizeof mask, kFlags));
}
inline int open_process(pid_t process) {
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
}

// Memory files.
inline int memory_file(const char* name, unsigned flags) {
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}
inline int set_size(int fd, std::size_t size) {
  return static_cast<int>(syscall(SYS_ftruncate, fd, size));
}
inline int take_pages(int fd, std::size_t size) {
  return static_cast<int>(syscall(SYS_fallocate, fd, 0, std::size_t{0}, size));
}
inline int add_seals(int fd, int seals) {
  return static_cast<int>(syscall(SYS_fcntl, fd, F_ADD_SEALS, seals));
}
inline int seals(int fd) { return static_cast<int>(syscall(SYS_fcntl, fd, F_GET_SEALS)); }
inline int status(int fd, struct stat& status) {
  return static_cast<int>(syscall(SYS_fstat, fd, &status));
}
inline int file_system(int fd, struct statfs& system) {
  return static_cast<int>(syscall(SYS_fstatfs, fd, &system));
}

// For what the kernel tells of network interfaces; never waits.
inline int route_socket() {
  constexpr int kType = SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK;
  return static_cast<int>(syscall(SYS_socket, AF_NETLINK, kType, 0));  // NETLINK_ROUTE
}

// For names and messages of unix datagrams; never waits.
inline int datagram_socket() {
  constexpr int kType = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  return static_cast<int>(syscall(SYS_socket, AF_UNIX, kType, 0));
}

}  // namespace verbena::host::raw
