#include "engine/stream/undecided.hpp"

#include "engine/stream/kernel_options.hpp"

namespace sidestep::engine {
namespace {

// A node that was told that an end is here is ready as soon as the two nodes are joined. If nothing
// has come within this time, because that node's own end no longer exists, another may be told.
constexpr uint64_t kClaim = 2'000'000'000;

}  // namespace

bool UndecidedStream::may_be_claimed(uint32_t peer, uint32_t generation,
                                     uint64_t now) const noexcept {
  const Stream::Claim& claim = stream_.claim_;
  return claim.peer == 0 || now > claim.since + kClaim ||
         (claim.peer == peer && claim.generation == generation);
}

void UndecidedStream::leave_to_kernel() noexcept {
  stream_.set_phase(Phase::kernel);
  stream_.signal(kMoved | kReadable | kWritable);
}

bool UndecidedStream::keep_if_it_cannot_move() noexcept {
  const auto keep = [this](Reason reason) {
    note(reason);
    stream_.for_good_.store(true, std::memory_order_seq_cst);
    leave_to_kernel();
    return true;
  };
  const TcpState state = stream_.anchor_state();
  if (!is_open(state) && state != TcpState::syn_sent) return keep(Reason::ended);
  // This does not take the stream's lock: a busy program hardly gives it up, and all progress waits
  // for this thread. An anchor that is still the same was not closed meanwhile: it would have been
  // replaced first.
  int anchor = -1;
  bool needs_it = false;
  int low_water = 1;
  int known = stream_.receiver_.low_water_.load(std::memory_order_relaxed);
  do {
    anchor = stream_.anchor();
    low_water = low_water_of(anchor);
    needs_it = needs_kernel(anchor, low_water);
  } while (anchor != stream_.anchor() || low_water != low_water_of(anchor));
  if (needs_it) return keep(Reason::kernel_option);
  // Unless the program has set it meanwhile: that is noted after it is set on the anchor.
  stream_.receiver_.low_water_.compare_exchange_strong(known, low_water, std::memory_order_relaxed);
  return false;
}

}  // namespace sidestep::engine
