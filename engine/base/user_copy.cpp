#include "engine/base/user_copy.hpp"

#include <ucontext.h>

#include <algorithm>
#include <span>

#include "engine/base/clock.hpp"
#include "engine/base/sys.hpp"

#ifndef __x86_64__
#error "the copies from and to a program's memory are written for x86-64"
#endif

namespace sidestep::engine {

constinit thread_local UserCopies user_copies;
std::atomic<uint32_t> user_copy_epoch{1};
void (*begin_to_answer_faults)() noexcept = nullptr;

namespace {
std::atomic<bool> g_answered{false};
/// Longer copies are left to memcpy().
const size_t kSomeBytes = __builtin_cpu_supports("avx") != 0 ? 2048 : 0;
}  // namespace

// Functions without a stack frame: a fault in them leaves nothing to undo. Their arguments stay
// where they are, in rdi, rsi and rdx. So after a fault anywhere, the copy can be done once more,
// byte by byte, which tells exactly how far it gets.
extern "C" {
// The places that answer_fault() knows.
extern const char sidestep_few_begin[] __attribute__((visibility("hidden")));
extern const char sidestep_few_end[] __attribute__((visibility("hidden")));
extern const char sidestep_some_begin[] __attribute__((visibility("hidden")));
extern const char sidestep_some_end[] __attribute__((visibility("hidden")));
extern const char sidestep_exactly[] __attribute__((visibility("hidden")));
extern const char sidestep_exactly_cut[] __attribute__((visibility("hidden")));
extern const char sidestep_touches[] __attribute__((visibility("hidden")));
extern const char sidestep_touches_to_write[] __attribute__((visibility("hidden")));
extern const char sidestep_touch_cut[] __attribute__((visibility("hidden")));
extern const char sidestep_many_cut[] __attribute__((visibility("hidden")));

#define SIDESTEP_PLACE(name) ".globl " #name "\n.hidden " #name "\n" #name ":\n"

[[gnu::naked, gnu::noinline]] size_t sidestep_copy_few(void*, const void*, size_t) noexcept {
  // Depending on the size: two or more pieces that may overlap, all read before one is written.
  asm(SIDESTEP_PLACE(sidestep_few_begin)
      "  mov %rdx, %rax\n"
      "  cmp $16, %rdx\n"
      "  jb 1f\n"
      "  cmp $32, %rdx\n"
      "  ja 2f\n"
      "  movups (%rsi), %xmm0\n"
      "  movups -16(%rsi,%rdx), %xmm1\n"
      "  movups %xmm0, (%rdi)\n"
      "  movups %xmm1, -16(%rdi,%rdx)\n"
      "  ret\n"
      "2: cmp $64, %rdx\n"
      "  ja 3f\n"
      "  movups (%rsi), %xmm0\n"
      "  movups 16(%rsi), %xmm1\n"
      "  movups -32(%rsi,%rdx), %xmm2\n"
      "  movups -16(%rsi,%rdx), %xmm3\n"
      "  movups %xmm0, (%rdi)\n"
      "  movups %xmm1, 16(%rdi)\n"
      "  movups %xmm2, -32(%rdi,%rdx)\n"
      "  movups %xmm3, -16(%rdi,%rdx)\n"
      "  ret\n"
      "3: cmp $128, %rdx\n"
      "  ja 8f\n"
      "  movups (%rsi), %xmm0\n"
      "  movups 16(%rsi), %xmm1\n"
      "  movups 32(%rsi), %xmm2\n"
      "  movups 48(%rsi), %xmm3\n"
      "  movups -64(%rsi,%rdx), %xmm4\n"
      "  movups -48(%rsi,%rdx), %xmm5\n"
      "  movups -32(%rsi,%rdx), %xmm6\n"
      "  movups -16(%rsi,%rdx), %xmm7\n"
      "  movups %xmm0, (%rdi)\n"
      "  movups %xmm1, 16(%rdi)\n"
      "  movups %xmm2, 32(%rdi)\n"
      "  movups %xmm3, 48(%rdi)\n"
      "  movups %xmm4, -64(%rdi,%rdx)\n"
      "  movups %xmm5, -48(%rdi,%rdx)\n"
      "  movups %xmm6, -32(%rdi,%rdx)\n"
      "  movups %xmm7, -16(%rdi,%rdx)\n"
      "  ret\n"
      "8: movups (%rsi), %xmm0\n"
      "  movups 16(%rsi), %xmm1\n"
      "  movups 32(%rsi), %xmm2\n"
      "  movups 48(%rsi), %xmm3\n"
      "  movups 64(%rsi), %xmm4\n"
      "  movups 80(%rsi), %xmm5\n"
      "  movups 96(%rsi), %xmm6\n"
      "  movups 112(%rsi), %xmm7\n"
      "  movups -128(%rsi,%rdx), %xmm8\n"
      "  movups -112(%rsi,%rdx), %xmm9\n"
      "  movups -96(%rsi,%rdx), %xmm10\n"
      "  movups -80(%rsi,%rdx), %xmm11\n"
      "  movups -64(%rsi,%rdx), %xmm12\n"
      "  movups -48(%rsi,%rdx), %xmm13\n"
      "  movups -32(%rsi,%rdx), %xmm14\n"
      "  movups -16(%rsi,%rdx), %xmm15\n"
      "  movups %xmm0, (%rdi)\n"
      "  movups %xmm1, 16(%rdi)\n"
      "  movups %xmm2, 32(%rdi)\n"
      "  movups %xmm3, 48(%rdi)\n"
      "  movups %xmm4, 64(%rdi)\n"
      "  movups %xmm5, 80(%rdi)\n"
      "  movups %xmm6, 96(%rdi)\n"
      "  movups %xmm7, 112(%rdi)\n"
      "  movups %xmm8, -128(%rdi,%rdx)\n"
      "  movups %xmm9, -112(%rdi,%rdx)\n"
      "  movups %xmm10, -96(%rdi,%rdx)\n"
      "  movups %xmm11, -80(%rdi,%rdx)\n"
      "  movups %xmm12, -64(%rdi,%rdx)\n"
      "  movups %xmm13, -48(%rdi,%rdx)\n"
      "  movups %xmm14, -32(%rdi,%rdx)\n"
      "  movups %xmm15, -16(%rdi,%rdx)\n"
      "  ret\n"
      "1: cmp $8, %rdx\n"
      "  jb 4f\n"
      "  mov (%rsi), %rcx\n"
      "  mov -8(%rsi,%rdx), %r8\n"
      "  mov %rcx, (%rdi)\n"
      "  mov %r8, -8(%rdi,%rdx)\n"
      "  ret\n"
      "4: cmp $4, %rdx\n"
      "  jb 5f\n"
      "  mov (%rsi), %ecx\n"
      "  mov -4(%rsi,%rdx), %r8d\n"
      "  mov %ecx, (%rdi)\n"
      "  mov %r8d, -4(%rdi,%rdx)\n"
      "  ret\n"
      "5: cmp $1, %rdx\n"
      "  jb 7f\n"
      "  je 6f\n"
      "  movzwl (%rsi), %ecx\n"
      "  movzbl -1(%rsi,%rdx), %r8d\n"
      "  movw %cx, (%rdi)\n"
      "  movb %r8b, -1(%rdi,%rdx)\n"
      "  ret\n"
      "6: movzbl (%rsi), %ecx\n"
      "  movb %cl, (%rdi)\n"
      "7: ret\n" SIDESTEP_PLACE(sidestep_few_end));
}

/// Copies more than kFewBytes where there is AVX: reads the last bytes first, and writes them last.
[[gnu::naked, gnu::noinline]] size_t sidestep_copy_some(void*, const void*, size_t) noexcept {
  asm(SIDESTEP_PLACE(sidestep_some_begin)
      "  vmovdqu -128(%rsi,%rdx), %ymm4\n"
      "  vmovdqu -96(%rsi,%rdx), %ymm5\n"
      "  vmovdqu -64(%rsi,%rdx), %ymm6\n"
      "  vmovdqu -32(%rsi,%rdx), %ymm7\n"
      "  mov %rdx, %rax\n"
      "  lea -128(%rdx), %r8\n"
      "  xor %ecx, %ecx\n"
      "1: vmovdqu (%rsi,%rcx), %ymm0\n"
      "  vmovdqu 32(%rsi,%rcx), %ymm1\n"
      "  vmovdqu 64(%rsi,%rcx), %ymm2\n"
      "  vmovdqu 96(%rsi,%rcx), %ymm3\n"
      "  vmovdqu %ymm0, (%rdi,%rcx)\n"
      "  vmovdqu %ymm1, 32(%rdi,%rcx)\n"
      "  vmovdqu %ymm2, 64(%rdi,%rcx)\n"
      "  vmovdqu %ymm3, 96(%rdi,%rcx)\n"
      "  sub $-128, %rcx\n"
      "  cmp %r8, %rcx\n"
      "  jb 1b\n"
      "  vmovdqu %ymm4, -128(%rdi,%rdx)\n"
      "  vmovdqu %ymm5, -96(%rdi,%rdx)\n"
      "  vmovdqu %ymm6, -64(%rdi,%rdx)\n"
      "  vmovdqu %ymm7, -32(%rdi,%rdx)\n"
      "  vzeroupper\n"
      "  ret\n"
      SIDESTEP_PLACE(sidestep_some_end));
}

/// Runs after a fault in one of the others, with its arguments.
[[gnu::naked, gnu::noinline]] size_t sidestep_copy_exactly(void*, const void*, size_t) noexcept {
  asm("  mov %rdx, %rcx\n" SIDESTEP_PLACE(
      sidestep_exactly) "  rep movsb\n" SIDESTEP_PLACE(sidestep_exactly_cut) "  mov %rdx, %rax\n"
                                                                             "  sub %rcx, %rax\n"
                                                                             "  ret\n");
}

// rcx is the first byte that has not been touched: the beginning of a page, except for the first.
[[gnu::naked, gnu::noinline]] size_t sidestep_touch(const void*, size_t) noexcept {
  asm("  mov %rsi, %rax\n"
      "  test %rsi, %rsi\n"
      "  jz 2f\n"
      "  mov %rdi, %rcx\n"
      "  lea (%rdi,%rsi), %r8\n"
      "1:\n" SIDESTEP_PLACE(sidestep_touches) "  movzbl (%rcx), %edx\n"
                                              "  or $4095, %rcx\n"
                                              "  inc %rcx\n"
                                              "  cmp %r8, %rcx\n"
                                              "  jb 1b\n"
                                              "2: ret\n");
}

[[gnu::naked, gnu::noinline]] size_t sidestep_touch_to_write(void*, size_t) noexcept {
  asm("  mov %rsi, %rax\n"
      "  test %rsi, %rsi\n"
      "  jz 2f\n"
      "  mov %rdi, %rcx\n"
      "  lea (%rdi,%rsi), %r8\n"
      "1:\n" SIDESTEP_PLACE(sidestep_touches_to_write) "  lock orb $0, (%rcx)\n"
                                                       "  or $4095, %rcx\n"
                                                       "  inc %rcx\n"
                                                       "  cmp %r8, %rcx\n"
                                                       "  jb 1b\n"
                                                       "2: ret\n" SIDESTEP_PLACE(
                                                           sidestep_touch_cut) "  mov %rcx, %rax\n"
                                                                               "  sub %rdi, %rax\n"
                                                                               "  ret\n");
}

/// Calls memcpy(). A fault leaves it by way of `guard`, a UserCopies::stack, and this returns
/// false. The registers that a called function has to keep are on the stack to which it returns.
[[gnu::naked, gnu::noinline]] bool sidestep_copy_many(void*, const void*, size_t,
                                                      void** guard) noexcept;
bool sidestep_copy_many(void*, const void*, size_t, void**) noexcept {
  asm("  push %rbx\n"
      "  push %rbp\n"
      "  push %r12\n"
      "  push %r13\n"
      "  push %r14\n"
      "  push %r15\n"
      "  push %rcx\n"
      "  mov %rsp, (%rcx)\n"
      "  call *memcpy@GOTPCREL(%rip)\n"
      "  mov $1, %eax\n"
      "  jmp 1f\n" SIDESTEP_PLACE(sidestep_many_cut) "  xor %eax, %eax\n"
                                                     "1: pop %rcx\n"
                                                     "  movq $0, (%rcx)\n"
                                                     "  pop %r15\n"
                                                     "  pop %r14\n"
                                                     "  pop %r13\n"
                                                     "  pop %r12\n"
                                                     "  pop %rbp\n"
                                                     "  pop %rbx\n"
                                                     "  ret\n");
}
}

namespace {

constexpr uint64_t kFaults = uint64_t{1} << (SIGSEGV - 1) | uint64_t{1} << (SIGBUS - 1);

/// While it lives, the thread does not block faults. Costs a system call if that is not known, and
/// another if the thread did block them.
class OpenFaults {
 public:
  OpenFaults() noexcept {
    if (knows_that_faults_are_open()) return;
    const uint32_t epoch = user_copy_epoch.load(std::memory_order_relaxed);
    // If nobody answers faults, the mask does not matter.
    if (answers_faults())
      sys::call(SYS_rt_sigprocmask, SIG_UNBLOCK, &kFaults, &before_, sizeof before_);
    if ((before_ & kFaults) == 0) user_copies.known = epoch;
  }
  ~OpenFaults() {
    if ((before_ & kFaults) != 0)
      sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof before_);
  }
  OpenFaults(const OpenFaults&) = delete;

