// SPDX-License-Identifier: MIT
// Commands of the driver, one a packet:
//   open ID KIND SEED ROLE STEPS       answered by `ready ID ADDRESS`
//   go ID ADDRESS                      the peer's address; later: `done ID`
//   stop ID                            both are done; answered by `closed ID`
//   lost ID                            the peer is gone; answered by `closed ID`, later
//   break ID                           destroys the queue pair at once; answered by `closed ID`
//   die HOW | child | audit | quit
// `fail TEXT` comes at any time.
#include "worker.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "audit.h"
#include "deaths.h"

namespace chaos {
namespace {

constexpr std::uint64_t kUnrelatedKey = 0x756e7265;
constexpr std::size_t kUnrelatedSize = 8192;
alignas(4096) std::byte unrelated_memory[kUnrelatedSize];

std::string hex(const ibv_gid& gid) {
  std::string text;
  for (const std::uint8_t byte : gid.raw) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

ibv_gid gid_from(const std::string& text) {
  ibv_gid gid{};
  for (std::size_t i = 0; i < sizeof gid.raw && 2 * i + 1 < text.size(); ++i)
    gid.raw[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  return gid;
}

}  // namespace

Worker::Worker(const WorkerOptions& options) : options_(options), random_(options.seed) {
  is_polling_ = random_.once_in(10);
  open_device();
  fill(unrelated_memory, kUnrelatedKey);
  // Registered, but nobody is told its key.
  unrelated_ = ibv_reg_mr(device_.pd, unrelated_memory, kUnrelatedSize,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!unrelated_) fail("ibv_reg_mr");
  if (random_.once_in(3)) shared_cq_ = cq_for_session();
}

void Worker::open_device() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  for (int i = 0; i < count && !device_.context; ++i) {
    const bool is_wanted =
        options_.device.empty() || options_.device == ibv_get_device_name(list[i]);
    if (is_wanted) device_.context = ibv_open_device(list[i]);
  }
  ibv_free_device_list(list);
  if (device_.context) device_.pd = ibv_alloc_pd(device_.context);
  if (device_.context) device_.channel = ibv_create_comp_channel(device_.context);
  if (!device_.pd || !device_.channel || ibv_query_gid(device_.context, 1, 0, &device_.gid)) {
    fail("no device: " + std::string(std::strerror(errno)));
    std::exit(1);
  }
  // What was readable a moment ago may have been withdrawn since.
  for (const int fd : {device_.channel->fd, device_.context->async_fd})
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

ibv_cq* Worker::cq_for_session() {
  if (shared_cq_) return shared_cq_;
  ibv_cq* cq = ibv_create_cq(device_.context, 4096, nullptr, device_.channel, 0);
  if (!cq || ibv_req_notify_cq(cq, 0) != 0) fail("ibv_create_cq");
  return cq;
}

int Worker::run() {
  say("hello");
  while (!is_over_ && !has_failed_) {
    wait();
    turn();
  }
  if (has_failed_ && options_.is_frozen) pause();
  return has_failed_ ? 1 : 0;
}

// A packet for the driver, which may be gone.
void Worker::say(const std::string& line) const {
  if (send(options_.driver, line.data(), line.size(), MSG_NOSIGNAL) < 0) _exit(2);
}

void Worker::fail(const std::string& what) {
  has_failed_ = true;
  say("fail " + what);
}

void Worker::wait() {
  pollfd fds[] = {{options_.driver, POLLIN, 0},
                  {device_.channel->fd, POLLIN, 0},
                  {device_.context->async_fd, POLLIN, 0}};
  // Whoever polls sleeps a moment when there is nothing for long: others need the processors too.
  const bool is_busy = is_polling_ && !sessions_.empty() && ++idle_ < 300;
  if (!is_busy) idle_ = 0;
  const int limit = is_busy ? 0 : is_polling_ && !sessions_.empty() ? 1 : 1000;
  if (::poll(fds, 3, limit) < 0 && errno != EINTR) fail("poll");
  if (fds[0].revents != 0) read_driver();
  if (fds[1].revents != 0) take_events();
  if (fds[2].revents == 0) return;
  ibv_async_event event;
  if (ibv_get_async_event(device_.context, &event) == 0) ibv_ack_async_event(&event);
}

void Worker::turn() {
  if (is_polling_) {
    if (shared_cq_) poll(shared_cq_);
    for (const auto& [id, session] : sessions_) {
      if (!shared_cq_) poll(session->cq());
    }
    sched_yield();
  }
  // Sessions end themselves while we look.
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    Session& session = *next->second;
    ++next;
    look_after(session);
  }
}

void Worker::look_after(Session& session) {
  const std::uint32_t id = session.settings().id;
  session.pump();
  if (!session.complaint().empty()) return fail(session.complaint());
  if (const auto stuck = session.stuck_for(std::chrono::seconds(options_.patience))) fail(*stuck);
  if (session.state() == Session::State::kDone && !std::exchange(done_[id], true)) {
    say("done " + std::to_string(id));
  }
  if (session.state() == Session::State::kOver) close_session(id, "drained");
}

void Worker::take_events() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(device_.channel, &cq, &context) != 0) {
    if (errno != EAGAIN) fail("ibv_get_cq_event");
    return;
  }
  ibv_ack_cq_events(cq, 1);
  if (ibv_req_notify_cq(cq, 0) != 0) fail("ibv_req_notify_cq");
  poll(cq);
}

