// SPDX-License-Identifier: MIT
// A scene in a process of its own (other_scenes.cc). Both talk in numbers, each with a descriptor
// or none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "base/unique_fd.h"

namespace verbena::verbs::testing {

class Talk {
 public:
  struct Word {
    std::uint64_t number = 0;
    UniqueFd fd;
  };
  explicit Talk(UniqueFd socket) : socket_(std::move(socket)) {}
  void say(std::uint64_t number, int fd = -1) const;
  // Waits, though not for ever. None: the other one has gone.
  std::optional<Word> hear() const;
  // The number that comes next; fails the test when none does.
  std::uint64_t number() const;

 private:
  UniqueFd socket_;
};

class OtherProcess {
 public:
  explicit OtherProcess(const char* scene);
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  ~OtherProcess();  // kills it if it is there yet

  const Talk& talk() const { return talk_; }
  void kill();
  void stop();
  void go_on();
  // Everything was as the scene expected.
  bool ended_well();

  // In that process.
  static Talk parent();

 private:
  pid_t pid_ = -1;
  Talk talk_{UniqueFd()};
};

}  // namespace verbena::verbs::testing
