#pragma once
/// What two nodes send each other over a device: fragments in the ORB.
///
/// A work request carries a contiguous piece of the sender's ORB, which is a sequence of fragments,
/// each starting at a multiple of kOrbGrain. A fragment is a 16-byte header, `length` bytes of
/// payload and padding up to the next grain. Integers are little-endian (as both ends of RDMA and
/// shared memory are on the machines that Sidestep supports).
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

inline constexpr size_t kOrbGrain = 32;
/// The largest payload of one data fragment. It is small enough for the receiver to copy the first
/// slice of a large write while the sender still copies the next.
inline constexpr uint32_t kMaxFragmentPayload = 16 * 1024;
/// The most bytes of one work request: the receive size of Ibdxnet, section 7.2.3.
inline constexpr uint32_t kMaxWorkRequest = 64 * 1024;
enum class FragmentType : uint8_t {
  data = 1,  ///< stream bytes
  /// ReceiveReadyPayload: the reads of its sender wait for both carriers from now on
  receive_ready = 2,
  switch_up = 3,   ///< uint64_t N: the kernel's share is bytes 0..N-1; what follows is here
  switch_ack = 4,  ///< the receiver of switch_up has seen it; the direction may move down again
  /// uint64_t M: engine bytes so far; what follows is on the anchor. Answers a receive_ready.
  switch_down = 5,
  /// uint64_t, bits: please bring the direction towards me down; 1: for good, 2: and hold it there,
  /// see stream/unread_return.cpp
  ask_down = 6,
  credit = 7,  ///< uint64_t: how many engine bytes may be sent in all
  fin = 8,     ///< uint64_t: engine bytes sent in all; nothing follows (shutdown or close)
  reset = 9,   ///< the stream has ended with an error
  /// ProbePayload: is the stream still there? When the answer comes, everything sent before it has
  /// been received.
  probe = 10,
  probe_reply = 11,  ///< it is
  /// HoldPayload: a switch_down, after which nothing is sent until returned_end
  switch_hold = 12,
  /// stream bytes, for their sender: it sent them over the engine, and nobody has read them
  returned = 13,
  returned_end = 14,  ///< uint64_t: how many these were; 0: none, forget them
  join = 15,  ///< ReceiveReadyPayload without credit: the stream is joined, but nobody reads it yet
  check_anchor = 16,  ///< bytes of the stream came over the anchor while the engine carries it
  /// uint64_t, as in switch_down: the sender's stream, which the kernel carried for good, is no
  /// more. Its anchor tells what became of it: another process may have the anchor.
  closed = 17,
  buffers = 18,    ///< BuffersPayload: the sizes that the program has set, or has taken back
  end_taken = 19,  ///< everything before the receiver's fin has been read
};

struct FragmentHeader {
  uint32_t stream;  // 0: the receiver's stream id
  uint32_t length;  // 4: payload bytes behind the header, padding not counted
  // 8: of the receiver's stream slot: it tells an id that was given out again from the earlier one
  uint32_t generation;
  uint8_t type;         // 12: FragmentType
  uint8_t reserved[3];  // 13: zero
};
static_assert(sizeof(FragmentHeader) == 16 && kOrbGrain % alignof(FragmentHeader) == 0);

/// No stream has this generation. A fragment whose header has it is nobody's and its payload means
/// nothing: the memory to be copied into it had gone away.
inline constexpr uint32_t kNobodysGeneration = 0;

struct ReceiveReadyPayload {
  uint32_t stream;      // 0: the sender's own stream id, for fragments towards it
  uint32_t generation;  // 4
  uint64_t credit;      // 8: how many engine bytes may be sent towards it in all
  uint64_t window;      // 16: how far the credit, here and in each `credit`, exceeds what was read
};
static_assert(sizeof(ReceiveReadyPayload) == 24);

/// The largest payload of a fragment that carries no bytes of a stream. It can be longer than the
/// room in the first grain, so the end of a receive buffer can cut it like any other.
inline constexpr size_t kMaxControlPayload = sizeof(ReceiveReadyPayload);

struct BuffersPayload {
  uint32_t send;     // 0: SO_SNDBUF, as the kernel reports it; 0: the kernel chooses
  uint32_t receive;  // 4: SO_RCVBUF, likewise
};
static_assert(sizeof(BuffersPayload) == 8);

struct ProbePayload {
  uint32_t stream;      // 0: the sender's own stream id, for the answer
  uint32_t generation;  // 4
};
static_assert(sizeof(ProbePayload) == 8);

struct HoldPayload {
  uint64_t engine;  // 0: as in switch_down
  uint64_t kernel;  // 8: bytes sent over the anchor in all; kNotHeld: a mere switch_down
  static constexpr uint64_t kNotHeld = ~uint64_t{0};
};
static_assert(sizeof(HoldPayload) == 16);

/// ORB bytes that a fragment with `payload` bytes takes.
constexpr uint64_t fragment_size(uint64_t payload) noexcept {
  return (sizeof(FragmentHeader) + payload + kOrbGrain - 1) & ~uint64_t{kOrbGrain - 1};
}

/// Immediate data of every work request: who sends it, and room for flow-control windows
/// (Ibdxnet, section 7.2.3).
constexpr uint32_t make_immediate(uint16_t nid, uint16_t windows) noexcept {
  return static_cast<uint32_t>(nid) << 16 | windows;
}
constexpr uint16_t immediate_nid(uint32_t immediate) noexcept {
  return static_cast<uint16_t>(immediate >> 16);
}

}  // namespace sidestep::engine
