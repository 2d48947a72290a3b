// SPDX-License-Identifier: MIT
// A process of the same user that links with a NIC whose queue pairs are connected to it, and says
// and shares whatever it likes: conduits, tables, files, datagrams, management, relays of XRC
// targets in both directions. The NIC goes on, and memory that was not granted stays as it is.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "base/assert.h"
#include "base/test_input.h"
#include "host/doorbell.h"
#include "host/test_raw_link.h"
#include "local/conduit.h"
#include "local/published.h"
#include "local/test_hostile.h"
#include "nic/test_world.h"
#include "nic/test_xrc.h"

namespace verbena::nic {
namespace {

constexpr SlotNumber kHostile{1000};
constexpr std::uint8_t kSecret = 0x5a;
constexpr std::uint32_t kGranted = 4096;
constexpr std::size_t kBytes = 3 * kGranted;  // the part in the middle is granted
constexpr std::uint64_t kConduitId = 77;
constexpr std::size_t kKinds = 4;  // RC, UC, UD, and an XRC target
constexpr std::size_t kTarget = 3;
constexpr std::uint32_t kFirst = 5;  // of the hostile process: as many queue pairs
constexpr std::uint32_t kQueueElsewhere = QpNum::of(kHostile, kFirst + kKinds).value;

// As links write them (links.h).
struct Message {
  std::uint32_t kind = 0;
  std::uint32_t from_qp = 0;
  std::uint32_t to_qp = 0;
  std::uint32_t qp_type = 0;
  std::uint64_t conduit_id = kConduitId;
  std::uint32_t index = 0;
  std::uint32_t conduits = 1;
  std::uint64_t domain[2] = {};
};
static_assert(sizeof(Message) == 48);

int sealed(std::size_t size) {
  const int file = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  VERBENA_ASSERT(file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0);
  VERBENA_ASSERT(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return file;
}
std::byte* mapped(int file, std::size_t size) {
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  VERBENA_ASSERT(at != MAP_FAILED);
  return static_cast<std::byte*>(at);
}

// What the hostile process shares, made once.
struct Shared {
  int page = sealed(sizeof(host::ProcessPage));
  int conduit = sealed(local::kConduitSize);
  int tables = sealed(local::kPublishedSize);
  int file = sealed(1 << 16);
  std::byte* conduit_memory = mapped(conduit, local::kConduitSize);
  std::byte* page_memory = mapped(page, sizeof(host::ProcessPage));
  local::PublishedTables* published =
      reinterpret_cast<local::PublishedTables*>(mapped(tables, local::kPublishedSize));

  void begin() const {
    std::memset(conduit_memory, 0, local::kConduitSize);
    auto& header = *reinterpret_cast<local::ConduitHeader*>(conduit_memory);
    header.magic = local::ConduitHeader::kMagic;
    header.id = kConduitId;
    header.layout_version = host::kLayoutVersion;
    header.request_units = local::kRequestUnits;
    header.response_units = local::kResponseUnits;
    published->magic = local::PublishedTables::kMagic;
    published->slot = kHostile.value;
  }
};

// Queue pairs of one type each, and memory of which a part is registered.
class Victim {
 public:
  Victim() {
    constexpr std::array kTypes{qp::QpType::kRc, qp::QpType::kUc, qp::QpType::kUd};
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      nodes_[i] = std::make_unique<Node>(world_, kTypes[i], nullptr, kBytes);
    for (const auto& node : nodes_) {
      VERBENA_ASSERT(dereg_mr(node->mr).has_value());
      std::ranges::fill(node->memory, kSecret);
      node->mr = *reg_mr(*world_.pd, node->memory.data() + kGranted, kGranted,
                         node->address() + kGranted, kEveryAccess);
    }
  }
  Node& node(std::size_t which) { return *nodes_[which]; }
  XrcTarget& target() { return target_; }
  QpNum number(std::size_t which) {
    return which == kTarget ? target_.number() : nodes_[which]->number();
  }
  SlotNumber slot() { return nodes_[0]->number().slot(); }
  void connect(std::size_t which) {
    const QpNum theirs = QpNum::of(kHostile, kFirst + static_cast<std::uint32_t>(which));
    if (which == kTarget) return target_.connect(theirs);
    Node& node = *nodes_[which];
    static_cast<void>(node.move(qp::QpState::kReset));
    node.timeout = 1;
    node.ready(theirs);
  }
  void poll() {
    for (const auto& node : nodes_) {
      std::array<queues::Completion, 16> some;
      static_cast<void>(node->cq->poll(some));
    }
    std::array<queues::Completion, 16> some;
    static_cast<void>(target_.cq->poll(some));
  }
  void expect_secrets() {
    expect_secrets_of(target_.memory);
    for (const auto& node : nodes_)
      expect_secrets_of(node->memory);
  }

 private:
  static void expect_secrets_of(std::span<const std::uint8_t> memory) {
    const auto is_secret = [](std::uint8_t each) { return each == kSecret; };
    VERBENA_ASSERT(std::ranges::all_of(memory.first(kGranted), is_secret));
    VERBENA_ASSERT(std::ranges::all_of(memory.last(kGranted), is_secret));
  }

  World world_;
  std::array<std::unique_ptr<Node>, 3> nodes_;
  XrcTarget target_{world_, kBytes, kGranted, kGranted, kSecret};
};

class PeerRun {
 public:
  PeerRun(Victim& victim, const Shared& shared, TestInput input)
      : victim_(victim), shared_(shared), input_(input), raw_({"verbena/slot/", victim.slot()}) {
    shared_.begin();
    host::Greeting greeting = host::greeting_to(victim.slot());
    static std::uint64_t number = 0;
    greeting.id = {++number, 7};
    greeting.slots = {};
    greeting.slots.add(kHostile);
    raw_.send(host::frame(host::FrameType::kHello, greeting), {shared.page});
    hear_out(0);  // the answer
    raw_.send(host::frame(host::FrameType::kReady));
  }

  void run() {
    victim_.connect(input_.below(kKinds));
    for (int steps = 0; !input_.empty() && steps < 48; ++steps)
      step();
    victim_.poll();
    victim_.expect_secrets();
  }

 private:
  void step() {
    switch (input_.below(12)) {
      case 0: return hear_out(MSG_DONTWAIT);
      case 1:
      case 2: return say();
      case 3: return say_anything();
      case 4: return victim_.connect(input_.below(kKinds));
      case 5: return post();
      case 6: return scribble(theirs_ ? theirs_ : shared_.conduit_memory, local::kConduitSize);
      case 7: return scribble(shared_.conduit_memory, local::kConduitSize);
      case 8: return change_tables();
      case 9: return write_request();
      case 10: return write_response();
      default: return victim_.poll();
    }
  }
  // What the NIC says: its conduits are mapped.
  void hear_out(int flags) {
    std::array<std::byte, host::kFrameMax> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 8)> control{};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(raw_.fd(), &message, flags | MSG_CMSG_CLOEXEC) <= 0) return;
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
      if (each->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t i = 0; i < (each->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(each) + i * sizeof fd, sizeof fd);
        take(fd);
      }
    }
  }
  void take(int fd) {
    struct stat status{};
    const bool is_conduit =
        fstat(fd, &status) == 0 && status.st_size == static_cast<off_t>(local::kConduitSize);
    if (is_conduit && !theirs_) theirs_ = mapped(fd, local::kConduitSize);
    const bool is_page =
        !bell_ && status.st_size == static_cast<off_t>(sizeof(host::ProcessPage)) && !is_conduit;
    if (is_page) bell_ = mapped(fd, sizeof(host::ProcessPage));
    close(fd);
  }

