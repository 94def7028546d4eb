#pragma once
/// Numbers that tell an operator what the engine did. Relaxed everywhere: they order nothing.
#include <array>
#include <atomic>
#include <cstdint>

#include "engine/base/clock.hpp"

namespace sidestep::engine {

class Counter {
 public:
  /// From several threads.
  void add(uint64_t amount = 1) noexcept { value_.fetch_add(amount, std::memory_order_relaxed); }
  /// From one thread at a time (a lock is held): no locked instruction on the hot path.
  void add_exclusive(uint64_t amount = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }
  void reset() noexcept { value_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// One table: the field, and the text of its name in status documents is the same.
#define SIDESTEP_NODE_COUNTERS(X)                                                                 \
  X(spins_won) /* waits that ended while polling */                                               \
  X(yields)    /* the processor was given to somebody else while waiting */                       \
  X(rests)     /* times that polling was given up for a while: others want the processors */      \
  X(parks)     /* waits that went to sleep */                                                     \
  X(doorbells) /* times that a peer woke this node */                                             \
  X(rescues)   /* work found by the progress thread's timer: should be rare */                    \
  X(spills)    /* times that a slow reader's bytes were copied out of the way */                  \
  X(spilled_bytes)                                                                                \
  X(credit_updates) /* sent */                                                                    \
  X(credit_stalls)  /* sends that found no credit */                                              \
  X(orb_full)       /* sends that found no room in the ring */                                    \
  X(queries_sent)   /* who holds the other end of this connection? */                             \
  X(queries_answered)                                                                             \
  X(unproven)           /* of either: who asked, or said yes, was not shown to hold an end */     \
  X(directory_full)     /* streams that could not be entered where their peers look for them */   \
  X(datagrams_refused)  /* of other hosts: made with another key, or changed */                   \
  X(datagrams_dropped)  /* without a key: there were too many */                                  \
  X(nid_conflicts)      /* nodes of other hosts with the NID of this one */                       \
  X(connections_opened) /* each lane of a node is one */                                          \
  X(connections_lost)                                                                             \
  X(connections_evicted) /* of those: for a new one, see SIDESTEP_CONNECTIONS */                  \
  X(handed_back_bytes) /* unread, given back to their senders: the program hands the socket on */ \
  X(replayed_bytes)    /* sent again over anchors when a connection had failed */

/// What has been counted on one processor, or on some of them. Threads that wait count all the
/// time, and a line that all of them write costs each of them as much as a poll.
struct alignas(64) NodeCounters {
#define SIDESTEP_DECLARE(name) Counter name;
  SIDESTEP_NODE_COUNTERS(SIDESTEP_DECLARE)
#undef SIDESTEP_DECLARE
};

struct NodeTotals {
#define SIDESTEP_DECLARE(name) uint64_t name = 0;
  SIDESTEP_NODE_COUNTERS(SIDESTEP_DECLARE)
#undef SIDESTEP_DECLARE
};

class CountersOfProcessors {
 public:
  /// Those of the caller's processor. Where it runs in the next moment does not matter: each may be
  /// written by any thread.
  NodeCounters& here() noexcept { return of_[static_cast<unsigned>(current_cpu()) % of_.size()]; }
  NodeTotals sum() const noexcept {
    NodeTotals total;
    for (const NodeCounters& some : of_) {
#define SIDESTEP_ADD(name) total.name += some.name.get();
      SIDESTEP_NODE_COUNTERS(SIDESTEP_ADD)
#undef SIDESTEP_ADD
    }
    return total;
  }

 private:
  std::array<NodeCounters, 16> of_;
};

}  // namespace sidestep::engine
