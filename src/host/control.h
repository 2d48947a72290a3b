// SPDX-License-Identifier: MIT
// The control thread: this process's place on the host, and its links to the others.
//
// A process takes a slot by listening on the abstract unix name `@verbena/slot/N`: exclusive in the
// network namespace, and released by the kernel when the process dies, however it dies. Two
// processes that need each other hold one link, a SEQPACKET connection, made on first need by
// either. In its greeting each shows who it is and passes its process page (greeting.h). From then
// on the link carries the messages of the layers above, and its end is the peer's death.
//
// One thread does all of it, in a descriptor table of its own (descriptor_table.h): the program
// can neither see nor close our sockets, its limit is not used up, and its forked children do not
// inherit them, so that end of file means that the peer died or called exec. Other threads reach it
// by submit(), which wakes it by a signal that only this thread can see (mailbox.h).
//
// Other users' processes are refused: one reaches them by the wire, as one does other hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/random.h"
#include "base/result.h"
#include "base/time.h"
#include "base/types.h"
#include "host/descriptor_table.h"
#include "host/peer.h"
#include "host/private_fd.h"
#include "host/process_page.h"
#include "host/shared_memory.h"

namespace verbena::host {

// Why there is no control thread, or no further slot.
enum class ControlError : std::uint8_t {
  kNoSlot,        // all 1024 are taken, or this process has as many as it may
  kNoThread,      // the system gives us no thread
  kNoDescriptor,  // or no descriptor
  kNoMemory,
  kDenied,    // a filter refuses a system call that we cannot do without
  kNoAnswer,  // the control thread is busy for too long, stopped, or our parent's
};
const char* to_string(ControlError error);

// Why a slot cannot be reached on this host. The wire may do.
enum class Refusal : std::uint8_t {
  kNobody,       // nobody holds the slot
  kSelf,         // we do
  kOtherUser,    // somebody of another user
  kOtherLayout,  // another version of this library
  kBusy,         // it did not answer in time: stopped, overloaded, or out of descriptors
};
const char* to_string(Refusal refusal);

class Control;

// What the control thread tells. Called on it, with no lock of Control held; may call everything of
// Control but stop().
class ControlEvents {
 public:
  // Before everything else, and before Control::start returns: the object that it will return.
  virtual void started(Control& /*control*/) {}

  // A link came up, by our connect() or by the peer's. The peer is the receiver's from now on.
  virtual void peer_up(std::unique_ptr<Peer> peer) = 0;
  // The link ended: the peer died, called exec, or broke the rules. Once for each peer_up, and the
  // last that is heard of this id.
  virtual void peer_down(PeerId id) = 0;

  // The answer to connect(slot), one of the two, never from inside connect(). peer_up(id) came
  // before, and no peer_down(id) since.
  virtual void slot_reached(SlotNumber slot, PeerId id) = 0;
  virtual void slot_unreachable(SlotNumber slot, Refusal why) = 0;

  // From a peer that is up. Content and descriptor are hostile: check every field, and adopt the
  // descriptor by SharedMemory::adopt. At most kMessageMax bytes. The descriptor (often none) is
  // of the control thread's table: it is used and closed here.
  virtual void message(PeerId from, std::span<const std::byte> bytes, PrivateFd attachment) = 0;

  // The time asked for by call_at has come.
  virtual void tick(Instant now) = 0;

  // Somebody called nudge(). Before anything else of this turn, and before anything uses the heap.
  virtual void nudged() {}

  // Network interfaces or their addresses have changed. Not where the control thread has no
  // descriptor table of its own.
  virtual void interfaces_changed() {}

  // No descriptor is left: closes those in the control thread's table that can be done without.
  // False: there were none. Calls nothing of Control.
  virtual bool spare_descriptors() { return false; }

