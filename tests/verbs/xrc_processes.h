// SPDX-License-Identifier: MIT
// For all processes of the tests of XRC domains of a file.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "other_process.h"
#include "xrc.h"

namespace verbena::verbs::testing {

// What a process that has a shared receive queue is told to do, with a number.
enum class QueueTask : std::uint32_t {
  kEnd,
  kPost,     // a receive of so many bytes, behind those before
  kNext,     // waits for a completion, says its status and length, then its number and immediate
  kWaitFor,  // the same by an event: says something when it is armed
  kNothing,  // that one has nothing
  kLeave,    // when the byte there is written it closes another handle on the domain
};
constexpr std::uint64_t in_one(std::uint32_t upper, std::uint32_t lower) {
  return std::uint64_t{upper} << 32 | lower;
}
constexpr std::uint32_t upper_of(std::uint64_t both) {
  return static_cast<std::uint32_t>(both >> 32);
}
constexpr std::uint32_t lower_of(std::uint64_t both) { return static_cast<std::uint32_t>(both); }

// Memory that processes show each other.
class SharedBytes {
 public:
  static constexpr std::size_t kSize = 1 << 20;
  SharedBytes() : file_(memfd_create("bytes", MFD_CLOEXEC)) {
    EXPECT_EQ(0, ftruncate(file_.get(), kSize));
    map();
  }
  explicit SharedBytes(UniqueFd file) : file_(std::move(file)) { map(); }
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  ~SharedBytes() { munmap(data, kSize); }
  int file() const { return file_.get(); }

  std::uint8_t* data = nullptr;

 private:
  void map() {
    void* const at = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    ASSERT_NE(MAP_FAILED, at);
    data = static_cast<std::uint8_t*>(at);
  }

  UniqueFd file_;
};

class XrcProcesses : public XrcTest {
 protected:
  static constexpr int kEveryAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

  // Its errno when there is none.
  int error_of_open(int fd, int flags) {
    errno = 0;
    return open(fd, flags) ? 0 : errno;
  }
  void connect_to(ibv_qp* qp, std::uint64_t number) {
    ibv_qp peer{};
    peer.qp_num = static_cast<std::uint32_t>(number);
    connect(qp, &peer);
  }
  static ibv_qp_state state_of(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    EXPECT_EQ(0, ibv_query_qp(qp, &attributes, IBV_QP_STATE, &initial));
    return attributes.qp_state;
  }
};

}  // namespace verbena::verbs::testing