void Worker::poll(ibv_cq* cq) {
  ibv_wc completions[16];
  int count = 0;
  while ((count = ibv_poll_cq(cq, 16, completions)) > 0) {
    idle_ = 0;
    for (int i = 0; i < count; ++i) {
      const auto session = by_qpn_.find(completions[i].qp_num);
      if (session == by_qpn_.end()) return fail("a completion of a queue pair that is not there");
      session->second->take(completions[i]);
      // So that the queues never run empty for long.
      session->second->pump();
    }
  }
  if (count < 0) fail("ibv_poll_cq");
}

void Worker::read_driver() {
  char buffer[512];
  for (;;) {
    const ssize_t size = recv(options_.driver, buffer, sizeof buffer, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) _exit(2);  // the driver is gone
    obey(std::string(buffer, static_cast<std::size_t>(size)));
    if (is_over_) return;
  }
}

void Worker::obey(const std::string& line) {
  const std::string verb = line.substr(0, line.find(' '));
  if (verb == "open") return open_session(line);
  if (verb == "go") return start_session(line);
  if (verb == "stop" || verb == "lost") return end_session(line);
  if (verb == "break") return break_session(line);
  if (verb == "audit") return say("audit " + audit());
  if (verb == "quit") return quit();
  Inherited inherited{device_.context, device_.pd, nullptr, shared_cq_};
  if (!sessions_.empty()) {
    inherited.qp = sessions_.begin()->second->qp();
    inherited.cq = sessions_.begin()->second->cq();
  }
  if (verb == "child") return have_a_child(inherited, options_.driver);
  if (verb == "die") die(line.substr(4), inherited, options_.driver);
  fail("unknown: " + line);
}

void Worker::open_session(const std::string& line) {
  std::istringstream words(line);
  std::string verb, kind;
  Settings settings;
  words >> verb >> settings.id >> kind >> settings.seed >> settings.role >> settings.steps;
  settings.kind = kind == "rc" ? Kind::kRc : kind == "uc" ? Kind::kUc : Kind::kUd;
  const Rested used = take_rested(settings.kind);
  ibv_cq* cq = used.cq ? used.cq : cq_for_session();
  auto session = std::make_unique<Session>(device_, cq, settings, used.qp);
  if (!session->complaint().empty()) return fail(session->complaint());
  const Address at = session->address();
  std::ostringstream answer;
  answer << "ready " << settings.id << ' ' << at.qpn << ' ' << hex(at.gid) << ' ' << at.window
         << ' ' << at.cells << ' ' << at.key;
  by_qpn_[at.qpn] = session.get();
  sessions_[settings.id] = std::move(session);
  say(answer.str());
}

