// SPDX-License-Identifier: MIT
// One of the processes: does what the driver tells it (worker.cc says what), and has any number of
// sessions with others at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pool.h"
#include "session.h"

namespace chaos {

struct WorkerOptions {
  int driver = 3;  // SEQPACKET
  std::uint64_t seed = 1;
  int patience = 60;       // seconds
  unsigned timeout = 17;   // of a try (session.h)
  bool is_frozen = false;  // after a failure: stay, for a debugger
  bool is_wire = false;    // what was sent to a queue pair may arrive after its RESET
  std::string device;
};

class Worker {
 public:
  explicit Worker(const WorkerOptions& options);
  int run();

 private:
  struct Rested {
    Service service;
    bool is_pooled;
    ibv_qp* qp;
    ibv_cq* cq;
  };

  void open_device();
  void open_domain();
  ibv_cq* cq_for_session();
  Pool* pool_for(const Settings& settings);
  void wait();
  void turn();
  void read_driver();
  void obey(const std::string& line);
  void open_session(const std::string& line);
  void connect_session(const std::string& line);
  void end_session(const std::string& line);
  void break_session(const std::string& line);
  void obey_session(const std::string& verb, const std::string& number);
  void take_events();
  void take_async_events();
  void poll(ibv_cq* cq);
  void look_after(Session& session);
  Rested take_rested(Service service, bool is_pooled);
  void close_session(std::uint32_t id, const char* how);
  void quit();
  void say(const std::string& line) const;
  void fail(const std::string& what);

  const WorkerOptions options_;
  SeededRandom random_;
  Device device_;
  bool is_polling_ = false;      // never sleeps while it has something to do
  ibv_cq* shared_cq_ = nullptr;  // of all sessions, or each has its own
  std::map<std::uint32_t, std::unique_ptr<Session>> sessions_;
  std::map<std::uint32_t, Session*> by_qpn_;
  std::vector<Rested> rested_;          // queue pairs in RESET, to be used again
  std::map<std::uint32_t, bool> done_;  // what the driver was told
  ibv_mr* unrelated_ = nullptr;
  std::unique_ptr<Pool> pool_;
  ibv_pd* foreign_pd_ = nullptr;  // for requests that have to be refused
  ibv_cq* foreign_cq_ = nullptr;
  bool is_over_ = false;
  bool has_failed_ = false;
  unsigned idle_ = 0;
};

}  // namespace chaos
