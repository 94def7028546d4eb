#pragma once
/// The shared memory of one direction between two processes of one host.
///
/// Each side owns one memfd that it alone writes and that the peer maps read-only: no process can
/// damage what another one wrote, and a process that dies leaves nothing locked.
///
///   0       Control
///   4096    Naps: kNaps x 64 bytes
///   naps    Descriptor ring: kDescriptors x 16 bytes
///   ring    ORB, a power of two of bytes, at kOrbOffset
///
/// The reader consumes descriptors in order. Number n (from 0) lies at index n % kDescriptors. The
/// writer stores `length` and `immediate`, then `sequence` = n + 1 with release; the reader loads
/// `sequence` with acquire and takes the descriptor if it has the number that the reader waits for.
/// Positions need no field: work requests cover the ORB without gaps. The writer reuses an index
/// once the peer's Control::released_count shows that the reader is past it.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sidestep::engine::shm {

struct Descriptor {
  std::atomic<uint64_t> sequence;   // 0: number + 1; the store that publishes
  std::atomic<uint32_t> length;     // 8: bytes of the ORB that follow on the last piece
  std::atomic<uint32_t> immediate;  // 12: engine/wire/fragment.hpp
};
static_assert(sizeof(Descriptor) == 16);

inline constexpr size_t kDescriptors = 4096;

/// Every field is written by the owner of the memfd and read by its peer.
struct Control {
  // Line 0: written rarely.
  std::atomic<uint32_t> armed;  // 0: epoch; odd: parked, ring the doorbell once for this value
  std::atomic<uint32_t> want_completions;  // 4: not 0: blocked until the peer releases; then ring
  std::atomic<int32_t> cpu;                // 8: CPU of the thread that last worked on the channel
  std::atomic<uint32_t> left;              // 12: 1: the owner has ended and posts nothing more
  std::atomic<uint64_t> crowded_until;     // 16: engine/progress/crowding.hpp
  uint32_t reserved0[10];
  // Line 1: what this side, as a receiver, has given back to the peer's ORB.
  std::atomic<uint64_t> released_position;  // 64: bytes of the peer's ORB that are free again
  std::atomic<uint64_t> released_count;     // 72: descriptors that are free again
  uint64_t reserved1[6];
};
static_assert(sizeof(Control) == 128 && offsetof(Control, released_position) == 64);

/// How the process that sends to a stream wakes a thread that waits for it. All streams whose ids,
/// as the sleeping side numbers them, leave the same remainder share one entry; the remainder is
/// its index.
///
///   sleeper   reads `rung` in the peer's memory, increments `slept` in its own, passes a full
///             barrier, looks at what it waits for, and sleeps on `rung` while it has that value.
///   sender    posts, passes a full barrier, reads the peer's `slept`. If it has not rung for that
///             value yet, it increments its own `rung` and wakes all who sleep on it.
///
/// So either the sleeper finds what was posted, or the sender sees that it sleeps and changes
/// `rung` after the sleeper has read it. tests/model/nap.pml checks that no wake-up is lost.
/// Neither side writes what the other reads twice: a peer that writes nonsense leaves the readers
/// of its own streams asleep, or wakes them for nothing.
struct alignas(64) NapWords {
  std::atomic<uint32_t> slept;
  std::atomic<uint32_t> rung;
};
inline constexpr size_t kNaps = 512;

inline constexpr size_t kNapsOffset = 4096;
inline constexpr size_t kControlSize = kNapsOffset + kNaps * sizeof(NapWords);
inline constexpr size_t kOrbOffset = kControlSize + kDescriptors * sizeof(Descriptor);
static_assert(kOrbOffset % 4096 == 0);

constexpr size_t region_size(size_t orb_size) noexcept {
  return kOrbOffset + orb_size;
}

}  // namespace sidestep::engine::shm
