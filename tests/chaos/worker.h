// SPDX-License-Identifier: MIT
// One of the processes: does what the driver tells it (worker.cc says what), and has any number of
// sessions with others at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "session.h"

namespace chaos {

struct WorkerOptions {
  int driver = 3;  // SEQPACKET
  std::uint64_t seed = 1;
  int patience = 60;       // seconds
  bool is_frozen = false;  // after a failure: stay, for a debugger
  std::string device;
};

class Worker {
 public:
  explicit Worker(const WorkerOptions& options);
  int run();

 private:
  struct Rested {
    Kind kind;
    ibv_qp* qp;
    ibv_cq* cq;
  };

  void open_device();
  ibv_cq* cq_for_session();
  void wait();
  void turn();
  void read_driver();
  void obey(const std::string& line);
  void open_session(const std::string& line);
  void start_session(const std::string& line);
  void end_session(const std::string& line);
  void break_session(const std::string& line);
  void take_events();
  void poll(ibv_cq* cq);
  void look_after(Session& session);
  Rested take_rested(Kind kind);
  void close_session(std::uint32_t id, const char* how);
  void quit();
  void say(const std::string& line) const;
  void fail(const std::string& what);

  const WorkerOptions options_;
  Random random_;
  Device device_;
  bool is_polling_ = false;      // never sleeps while it has something to do
  ibv_cq* shared_cq_ = nullptr;  // of all sessions, or each has its own
  std::map<std::uint32_t, std::unique_ptr<Session>> sessions_;
  std::map<std::uint32_t, Session*> by_qpn_;
  std::vector<Rested> rested_;          // queue pairs in RESET, to be used again
  std::map<std::uint32_t, bool> done_;  // what the driver was told
  ibv_mr* unrelated_ = nullptr;
  bool is_over_ = false;
  bool has_failed_ = false;
  unsigned idle_ = 0;
};

}  // namespace chaos
