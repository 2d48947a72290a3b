// SPDX-License-Identifier: MIT
// Data, mapped memory, and the end of a stream.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {
namespace {

// A message's size while a long one is copied: the peer begins with the first while we copy on.
constexpr std::uint32_t kFirstPiece = 2048;
constexpr std::uint32_t kPieceMax = 65536;
// Room from which on a program is told to send.
constexpr std::uint32_t kRoomMin = 2048;
// How long close() waits for what is on its way while nothing moves.
constexpr Duration kFlushPatience = Duration::seconds(10);

}  // namespace

bool StreamSocket::can_send() const {
  return has_stream() && stream_->may_send() && channel_.room() >= kRoomMin;
}

bool StreamSocket::can_receive() const { return has_stream() && stream_->readable() > 0; }

// Takes what the NIC brought. Whether something did.
bool StreamSocket::collect() {
  const Channel::News news = channel_.collect(*stream_);
  if (news.is_lost && phase_ == Phase::kConnected) {
    if (stream_->is_connected() && !stream_->peer_said_goodbye()) {
      error_ = news.error != 0 ? news.error : ECONNRESET;
    }
    lose_connection();
  }
  if (phase_ == Phase::kConnected) tell();
  return news.count > 0;
}

void StreamSocket::tell() {
  while (channel_.has_control_slot()) {
    const auto write = stream_->next_control();
    if (!write) return;
    if (channel_.post(*write) != 0) return stream_->lost();
  }
}

// Why nothing can be sent or received.
int StreamSocket::gone_error() const {
  if (error_ != 0) return error_;
  return phase_ == Phase::kConnected || phase_ == Phase::kOver ? EPIPE : ENOTCONN;
}

std::size_t StreamSocket::copy_out(std::span<const iovec> parts, int flags) {
  const std::span<const std::byte> ring = channel_.received();
  std::uint32_t left = stream_->readable();
  std::uint32_t at = stream_->read_offset();
  std::uint32_t taken = 0;
  for (const iovec& part : parts) {
    auto* to = static_cast<std::byte*>(part.iov_base);
    std::size_t room = part.iov_len;
    while (room > 0 && left > 0) {
      const std::size_t bytes = std::min<std::size_t>({room, left, ring.size() - at});
      std::memcpy(to, ring.data() + at, bytes);
      to += bytes;
      room -= bytes;
      left -= static_cast<std::uint32_t>(bytes);
      taken += static_cast<std::uint32_t>(bytes);
      at = static_cast<std::uint32_t>((at + bytes) % ring.size());
    }
  }
  if ((flags & MSG_PEEK) == 0) {
    stream_->consumed(taken);
    if (phase_ == Phase::kConnected) tell();
  }
  return taken;
}

