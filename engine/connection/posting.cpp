#include "engine/connection/posting.hpp"

namespace sidestep::engine {

void Posting::post_all() noexcept {
  const ConnectionTable::Visitor visitor(connections_);
  while (const auto peer = interest_.pop()) {
    Connection* connection = visitor.get(*peer);
    if (connection == nullptr) continue;
    // Reset before posting: whoever signals from now on finds 0 and queues the connection again.
    connection->interest.exchange(0, std::memory_order_seq_cst);
    if (!connection->try_post()) {
      // The thread that is posting may be past its last look: leave the interest for it to find.
      if (connection->interest.fetch_add(1, std::memory_order_seq_cst) == 0) interest_.push(*peer);
      return;
    }
  }
}

}  // namespace sidestep::engine
