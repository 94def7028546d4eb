#pragma once
/// Copies from and to the program's memory that survive if that memory is not there.
///
/// A system call on a bad address returns EFAULT or a short count, and so does the library. Only
/// the few functions here touch the program's memory. Their machine code is known, and the
/// library's handler of SIGSEGV and SIGBUS (preload/fault_handlers.hpp) asks answer_fault() before
/// anybody else. After a fault in one of them, the thread goes on at a place that tells how far the
/// copy has got. Long copies use libc's memcpy(), which is not ours: before it begins, the thread
/// notes which memory it is about to touch, and the stack to which it returns.
/// If a thread blocks these signals, a fault makes the kernel end the process at once. So a copy
/// either knows that the thread does not block them (`known`), or unblocks them while it runs.
/// Whatever may have changed the mask makes the thread forget.
///
/// A page may also be slow: on a disk, on another host, or behind a handler of userfaultfd(2). So
/// the thread touches it before taking a lock that others may need, and only then copies it under
/// that lock.
#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

/// Each thread has its own.
struct UserCopies {
  uint32_t known = 0;  ///< user_copy_epoch when faults were found to be unblocked
  // While memcpy() runs: the stack to go on with after a fault at an address in [begin, end).
  void* stack = nullptr;
  uintptr_t begin = 0;
  uintptr_t end = 0;
  /// Memory that touch_many_to_write() has found to be writable, and when.
  struct Written {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uint64_t at = 0;
  };
  Written written[8];  // one for each stream that the thread serves, as a rule
};
extern constinit thread_local UserCopies user_copies __attribute__((tls_model("initial-exec")));

/// Changes when what all threads know is no longer of use.
extern std::atomic<uint32_t> user_copy_epoch;

/// Called when the signal mask of the calling thread may have changed.
inline void forget_fault_mask() noexcept {
  user_copies.known = 0;
}

/// Lives while a handler of the program runs, which has another mask, may use streams, and may not
/// come back.
class FaultMaskOfHandler {
 public:
  FaultMaskOfHandler() noexcept : before_(user_copies) { user_copies = {}; }
  ~FaultMaskOfHandler() { user_copies = before_; }
  FaultMaskOfHandler(const FaultMaskOfHandler&) = delete;

 private:
  const UserCopies before_;
};

/// Has faults answered from now on. Set once, by the code that can install signal handlers.
/// Called before the first stream is opened.
extern void (*begin_to_answer_faults)() noexcept;
/// Called once the handlers are installed. Until then a fault belongs to the program, and usually
/// ends it.
void faults_are_answered() noexcept;
/// True once faults are answered. While they are not, there is no stream.
bool answers_faults() noexcept;
/// Called by the handler: true if one of the functions here has faulted; the thread then goes on
/// after the fault.
bool answer_fault(const siginfo_t& info, void* context) noexcept;

// ---- the machine code

extern "C" {
/// Copies up to kFewBytes; returns how many.
size_t sidestep_copy_few(void* to, const void* from, size_t size) noexcept;
/// Reads a byte of each page, or writes it back unchanged; returns how many bytes lie before the
/// first that could not be reached.
size_t sidestep_touch(const void* at, size_t size) noexcept;
size_t sidestep_touch_to_write(void* at, size_t size) noexcept;
}
inline constexpr size_t kFewBytes = 256;

/// For any size, and for when it is not known whether faults are blocked.
size_t copy_many(void* to, const void* from, size_t size, const void* users) noexcept;
size_t touch_carefully(const void* at, size_t size, bool to_write) noexcept;
size_t touch_many_to_write(void* at, size_t size) noexcept;

inline bool knows_that_faults_are_open() noexcept {
  // relaxed: whoever changes the epoch tells nobody but those who look later.
  return user_copies.known == user_copy_epoch.load(std::memory_order_relaxed);
}

// ---- for everybody. All return how many bytes, from the first on, could be reached.

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
/// Brings the pages in, if they exist.
inline size_t touch(const void* at, size_t size) noexcept {
  return knows_that_faults_are_open() ? sidestep_touch(at, size) : touch_carefully(at, size, false);
}
/// Like touch(), but for the path of each send and receive: as a rule there is one page. Use it
/// only in functions that are in one file.
[[gnu::always_inline]] static inline size_t touch_near(const void* at, size_t size) noexcept {
  const auto first = reinterpret_cast<uintptr_t>(at);
  const bool simple =
      size != 0 && (first ^ (first + size - 1)) < 4096 && knows_that_faults_are_open();
  if (!simple) [[unlikely]]
    return touch(at, size);
  // Lists where the byte is read, and where the thread goes on after a fault: see answer_fault().
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
/// Like touch(), for pages that the call will write, as things stand: a page that is shared or not
/// there becomes the program's own at once. What another thread stores there at the same moment
/// stays.
inline size_t touch_to_write(void* at, size_t size) noexcept {
  constexpr size_t kFewPages = 4 * 4096;
  if (!knows_that_faults_are_open()) return touch_carefully(at, size, true);
  return size <= kFewPages ? sidestep_touch_to_write(at, size) : touch_many_to_write(at, size);
}

/// True if memory that a call is given can be read; asked before it is used where it lies. Also
/// works before faults are answered, with one system call for each page.
bool is_readable(const void* at, size_t size) noexcept;

/// True if the memory lies in the lower half of the address space, which is the program's. A system
/// call refuses any other memory before it looks at what the memory is to be used for.
inline bool is_in_user_space(const void* at, size_t size) noexcept {
  constexpr uintptr_t kEnd = uintptr_t{1} << 56;
  const auto address = reinterpret_cast<uintptr_t>(at);
  return address < kEnd && size <= kEnd - address;
}

/// Reads or writes a variable of the program's. False if not all of it is there.
template <typename T>
bool get_from(const T* at, T& value) noexcept {
  return copy_in(&value, at, sizeof value) == sizeof value;
}
template <typename T>
bool put_to(T* at, const T& value) noexcept {
  return copy_out(at, &value, sizeof value) == sizeof value;
}

}  // namespace sidestep::engine
