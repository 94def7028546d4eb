#pragma once
/// Cheap monotonic time and the CPU the caller runs on, for the waiting loops.
#include <sys/rseq.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace sidestep::engine {

/// The clock_gettime() of the vDSO, or the system call. The C library's is not used: a program may
/// run under a library that stops time or slows it down (libfaketime), and a wait with a time limit
/// would then last forever. Relaxed: every thread finds the same function.
using RawClock = int(clockid_t, timespec*) noexcept;
extern std::atomic<RawClock*> raw_clock;

/// CLOCK_MONOTONIC in nanoseconds; a vDSO call of about 20 ns, no system call.
inline uint64_t now_ns() noexcept {
  timespec time{};
  raw_clock.load(std::memory_order_relaxed)(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(time.tv_nsec);
}

/// Number of the CPU the caller runs on, or -1 when the C library registered no rseq area. One
/// load: the kernel keeps the field current (rseq(2); glibc registers it for every thread
/// since 2.35).
inline int current_cpu() noexcept {
  if (__rseq_size == 0) return -1;
  const auto* area = reinterpret_cast<const volatile struct rseq*>(
      static_cast<char*>(__builtin_thread_pointer()) + __rseq_offset);
  return static_cast<int>(area->cpu_id);
}

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace sidestep::engine
