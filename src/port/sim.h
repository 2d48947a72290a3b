// SPDX-License-Identifier: MIT
// A network in memory, on a virtual clock: hosts around one switch, in one thread, the same for the
// same seed.
//
//   port ─► up link: rate, queue ─► delay ─► switch ─► down link of the receiver: rate, queue,
//   marks, loss ─► delay ─► the port's receive buffer
//
// Many-to-one traffic meets in the queue of the receiver's down link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "base/random.h"
#include "port/port.h"
#include "port/steering.h"

namespace verbena::port {

// One direction of a cable and the queue before it. Chances are in packets of a million.
struct SimLink {
  std::uint64_t bits_per_second = 25'000'000'000;
  Duration delay = Duration::microseconds(5);
  std::uint32_t queue_bytes_max = 1 << 20;
  std::uint32_t mark_from_bytes = 0;  // ECN, for packets that are capable; 0: never
  std::uint32_t loss = 0;
  std::uint32_t reorder = 0;
  Duration reorder_by = Duration::microseconds(50);
};

struct SimHostOptions {
  SimLink up{};
  SimLink down{};
  std::uint32_t payload_max = 4096 + 64;   // of the interface, BTH to ICRC
  std::uint32_t receive_buffer = 4 << 20;  // bytes of payload, of each port
  std::uint32_t segments_max = 64;
};

class SimNetwork;

// One process's port. Receives what is for its slot (as judged by `Steering`), in order of arrival.
// For the simulator's thread. `now` never goes back; the network is led there first.
class SimPort final : public Port {
 public:
  SimPort(SimNetwork& network, std::size_t host, SlotNumber slot)
      : network_(network), host_(host), slot_(slot) {}

  std::size_t send(std::span<const Train> trains, Instant now) override;
  std::size_t receive(std::span<Received> into, Instant now) override;
  std::span<const int> descriptors() const override { return {}; }
  // The network's next event: the packet may be for somebody else.
  Instant next_deadline() const override;
  Limits limits() const override;
  Result<std::uint32_t, RouteError> payload_max(const Route& route) override;
  std::uint16_t source_port(const Route& route) override;
  const Counters& counters() override { return counters_; }

  SlotNumber slot() const { return slot_; }
  // Something has arrived and is not yet taken.
  bool has_packets() const { return !arrived_.empty(); }

 private:
  friend class SimNetwork;

  SimNetwork& network_;
  const std::size_t host_;
  const SlotNumber slot_;
  Counters counters_;
  std::deque<std::size_t> arrived_;  // packets of the network
  std::size_t arrived_bytes_ = 0;
  std::vector<std::size_t> given_;
};

class SimNetwork {
 public:
  explicit SimNetwork(std::uint64_t seed) : random_(seed) {}
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // A host with one address. Its number.
  std::size_t add_host(const Gid& address, const SimHostOptions& options = {});
  // A process on it. Lives as long as the network.
  SimPort& add_port(std::size_t host, SlotNumber slot);
  // From now on; packets on their way go on as they were.
  void change(std::size_t host, const SimLink& up, const SimLink& down);

  Instant now() const { return now_; }
  // never(): nothing is on its way.
  Instant next_event() const;
  // Lets everything happen that happens until then.
  void advance(Instant to);
  // What the links and the switch did.
  const Counters& counters() const { return counters_; }

 private:
  friend class SimPort;

  struct Line {
    SimLink link;
    Instant free;  // when the last byte that waits is out
  };
  struct Host {
    Gid address;
    SimHostOptions options;
    Line up;
    Line down;
    std::vector<std::unique_ptr<SimPort>> ports;
    Steering steering;
  };
  struct Packet {
    std::vector<std::byte> bytes;
    Received head;
    std::size_t to_host = 0;
  };
  enum class Stage : std::uint8_t { kAtSwitch, kAtHost };
  struct Event {
    Instant when;
    std::uint64_t order = 0;
    Stage stage{};
    std::size_t packet = 0;
    bool operator>(const Event& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };

  bool accept(SimPort& from, const Train& train);
  void enter(std::size_t packet, Line& line, Stage next);
  void arrive(std::size_t packet);
  void deliver(std::size_t packet, SimPort& port);
  std::size_t new_packet();
  std::size_t copy_of(const Packet& packet);
  void release(std::size_t packet) { free_.push_back(packet); }
  bool chance(std::uint32_t of_a_million) { return random_.below(1'000'000) < of_a_million; }
  std::optional<std::size_t> find_host(const Gid& address) const;

  SeededRandom random_;
  Instant now_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Packet>> packets_;
  std::vector<std::size_t> free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
  Counters counters_;
};

}  // namespace verbena::port
