#pragma once
/// What is to be done when a thread ends, said without memory.
///
/// The destructors of C++'s thread_local objects are listed by the C library in memory of malloc's,
/// at the first use by each thread. That may be in a signal handler that has interrupted malloc
/// (signal-safety(7)), which then waits for itself. So what the library has for each thread is of
/// types without destructors, and its end goes by a key (pthread_key_create(3)), of which the C
/// library keeps the values of the first 32 in the thread itself.
namespace sidestep::engine {

/// To be a `constinit thread_local`.
struct ThreadEnd {
  void (*const run)() noexcept;
  ThreadEnd* next = nullptr;
  bool is_listed = false;
};

/// `end` is run once when the calling thread ends, after the destructors of its thread_local
/// objects. Those of the program's keys may still call afterwards, and have it listed again.
/// Not when the process ends. Async-signal-safe.
void at_thread_end(ThreadEnd& end) noexcept;

/// By the library's constructor: among the first keys. Any number of times.
void prepare_thread_ends() noexcept;

}  // namespace sidestep::engine
