#pragma once
/// Work to do when a thread ends, registered without allocating memory.
///
/// The C library lists the destructors of C++'s thread_local objects in memory from malloc, when
/// each thread first uses them. That may happen in a signal handler that has interrupted malloc
/// (signal-safety(7)), which would then wait for itself. So what the library has for each thread is
/// of types without destructors, and is cleaned up through a key (pthread_key_create(3)); the C
/// library keeps the values of the first 32 keys in the thread itself.
namespace sidestep::engine {

/// Must be a `constinit thread_local`.
struct ThreadEnd {
  void (*const run)() noexcept;
  ThreadEnd* next = nullptr;
  bool is_listed = false;
};

/// Arranges for `end` to run once when the calling thread ends, after the destructors of its
/// thread_local objects. Destructors of the program's keys may still call the library afterwards,
/// and have `end` listed again. It does not run when the process ends. Async-signal-safe.
void at_thread_end(ThreadEnd& end) noexcept;

/// Called by the library's constructor, so that the key is among the first. May be called
/// repeatedly.
void prepare_thread_ends() noexcept;

}  // namespace sidestep::engine
