// SPDX-License-Identifier: MIT
// Commands of the driver, one a packet:
//   open ID KIND SEED ROLE STEPS       answered by `ready ID ADDRESS`
//   go ID ADDRESS                      the peer's address; answered by `set ID`
//   start ID                           both are connected, or need not be; later: `done ID`
//   stop ID                            both are done; answered by `closed ID`
//   lost ID                            the peer is gone; answered by `closed ID`, later
//   error ID                           into the error state; answered by `closed ID`
//   revoke ID                          deregisters what the peer may reach; answered by
//                                      `revoked ID`, or nothing where that is not for it
//   pardon ID                          the peer has done so; answered by `closed ID`
//   break ID                           destroys the queue pair at once; answered by `closed ID`
//   die HOW | child | audit | quit
// `fail TEXT` comes at any time.
#include "worker.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "audit.h"
#include "deaths.h"
#include "pattern.h"

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
  is_polling_ = random_.one_in(10);
  open_device();
  fill(unrelated_memory, kUnrelatedKey);
  // Registered, but nobody is told its key.
  unrelated_ = ibv_reg_mr(device_.pd, unrelated_memory, kUnrelatedSize,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!unrelated_) fail("ibv_reg_mr");
  if (random_.one_in(3)) shared_cq_ = cq_for_session();
  if (random_.one_in(2)) pool_ = std::make_unique<Pool>(device_.pd);
  if (pool_ && !pool_->queue()) fail("ibv_create_srq");
  open_domain();
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

// What sessions of XRC need.
void Worker::open_domain() {
  ibv_xrcd_init_attr wanted{};
  wanted.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  wanted.fd = -1;
  wanted.oflags = O_CREAT;
  device_.domain = ibv_open_xrcd(device_.context, &wanted);
  foreign_pd_ = ibv_alloc_pd(device_.context);
  foreign_cq_ = ibv_create_cq(device_.context, 1, nullptr, nullptr, 0);
  ibv_srq_init_attr_ex queue{};
  queue.attr = {1, 1, 0};
  queue.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  queue.srq_type = IBV_SRQT_XRC;
  queue.pd = foreign_pd_;
  queue.xrcd = device_.domain;
  queue.cq = foreign_cq_;
  device_.foreign = ibv_create_srq_ex(device_.context, &queue);
  if (!device_.foreign) fail("XRC: " + std::string(std::strerror(errno)));
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
    if (!is_over_) turn();
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
  const bool is_late =
      std::ranges::any_of(sessions_, [](const auto& each) { return each.second->posts_late(); });
  const int limit = is_busy ? 0 : is_polling_ && !sessions_.empty() ? 1 : is_late ? 3 : 1000;
  if (::poll(fds, 3, limit) < 0 && errno != EINTR) fail("poll");
  // First, as long as their queue pairs are not of another session.
  if (fds[2].revents != 0) take_async_events();
  if (fds[0].revents != 0) read_driver();
  if (is_over_) return;  // with the descriptors
  if (fds[1].revents != 0) take_events();
}

void Worker::take_async_events() {
  ibv_async_event event;
  while (ibv_get_async_event(device_.context, &event) == 0) {
    const bool is_failure = event.event_type == IBV_EVENT_QP_FATAL ||
                            event.event_type == IBV_EVENT_QP_REQ_ERR ||
                            event.event_type == IBV_EVENT_QP_ACCESS_ERR;
    const auto session = is_failure ? by_qpn_.find(event.element.qp->qp_num) : by_qpn_.end();
    if (session != by_qpn_.end()) session->second->take_failure(event.event_type);
    ibv_ack_async_event(&event);
  }
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
  const char* how = session.may_be_refused() ? "refused" : "drained";
  if (session.state() == Session::State::kOver) close_session(id, how);
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
      if (session == by_qpn_.end()) return fail("a completion of nobody: " + text(completions[i]));
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
  if (verb == "go") return connect_session(line);
  if (verb == "stop" || verb == "lost") return end_session(line);
  if (verb == "break") return break_session(line);
  if (verb == "audit") return say("audit " + audit());
  if (verb == "quit") return quit();
  if (verb == "start" || verb == "error" || verb == "revoke" || verb == "pardon")
    return obey_session(verb, line.substr(verb.size()));
  Inherited inherited{device_.context, device_.pd, nullptr, shared_cq_};
  if (!sessions_.empty()) {
    inherited.qp = sessions_.begin()->second->qp();
    inherited.cq = sessions_.begin()->second->cq();
  }
  if (verb == "child") return have_a_child(inherited, options_.driver);
  if (verb == "die") die(line.substr(4), inherited, options_.driver);
  fail("unknown: " + line);
}

