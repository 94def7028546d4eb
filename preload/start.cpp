// The start and the end of the library.
//
// Whatever is set up for the whole process is set up here, in this order. Constructors of other
// libraries run before this one, and may use the library already. So each part does without the
// start if need be: calls resolve real::* by themselves, at_thread_end() makes the key, and the
// engine looks whether a hook is set.
//
// Most programs make no stream, and a sandbox may forbid what the engine needs. So the rest begins
// with what first needs it:
//   - the configuration and the log file: context(), called by the first call that may make a
//     stream or an epoll set. Only a required call that is missing makes start() load it.
//   - the node: Node::start(), called before the first connection is made or tracked. It calls
//     begin_fault_handlers() before anybody finds it, because a call on a stream touches
//     the program's memory.
//   - the handler of SIGTERM: write_stats_on_sigterm(), after the node, of which it writes.
//   - the count of the program's signal handlers: when the program installs the first one.
//   - what a thread needs for hazard guards: HazardGuard::make_record(), with its first one.
#include <cstdlib>

#include "engine/base/engine_threads.hpp"
#include "engine/base/held_locks.hpp"
#include "engine/base/log.hpp"
#include "engine/base/thread_end.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/context.hpp"
#include "preload/fault_handlers.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"
#include "preload/retirement.hpp"
#include "preload/shim_signal.hpp"
#include "preload/unseen_waiting.hpp"

namespace sidestep::preload {
namespace {

__attribute__((constructor)) void start() {
  // Before anything is logged, and before the program can put another file in the place of
  // standard error.
  engine::log_note_standard_error();

  // Before the program can call vfork(): its child shares this memory, and is known by its number.
  note_own_process();

  // Before the program runs: dlsym() may allocate memory, which a signal handler must not do.
  resolve_real();

  // After the calls are resolved, which shows whether one is missing, and after standard error is
  // noted, where this is logged. The context is then inactive, whatever the program does.
  if (missing_required_call() != nullptr) context();

  // Before the program makes keys: the C library keeps the values of the first ones in the thread
  // itself, so that setting them takes no memory.
  engine::prepare_thread_ends();

  // Before a handler of the program can find a lock held, and wait.
  engine::on_last_unlock = raise_waiting_signals;

  // The engine's hooks, before a node can start. After the calls are resolved: the handlers of
  // faults are installed by real::sigaction.
  engine::begin_to_answer_faults = begin_fault_handlers;
  engine::on_end_of_program_threads = end_of_process;

  // Before the program can fork.
  on_becoming_child = forget_fault_handlers_after_fork;

  // Before the program registers such functions: quick_exit() calls them in reverse order, and then
  // _exit() inside libc. What the program's functions send is sent before the streams end.
  at_quick_exit(end_of_process);

  // Before the first stream can leave the kernel, which is when the engine asks.
  watch_for_unseen_waiting();
}

// exit() calls this after the functions that the program has registered. end_of_process() does its
// work only once, whichever end of the process calls it first.
__attribute__((destructor)) void end() {
  end_of_process();
}

}  // namespace
}  // namespace sidestep::preload