  void say() {
    const std::uint8_t how = input_.take();
    Message message;
    message.kind = 1 + how % 8;
    const std::size_t which = input_.below(kKinds);
    message.from_qp = QpNum::of(kHostile, kFirst + static_cast<std::uint32_t>(which)).value;
    message.to_qp = victim_.number(which).value;
    message.qp_type = static_cast<std::uint32_t>(2 + which);
    // Either half of such a connection (links.cc).
    if (which == kTarget) message.qp_type = 2 | (1 + (how >> 3 & 1u)) << 8;
    if (message.kind >= 7) speak_of_relay(message);
    if (how >= 0xE0) input_.fill(&message, input_.below(sizeof message));
    if (message.kind == 6) message.conduit_id = local::FileId::of(1 + how % 4, true).value;
    host::Bytes bytes = host::frame(host::FrameType::kMessage);
    host::append(bytes, message);
    const std::array<int, 4> files{shared_.conduit, shared_.tables, shared_.file, shared_.page};
    std::vector<int> attached;
    if (message.kind == 1 || message.kind == 4) attached = {files[0]};
    if (message.kind == 5) attached = {files[1]};
    if (message.kind == 6) attached = {files[2]};
    if (input_.one_in(8)) attached = {files[input_.below(4)]};
    raw_.send(bytes, attached);
  }
  // A target of ours for a queue of theirs, or the other way round.
  void speak_of_relay(Message& message) {
    const FileIdentity file = XrcTarget::file();
    message.domain[0] = file.device;
    message.domain[1] = file.inode + (input_.one_in(8) ? 1 : 0);
    if (message.kind == 7) message.to_qp = victim_.target().srq->number.value;
    if (message.kind == 8) {
      message.from_qp = kQueueElsewhere;
      message.to_qp = victim_.target().number().value;
    }
  }
  // As an initiator, or as a target that relays.
  void write_request() {
    if (!theirs_) return;
    const std::array<std::uint32_t, 2> queues{kQueueElsewhere, victim_.target().srq->number.value};
    local::RequestRecord record{};
    const std::uint32_t length = input_.take();
    record.index = local::wild(input_, index_++);
    record.total_length = local::wild(input_, length);
    record.piece_length = local::wild(input_, length);
    record.remote_address = victim_.target().address() + input_.take<std::uint16_t>() % kGranted;
    record.remote_key = local::wild(input_, victim_.target().mr->key.value);
    record.shared_queue = local::wild(input_, queues[input_.below(2)]);
    requests_.publish(record, local::request_ring(theirs_), input_);
    ring(kTarget);
  }
  void ring(std::size_t which) {
    if (!bell_) return;
    host::Doorbell bell(*reinterpret_cast<host::ProcessPage*>(bell_));
    bell.ring_and_wake(victim_.number(which).index());
  }
  // Of the queue that our target asked.
  void write_response() {
    local::ResponseRecord record{};
    local::take_response(record, input_);
    responses_.publish(record, local::response_ring(shared_.conduit_memory), input_);
    auto& header = *reinterpret_cast<local::ConduitHeader*>(shared_.conduit_memory);
    header.executed = local::wild(input_, input_.below(4));
    ring(kTarget);
  }
  // Of all kinds of messages the first word says which one it is.
  void say_anything() {
    // Management, the group that shares a port, a packet handed over.
    constexpr std::array<std::uint32_t, 4> kWords{0x56475301, 0x56475201, 0x56484F01, 1};
    host::Bytes bytes = host::frame(host::FrameType::kMessage);
    if (input_.one_in(2)) host::append(bytes, kWords[input_.below(4)]);
    const auto more = std::as_bytes(input_.take_bytes(input_.take()));
    bytes.insert(bytes.end(), more.begin(), more.end());
    if (input_.one_in(4)) bytes.resize(std::max<std::size_t>(bytes.size(), 16) * input_.below(16));
    bytes.resize(std::min(bytes.size(), host::kFrameMax));
    raw_.send(bytes);
  }
  void scribble(std::byte* memory, std::size_t size) {
    const std::uint32_t at = input_.take<std::uint32_t>();
    const bool is_header = (at & 1) != 0;
    const std::size_t count = 1u + input_.below(96);
    const std::size_t place =
        is_header ? at / 2 % sizeof(local::ConduitHeader)
                  : local::kRingsOffset + (at / 2 % 64) * local::kUnit +
                        (at >= 1u << 31 ? std::size_t{local::kRequestUnits} * local::kUnit : 0);
    input_.fill(memory + std::min(place, size - count), count);
  }
  void change_tables() {
    const std::uint8_t what = input_.take();
    auto& region = shared_.published->regions[what % 4];
    auto& pair = shared_.published->queue_pairs[kFirst + what % 3];
    if ((what & 0x80) != 0) {
      pair.grant =
          std::uint64_t{victim_.node(what % 3).number().value} << 32 | input_.take<std::uint32_t>();
      pair.connection = kConduitId;
      pair.pd = 1;
      return;
    }
    input_.fill(&region, sizeof region);
    if ((what & 0x40) != 0) region.file = local::FileId::of(1, true).value;
    region.identity = std::uint64_t{what} << 32 | what % 4;
  }
  void post() {
    const std::size_t which = input_.below(kKinds);
    if (which == kTarget) return victim_.target().post(input_.take<std::uint16_t>());
    Node& node = victim_.node(which);
    const std::uint8_t how = input_.take();
    const std::uint32_t length = input_.take<std::uint16_t>() % kGranted;
    const Sge local{node.address() + kGranted, length, node.mr->key};
    if ((how & 0x80) != 0) {
      static_cast<void>(post_receive(*node.qp, 1, {&local, 1}));
      return;
    }
    qp::SendRequest request;
    request.opcode = static_cast<queues::SendOpcode>(
        how % static_cast<unsigned>(queues::SendOpcode::kBindWindow));
    if (which == 2) request.opcode = queues::SendOpcode::kSend;
    request.remote_address = input_.take<std::uint16_t>();
    request.remote_key = {input_.below(4)};
    request.sges = {&local, 1};
    std::size_t posted = 0;
    if (which != 2) static_cast<void>(post_send(*node.qp, {&request, 1}, posted));
  }

  Victim& victim_;
  const Shared& shared_;
  TestInput input_;
  host::Raw raw_;
  std::byte* theirs_ = nullptr;
  std::byte* bell_ = nullptr;
  local::HostileWriter requests_;
  local::HostileWriter responses_;
  std::uint32_t index_ = 0;

 public:
  PeerRun(const PeerRun&) = delete;
  PeerRun& operator=(const PeerRun&) = delete;
  ~PeerRun() {
    if (theirs_) munmap(theirs_, local::kConduitSize);
    if (bell_) munmap(bell_, sizeof(host::ProcessPage));
  }
};

}  // namespace
}  // namespace verbena::nic

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena::nic;  // NOLINT(google-build-using-namespace): a fuzzer is one function
  static Victim* const victim = new Victim;
  static const Shared* const shared = new Shared;
  PeerRun(*victim, *shared, verbena::TestInput(data, size)).run();
  return 0;
}