 private:
  uint64_t before_ = 0;  // the kernel's sigset_t
};

/// An entry as touch_near() writes it, wherever that is inlined.
struct FaultPlace {
  int32_t at;  // relative to this field
  int32_t go_on;
};
extern "C" {
extern const FaultPlace __start_sidestep_faults[] __attribute__((weak, visibility("hidden")));
extern const FaultPlace __stop_sidestep_faults[] __attribute__((weak, visibility("hidden")));
}
std::span<const FaultPlace> fault_places() noexcept {
  return {__start_sidestep_faults, __stop_sidestep_faults};
}

greg_t place(const char* name) noexcept {
  return reinterpret_cast<greg_t>(name);
}

}  // namespace

size_t copy_many(void* to, const void* from, size_t size, const void* users) noexcept {
  const OpenFaults open;
  if (size <= kFewBytes) return sidestep_copy_few(to, from, size);
  if (size <= kSomeBytes) return sidestep_copy_some(to, from, size);
  user_copies.begin = reinterpret_cast<uintptr_t>(users);
  user_copies.end = user_copies.begin + size;
  if (sidestep_copy_many(to, from, size, &user_copies.stack)) [[likely]]
    return size;
  return sidestep_copy_exactly(to, from, size);
}

size_t touch_carefully(const void* at, size_t size, bool to_write) noexcept {
  const OpenFaults open;
  return to_write ? sidestep_touch_to_write(const_cast<void*>(at), size) : sidestep_touch(at, size);
}