Worker::Rested Worker::take_rested(Kind kind) {
  for (auto each = rested_.begin(); each != rested_.end(); ++each) {
    if (each->kind != kind || random_.once_in(4)) continue;
    const Rested found = *each;
    rested_.erase(each);
    return found;
  }
  return {kind, nullptr, nullptr};
}

void Worker::start_session(const std::string& line) {
  std::istringstream words(line);
  std::string verb, gid;
  std::uint32_t id = 0;
  Address peer;
  words >> verb >> id >> peer.qpn >> gid >> peer.window >> peer.cells >> peer.key;
  peer.gid = gid_from(gid);
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;  // broken meanwhile
  session->second->connect(peer);
}

void Worker::end_session(const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  std::uint32_t id = 0;
  words >> verb >> id;
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  if (verb == "lost") return session.peer_is_lost();
  // What was acknowledged to the peer is in our queue by now.
  poll(session.cq());
  session.check_peers_work();
  if (!session.complaint().empty()) return fail(session.complaint());
  if (random_.once_in(3)) return close_session(id, "destroyed");
  session.drain();
}

void Worker::break_session(const std::string& line) {
  const auto id = static_cast<std::uint32_t>(std::stoul(line.substr(6)));
  if (sessions_.contains(id)) close_session(id, "broken");
}

void Worker::close_session(std::uint32_t id, const char* how) {
  const auto found = sessions_.find(id);
  Session& session = *found->second;
  ibv_cq* cq = session.cq();
  if (session.was_lost()) how = "lost";
  by_qpn_.erase(session.qpn());
  const bool is_over = session.state() == Session::State::kOver;
  const Kind kind = session.settings().kind;
  ibv_qp* rested = is_over && rested_.size() < 3 ? session.release() : nullptr;
  session.destroy();
  session.check_guards();
  if (!session.complaint().empty()) return fail(session.complaint());
  sessions_.erase(found);
  done_.erase(id);
  if (rested) {
    rested_.push_back({kind, rested, cq});
  } else if (cq != shared_cq_ && ibv_destroy_cq(cq) != 0) {
    fail("ibv_destroy_cq");
  }
  say("closed " + std::to_string(id) + ' ' + how);
}

// Takes everything down in order; each step has to work.
void Worker::quit() {
  while (!sessions_.empty())
    close_session(sessions_.begin()->first, "quit");
  for (const Rested& each : rested_) {
    if (ibv_destroy_qp(each.qp) != 0) fail("ibv_destroy_qp");
    if (each.cq != shared_cq_ && ibv_destroy_cq(each.cq) != 0) fail("ibv_destroy_cq");
  }
  if (difference(unrelated_memory, kUnrelatedKey) >= 0) fail("unrelated memory changed");
  if (shared_cq_ && ibv_destroy_cq(shared_cq_) != 0) fail("ibv_destroy_cq");
  if (ibv_dereg_mr(unrelated_) != 0) fail("ibv_dereg_mr");
  if (ibv_destroy_comp_channel(device_.channel) != 0) fail("ibv_destroy_comp_channel");
  if (ibv_dealloc_pd(device_.pd) != 0) fail("ibv_dealloc_pd");
  if (ibv_close_device(device_.context) != 0) fail("ibv_close_device");
  is_over_ = true;
  say("bye");
}

}  // namespace chaos

int main(int count, char** words) {
  chaos::WorkerOptions options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i];
    if (name == "--driver") options.driver = std::atoi(words[i + 1]);
    if (name == "--seed") options.seed = std::strtoull(words[i + 1], nullptr, 0);
    if (name == "--patience") options.patience = std::atoi(words[i + 1]);
    if (name == "--freeze") options.is_frozen = std::atoi(words[i + 1]) != 0;
    if (name == "--device") options.device = words[i + 1];
  }
  return chaos::Worker(options).run();
}
