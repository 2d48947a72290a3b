// SPDX-License-Identifier: MIT
// An rsocket: what all kinds have in common, and the table of those that are open. Its descriptor
// is an epoll(7) over whatever may bring news, so a thread that waits for several sockets, and for
// other descriptors, sleeps in one poll(2).
//
// Functions give 0 or an errno value, or a Result with one.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rsocket/settings.h"
#include "rsocket/waiter.h"

namespace verbena::rsocket {

// What a message names besides its bytes.
struct Sender {
  sockaddr_storage address{};
  socklen_t size = 0;
};

inline std::size_t total(std::span<const iovec> parts) {
  std::size_t sum = 0;
  for (const iovec& part : parts)
    sum += part.iov_len;
  return sum;
}

class Socket {
 public:
  Socket(int family, int type);
  virtual ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return events_.get(); }
  int family() const { return family_; }
  int type() const { return type_; }
  bool in_owner() const;  // not in a forked child

  virtual int bind(const sockaddr* address, socklen_t size) = 0;
  virtual int listen(int backlog) = 0;
  virtual Result<Socket*, int> accept() = 0;
  virtual int connect(const sockaddr* address, socklen_t size) = 0;
  virtual int shutdown(int how) = 0;
  virtual void close() = 0;  // flushes; the last call

  virtual Result<std::size_t, int> receive(std::span<const iovec> parts, int flags,
                                           Sender* sender) = 0;
  virtual Result<std::size_t, int> send(std::span<const iovec> parts, int flags, const sockaddr* to,
                                        socklen_t size) = 0;

  virtual int name(sockaddr_storage& address, socklen_t& size) = 0;
  virtual int peer_name(sockaddr_storage& address, socklen_t& size) = 0;
  virtual int set_option(int level, int option, const void* value, socklen_t size) = 0;
  virtual int get_option(int level, int option, void* value, socklen_t* size) = 0;
  // SO_RCVTIMEO and SO_SNDTIMEO, of every kind.
  int set_timeout(int option, const void* value, socklen_t size);
  int get_timeout(int option, void* value, socklen_t* size) const;
  int status_flags() const { return flags_.load(std::memory_order_relaxed); }
  void set_status_flags(int flags) { flags_.store(flags, std::memory_order_relaxed); }

  virtual Result<off_t, int> map(std::span<std::byte> memory, int protection, off_t offset);
  virtual int unmap(std::span<std::byte> memory);
  virtual Result<std::size_t, int> write_mapped(std::span<const std::byte> bytes, off_t offset,
                                                int flags);

  // For rpoll: what it is ready for now, of `wanted` and what nobody needs to want.
  short look(short wanted);
  // The same, and from now on news of it wake the waiter or make fd() readable.
  short begin_wait(Waiting& waiting, short wanted);
  void end_wait(Waiting& waiting);

 protected:
  using Lock = std::unique_lock<Mutex>;

  // Under the lock: takes whatever came. Whether something did.
  virtual bool advance() = 0;
  // Under the lock: from now on news make fd() readable, once those that are known are taken.
  virtual void arm() = 0;
  virtual short readiness() = 0;  // all of it

  void step();  // advances, and wakes who waits
  void wake_all();
  // Of a call that begins now.
  Instant receive_deadline() const { return deadline_of(receive_patience_); }
  Instant send_deadline() const { return deadline_of(send_patience_); }
  void take_patience_of(const Socket& other);
  bool watch(int fd);
  bool is_nonblocking(int flags) const;
  // Waits until `is_ready`, at most until then. 0, EAGAIN, or EINTR.
  template <class Ready>
  int wait(Lock& held, bool nonblocking, Instant deadline, Ready is_ready);

  Mutex lock;
  Settings settings;

 private:
  friend class Held;
  friend struct Forks;

  void add(Waiting& waiting);
  void remove(Waiting& waiting);
  int sleep(Lock& held, Waiter& waiter, Instant deadline);
  void free_in_child();
  static Instant deadline_of(const std::atomic<std::int64_t>& patience);

  const int family_;
  const int type_;
  const unsigned owner_;
  std::atomic<int> flags_{0};
  // Microseconds; 0: without end.
  std::atomic<std::int64_t> receive_patience_{0};
  std::atomic<std::int64_t> send_patience_{0};
  UniqueFd events_;
  Waiting* waiting_ = nullptr;
  std::atomic<int> uses_{1};  // the table's, and of each call
};

// A socket during one call: another thread may close it meanwhile.
class Held {
 public:
  explicit Held(int fd);  // null: no rsocket
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  explicit operator bool() const { return socket_ != nullptr; }
  Socket* operator->() const { return socket_; }
  Socket* get() const { return socket_; }
  static void drop(Socket* socket);  // one use of it

 private:
  Socket* socket_ = nullptr;
};

// Enters it by its descriptor, which is the result, or an errno value: then it is deleted.
Result<int, int> enter(Socket* socket);
// The caller closes it.
void take_out(int fd);

template <class Ready>
int Socket::wait(Lock& held, bool nonblocking, Instant deadline, Ready is_ready) {
  step();
  if (is_ready()) return 0;
  if (nonblocking) return EAGAIN;
  const Instant spin_end = clock_now() + Duration::microseconds(settings.polling_microseconds);
  while (clock_now() < spin_end) {
    held.unlock();
    spin_pause();
    held.lock();
    step();
    if (is_ready()) return 0;
  }
  Waiter waiter;
  Waiting waiting(waiter);
  add(waiting);
  for (;;) {
    arm();
    step();
    int error = 0;
    if (!is_ready()) error = sleep(held, waiter, deadline);
    if (error == 0) {
      step();
      if (!is_ready()) continue;
    }
    remove(waiting);
    return error;
  }
}

}  // namespace verbena::rsocket
