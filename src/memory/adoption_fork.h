// SPDX-License-Identifier: MIT
// Who has something to do when the program forks. pthread_atfork cannot be taken back, so one set
// of handlers serves all that come and go.
#pragma once

namespace verbena::memory {

class ForkParticipant {
 public:
  // In the forking thread, whichever that is. Nobody else forks until one of the others ran.
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
  virtual void after_fork_in_child() = 0;

 protected:
  ~ForkParticipant() = default;

 private:
  friend bool join_forks(ForkParticipant& participant);
  friend void leave_forks(ForkParticipant& participant);
  friend struct ForkHandlers;
  ForkParticipant* next_ = nullptr;
};

// False: the system does not take our handlers. The participant stays where it is until it leaves.
bool join_forks(ForkParticipant& participant);
void leave_forks(ForkParticipant& participant);

}  // namespace verbena::memory