/// One locked instruction for each page takes a tenth of the time of the copy itself, and a program
/// that receives much receives it into the same memory again and again. So what this thread found
/// to be writable a moment ago is only read, which finds pages that have gone since. Only a page
/// that is made read-only within that moment, because it is being written to its file, is slow
/// under the lock after all.
size_t touch_many_to_write(void* at, size_t size) noexcept {
  constexpr uint64_t kMoment = 1'000'000;  // ns
  const auto begin = reinterpret_cast<uintptr_t>(at);
  const uintptr_t end = begin + size;
  const uint64_t now = now_ns();
  UserCopies::Written* next = user_copies.written;  // the one to replace: the oldest
  for (UserCopies::Written& known : user_copies.written) {
    if (now - known.at >= kMoment) {
      known = {};
    } else if (begin <= known.end && end >= known.begin) {
      if (begin >= known.begin && end <= known.end) return sidestep_touch(at, size);
      next = &known;
      break;
    }
    if (known.at < next->at) next = &known;
  }
  const size_t there = sidestep_touch_to_write(at, size);
  // A buffer may be filled by many calls, each continuing behind the last one.
  if (begin <= next->end && end >= next->begin && there == size) {
    next->begin = std::min(begin, next->begin);
    next->end = std::max(end, next->end);
  } else {
    *next = {begin, begin + there, now};
  }
  return there;
}

