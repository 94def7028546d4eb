#pragma once
/// What is counted of streams, closed ones included, and what the status document says of each.
#include <cstdint>
#include <map>

#include "engine/base/reason.hpp"

namespace sidestep::engine {

class Stream;

/// Bytes that went over the kernel.
struct KernelBytes {
  uint64_t tx, rx;
};
/// The shim counts bytes while a move is possible; after that only the kernel does.
KernelBytes kernel_bytes(const Stream& stream) noexcept;
/// Why the stream is on the kernel, wholly or in part; `none` if nothing keeps it there.
Reason kernel_reason(const Stream& stream) noexcept;

/// Totals of streams.
struct StreamTotals {
  uint64_t total = 0;
  uint64_t engine = 0;  ///< streams of which the engine carried at least one byte
  uint64_t tx_engine = 0, rx_engine = 0, tx_kernel = 0, rx_kernel = 0;
  /// Reasons of streams that did not (wholly) leave the kernel.
  std::map<Reason, uint64_t> kernel_reasons;

  /// Adds a stream as it stands now; its anchor is still open.
  void add(const Stream& stream);
};

}  // namespace sidestep::engine
