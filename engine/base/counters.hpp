#pragma once
/// Numbers that tell an operator what the engine did. Relaxed everywhere: they order nothing.
#include <array>
#include <atomic>
#include <cstdint>

#include "engine/base/clock.hpp"

namespace sidestep::engine {

class Counter {
 public:
  /// For several threads at once.
  void add(uint64_t amount = 1) noexcept { value_.fetch_add(amount, std::memory_order_relaxed); }
  /// For one thread at a time (the caller holds a lock): no locked instruction on the hot path.
  void add_exclusive(uint64_t amount = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }
  void reset() noexcept { value_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// The one table of counters: the name of a field is also its name in status documents.
#define SIDESTEP_NODE_COUNTERS(X)                                                                 \
  X(spins_won) /* waits that ended while polling */                                               \
  X(yields)    /* times that a waiting thread gave its processor to others */                     \
  X(rests)     /* times that polling stopped for a while: others want the processors */           \
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
  X(unproven)           /* processes that asked, said yes or connected without a proof */         \
  X(directory_full)     /* streams that the directory had no room for */                          \
  X(datagrams_refused)  /* from other hosts: made with another key, or altered */                 \
  X(datagrams_dropped)  /* from unknown senders: there were too many */                           \
  X(nid_conflicts)      /* nodes of other hosts with the NID of this node */                      \
  X(connections_opened) /* each lane of a node counts as one */                                   \
  X(connections_lost)                                                                             \
  X(connections_evicted) /* lost to make room for others: see SIDESTEP_CONNECTIONS */             \
  X(handed_back_bytes)   /* unread, returned to their senders: the program hands the socket on */ \
  X(replayed_bytes)      /* sent again over anchors after a connection failed */

/// The counts of one processor, or of several. Waiting threads count all the time, and a cache line
/// that all of them write costs each of them as much as a poll.
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
  /// Returns the counters of the caller's processor. It does not matter if the caller moves to
  /// another one in the next moment: any thread may write any of them.
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