bool is_readable(const void* at, size_t size) noexcept {
  if (answers_faults()) return touch(at, size) == size;
  // kNone is no valid change of a mask, but the kernel finds that out after reading the eight
  // bytes.
  constexpr int kNone = -1;
  constexpr uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t page = begin / kPage; size != 0 && page <= (begin + size - 1) / kPage; ++page) {
    if (page == 0 ||
        sys::call(SYS_rt_sigprocmask, kNone, page * kPage, nullptr, sizeof(uint64_t)) == -EFAULT)
      return false;
  }
  return true;
}

bool answers_faults() noexcept {
  // acquire pairs with the exchange below: the handler is installed.
  return g_answered.load(std::memory_order_acquire);
}

void faults_are_answered() noexcept {
  if (g_answered.exchange(true, std::memory_order_acq_rel)) return;
  // Threads that have found the mask not to matter look again.
  user_copy_epoch.fetch_add(1, std::memory_order_release);
}

bool answer_fault(const siginfo_t& info, void* context) noexcept {
  if (info.si_code <= 0) return false;  // sent by a process
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  greg_t& at = registers[REG_RIP];
  for (const FaultPlace& known : fault_places()) {
    if (at != place(reinterpret_cast<const char*>(&known.at) + known.at)) continue;
    at = place(reinterpret_cast<const char*>(&known.go_on) + known.go_on);
    return true;
  }
  if ((at >= place(sidestep_few_begin) && at < place(sidestep_few_end)) ||
      (at >= place(sidestep_some_begin) && at < place(sidestep_some_end))) {
    at = reinterpret_cast<greg_t>(&sidestep_copy_exactly);
    return true;
  }
  if (at == place(sidestep_exactly)) {
    at = place(sidestep_exactly_cut);
    return true;
  }
  if (at == place(sidestep_touches) || at == place(sidestep_touches_to_write)) {
    at = place(sidestep_touch_cut);
    return true;
  }
  if (user_copies.stack == nullptr) return false;
  // The kernel does not report an address that no page can have.
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  if (info.si_code != SI_KERNEL && (address < user_copies.begin || address >= user_copies.end))
    return false;
  registers[REG_RSP] = reinterpret_cast<greg_t>(user_copies.stack);
  at = place(sidestep_many_cut);
  return true;
}

}  // namespace sidestep::engine
