#include "engine/lifecycle/stream_totals.hpp"

#include "engine/base/tcp_counts.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {

KernelBytes kernel_bytes(const Stream& stream) noexcept {
  if (stream.phase() == Phase::kernel)
    if (const auto counts = tcp_counts(stream.anchor())) return {counts->sent, counts->received};
  return {stream.tx_kernel(), stream.rx_kernel()};
}

Reason kernel_reason(const Stream& stream) noexcept {
  // How the program has used the stream may change, so that is not stored as a reason.
  const Reason reason = stream.reason();
  if (reason == Reason::none && stream.is_bound() && !stream.is_used())
    return stream.is_held() ? Reason::unseen_waiting : Reason::unused;
  return reason;
}

void StreamTotals::add(const Stream& stream) {
  const KernelBytes kernel = kernel_bytes(stream);
  ++total;
  if (stream.tx_engine() + stream.rx_engine() != 0) ++engine;
  tx_engine += stream.tx_engine();
  rx_engine += stream.rx_engine();
  tx_kernel += kernel.tx;
  rx_kernel += kernel.rx;
  if (const Reason reason = kernel_reason(stream); reason != Reason::none) ++kernel_reasons[reason];
}

}  // namespace sidestep::engine