// What concerns a session that is there; it may have ended meanwhile.
void Worker::obey_session(const std::string& verb, const std::string& number) {
  const auto found = sessions_.find(static_cast<std::uint32_t>(std::stoul(number)));
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  if (verb == "start") return session.start();
  if (verb == "error") return session.drain();
  if (verb == "pardon") return session.peer_has_revoked();
  if (!session.can_revoke()) return;
  session.revoke();
  say("revoked" + number);
}

void Worker::open_session(const std::string& line) {
  std::istringstream words(line);
  std::string verb, service;
  Settings settings;
  words >> verb >> settings.id >> service >> settings.seed >> settings.role >> settings.steps;
  settings.timeout = options_.timeout;
  settings.is_wire = options_.is_wire;
  settings.service = service_of(service).value_or(Service::kReliable);
  Pool* pool = settings.service == Service::kReliable ? pool_for(settings) : nullptr;
  const Rested used = take_rested(settings.service, pool != nullptr);
  ibv_cq* cq = used.cq ? used.cq : cq_for_session();
  auto session = std::make_unique<Session>(device_, cq, settings, pool, used.qp);
  if (!session->complaint().empty()) return fail(session->complaint());
  const Address at = session->address();
  std::ostringstream answer;
  answer << "ready " << settings.id << ' ' << at.qpn << ' ' << at.sender << ' ' << hex(at.gid)
         << ' ' << at.window << ' ' << at.cells << ' ' << at.key << ' ' << at.foreign_queue;
  for (const std::uint32_t queue : at.queues)
    answer << ' ' << queue;
  for (const std::uint32_t window : at.windows)
    answer << ' ' << window;
  by_qpn_[at.qpn] = by_qpn_[at.sender] = session.get();
  sessions_[settings.id] = std::move(session);
  say(answer.str());
}

// Small messages may come to a queue that all share.
Pool* Worker::pool_for(const Settings& settings) {
  const Shape shape = Shape::of(settings.seed, settings.steps, settings.service);
  return shape.message_max <= Pool::kRoom && random_.one_in(2) ? pool_.get() : nullptr;
}

Worker::Rested Worker::take_rested(Service service, bool is_pooled) {
  // Packets of an earlier session would be taken for this one's. Of RC their numbers tell them
  // apart (shape.h); UC takes any number, and a datagram has none that counts.
  for (auto each = rested_.begin(); each != rested_.end(); ++each) {
    if (each->service != service || each->is_pooled != is_pooled || random_.one_in(4)) continue;
    if (options_.is_wire && service != Service::kReliable) continue;
    const Rested found = *each;
    rested_.erase(each);
    return found;
  }
  return {service, is_pooled, nullptr, nullptr};
}

void Worker::connect_session(const std::string& line) {
  std::istringstream words(line);
  std::string verb, gid;
  std::uint32_t id = 0;
  Address peer;
  words >> verb >> id >> peer.qpn >> peer.sender >> gid >> peer.window >> peer.cells >> peer.key >>
      peer.foreign_queue;
  for (std::uint32_t& queue : peer.queues)
    words >> queue;
  for (std::uint32_t& window : peer.windows)
    words >> window;
  peer.gid = gid_from(gid);
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;  // broken meanwhile
  session->second->connect(peer);
  say("set " + std::to_string(id));
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
  if (random_.one_in(3)) return close_session(id, "destroyed");
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
  // What has come to a shared queue does not go with the queue pair, or is not to.
  session.end_target();
  if (session.is_pooled() || session.is_extended()) poll(cq);
  by_qpn_.erase(session.qpn());
  by_qpn_.erase(session.target_qpn());
  const bool is_over = session.state() == Session::State::kOver;
  const Service service = session.settings().service;
  const bool is_kept = is_over && rested_.size() < 3 && service != Service::kExtended;
  ibv_qp* rested = is_kept ? session.release() : nullptr;
  const bool is_pooled = session.is_pooled();
  session.destroy();
  if (is_pooled && !rested) pool_->replace_lost();
  session.check_guards();
  if (!session.complaint().empty()) return fail(session.complaint());
  sessions_.erase(found);
  done_.erase(id);
  if (rested) {
    rested_.push_back({service, is_pooled, rested, cq});
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
  pool_.reset();
  if (ibv_destroy_srq(device_.foreign) != 0) fail("ibv_destroy_srq");
  if (ibv_destroy_cq(foreign_cq_) != 0) fail("ibv_destroy_cq");
  if (ibv_close_xrcd(device_.domain) != 0) fail("ibv_close_xrcd");
  if (ibv_dealloc_pd(foreign_pd_) != 0) fail("ibv_dealloc_pd");
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
    if (name == "--timeout") options.timeout = static_cast<unsigned>(std::atoi(words[i + 1]));
    if (name == "--wire") options.is_wire = std::atoi(words[i + 1]) != 0;
    if (name == "--device") options.device = words[i + 1];
  }
  return chaos::Worker(options).run();
}
