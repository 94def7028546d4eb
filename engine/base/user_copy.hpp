#pragma once
/// Copies from and to the program's memory, which survive that it is not there.
///
/// A system call on a bad address returns EFAULT, or a short count, and so does the library. What
/// touches the program's memory are the few functions here. Their machine code is known, and the
/// library's handler of SIGSEGV and SIGBUS (preload/fault_handlers.hpp) asks answer_fault() before
/// anybody else: a fault in one of them is answered by going on at a place that tells how far the
/// copy has got. Long copies are libc's memcpy(), which is not ours: before it begins, the thread
/// notes which memory it is about to touch and where its stack is, to which it returns.
///
/// Where a thread blocks these signals the kernel ends the process at once. So a copy knows that
/// the thread does not (`known`), or unblocks them for its time. Whatever may have changed the mask
/// makes the thread forget.
///
/// A page may also be slow: on a disk, another host, or with a handler of userfaultfd(2). So it is
/// touched before a lock is taken that others may need, and only then copied under it.
#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

/// Of each thread.
struct UserCopies {
  uint32_t known = 0;  ///< user_copy_epoch, when faults were found not to be blocked
  // While memcpy() runs: where to go on after a fault at an address from `begin` to `end`.
  void* stack = nullptr;
  uintptr_t begin = 0;
  uintptr_t end = 0;
  /// What touch_many_to_write() has found to be there to write, and when.
  struct Written {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uint64_t at = 0;
  };
  Written written[8];  // one for each stream that the thread serves, as a rule
};
extern constinit thread_local UserCopies user_copies __attribute__((tls_model("initial-exec")));

/// Another number when what all threads know is of no use any more.
extern std::atomic<uint32_t> user_copy_epoch;

/// The mask of the calling thread may be another one now.
inline void forget_fault_mask() noexcept {
  user_copies.known = 0;
}

/// For the time of a handler of the program, which runs with another mask, may use streams, and may
/// not come back.
class FaultMaskOfHandler {
 public:
  FaultMaskOfHandler() noexcept : before_(user_copies) { user_copies = {}; }
  ~FaultMaskOfHandler() { user_copies = before_; }
  FaultMaskOfHandler(const FaultMaskOfHandler&) = delete;

 private:
  const UserCopies before_;
};

/// Set once by who can install handlers of signals: has faults answered from now on. Called before
/// the first stream is opened.
extern void (*begin_to_answer_faults)() noexcept;
/// It has: until then a fault is the program's, and ends it as a rule.
void faults_are_answered() noexcept;
/// Whether it has. Where it has not, there is no stream.
bool answers_faults() noexcept;
/// For the handler: true when the fault is one of those here, and the thread goes on after it.
bool answer_fault(const siginfo_t& info, void* context) noexcept;

// ---- the machine code

extern "C" {
/// Copies up to kFewBytes; how many.
size_t sidestep_copy_few(void* to, const void* from, size_t size) noexcept;
/// Reads or writes (what is there) a byte of each page; how many bytes lie before the first that
/// could not be.
size_t sidestep_touch(const void* at, size_t size) noexcept;
size_t sidestep_touch_to_write(void* at, size_t size) noexcept;
}
inline constexpr size_t kFewBytes = 256;

/// For any size, and where it is not known whether faults are blocked.
size_t copy_many(void* to, const void* from, size_t size, const void* users) noexcept;
size_t touch_carefully(const void* at, size_t size, bool to_write) noexcept;
size_t touch_many_to_write(void* at, size_t size) noexcept;

inline bool knows_that_faults_are_open() noexcept {
  // relaxed: who makes it change says so to nobody but those who look later.
  return user_copies.known == user_copy_epoch.load(std::memory_order_relaxed);
}

// ---- for everybody. All return how many bytes, from the first on, were there.

/// From the program's memory.
inline size_t copy_in(void* to, const void* from, size_t size) noexcept {
  if (size <= kFewBytes && knows_that_faults_are_open()) [[likely]]
    return sidestep_copy_few(to, from, size);
  return copy_many(to, from, size, from);
}
/// To the program's memory.
inline size_t copy_out(void* to, const void* from, size_t size) noexcept {
  if (size <= kFewBytes && knows_that_faults_are_open()) [[likely]]
    return sidestep_copy_few(to, from, size);
  return copy_many(to, from, size, to);
}
/// Makes its pages come, if there are such.
inline size_t touch(const void* at, size_t size) noexcept {
  return knows_that_faults_are_open() ? sidestep_touch(at, size) : touch_carefully(at, size, false);
}
/// The same where each send and receive passes: as a rule there is one page. Only in functions that
/// are in one file.
[[gnu::always_inline]] static inline size_t touch_near(const void* at, size_t size) noexcept {
  const auto first = reinterpret_cast<uintptr_t>(at);
  const bool simple =
      size != 0 && (first ^ (first + size - 1)) < 4096 && knows_that_faults_are_open();
  if (!simple) [[unlikely]]
    return touch(at, size);
  // Where the byte is read, and where the thread goes on after a fault there: see answer_fault().
  asm goto(
      "1: movzbl (%0), %%eax\n"
      ".pushsection sidestep_faults, \"a\", @progbits\n"
      ".balign 4\n"
      ".long 1b - ., %l[is_bad] - .\n"
      ".popsection\n"
      :
      : "r"(at)
      : "eax"
      : is_bad);
  return size;
is_bad:
  return 0;
}
/// The same for those that the call will write, as things stand: a page that is shared or not there
/// becomes the program's own at once. What another thread stores there in the same moment stays.
inline size_t touch_to_write(void* at, size_t size) noexcept {
  constexpr size_t kFewPages = 4 * 4096;
  if (!knows_that_faults_are_open()) return touch_carefully(at, size, true);
  return size <= kFewPages ? sidestep_touch_to_write(at, size) : touch_many_to_write(at, size);
}

/// Of what a call is given, before it is used where it lies. Works also before faults are answered,
/// by a system call for each page.
bool is_readable(const void* at, size_t size) noexcept;

/// Whether it lies in the lower half, which is the program's: a system call refuses anything else
/// before it looks at what it is to be used for.
inline bool is_in_user_space(const void* at, size_t size) noexcept {
  constexpr uintptr_t kEnd = uintptr_t{1} << 56;
  const auto address = reinterpret_cast<uintptr_t>(at);
  return address < kEnd && size <= kEnd - address;
}

/// A variable of the program's. False: it is not there, in whole.
template <typename T>
bool get_from(const T* at, T& value) noexcept {
  return copy_in(&value, at, sizeof value) == sizeof value;
}
template <typename T>
bool put_to(T* at, const T& value) noexcept {
  return copy_out(at, &value, sizeof value) == sizeof value;
}

}  // namespace sidestep::engine
