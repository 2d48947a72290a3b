// SPDX-License-Identifier: MIT
// Two processes, several threads in each: all of them post to the same queue pair and poll the same
// completion queue, without a lock of their own. What each thread asks for is a lane, drawn from
// the generator of all workloads. What has to hold: each request of each lane completes once, each
// message comes once, with its bytes, and what a lane reads is what it has written.
#include <endian.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "pattern.h"
#include "workload/generator.h"

namespace chaos {
namespace {

namespace workload = verbena::workload;
using workload::Request;
using workload::Verb;

constexpr unsigned kLanes = 3;
constexpr std::uint32_t kOpen = 8;       // of a lane at a time
constexpr std::uint32_t kReceives = 48;  // of the queue pair
constexpr std::uint32_t kRoom = 2048;
constexpr std::uint32_t kPlaces = 4;  // of a lane, at the peer
constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;
constexpr auto kPatience = std::chrono::seconds(60);  // while nothing moves

[[noreturn]] void fail(const std::string& what) {
  std::printf("FAIL crowd: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}
void require(bool is_good, const char* what) {
  if (!is_good) fail(std::string(what) + ": " + std::strerror(errno));
}

struct Address {
  ibv_gid gid{};
  std::uint32_t qpn = 0;
  std::uint32_t key = 0;
  std::uint64_t window = 0;
};

// Memory: what is sent, what comes back, what messages come to, and what the peer writes.
struct Memory {
  struct Lane {
    std::byte sources[kOpen][kRoom];
    std::byte backs[kOpen][kRoom];
  };
  Lane lanes[kLanes];
  std::byte receives[kReceives][kRoom];
  std::byte window[kLanes][kPlaces][kRoom];
  std::uint64_t counter;
};

class Lane {
 public:
  Lane(std::uint64_t seed, unsigned role, unsigned number, std::uint32_t requests)
      : number_(number), done_(requests), arrived_(requests) {
    workload::Generator generator(seed * 16 + role * 8 + number,
                                  {.requests = requests,
                                   .length_min = sizeof(std::uint64_t),
                                   .length_max = kRoom,
                                   .inline_max = 64,
                                   .pieces_max = 2,
                                   .places = kPlaces,
                                   .fences = true,
                                   .placement = false});
    while (!generator.is_over()) {
      all_.push_back(generator.next());
      // Its cell would be of several lanes.
      if (all_.back().verb == Verb::kCompareSwap) all_.back().verb = Verb::kFetchAdd;
    }
  }

  unsigned number() const { return number_; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(all_.size()); }
  const Request& request(std::uint32_t index) const { return all_[index]; }
  void write(std::span<std::byte> to, const Request& request) const {
    fill(to, request.content);
    const std::uint64_t mark = std::uint64_t{number_} << 32 | request.index;
    std::memcpy(to.data(), &mark, sizeof mark);
  }
  bool complete(std::uint32_t index) { return !done_[index].exchange(true); }
  bool arrive(std::uint32_t index) { return !arrived_[index].exchange(true); }
  std::uint32_t messages() const {
    return static_cast<std::uint32_t>(
        std::ranges::count_if(all_, [](const Request& r) { return takes_receive(r.verb); }));
  }
  std::uint32_t adds() const {
    return static_cast<std::uint32_t>(std::ranges::count(all_, Verb::kFetchAdd, &Request::verb));
  }

  std::uint32_t posted = 0;                // by its own thread
  std::atomic<std::uint32_t> completed{};  // by whoever polls
  std::array<std::atomic<bool>, kOpen> is_busy{};
  std::array<std::vector<std::byte>, kOpen> expected{};  // of READs
  std::array<std::vector<std::byte>, kPlaces> shadow{};  // the peer's memory

 private:
  unsigned number_;
  std::vector<Request> all_;
  std::vector<std::atomic<bool>> done_;
  std::vector<std::atomic<bool>> arrived_;
};

class End {
 public:
  End(std::uint64_t seed, unsigned role, std::uint32_t requests, int peer);
  void run();

 private:
  void make();
  void connect();
  Address address() const;
  void meet();
  void post_receive(std::uint32_t place);
  bool post(Lane& lane);
  void work(unsigned number);
  void poll();
  void wait_for_event();
  void take_send(const ibv_wc& completion);
  void take_receive(const ibv_wc& completion);
  bool is_done() const;
  std::uint64_t progress() const;
  void look_at_window();
  void flush();

  const int peer_socket_;
  std::vector<std::unique_ptr<Lane>> ours_;
  std::vector<std::unique_ptr<Lane>> peers_;
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_gid gid_{};
  Address peer_{};
  std::uint32_t messages_due_ = 0;
  std::atomic<std::uint32_t> messages_{};
  std::array<std::atomic<bool>, kReceives> is_posted_{};
  std::atomic<std::uint32_t> flushed_{};
  std::atomic<bool> is_flushing_{};
  std::atomic<bool> is_over_{};
};

End::End(std::uint64_t seed, unsigned role, std::uint32_t requests, int peer) : peer_socket_(peer) {
  for (unsigned i = 0; i < kLanes; ++i) {
    ours_.push_back(std::make_unique<Lane>(seed, role, i, requests));
    peers_.push_back(std::make_unique<Lane>(seed, 1 - role, i, requests));
    messages_due_ += peers_.back()->messages();
    for (auto& place : ours_.back()->shadow)
      place.resize(kRoom);
  }
}

void End::make() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  require(count > 0, "no device");
  context_ = ibv_open_device(list[0]);
  require(context_, "ibv_open_device");
  ibv_free_device_list(list);
  pd_ = ibv_alloc_pd(context_);
  channel_ = ibv_create_comp_channel(context_);
  require(pd_ && channel_ && ibv_query_gid(context_, 1, 0, &gid_) == 0, "ibv_alloc_pd");
  cq_ = ibv_create_cq(context_, 1024, nullptr, channel_, 0);
  region_ = ibv_reg_mr(pd_, memory_.get(), sizeof(Memory),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_ATOMIC);
  require(cq_ && region_, "ibv_reg_mr");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq_;
  wanted.cap = {kLanes * kOpen, kReceives, 2, 1, 64};
  wanted.qp_type = IBV_QPT_RC;
  qp_ = ibv_create_qp(pd_, &wanted);
  require(qp_, "ibv_create_qp");
}

Address End::address() const {
  return {gid_, qp_->qp_num, region_->rkey, reinterpret_cast<std::uint64_t>(memory_->window)};
}

void End::connect() {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = 1;
  to.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC;
  errno =
      ibv_modify_qp(qp_, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  require(errno == 0, "INIT");
  for (std::uint32_t place = 0; place < kReceives; ++place)
    post_receive(place);
  to.qp_state = IBV_QPS_RTR;
  to.ah_attr.is_global = 1;
  to.ah_attr.port_num = 1;
  to.ah_attr.grh.dgid = peer_.gid;
  to.ah_attr.grh.hop_limit = 1;
  to.path_mtu = IBV_MTU_1024;
  to.dest_qp_num = peer_.qpn;
  to.max_dest_rd_atomic = to.max_rd_atomic = 4;
  to.min_rnr_timer = 6;
  to.timeout = 19;
  to.retry_cnt = to.rnr_retry = 7;
  errno = ibv_modify_qp(qp_, &to,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  require(errno == 0, "RTR");
  to.qp_state = IBV_QPS_RTS;
  errno = ibv_modify_qp(qp_, &to,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  require(errno == 0, "RTS");
}

// Both are here, or the other one has ended.
void End::meet() {
  char byte = 0;
  require(send(peer_socket_, &byte, 1, MSG_NOSIGNAL) == 1, "the other process is gone");
  require(recv(peer_socket_, &byte, 1, 0) == 1, "the other process is gone");
}

void End::post_receive(std::uint32_t place) {
  const std::span<std::byte> area = memory_->receives[place];
  std::ranges::fill(area, std::byte{0});
  if (is_posted_[place].exchange(true)) fail("a receive is posted twice");
  ibv_sge piece{reinterpret_cast<std::uint64_t>(area.data()), kRoom, region_->lkey};
  ibv_recv_wr request{};
  ibv_recv_wr* bad = nullptr;
  request.wr_id = kReceive | place;
  request.sg_list = &piece;
  request.num_sge = 1;
  errno = ibv_post_recv(qp_, &request, &bad);
  require(errno == 0, "ibv_post_recv");
}

// False: it has to wait for a place.
bool End::post(Lane& lane) {
  const std::uint32_t slot = lane.posted % kOpen;
  if (lane.posted == lane.size() || lane.is_busy[slot].load(std::memory_order_acquire))
    return false;
  const Request& step = lane.request(lane.posted++);
  Memory::Lane& memory = memory_->lanes[lane.number()];
  const std::span<std::byte> area =
      comes_back(step.verb) ? memory.backs[slot] : memory.sources[slot];
  auto& shadow = lane.shadow[step.place];
  if (!comes_back(step.verb)) lane.write(area.first(step.length), step);
  if (is_write(step.verb)) std::ranges::copy(area.first(step.length), shadow.begin());
  if (step.verb == Verb::kRead)
    lane.expected[slot].assign(shadow.begin(), shadow.begin() + step.length);
  ibv_sge pieces[2];
  const auto at = reinterpret_cast<std::uint64_t>(area.data());
  pieces[0] = {at, step.pieces[0], region_->lkey};
  pieces[1] = {at + step.pieces[0], step.pieces[1], region_->lkey};
  ibv_send_wr request{};
  request.wr_id = std::uint64_t{lane.number()} << 32 | step.index;
  request.sg_list = pieces;
  request.num_sge = static_cast<int>(step.piece_count);
  // A WRITE may overtake a READ of the lane.
  request.send_flags = IBV_SEND_SIGNALED;
  if (step.is_inline) request.send_flags |= IBV_SEND_INLINE;
  if (step.is_fenced || is_write(step.verb)) request.send_flags |= IBV_SEND_FENCE;
  request.imm_data = htobe32(lane.number() << 24 | step.index);
  request.wr.rdma.remote_addr =
      peer_.window + (std::uint64_t{lane.number()} * kPlaces + step.place) * kRoom;
  request.wr.rdma.rkey = peer_.key;
  request.opcode = step.verb == Verb::kSend                ? IBV_WR_SEND
                   : step.verb == Verb::kSendWithImmediate ? IBV_WR_SEND_WITH_IMM
                   : step.verb == Verb::kWrite             ? IBV_WR_RDMA_WRITE
                   : step.verb == Verb::kRead              ? IBV_WR_RDMA_READ
                   : step.verb == Verb::kFetchAdd          ? IBV_WR_ATOMIC_FETCH_AND_ADD
                                                           : IBV_WR_RDMA_WRITE_WITH_IMM;
  if (step.verb == Verb::kFetchAdd)
    request.wr.atomic = {peer_.window + sizeof Memory::window, 1, 0, peer_.key};
  lane.is_busy[slot].store(true, std::memory_order_release);
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(qp_, &request, &bad);
  require(errno == 0, "ibv_post_send");
  return true;
}

void End::take_send(const ibv_wc& completion) {
  Lane& lane = *ours_.at(completion.wr_id >> 32 & 0xFF);
  const auto index = static_cast<std::uint32_t>(completion.wr_id);
  const std::string name =
      "request " + std::to_string(index) + " of lane " + std::to_string(lane.number());
  if (completion.status != IBV_WC_SUCCESS)
    fail(name + " ends with " + ibv_wc_status_str(completion.status));
  if (!lane.complete(index)) fail(name + " ends twice");
  const std::uint32_t slot = index % kOpen;
  if (!lane.is_busy[slot].load(std::memory_order_acquire)) fail(name + " was not posted");
  const Request& step = lane.request(index);
  const auto& expected = lane.expected[slot];
  if (step.verb == Verb::kRead &&
      !std::ranges::equal(expected,
                          std::span(memory_->lanes[lane.number()].backs[slot]).first(step.length)))
    fail(name + " read other bytes");
  lane.completed.fetch_add(1);
  lane.is_busy[slot].store(false, std::memory_order_release);
}

void End::take_receive(const ibv_wc& completion) {
  const auto place = static_cast<std::uint32_t>(completion.wr_id);
  if (!is_posted_.at(place).exchange(false)) fail("a receive ends twice");
  if (completion.status == IBV_WC_WR_FLUSH_ERR && is_flushing_) {
    flushed_.fetch_add(1);
    return;
  }
  if (completion.status != IBV_WC_SUCCESS)
    fail(std::string("a receive ends with ") + ibv_wc_status_str(completion.status));
  const std::span<const std::byte> area = memory_->receives[place];
  std::uint64_t mark = 0;
  std::memcpy(&mark, area.data(), sizeof mark);
  if (completion.wc_flags & IBV_WC_WITH_IMM) {
    const std::uint32_t immediate = be32toh(completion.imm_data);
    mark = std::uint64_t{immediate >> 24} << 32 | (immediate & 0xFFFFFF);
  }
  if (mark >> 32 >= kLanes) fail("a message of no lane");
  Lane& lane = *peers_[mark >> 32];
  const auto index = static_cast<std::uint32_t>(mark);
  if (index >= lane.size() || !takes_receive(lane.request(index).verb))
    fail("a message that was not sent");
  const Request& step = lane.request(index);
  if (!lane.arrive(index)) fail("a message came twice");
  if (completion.byte_len != step.length) fail("a message of another length");
  std::vector<std::byte> expected(step.length);
  lane.write(expected, step);
  if (is_send(step.verb) && !std::ranges::equal(expected, area.first(step.length)))
    fail("a message of other bytes");
  post_receive(place);
  messages_.fetch_add(1);
}

void End::poll() {
  ibv_wc completions[4];
  const int count = ibv_poll_cq(cq_, 4, completions);
  require(count >= 0, "ibv_poll_cq");
  for (int i = 0; i < count; ++i) {
    if (completions[i].wr_id & kReceive) {
      take_receive(completions[i]);
    } else {
      take_send(completions[i]);
    }
  }
  if (count == 0) std::this_thread::yield();
}

// As threads do that sleep; others may take what it was woken for.
void End::wait_for_event() {
  require(ibv_req_notify_cq(cq_, 0) == 0, "ibv_req_notify_cq");
  poll();
  pollfd ready{channel_->fd, POLLIN, 0};
  if (::poll(&ready, 1, 1) != 1) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  require(ibv_get_cq_event(channel_, &cq, &context) == 0, "ibv_get_cq_event");
  ibv_ack_cq_events(cq, 1);
}

bool End::is_done() const {
  return messages_ == messages_due_ && std::ranges::all_of(ours_, [](const auto& lane) {
           return lane->completed == lane->size();
         });
}

// Grows with whatever completes.
std::uint64_t End::progress() const {
  std::uint64_t count = messages_ + flushed_;
  for (const auto& lane : ours_)
    count += lane->completed;
  return count;
}

void End::work(unsigned number) {
  Lane& lane = *ours_[number];
  for (unsigned turn = 0; !is_over_; ++turn) {
    post(lane);
    if (number == 0 && turn % 16 == 0) {
      wait_for_event();
    } else {
      poll();
    }
  }
}

// All of the peer's lanes have ended: their memory is what they have written.
void End::look_at_window() {
  std::uint64_t adds = 0;
  for (const auto& lane : peers_) {
    adds += lane->adds();
    std::array<std::vector<std::byte>, kPlaces> expected;
    for (auto& place : expected)
      place.resize(kRoom);
    for (std::uint32_t i = 0; i < lane->size(); ++i) {
      const Request& step = lane->request(i);
      if (is_write(step.verb))
        lane->write(std::span(expected[step.place]).first(step.length), step);
    }
    for (std::uint32_t place = 0; place < kPlaces; ++place) {
      if (!std::ranges::equal(expected[place], memory_->window[lane->number()][place]))
        fail("the window is not what the peer wrote");
    }
  }
  if (memory_->counter != adds) fail("the counter is not what the peer added");
}

// All receives come back, to whichever thread.
void End::flush() {
  is_flushing_ = true;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  errno = ibv_modify_qp(qp_, &attributes, IBV_QP_STATE);
  require(errno == 0, "ERR");
}

void End::run() {
  make();
  const Address own = address();
  require(send(peer_socket_, &own, sizeof own, MSG_NOSIGNAL) == sizeof own, "send");
  require(recv(peer_socket_, &peer_, sizeof peer_, 0) == sizeof peer_, "recv");
  connect();
  meet();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kLanes; ++i)
    threads.emplace_back([this, i] { work(i); });
  const auto wait_until = [this](auto condition, const char* what) {
    auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::uint64_t last = 0;
    while (!condition()) {
      if (const std::uint64_t moved = progress(); moved != last) {
        last = moved;
        deadline = std::chrono::steady_clock::now() + kPatience;
      }
      if (std::chrono::steady_clock::now() > deadline) fail(std::string(what) + " hangs");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  wait_until([&] { return is_done(); }, "the exchange");
  meet();
  look_at_window();
  flush();
  wait_until([&] { return flushed_ == kReceives; }, "the end of the receives");
  is_over_ = true;
  for (std::thread& thread : threads)
    thread.join();
  require(ibv_destroy_qp(qp_) == 0 && ibv_destroy_cq(cq_) == 0 && ibv_dereg_mr(region_) == 0 &&
              ibv_destroy_comp_channel(channel_) == 0 && ibv_dealloc_pd(pd_) == 0 &&
              ibv_close_device(context_) == 0,
          "the end");
}

}  // namespace
}  // namespace chaos

int main(int count, char** words) {
  const std::uint64_t fresh = static_cast<std::uint64_t>(getpid()) * 7919;
  const std::uint64_t seed = count > 2 ? std::strtoull(words[2], nullptr, 0) : fresh;
  const auto requests =
      count > 1 ? static_cast<std::uint32_t>(std::strtoul(words[1], nullptr, 0)) : 2000u;
  std::printf("crowd %u %llu\n", requests, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  int ends[2];
  chaos::require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    chaos::End(seed, 1, requests, ends[1]).run();
    std::exit(0);
  }
  close(ends[1]);
  chaos::End(seed, 0, requests, ends[0]).run();
  int status = 0;
  waitpid(child, &status, 0);
  const bool is_good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::printf("%d passed, %d failed\n", is_good ? 1 : 0, is_good ? 0 : 1);
  return is_good ? 0 : 1;
}
