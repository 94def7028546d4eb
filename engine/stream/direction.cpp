#include "engine/stream/direction.hpp"

#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

void Direction::defer(uint32_t what) noexcept {
  deferred_.fetch_or(what, std::memory_order_seq_cst);
  note_left();
}

void Direction::run_deferred() noexcept {
  stream_.run_deferred();
}

void Direction::note_left() noexcept {
  stream_.services().retry_later(stream_);
}

}  // namespace sidestep::engine
