// SPDX-License-Identifier: MIT
// syscall(2) as libc has it, but for close(2) and close_range(2): some programs (those of libuv)
// close their sockets by it. What it was must be forgotten before the number is another
// descriptor's.
#include "rspreload/system_call.h"

#include <dlfcn.h>
#include <link.h>
#include <rdma/rsocket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "rspreload/descriptors.h"
#include "rspreload/polling.h"

static_assert((SYS_close == 3 || SYS_close == 57) && SYS_close_range == 436, "as below");

#if defined(__x86_64__)
asm(R"(
  .text
  .globl syscall
  .type syscall, @function
syscall:
  .cfi_startproc
  endbr64
  cmpq $3, %rdi
  je 1f
  cmpq $436, %rdi
  je 3f
  .globl verbena_system_call
  .hidden verbena_system_call
verbena_system_call:
  movq %rdi, %rax
  movq %rsi, %rdi
  movq %rdx, %rsi
  movq %rcx, %rdx
  movq %r8, %r10
  movq %r9, %r8
  movq 8(%rsp), %r9
  syscall
  cmpq $-4095, %rax
  jae 2f
  ret
1:
  movl %esi, %edi
  movq (%rsp), %rsi
  jmp verbena_close_by_system_call
3:
  movl %esi, %edi
  movl %edx, %esi
  movl %ecx, %edx
  movq (%rsp), %rcx
  jmp verbena_close_range_by_system_call
2:
  movl %eax, %edi
  negl %edi
  jmp verbena_system_call_failed
  .cfi_endproc
  .size syscall, . - syscall
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl syscall
  .type syscall, %function
syscall:
  .cfi_startproc
  cmp x0, #57
  b.eq 1f
  cmp x0, #436
  b.eq 3f
  .globl verbena_system_call
  .hidden verbena_system_call
verbena_system_call:
  mov x8, x0
  mov x0, x1
  mov x1, x2
  mov x2, x3
  mov x3, x4
  mov x4, x5
  mov x5, x6
  mov x6, x7
  svc #0
  cmn x0, #4095
  b.cs 2f
  ret
1:
  mov w0, w1
  mov x1, x30
  b verbena_close_by_system_call
3:
  mov w0, w1
  mov w1, w2
  mov w2, w3
  mov x3, x30
  b verbena_close_range_by_system_call
2:
  neg w0, w0
  b verbena_system_call_failed
  .cfi_endproc
  .size syscall, . - syscall
)");
#endif

namespace verbena::rspreload {
namespace {

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool has(std::uintptr_t at) const { return begin <= at && at < end; }
};
std::array<Range, 3> own_code;

std::uintptr_t address_of(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

int find_range(dl_phdr_info* object, std::size_t, void* to) {
  Range& wanted = *static_cast<Range*>(to);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    const std::uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    const Range range{begin, begin + part.p_memsz};
    if (part.p_type != PT_LOAD || !range.has(wanted.begin)) continue;
    wanted = range;
    return 1;
  }
  return 0;
}

[[gnu::constructor]] void find_own_code() {
  const std::array<const void*, 3> inside = {reinterpret_cast<const void*>(&find_range),
                                             dlsym(RTLD_DEFAULT, "rsocket"),
                                             dlsym(RTLD_DEFAULT, "ibv_get_device_list")};
  for (std::size_t i = 0; i < inside.size(); ++i) {
    Range range{address_of(inside[i]), 0};
    if (dl_iterate_phdr(find_range, &range) == 1) own_code[i] = range;
  }
}

}  // namespace

bool is_own_code(const void* at) {
  for (const Range& each : own_code)
    if (each.has(address_of(at))) return true;
  return false;
}

}  // namespace verbena::rspreload

extern "C" {

// Its libraries close what is theirs, in tables of descriptors of their own.
[[gnu::used, gnu::visibility("hidden")]] long verbena_close_by_system_call(int fd,
                                                                           const void* caller) {
  using namespace verbena::rspreload;  // NOLINT(google-build-using-namespace): this file is its
                                       // door
  if (is_own_code(caller) || (!is_ours(fd) && !is_in_sets(fd)))
    return verbena_system_call(SYS_close, fd);
  return close_descriptor(fd, caller);
}

[[gnu::used, gnu::visibility("hidden")]] long verbena_close_range_by_system_call(
    unsigned first, unsigned last, int flags, const void* caller) {
  using verbena::rspreload::is_own_code;
  if (is_own_code(caller)) return verbena_system_call(SYS_close_range, first, last, flags);
  return close_range(first, last, flags);
}

[[gnu::used, gnu::visibility("hidden")]] long verbena_system_call_failed(int error) {
  errno = error;
  return -1;
}
}
