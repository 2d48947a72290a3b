// SPDX-License-Identifier: MIT
// Bytes by streams, datagrams, and mapped memory, and what must come of them. For tests only.
#pragma once

#include "rsocket/test_socket_ends.h"

namespace verbena::rsocket {

// Memory in up to four parts, each as long as it says.
class TestParts {
 public:
  TestParts(TestInput& input, std::size_t size, bool is_one) {
    std::size_t left = size;
    for (unsigned more = is_one ? 0 : input.below(4); more > 0; --more) {
      const std::size_t some = std::min<std::size_t>(left, input.take<std::uint16_t>());
      parts_.emplace_back(some);
      left -= some;
    }
    parts_.emplace_back(left);
    for (Bytes& each : parts_)
      list_.push_back({each.data(), each.size()});
  }
  void fill(std::span<const std::uint8_t> bytes) {
    for (Bytes& each : parts_) {
      std::ranges::copy(bytes.first(each.size()), each.begin());
      bytes = bytes.subspan(each.size());
    }
  }
  Bytes gathered(std::size_t size) const {
    Bytes all;
    for (const Bytes& each : parts_)
      all.insert(all.end(), each.begin(), each.end());
    VERBENA_ASSERT(size <= all.size());
    all.resize(size);
    return all;
  }
  iovec* list() { return list_.data(); }
  int count() const { return static_cast<int>(list_.size()); }
  void* first() const { return list_[0].iov_base; }

 private:
  std::vector<Bytes> parts_;
  std::vector<iovec> list_;
};

class SocketTransfer : public SocketEnds {
 public:
  using SocketEnds::SocketEnds;

 protected:
  enum Form : std::uint8_t { kPlain, kFile, kFileParts, kNamed, kMessage };
  static constexpr std::uint8_t kForms = 5;

  std::size_t length() {
    const std::uint8_t code = input.take();
    if (code < 0xC0) return code;
    return (code & 1) != 0 ? input.take<std::uint16_t>() : std::size_t{code} << 6;
  }
  static bool is_one(Form form) { return form != kFileParts && form != kMessage; }

  // -- sending
  void send(End& end) {
    const auto form = static_cast<Form>(input.below(kForms));
    const std::size_t size = length();
    int flags = input.one_in(4) ? number() : 0;
    if (form == kFile || form == kFileParts) flags = 0;
    const bool has_name = !end.is_stream() && input.take() < 0xC0;
    TestAddress to =
        has_name || (form >= kNamed && input.one_in(8)) ? any_address() : TestAddress{};
    TestParts parts(input, size, is_one(form));
    if (end.is_stream()) return send_stream(end, form, parts, size, flags, to);
    SentDatagram& sent = datagrams.add(world, size);
    parts.fill(sent.bytes);
    const ssize_t done =
        give(end, has_name && is_one(form) ? kNamed : form, parts, size, flags, to);
    VERBENA_ASSERT(done == -1 || done == static_cast<ssize_t>(size));
    sent.is_refused = done < 0;
  }
  void send_stream(End& end, Form form, TestParts& parts, std::size_t size, int flags,
                   TestAddress& to) {
    Flow* const flow = end.outgoing();
    if (flow) parts.fill(world.pattern(flow->start, flow->sent, size));
    const ssize_t done = give(end, form, parts, size, flags, to);
    const int error = errno;
    VERBENA_ASSERT(done >= -1 && done <= static_cast<ssize_t>(size));
    if (!flow) {
      VERBENA_ASSERT(done == -1);
      return;
    }
    if (done > 0) flow->sent += static_cast<std::size_t>(done);
    if (done > 0 && end.connection->is_known) VERBENA_ASSERT(!flow->has_end);
    if (done < 0 && error != EAGAIN) {
      flow->in_doubt += size;
      if (is_sound(end)) {
        const bool is_over = flow->has_end || (flow->is_ignored && end.incoming()->has_end);
        VERBENA_ASSERT(is_over && (error == EPIPE || error == ECONNRESET));
      }
    }
  }
  // A connection of which everything is known, and that nothing but its ends can end.
  static bool is_sound(const End& end) {
    const Connection* const connection = end.connection;
    return connection && connection->is_known && connection->is_accepted && !connection->is_broken;
  }
  ssize_t give(const End& end, Form form, TestParts& parts, std::size_t size, int flags,
               TestAddress& to) {
    sockaddr* const address = to.bytes.empty() ? nullptr : to.get();
    return call([&]() -> ssize_t {
      switch (form) {
        case kPlain: return rsend(end.fd, parts.first(), size, flags);
        case kFile: return rwrite(end.fd, parts.first(), size);
        case kFileParts: return rwritev(end.fd, parts.list(), parts.count());
        case kNamed: return rsendto(end.fd, parts.first(), size, flags, address, to.size());
        case kMessage: break;
      }
      msghdr message{};
      message.msg_name = address;
      message.msg_namelen = to.size();
      message.msg_iov = parts.list();
      message.msg_iovlen = static_cast<std::size_t>(parts.count());
      return rsendmsg(end.fd, &message, flags);
    });
  }

