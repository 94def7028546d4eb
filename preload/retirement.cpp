#include "preload/retirement.hpp"

#include <atomic>

#include "engine/base/engine_threads.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/process_copy.hpp"
#include "engine/base/sys.hpp"
#include "engine/node/node.hpp"
#include "preload/context.hpp"
#include "preload/event_set_table.hpp"
#include "preload/process.hpp"
#include "preload/signals.hpp"
#include "preload/socket.hpp"
#include "preload/socket_lifecycle.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

namespace {

constinit std::atomic<long> g_own_process{0};
constinit engine::Mutex g_lock;
engine::Reason g_reason = engine::Reason::none;  // under g_lock

void retire(engine::Node& node, engine::Reason reason) noexcept {
  constexpr int kMostMilliseconds = 8000;  // in a handler
  g_reason = reason;
  engine::log(engine::LogLevel::info, "%s: every stream goes to the kernel, and the engine ends",
              engine::text_of(reason));
  // Bars first, so that no stream begins meanwhile, except in a handler: there the manager does the
  // work, and it does none for an engine that is over.
  if (!runs_in_handler()) engine::Node::bar(false);
  run_outside_handler(
      []() noexcept {
        AllSockets::bring_all_down(g_reason);
        EventSetTable::before_fork();
        engine::Node::running()->finish(true);
        write_stats_file();
      },
      kMostMilliseconds);
  engine::Node::bar(false);
  const bool ended = node.end_threads();
  if (!ended)
    engine::log(engine::LogLevel::error, "%s: a thread of the engine did not end in time",
                engine::text_of(reason));
  EventSetTable::leave_to_kernel();
  if (ended && engine::only_engine_has_other_threads()) {
    // As in a child: nobody else uses what is closed or forgotten here.
    EventSetTable::after_fork_in_child();
    AllSockets::after_fork_in_child();
  } else {
    AllSockets::stop_tracking();
  }
}

}  // namespace

void note_own_process() noexcept {
  g_lock.reset_after_fork();
  g_own_process.store(sys::call(SYS_getpid), std::memory_order_relaxed);
}

void retire_engine(engine::Reason reason, Retirement until) noexcept {
  if (engine::is_copy()) settle_copy();
  if (g_own_process.load(std::memory_order_relaxed) != sys::call(SYS_getpid)) return;
  const engine::HandlersWait first;
  const engine::GuardUnlessStuck guard(g_lock);
  if (!guard) return;
  engine::Node* const node = engine::Node::running();
  if (node != nullptr && !engine::Node::is_barred()) retire(*node, reason);
  if (until == Retirement::for_good) engine::Node::bar(true);
}

}  // namespace sidestep::preload
