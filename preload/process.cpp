#include "preload/process.hpp"

#include <atomic>
#include <cerrno>

#include "engine/base/cancellation.hpp"
#include "engine/base/engine_threads.hpp"
#include "engine/base/heap.hpp"
#include "engine/base/held_locks.hpp"
#include "engine/base/log.hpp"
#include "engine/base/process_copy.hpp"
#include "engine/base/sys.hpp"
#include "engine/node/node.hpp"
#include "preload/context.hpp"
#include "preload/event_set_table.hpp"
#include "preload/retirement.hpp"
#include "preload/signals.hpp"
#include "preload/socket.hpp"
#include "preload/socket_lifecycle.hpp"

namespace sidestep::preload {

namespace {
std::atomic<bool> g_ended{false};
/// Set from before_fork() on: handlers of libc's fork() that use a stream in the child run before
/// become_child().
constinit thread_local bool child_is_announced = false;
}  // namespace

void (*on_becoming_child)() noexcept = nullptr;

void before_fork() noexcept {
  // In a handler. A stream that the interrupted code has locked is left where it is.
  constexpr int kMostMilliseconds = 5000;
  if (engine::is_copy()) settle_copy();
  const engine::HandlersWait first;
  child_is_announced = true;
  run_outside_handler(
      []() noexcept {
        AllSockets::bring_all_down(engine::Reason::fork);
        EventSetTable::before_fork();
      },
      kMostMilliseconds);
}

void after_fork_in_parent() noexcept {
  child_is_announced = false;
}

bool become_child(bool closes_descriptors) noexcept {
  const engine::HandlersWait first;
  child_is_announced = false;
  engine::heap_after_fork();
  EventSetTable::after_fork_in_child();
  const bool lost = AllSockets::after_fork_in_child(closes_descriptors);
  engine::forget_cancellations_after_fork();
  engine::no_engine_threads();
  forget_work_after_fork();
  if (on_becoming_child != nullptr) on_becoming_child();
  engine::forget_that_it_is_copy();
  engine::Node::unbar_in_child();
  note_own_process();
  g_ended.store(false, std::memory_order_relaxed);
  return lost;
}

void settle_copy() noexcept {
  engine::settle_copy_by([]() noexcept {
    const engine::Node* const node = engine::Node::running();
    const bool shared = node != nullptr && engine::may_share_descriptors_with(node->pid());
    const bool announced = child_is_announced;
    const bool lost = become_child(!shared);
    if (announced) return;
    engine::log(lost ? engine::LogLevel::warn : engine::LogLevel::info,
                "this process was copied past the library: its streams are the kernel's%s",
                lost ? ", and those that were on the engine are lost to it" : "");
  });
}

bool before_exec() noexcept {
  // A child of vfork() has no streams: the parent goes on with them. The child has put whatever it
  // hands on, by dup2(), where the next program looks for it.
  if (engine::Node::is_barred() && engine::Node::running() == nullptr) return true;
  if (is_vfork_child()) return true;
  if (engine::Node::running() != nullptr && !engine::Node::is_barred()) {
    run_outside_handler(
        []() noexcept {
          AllSockets::bring_all_down(engine::Reason::exec);
          // Between hosts, what was sent may still be under way.
          engine::Node::running()->finish(false);
        },
        8000);
  }
  if (AllSockets::can_be_inherited()) return true;
  errno = EIO;
  return false;
}

void end_of_process() noexcept {
  // A child of vfork(), which shares this memory, or of a raw clone() ends here, too: the streams
  // are not its own.
  engine::Node* node = engine::Node::running();
  if (node == nullptr || engine::Node::is_barred() || engine::is_copy() ||
      node->pid() != static_cast<int>(engine::sys::call(SYS_getpid)))
    return;
  if (g_ended.exchange(true, std::memory_order_relaxed)) return;
  // The time limit is longer than finish_all() takes, which has limits of its own.
  run_outside_handler(
      []() noexcept {
        write_stats_file();
        AllSockets::finish_all();
      },
      8000);
}

}  // namespace sidestep::preload