  // -- receiving
  // What receives gave: -1 with errno, or how many.
  ssize_t receive(End& end) {
    const auto form = static_cast<Form>(input.below(kForms));
    const std::size_t size = length();
    int flags = input.one_in(4) ? number() : 0;
    if (form == kFile || form == kFileParts) flags = 0;
    // It waits only where there is nothing.
    const bool is_blocking = end.is_open() && input.one_in(4) && (look(end, POLLIN) & POLLIN) != 0;
    if (is_blocking) flags &= ~MSG_WAITALL;
    if (is_blocking) static_cast<void>(call([&] { return rfcntl(end.fd, F_SETFL, 0L); }));
    const ssize_t done = receive(end, form, size, flags);
    const int error = errno;
    if (is_blocking)
      static_cast<void>(call([&] { return rfcntl(end.fd, F_SETFL, long{O_NONBLOCK}); }));
    errno = error;
    return done;
  }
  ssize_t receive(End& end, Form form, std::size_t size, int flags) {
    TestParts parts(input, size, is_one(form));
    const ssize_t done = take(end, form, parts, size, flags);
    if (!end.is_open()) return done;
    const int error = errno;
    const bool is_peek = (flags & MSG_PEEK) != 0;
    if (end.is_stream()) {
      VERBENA_ASSERT(done >= -1 && done <= static_cast<ssize_t>(size));
      received_stream(end, parts, size, done, error, is_peek);
    } else if (done >= 0) {
      const bool has_whole_size = (flags & MSG_TRUNC) != 0;
      VERBENA_ASSERT(has_whole_size || done <= static_cast<ssize_t>(size));
      const auto got = parts.gathered(std::min(size, static_cast<std::size_t>(done)));
      datagrams.check(got, size, is_peek);
    }
    errno = error;
    return done;
  }
  void received_stream(End& end, const TestParts& parts, std::size_t size, ssize_t done, int error,
                       bool is_peek) {
    Flow* const flow = end.incoming();
    if (!flow) {
      VERBENA_ASSERT(done == -1);
      return;
    }
    if (!end.connection->is_known) return;
    if (done > 0) {
      const auto count = static_cast<std::size_t>(done);
      VERBENA_ASSERT(std::ranges::equal(parts.gathered(count),
                                        world.pattern(flow->start, flow->received, count)));
      VERBENA_ASSERT(flow->received + count <= flow->sent + flow->in_doubt);
      if (!is_peek) flow->received += count;
    }
    if (!is_sound(end)) return;
    if (done < 0) VERBENA_ASSERT(error == EAGAIN);
    if (done != 0 || size == 0 || flow->is_ignored) return;
    VERBENA_ASSERT(flow->has_end && flow->received == flow->sent);
  }
  ssize_t take(const End& end, Form form, TestParts& parts, std::size_t size, int flags) {
    Bytes name(input.one_in(4) ? input.take() : sizeof(sockaddr_in6));
    auto name_size = static_cast<socklen_t>(name.size());
    auto* const from = reinterpret_cast<sockaddr*>(name.data());
    return call([&]() -> ssize_t {
      switch (form) {
        case kPlain: return rrecv(end.fd, parts.first(), size, flags);
        case kFile: return rread(end.fd, parts.first(), size);
        case kFileParts: return rreadv(end.fd, parts.list(), parts.count());
        case kNamed: return rrecvfrom(end.fd, parts.first(), size, flags, from, &name_size);
        case kMessage: break;
      }
      msghdr message{};
      message.msg_name = from;
      message.msg_namelen = name_size;
      message.msg_iov = parts.list();
      message.msg_iovlen = static_cast<std::size_t>(parts.count());
      return rrecvmsg(end.fd, &message, flags);
    });
  }

