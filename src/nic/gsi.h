// SPDX-License-Identifier: MIT
// Queue pair 1 (IBTA vol 1, 13.4): management datagrams between connection managers. Here they find
// their process; what they mean is for whoever opened it (librdmacm.so.1, by base/contracts.h).
//
//   an answer        goes to the slot that the communication id was drawn for (port/steering.h)
//   a request        to the slot that serves its service id (service_names.h); where there is none,
//                    it is rejected here, for the host may have no connection manager at all
//
// To processes of this host they go by link, several in a message; to other hosts, and with
// VERBENA_PATH=wire to all, as packets. A packet that came to another process is handed over.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/contracts.h"
#include "base/mutex.h"
#include "base/time.h"
#include "base/types.h"
#include "host/control.h"
#include "nic/error.h"
#include "nic/service_names.h"
#include "port/port.h"
#include "wire/cm.h"

namespace verbena::nic {

class Engine;
class Links;
class Nic;
class WireNic;

class Gsi {
 public:
  Gsi(Nic& nic, Engine& engine);
  Gsi(const Gsi&) = delete;
  Gsi& operator=(const Gsi&) = delete;

  // For one connection manager; a later one takes its place.
  void open(const GsiEvents& events);
  // Never waits, but for the first packet to the wire, which takes some milliseconds. Lossy.
  void send(const GsiMad& mad);
  // From now on requests that come by the wire arrive here, where there may be any. False: there is
  // no wire.
  bool listen_on_wire(bool is_loopback);
  SlotNumber slot() const;
  ServiceNames& names() { return *names_; }

  // From exit(): what was sent is with the control thread no more. Waits 50 ms at most.
  void flush();
  bool has_unsent() const { return is_sending_.load(std::memory_order_acquire) != 0; }

  // -- the thread that receives from the wire: a packet to queue pair 1, hostile
  void take_packet(WireNic& wire, const port::Received& packet);

  // -- the control thread
  void started(host::Control& control, Links& links);
  static bool is_message(std::span<const std::byte> bytes);
  void message(std::span<const std::byte> bytes);
  void slot_answered(SlotNumber slot);
  void slot_refused(SlotNumber slot, host::Refusal why);
  void slot_is_ours(SlotNumber slot);
  void peer_down(host::PeerId peer);
  void interfaces_changed();
  void tick(Instant now);
  Instant next_deadline() const { return next_; }

 private:
  static constexpr std::size_t kMadsPerMessage = 15;
  static constexpr std::size_t kWaitingMax = 65'536;
  struct Message {
    std::uint32_t magic = 0;
    std::uint32_t count = 0;
    std::array<GsiMad, kMadsPerMessage> mads;
  };
  static_assert(sizeof(Message) <= host::Control::kMessageMax);

  struct Addressed {
    SlotNumber slot;
    GsiMad mad;
  };

  bool is_near(const Gid& address);
  // Nothing: nobody serves it, or it is no message of connection management.
  std::optional<SlotNumber> slot_for(const wire::CmMad& parsed, const GsiMad& mad);
  std::optional<SlotNumber> slot_of_service(std::uint64_t service, const GsiMad& mad,
                                            std::uint32_t asker, std::uint64_t transaction);
  // Where a request went that is known yet: an address, and a communication or request id there.
  using Request = std::pair<Gid, std::uint32_t>;
  struct Went {
    SlotNumber slot;
    std::uint64_t transaction;
  };
  std::optional<Went> known(const Request& request);
  std::optional<SlotNumber> slot_of_request(const Request& request);
  static GsiMad answer_to(const GsiMad& mad, const wire::CmMad& answer);
  static std::optional<GsiMad> refusal_of(const wire::CmMad& request, const GsiMad& mad);
  static std::optional<GsiMad> last_word_to(const GsiMad& mad);
  void send_near(const GsiMad& mad);
  bool was_served(const wire::CmMad& request);
  void send_to_slot(SlotNumber slot, const GsiMad& mad);
  void send_on_wire(const GsiMad& mad);
  void send_on_wire(WireNic& wire, const GsiMad& mad);
  void deliver(const GsiMad& mad);

  // The control thread.
  void distribute();
  void pass(SlotNumber slot);
  void pass(host::PeerId peer, std::deque<GsiMad>& mads);

  Nic& nic_;
  Engine& engine_;
  Links* links_ = nullptr;
  host::Control* control_ = nullptr;
  std::optional<ServiceNames> names_;

  Mutex receiver_lock_;
  GsiEvents events_;

  Mutex outgoing_lock_;
  std::vector<Addressed> outgoing_;

  // Whether addresses are this host's: asking the kernel takes longer than all the rest.
  struct Known {
    Gid address;
    bool is_near;
    Instant until;
  };
  Mutex known_lock_;
  std::array<std::optional<Known>, 16> known_;
  std::size_t next_known_ = 0;

  // Where requests went, by who asks.
  static constexpr std::size_t kRequestsMax = 16'384;
  Mutex requests_lock_;
  std::map<Request, Went> requests_;
  std::deque<Request> requests_in_order_;

  // The control thread's.
  std::map<SlotNumber, std::deque<GsiMad>> waiting_;
  std::map<SlotNumber, host::PeerId> partners_;
  Instant next_ = Instant::never();

  std::atomic<std::uint32_t> psn_{0};
  // What the control thread has not got yet, as a futex for flush().
  std::atomic<std::uint32_t> is_sending_{0};
};

}  // namespace verbena::nic