 protected:
  ~ControlEvents() = default;
};

struct ControlOptions {
  Instant (*now)() = nullptr;               // the clock; none: CLOCK_MONOTONIC
  std::string slot_name = "verbena/slot/";  // abstract names are this and a number
  std::uint32_t slots_max = 64;             // of this process
  std::uint32_t peers_max = kSlotCount;
  std::uint32_t tasks_max = 4096;                 // submitted and not yet run
  std::size_t queued_bytes_max = 1 << 20;         // to one peer that does not read
  Duration patience = Duration::seconds(5);       // for a slot to answer, for a greeting to finish
  Duration call_patience = Duration::seconds(5);  // for the control thread, in calls that wait
  bool own_table = true;  // false: do as where the system gives us no descriptor table of our own
};

class Control {
 public:
  // A packet of RoCEv2 and where it came from fit.
  static constexpr std::size_t kMessageMax = 4608;
  using Task = std::function<void()>;

  // Starts the thread and takes a slot. `events` must live until stop() is through; it may be
  // called before start() returns. `random` is used in this call only.
  static Result<std::unique_ptr<Control>, ControlError> start(ControlEvents& events,
                                                              RandomSource& random,
                                                              ControlOptions options = {});
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  // After stop() or abandon(). Without them everything but this object stays.
  ~Control();

  // Any thread --------------------------------------------------------------------------------

  PeerId id() const;
  SlotNumber first_slot() const;
  // Our own page, whose doorbell peers ring. Goes with this object.
  ProcessPage& page() const;
  bool on_control_thread() const;
  // Of whichever: its descriptors are not the program's.
  static bool on_any_control_thread();

  // Runs the task on the control thread, in order of submission. False: too many are waiting, the
  // thread has stopped, or this is a forked child.
  bool submit(Task task);
  // Runs the task on the control thread and waits until it is done, though not for long: hold no
  // lock that ControlEvents may want. False: not done yet, or not accepted; it may still run later,
  // so it owns what it touches.
  bool call(Task task);
  // Makes the control thread call ControlEvents::nudged() soon. Without a lock and without the
  // heap. False: there is no control thread (any more), or this is a forked child.
  bool nudge();
  // Waits like call().
  Result<SlotNumber, ControlError> take_another_slot();

  // Runs what was submitted, closes all links without peer_down, ends the thread. False: the thread
  // did not end in `call_patience`, and is left alone with all that it uses. Not for destructors
  // that run at exit.
  bool stop();
  // In a forked child: forgets everything. Touches no lock, no descriptor and no mapping.
  void abandon();

  // On the control thread only ----------------------------------------------------------------

  // Makes a link to whoever holds the slot, unless there is one. Answered by slot_reached or
  // slot_unreachable, once for all calls before the answer.
  void connect(SlotNumber slot);
  // Queues a message, and a copy of the attached descriptor. False: the peer is not up (any more),
  // or did not read for so long that its link is now being given up.
  bool send(PeerId to, std::span<const std::byte> bytes, const PrivateFd* attachment = nullptr);
  // Something of what was sent is still here, with its descriptor: whoever has much to send waits
  // a moment.
  bool has_queued(PeerId to) const;
  // Asks for tick() at this time, instead of what was asked for before; never() to be left alone.
  void call_at(Instant when);
  // The peer that is up and holds this slot, if we are linked to one.
  std::optional<PeerId> holder(SlotNumber slot) const;
  // Memory to be sent to a peer; let go of the descriptor soon. There is one for it also when
  // links to newcomers have taken all others.
  Result<SharedMemory::Created, MemoryError> make_memory(std::size_t size, Backing backing,
                                                         Writers writers = Writers::kEverybody);
  // For descriptors of the layers above, that the program shall neither see nor close.
  DescriptorTable& descriptors();

 private:
  struct Shared;
  explicit Control(Shared* shared) : shared_(shared) {}

  Shared* shared_;  // of both threads; kept forever when the control thread cannot be joined
};

}  // namespace verbena::host