  // -- mapped memory
  void map(End& end) {
    const std::size_t at = input.take<std::uint16_t>() % kArena;
    const std::size_t size = input.take<std::uint16_t>() % (kArena - at + 1);
    const std::uint8_t how = input.take();
    const int protection = (how & 0x30) == 0x30 ? number() : PROT_WRITE;
    const int flags = (how & 0xC0) == 0xC0 ? number() : 0;
    off_t offset = -1;
    if ((how & 1) != 0) offset = (how & 2) != 0 ? input.take<off_t>() : number();
    errno = 0;
    const off_t done = riomap(end.fd, end.arena.at(at), size, protection, flags, offset);
    const off_t wanted = offset == -1 ? reinterpret_cast<off_t>(end.arena.at(at)) : offset;
    VERBENA_ASSERT(done == wanted || (done == -1 && errno > 0));
    if (done != wanted || (done == -1 && errno > 0)) return;
    VERBENA_ASSERT(end.connection && flags == 0 && size > 0);
    if (protection == PROT_WRITE) end.arena.map({at, size, done});
  }
  void unmap(End& end) {
    const auto& mappings = end.arena.mappings();
    Arena::Mapping which{input.take(), input.take(), 0};
    if (!mappings.empty() && !input.one_in(4)) which = mappings[input.take() % mappings.size()];
    if (end.connection) end.connection->has_unmapped[end.side] = true;
    if (end.connection) end.connection->judge_maps();
    const int error =
        error_of([&] { return riounmap(end.fd, end.arena.at(which.at), which.size); });
    if (error == 0) forget_map(end, which);
  }
  void forget_map(End& end, const Arena::Mapping& which) {
    const bool is_known = std::ranges::any_of(end.arena.mappings(), [&](const auto& each) {
      return each.at == which.at && each.size == which.size;
    });
    if (is_known) end.arena.unmap(which.at, which.size, end.mark());
    if (end.connection) end.connection->owed[end.side].clear();
  }
  void write_mapped(End& end) {
    End* const peer = peer_of(end);
    off_t offset = number();
    if (peer) {
      const auto base = static_cast<std::uint64_t>(peer->arena.offset(input.take()));
      const std::uint64_t inside = input.one_in(2) ? 0 : input.take<std::uint16_t>() % kArena;
      offset = static_cast<off_t>(base + inside);
    }
    const Bytes bytes(input.take<std::uint16_t>() % (kArena + 1), end.mark());
    const int flags = input.one_in(8) ? number() : 0;
    const auto done = static_cast<ssize_t>(
        call([&] { return riowrite(end.fd, bytes.data(), bytes.size(), offset, flags); }));
    VERBENA_ASSERT(done >= -1 && done <= static_cast<ssize_t>(bytes.size()));
    if (done <= 0) return;
    VERBENA_ASSERT(end.connection != nullptr);
    const auto count = static_cast<std::size_t>(done);
    end.connection->has_written[end.side] = true;
    end.connection->judge_maps();
    const Arena::Mapping* const mapping = peer ? peer->arena.find(offset, count) : nullptr;
    if (!mapping) return;
    const auto skipped =
        static_cast<std::uint64_t>(offset) - static_cast<std::uint64_t>(mapping->offset);
    end.connection->owed[peer->side].push_back(
        {static_cast<std::size_t>(peer - ends.data()), mapping->at + skipped, count});
  }
  void check_arenas() {
    for (End& each : ends)
      each.arena.check(each.mark());
  }

  // -- the end
  // What was sent and ended arrives, to the last byte; and what riowrite wrote before.
  void drain() {
    input = TestInput(std::span<const std::uint8_t>());
    for (End& each : ends)
      if (!each.connection) close(each);  // who waits for it to accept shall know
    for (End& each : ends) {
      if (!each.is_open() || !is_sound(each) || each.incoming()->is_ignored) continue;
      VERBENA_ASSERT(wait_for([&] { return has_drained(each); }));
      if (!is_sound(each)) continue;
      for (const Owed& owed : each.connection->owed[each.side])
        for (std::size_t i = 0; i < owed.size; ++i)
          VERBENA_ASSERT(*ends[owed.end].arena.at(owed.at + i) == each.mark());
    }
  }
  // Whoever has nobody at the other side is told.
  void hear_of_ends() {
    for (End& each : ends) {
      const Connection* const connection = each.connection;
      if (!each.is_open() || !connection || !connection->is_known) continue;
      if (connection->is_accepted && peer_of(each)) continue;
      VERBENA_ASSERT(wait_for([&] { return has_heard(each); }));
    }
  }
  bool has_heard(End& end) {
    for (;;) {
      const ssize_t got = receive(end, kPlain, kPlainMost, 0);
      if (got <= 0) return got == 0 || errno != EAGAIN;
    }
  }
  bool has_drained(End& end) {
    if (!end.incoming()->has_end) {
      End* const peer = peer_of(end);
      VERBENA_ASSERT(peer != nullptr);
      shut_down(*peer, SHUT_WR);
      return false;
    }
    for (;;) {
      const ssize_t got = receive(end, kPlain, kPlainMost, 0);
      if (got <= 0) return got == 0;
    }
  }
};

}  // namespace verbena::rsocket
