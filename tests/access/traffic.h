// SPDX-License-Identifier: MIT
// A peer that writes all the time, and the process that it writes into.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "environment/node.h"

namespace access_test {

inline constexpr std::byte kWritten{0x11};  // all that the peer ever writes
inline constexpr std::byte kOurs{0xee};     // what must stay afterwards
// The memory is used up to here; the rest decides whether the region may be adopted.
inline constexpr std::uint32_t kUsed = 128 * 1024;

// Seconds: far more than the NIC needs on a busy machine (10 ms, or a second where the peer may be
// in a system call, twice where memory is adopted), far less than for ever.
inline constexpr double kBound = 30;

struct Invitation {
  probe::Address address;
  bool is_last = false;
  std::uint32_t operation = 0;  // bytes of each WRITE; 0: many sizes
};

// The peer: takes invitations and writes to each until it is told to stop, whatever happens.
void write_all_the_time(probe::Wire& wire, std::uint32_t queue_pairs_before = 0);

// The other end, once for each queue pair.
class Victim {
 public:
  Victim(probe::Node& node, probe::Wire& wire, std::size_t size, std::uint32_t operation = 0);
  ~Victim();
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  // Returns when the peer's WRITEs arrive.
  void wait_for_traffic();
  void stop_traffic();  // and waits for it
  // The peer died, or will not answer.
  void forget_peer() { is_running_ = false; }
  // From now on nothing may change.
  void mark();
  bool is_untouched() const;
  void deregister();

  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::byte* memory = nullptr;
  std::byte* other_memory = nullptr;  // of the same size, never registered unless by rereg
  std::size_t size;

 private:
  probe::Node& node_;
  probe::Wire& wire_;
  bool is_running_ = true;
};

// Tells the peer that there is nothing more.
void dismiss(probe::Wire& wire);

// How access is taken away.
struct Taking {
  const char* name;
  void (*take)(probe::Node& node, Victim& victim);
};
extern const Taking kTakings[];
extern const std::size_t kTakingCount;

bool is_long();
bool is_set(const char* variable, const char* value);
inline bool has_only_the_ring() { return is_set("VERBENA_PATH", "ring"); }
double seconds_of(const std::function<void()>& body);

// Scenes: their name as on the command line.
void takings(const char* condition);
void held(const char* place);
void many_regions();
void bystander();
void serves();
void key_zero();
void registered_anew();
void taken_beside();
void taken_back();
void last_words();
void death_behind_messages();

}  // namespace access_test
