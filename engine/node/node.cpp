#include "engine/node/node.hpp"

#include <atomic>
#include <exception>
#include <mutex>

#include "engine/base/engine_threads.hpp"
#include "engine/base/heap.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/process_copy.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/control/directory.hpp"
#include "engine/manager/manager.hpp"
#include "engine/node/status.hpp"
#include "engine/progress/alarm.hpp"
#include "engine/progress/waiter.hpp"

namespace sidestep::engine {
namespace {
Mutex g_start_lock;
std::atomic<Node*> g_node{nullptr};
bool g_failed = false;
enum Bar : int { kOpen, kBarred, kBarredForGood };
std::atomic<int> g_bar{kOpen};
}  // namespace

Node::Node(const config::Config& config) : config_(config) {}

Node::~Node() = default;

Node* Node::running() noexcept {
  return g_node.load(std::memory_order_acquire);
}

bool Node::has_begun() noexcept {
  return g_start_lock.is_locked() || running() != nullptr;
}

void Node::bar(bool for_good) noexcept {
  if (for_good || g_bar.load(std::memory_order_relaxed) == kOpen)
    g_bar.store(for_good ? kBarredForGood : kBarred, std::memory_order_seq_cst);
}

void Node::unbar_in_child() noexcept {
  if (g_bar.load(std::memory_order_relaxed) == kBarred)
    g_bar.store(kOpen, std::memory_order_relaxed);
}

bool Node::is_barred() noexcept {
  // relaxed: if this call runs beside the one that bars, nobody can tell which was first.
  return g_bar.load(std::memory_order_relaxed) != kOpen;
}

bool Node::end_threads() noexcept {
  ask_engine_threads_to_end();
  progress_.thread().wake_to_end();
  jobs_.wake();
  return await_end_of_engine_threads();
}

Node* Node::start(const config::Config& config) noexcept {
  if (is_barred()) return nullptr;
  if (Node* node = running()) return node;
  const std::lock_guard guard(g_start_lock);
  Node* node = running();
  if (node == nullptr && !g_failed && !is_barred()) {
    heap_keep_reserve();
    // Never destroyed: threads of the program may use it until the process ends.
    try {
      node = new Node(config);
    } catch (const std::exception&) {  // no memory
    }
    if (node != nullptr && node->start_parts()) {
      watch_for_copies();
      if (begin_to_answer_faults != nullptr) begin_to_answer_faults();
      g_node.store(node, std::memory_order_release);
    } else {
      g_failed = true;
      node = nullptr;
      // Give the descriptors to the program, unless a thread already uses them.
      if (engine_threads() == 0 && forget_idle_alarms()) private_fd_close_all();
      log(LogLevel::warn, "the engine could not start; every stream stays on the kernel");
    }
  }
  return node;
}

void Node::forget_after_fork(bool closes_descriptors) noexcept {
  // Leave the object and its memory alone: threads that no longer exist may hold its locks.
  g_node.store(nullptr, std::memory_order_relaxed);
  g_failed = false;
  NoThreadStarts::forget_after_fork();
  g_start_lock.reset_after_fork();
  if (closes_descriptors) private_fd_close_all();
  Sleeper::forget_after_fork();
  EventSleeper::forget_after_fork();
  Devices::forget_after_fork();
  Directory::forget_after_fork();
}

bool Node::start_parts() noexcept {
  try {
    if (!open_first_alarm()) {
      log(LogLevel::warn, "there are no descriptors for threads that sleep");
      return false;
    }
    // Not running(): somebody may ask before start() has said that this node runs.
    const auto status = [](void* node) { return status_json(*static_cast<Node*>(node), true); };
    manager_ = std::make_unique<Manager>(config_, jobs_, progress_, streams_, status, this);
    const uint16_t nid = manager_->claim_nid(static_cast<uint16_t>(config_.nid));
    if (nid == 0) return false;
    streams_.set_nid(nid);
    progress_.posting().set_nid(nid);
    return progress_.thread().start() && manager_->start();
  } catch (const std::exception& error) {
    log(LogLevel::error, "the engine could not start: %s", error.what());
    return false;
  }
}

Stream* Node::open_stream(const Tuple& tuple, int anchor, bool accepted, bool in_use) noexcept {
  return is_barred() ? nullptr : streams_.open(tuple, anchor, accepted, in_use);
}

void Node::finish(bool ended) noexcept {
  const NodeStreams::Finish finish = streams_.finish(ended);
  if (finish.tells_peers) manager_->leave(ended && finish.said_all);
}

}  // namespace sidestep::engine
