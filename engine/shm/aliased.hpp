#pragma once
/// What ThreadSanitizer can't see: a node that is connected to itself has the same memory mapped at
/// two addresses. It stores to one with release and loads from the other with acquire. The
/// sanitizer knows atomics by their address; these calls, made beside the atomics and only under
/// the sanitizer, give it the edge under one address. Without it they generate no code.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIDESTEP_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define SIDESTEP_TSAN 1
#endif

#ifdef SIDESTEP_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace sidestep::engine::shm {

#ifdef SIDESTEP_TSAN
inline void aliased_release(void* edge) noexcept {
  __tsan_release(edge);
}
inline void aliased_acquire(void* edge) noexcept {
  __tsan_acquire(edge);
}
#else
inline void aliased_release(void*) noexcept {}
inline void aliased_acquire(void*) noexcept {}
#endif

}  // namespace sidestep::engine::shm
