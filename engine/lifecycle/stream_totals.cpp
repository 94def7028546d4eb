#include "engine/lifecycle/stream_totals.hpp"

#include "engine/base/tcp_counts.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {

KernelBytes kernel_bytes(const Stream& stream) noexcept {
  if (stream.phase() == Phase::kernel)
    if (const auto counts = tcp_counts(stream.anchor())) return {counts->sent, counts->received};
  return {stream.sender().kernel_bytes(), stream.receiver().kernel_bytes()};
}

Reason kernel_reason(const Stream& stream) noexcept {
  // How the program has used the stream may change, so that is not stored as a reason.
  const Reason reason = stream.reason();
  if (reason == Reason::none && stream.is_bound() && !stream.is_used())
    return stream.clearance().is_awaited() ? Reason::unseen_waiting : Reason::unused;
  return reason;
}

void StreamTotals::add(const Stream& stream) {
  const KernelBytes kernel = kernel_bytes(stream);
  ++total;
  if (stream.sender().engine_bytes() + stream.receiver().engine_bytes() != 0) ++engine;
  tx_engine += stream.sender().engine_bytes();
  rx_engine += stream.receiver().engine_bytes();
  tx_kernel += kernel.tx;
  rx_kernel += kernel.rx;
  if (const Reason reason = kernel_reason(stream); reason != Reason::none) ++kernel_reasons[reason];
}

}  // namespace sidestep::engine
