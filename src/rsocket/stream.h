// SPDX-License-Identifier: MIT
// One stream between two rsockets, without I/O: what may be sent and where to, what a message that
// arrives means, what must be told the peer.
//
// Each side has a receive buffer of two halves, and gives them to the peer in turn: the first with
// the private data of the connection, then whenever half of it is free, by writing into the peer's
// two target places. The sender fills a place to its end before it takes the next. Data come as an
// RDMA WRITE whose immediate says how many bytes, one after the other, so the receiver needs a
// count only. Each immediate takes a receive; credits, told as the number of the last message that
// may come, keep the sender from having more on their way than receives are posted. Control
// messages need no credit.
//
// Whatever the peer tells or writes is checked: a message that it had no right to send breaks the
// stream, and its places are only ever used on its own memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "rsocket/wire.h"

namespace verbena::rsocket {

constexpr std::uint32_t kTargets = 2;
constexpr std::uint32_t kMapsMax = 4096;

// Memory that the peer writes into: its places for our data, then what it mapped.
struct PeerNotes {
  std::array<Place, kTargets> targets;
  // MappedPlace maps[], as many as the program asked for.
};

enum class Broken : std::uint8_t {
  kVersion,    // not this protocol
  kHello,      // private data that make no sense
  kTooMuch,    // more data than there was room for
  kOperation,  // a message that means nothing
};

// An RDMA WRITE to post.
struct Write {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint32_t length = 0;
  std::optional<std::uint32_t> immediate;
};
struct ControlWrite : Write {
  std::array<std::byte, sizeof(MappedPlace)> body{};
};

enum class Half : std::uint8_t { kReading, kWriting, kBoth };

class Stream {
 public:
  struct Setup {
    std::uint32_t receive_bytes;  // even
    std::uint16_t credits;        // receives that are posted
    std::uint64_t buffer_address;
    std::uint32_t buffer_key;
    std::uint64_t notes_address;
    std::uint32_t notes_key;
    PeerNotes* notes;
    std::span<MappedPlace> maps;  // behind the notes
  };
  explicit Stream(const Setup& setup);

  // For the private data.
  Hello hello() const;
  Result<void, Broken> begin(std::span<const std::byte> private_data);

  // Sending. Takes the next bytes of the stream, `wanted` at most; none: there is no room there.
  bool may_send() const { return is_writable_ && room_ > 0 && has_credit() && !has_map_to_tell(); }
  std::optional<Write> send(std::uint32_t wanted);
  // Into what the peer mapped; none: nothing is mapped at that offset.
  std::optional<Write> send_mapped(std::uint64_t offset, std::uint32_t wanted);
  // What is to be told, each time that a control message can be posted. Data wait while a map is to
  // be told, for they tell that it is there.
  std::optional<ControlWrite> next_control();
  bool has_map_to_tell() const { return !maps_to_tell_.empty(); }

  // Receiving: each message with an immediate.
  Result<void, Broken> received(std::uint32_t immediate);
  std::uint32_t readable() const { return readable_; }
  std::uint32_t read_offset() const { return read_offset_; }
  void consumed(std::uint32_t bytes);
  std::uint64_t received_bytes() const { return received_bytes_; }

  // Mapping our memory for the peer: an index that is free, or none.
  std::optional<std::uint32_t> map(const MappedPlace& mapped);
  void unmap(std::uint32_t index);

  void shut_down(Half half);
  void lost();  // no connection any more
  bool is_connected() const { return is_connected_; }
  bool is_readable() const { return is_readable_; }  // more may come
  bool is_writable() const { return is_writable_; }
  bool peer_said_goodbye() const { return peer_said_goodbye_; }

 private:
  bool has_credit() const { return sent_ != may_send_up_to_; }
  bool must_tell_credit() const;
  ControlWrite tell_credit();
  ControlWrite tell_map();
  void take_targets();
  Result<void, Broken> control(std::uint32_t value);

  Setup setup_;
  bool is_swapped_ = false;

  // Towards the peer.
  Place peer_targets_;  // of which `length` is the number
  std::uint64_t peer_maps_ = 0;
  std::vector<bool> told_;  // which of the peer's map slots we use
  struct MapToTell {
    std::uint32_t index;
    MappedPlace mapped;
  };
  std::vector<MapToTell> maps_to_tell_;
  Place current_;
  std::uint32_t next_target_ = 0;  // of ours, which the peer fills in
  std::uint64_t room_ = 0;         // left in current_
  std::uint16_t sent_ = 0;
  std::uint16_t may_send_up_to_ = 0;

  // From the peer.
  std::uint64_t received_bytes_ = 0;
  std::uint32_t readable_ = 0;
  std::uint32_t read_offset_ = 0;
  std::uint32_t given_ = 0;  // room the peer has and did not use yet
  std::uint32_t free_ = 0;   // to be given
  std::uint32_t give_offset_ = 0;
  std::uint32_t give_target_ = 1;  // of the peer's
  std::uint16_t received_ = 0;
  std::uint16_t told_credit_at_ = 0;

  bool is_connected_ = false;
  bool is_readable_ = false;
  bool is_writable_ = false;
  bool peer_said_goodbye_ = false;
  std::optional<Control> goodbye_;
};

}  // namespace verbena::rsocket