Result<std::size_t, int> StreamSocket::receive(std::span<const iovec> parts, int flags, Sender*) {
  Lock held(lock);
  if (!in_owner()) return refuse(EIO);
  const std::size_t wanted = total(parts);
  std::size_t taken = 0;
  const Instant deadline = receive_deadline();
  std::vector<iovec> rest(parts.begin(), parts.end());
  std::span<iovec> left(rest);
  do {
    const int waited = wait(held, is_nonblocking(flags), deadline, [this] {
      return can_receive() || (!is_connecting() && !(has_stream() && stream_->is_readable()));
    });
    if (waited != 0) {
      if (taken > 0) return taken;
      return refuse(waited);
    }
    if (!can_receive()) {
      if (taken > 0) return taken;
      if (error_ != 0 || !has_stream()) return refuse(gone_error());
      return std::size_t{0};
    }
    std::size_t got = copy_out(left, flags);
    taken += got;
    while (!left.empty() && got >= left.front().iov_len) {
      got -= left.front().iov_len;
      left = left.subspan(1);
    }
    if (!left.empty()) {
      left.front().iov_base = static_cast<std::byte*>(left.front().iov_base) + got;
      left.front().iov_len -= got;
    }
  } while ((flags & (MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL && taken < wanted);
  return taken;
}

// Sends what fits now into one message.
Result<std::uint32_t, int> StreamSocket::send_some(std::span<const iovec> parts, std::size_t skip,
                                                   std::size_t left) {
  std::uint32_t piece = kPieceMax;
  if (skip == 0 && left > kFirstPiece) piece = kFirstPiece;
  const auto wanted =
      static_cast<std::uint32_t>(std::min<std::size_t>({left, piece, channel_.room()}));
  const auto write = stream_->send(wanted);
  VERBENA_ASSERT(write.has_value());
  if (const int error = channel_.post(*write, parts, skip)) {
    stream_->lost();
    error_ = error;
    return refuse(error);
  }
  return write->length;
}

Result<std::size_t, int> StreamSocket::send(std::span<const iovec> parts, int flags,
                                            const sockaddr*, socklen_t) {
  Lock held(lock);
  if (!in_owner()) return refuse(EIO);
  const std::size_t size = total(parts);
  std::size_t sent = 0;
  const Instant deadline = send_deadline();
  const auto is_over = [this] {
    return !is_connecting() && !(has_stream() && stream_->is_writable());
  };
  while (sent < size || size == 0) {
    // A little more than nothing goes even into little room: the end of a message.
    const auto fits = [&] {
      return has_stream() && stream_->may_send() &&
             channel_.room() >= std::min<std::size_t>(size - sent, kRoomMin) && channel_.room() > 0;
    };
    if (!fits() || is_over() || is_connecting()) {
      const int waited = wait(held, is_nonblocking(flags), deadline,
                              [&] { return is_over() || (fits() && !is_connecting()); });
      if (waited != 0) {
        if (sent > 0) return sent;
        return refuse(waited);
      }
    }
    if (is_over()) {
      if (sent > 0) return sent;
      return refuse(gone_error());
    }
    if (size == 0) return sent;
    const auto done = send_some(parts, sent, size - sent);
    if (!done) return refuse(done.error());
    sent += *done;
  }
  step();  // takes answers, so that the next call has room
  return sent;
}

Result<off_t, int> StreamSocket::map(std::span<std::byte> memory, int protection, off_t offset) {
  const Lock held(lock);
  step();
  if (!in_owner()) return refuse(EIO);
  if (phase_ != Phase::kConnected) return refuse(ENOTCONN);
  if ((protection & ~PROT_WRITE) != 0 || memory.empty()) return refuse(EINVAL);
  const bool is_remote = (protection & PROT_WRITE) != 0;
  if (memory.size() > UINT32_MAX) return refuse(EINVAL);
  const int access = IBV_ACCESS_LOCAL_WRITE | (is_remote ? IBV_ACCESS_REMOTE_WRITE : 0);
  ibv_mr* const region = ibv_reg_mr(channel_.domain(), memory.data(), memory.size(), access);
  if (!region) return refuse(errno);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uint64_t at = offset == -1 ? address : static_cast<std::uint64_t>(offset);
  Mapping mapping{region, memory, std::nullopt};
  if (is_remote) {
    mapping.index =
        stream_->map({at, {address, region->rkey, static_cast<std::uint32_t>(memory.size())}});
    if (!mapping.index) {
      ibv_dereg_mr(region);
      return refuse(ENOBUFS);
    }
    tell();
  }
  mappings_.push_back(mapping);
  return static_cast<off_t>(at);
}

int StreamSocket::unmap(std::span<std::byte> memory) {
  const Lock held(lock);
  const auto found =
      std::find_if(mappings_.begin(), mappings_.end(), [memory](const Mapping& each) {
        return each.memory.data() == memory.data() && each.memory.size() == memory.size();
      });
  if (found == mappings_.end()) return EINVAL;
  if (found->index && has_stream()) {
    stream_->unmap(*found->index);
    if (phase_ == Phase::kConnected) tell();
  }
  const int error = ibv_dereg_mr(found->region);
  mappings_.erase(found);
  return error;
}

Result<std::size_t, int> StreamSocket::write_mapped(std::span<const std::byte> bytes, off_t offset,
                                                    int flags) {
  Lock held(lock);
  if (!in_owner()) return refuse(EIO);
  std::size_t sent = 0;
  const Instant deadline = send_deadline();
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  while (sent < bytes.size()) {
    const auto is_over = [this] {
      return !is_connecting() && !(has_stream() && stream_->is_writable());
    };
    const int waited = wait(held, is_nonblocking(flags), deadline,
                            [&] { return is_over() || (has_stream() && channel_.room() > 0); });
    if (waited != 0 && sent > 0) return sent;
    if (waited != 0) return refuse(waited);
    if (is_over()) return refuse(gone_error());
    const auto wanted = static_cast<std::uint32_t>(
        std::min<std::size_t>({bytes.size() - sent, kPieceMax, channel_.room()}));
    const auto write = stream_->send_mapped(static_cast<std::uint64_t>(offset) + sent, wanted);
    if (!write && sent > 0) return sent;
    if (!write) return refuse(EINVAL);
    if (const int error = channel_.post(*write, {&part, 1}, sent)) return refuse(error);
    sent += write->length;
  }
  return sent;
}

short StreamSocket::readiness() {
  int ready = 0;
  switch (phase_) {
    case Phase::kNew:
    case Phase::kBound: return POLLOUT | POLLHUP;
    case Phase::kListening: return requests_.empty() ? 0 : POLLIN | POLLRDNORM;
    case Phase::kResolving:
    case Phase::kRouting:
    case Phase::kConnecting: return 0;
    case Phase::kFailed: return POLLIN | POLLOUT | POLLERR | POLLHUP;
    case Phase::kConnected:
    case Phase::kOver:
      if (can_receive() || !stream_->is_readable()) ready |= POLLIN | POLLRDNORM;
      if (!stream_->is_readable()) ready |= POLLRDHUP;
      if (can_send() || !stream_->is_writable()) ready |= POLLOUT | POLLWRNORM;
      // As with TCP: who is told of the end has read everything.
      if (!stream_->is_connected() && !can_receive()) ready |= POLLHUP;
      if (error_ != 0) ready |= POLLERR;
  }
  return static_cast<short>(ready);
}

int StreamSocket::shutdown(int how) {
  Lock held(lock);
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return EINVAL;
  if (!in_owner()) return EIO;
  if (phase_ == Phase::kListening) {
    if (how == SHUT_WR) return 0;  // it sends nothing
    phase_ = Phase::kFailed;
    error_ = EINVAL;
    wake_all();
    return 0;
  }
  if (phase_ != Phase::kConnected && phase_ != Phase::kOver) return ENOTCONN;
  stream_->shut_down(how == SHUT_RD   ? Half::kReading
                     : how == SHUT_WR ? Half::kWriting
                                      : Half::kBoth);
  if (phase_ == Phase::kConnected) tell();
  wake_all();
  return 0;
}

// All that was sent must have arrived before the queue pair goes. SO_LINGER limits all of it.
void StreamSocket::flush(Lock& held) {
  const bool has_limit = linger_.l_onoff != 0;
  const Duration patience = has_limit ? Duration::seconds(linger_.l_linger) : kFlushPatience;
  Instant deadline = clock_now() + patience;
  const auto is_over = [this] { return channel_.is_idle() || phase_ != Phase::kConnected; };
  while (!is_over()) {
    const std::uint64_t before = channel_.acknowledged_bytes();
    const int error = wait(held, false, deadline, [&] {
      return is_over() || (!has_limit && channel_.acknowledged_bytes() != before);
    });
    const bool has_moved = channel_.acknowledged_bytes() != before;
    if (has_moved && !has_limit) deadline = clock_now() + patience;
    if (error != 0 && error != EINTR) break;
  }
}

void StreamSocket::close() {
  Lock held(lock);
  if (!in_owner()) return;
  if (phase_ == Phase::kConnected) {
    stream_->shut_down(Half::kBoth);
    tell();
    flush(held);
  }
  for (Mapping& each : mappings_)
    ibv_dereg_mr(each.region);
  mappings_.clear();
  phase_ = Phase::kFailed;
  keep_timer_.reset();
  if (error_ == 0) error_ = EBADF;
  stream_.reset();
  wake_all();
}

}  // namespace verbena::rsocket
