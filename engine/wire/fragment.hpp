#pragma once
/// What two nodes send each other over a device: fragments in the ORB.
///
/// A work request carries a contiguous piece of the sender's ORB, which is a sequence of fragments,
/// each starting at a multiple of kOrbGrain. A fragment is a 16-byte header, `length` bytes of
/// payload and padding up to the next grain. Integers are little-endian (both ends of RDMA and
/// shared memory on the machines that Sidestep supports).
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

inline constexpr size_t kOrbGrain = 32;
/// Payload of one data fragment at most. Small enough that the receiver copies the first slice of a
/// large write while the sender still copies the next.
inline constexpr uint32_t kMaxFragmentPayload = 16 * 1024;
/// Bytes of one work request at most: the receive size of Ibdxnet, section 7.2.3.
inline constexpr uint32_t kMaxWorkRequest = 64 * 1024;
enum class FragmentType : uint8_t {
  data = 1,        ///< stream bytes
  go = 2,          ///< GoPayload: the sender of this fragment has opened its receiving door
  switch_up = 3,   ///< uint64_t N: bytes 0..N-1 of the kernel's share are all; what follows is here
  switch_ack = 4,  ///< the receiver of switch_up has seen it; the direction may move down again
  switch_down =
      5,         ///< uint64_t M: engine bytes so far; what follows is on the anchor. Answers a go
  ask_down = 6,  ///< uint64_t, bits: please bring the direction towards me down; 1: for good, 2:
                 ///< and hold it there, see stream/hand_back.cpp
  credit = 7,    ///< uint64_t: engine bytes that may have been sent in all
  fin = 8,       ///< uint64_t: engine bytes sent in all; nothing follows (shutdown or close)
  reset = 9,     ///< the stream has ended with an error
  probe =
      10,  ///< ProbePayload: is the stream still there? Everything sent before was received then
  probe_reply = 11,  ///< it is
  switch_hold =
      12,  ///< HoldPayload: a switch_down, behind which nothing is sent until handed_back_end
  handed_back = 13,  ///< stream bytes, for their sender: what it sent over the engine and nobody
                     ///< has read
  handed_back_end = 14,  ///< uint64_t: how many these were; 0: none, forget them
  join = 15,          ///< GoPayload without credit: the stream is joined, but nobody reads it yet
  check_anchor = 16,  ///< bytes of the stream came over the anchor while the engine carries it
  closed =
      17,  ///< uint64_t, as switch_down: the sender's stream, which the kernel carried for good, is
           ///< no more. Its anchor tells what became of it: another process may have that
  buffers = 18,    ///< BuffersPayload: the sizes that the program has set, or has taken back
  end_taken = 19,  ///< everything before the receiver's fin has been read
};

struct FragmentHeader {
  uint32_t stream;  // 0: the receiver's stream id
  uint32_t length;  // 4: payload bytes behind the header, padding not counted
  uint32_t
      generation;  // 8: of the receiver's stream slot: an id that was given out again differs here
  uint8_t type;    // 12: FragmentType
  uint8_t reserved[3];  // 13: zero
};
static_assert(sizeof(FragmentHeader) == 16 && kOrbGrain % alignof(FragmentHeader) == 0);

/// No stream has it. A fragment that begins with it is nobody's, and what is in it means nothing:
/// the memory that it was to be copied from had gone away.
inline constexpr uint32_t kNobodysGeneration = 0;

struct GoPayload {
  uint32_t stream;      // 0: the sender's own stream id, for fragments towards it
  uint32_t generation;  // 4
  uint64_t credit;      // 8: engine bytes that may be sent towards it in all
  uint64_t window;      // 16: how many more than were read, there and in each `credit`
};
static_assert(sizeof(GoPayload) == 24);

/// Payload of the longest fragment that carries no bytes of a stream. It can be longer than what
/// the first grain has room for, and so be cut by the end of a receive buffer like any other.
inline constexpr size_t kMaxControlPayload = sizeof(GoPayload);

struct BuffersPayload {
  uint32_t send;     // 0: SO_SNDBUF, as the kernel tells it; 0: it is the kernel's choice
  uint32_t receive;  // 4: SO_RCVBUF, likewise
};
static_assert(sizeof(BuffersPayload) == 8);

struct ProbePayload {
  uint32_t stream;      // 0: the sender's own stream id, for the answer
  uint32_t generation;  // 4
};
static_assert(sizeof(ProbePayload) == 8);

struct HoldPayload {
  uint64_t engine;  // 0: as switch_down
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
