#pragma once
/// The states of the two directions of a stream, and which of them may follow which. stream.hpp has
/// the protocol that they belong to, unread_return.cpp and recovery.hpp what leads to `holding` and
/// `replaying`. A build with assertions stops at a step that is not in these tables.
///
/// Sending. Each step is made under Sender::mutex(), but for the acknowledgement, which the
/// dispatcher enters without a lock.
///
/// | state        | event                                                    | next state   |
/// | ------------ | -------------------------------------------------------- | ------------ |
/// | `kernel`     | the peer is receive-ready, and the program writes        | `announcing` |
/// | `kernel`     | the peer asks to hold, and nobody else sends here        | `holding`    |
/// | `kernel`     | the anchor does not take what the cork has held back     | `replaying`  |
/// | `announcing` | the ring has no room for the switch_up                   | `kernel`     |
/// | `announcing` | the switch_up is in the ring                             | `rising`     |
/// | `announcing` | the switch_ack is here already                           | `engine`     |
/// | `rising`     | switch_ack                                               | `engine`     |
/// | `engine`     | the peer asks to come down, or it has to; switch_down    | `kernel`     |
/// | `engine`     | the peer asks to hold, and nobody else sends here        | `offering`   |
/// | `offering`   | the ring has no room for the switch_hold, or another     | `engine`     |
/// |              | thread has begun to use the anchor                       |              |
/// | `offering`   | the switch_hold is in the ring                           | `holding`    |
/// | `holding`    | the peer cannot be told of the hold                      | `kernel`     |
/// | `holding`    | returned_end, and nothing has come back                  | `kernel`     |
/// | `holding`    | returned_end                                             | `replaying`  |
/// | `replaying`  | the anchor has taken all bytes                           | `kernel`     |
/// | any          | the connection has failed, and bytes have not arrived    | `replaying`  |
/// | any          | the connection has failed otherwise                      | `kernel`     |
///
/// Receiving. Each step is made under Receiver::mutex().
///
/// | state     | event                                                       | next state |
/// | --------- | ----------------------------------------------------------- | ---------- |
/// | `kernel`  | the program reads; receive_ready                            | `ready`    |
/// | `kernel`  | a reader comes to a switch_up that has crossed a             | `engine`   |
/// |           | switch_down which answered no receive_ready                 |            |
/// | `ready`   | the ring has no room for the receive_ready                  | `kernel`   |
/// | `ready`   | a reader comes to a switch_down, or to the end              | `kernel`   |
/// | `ready`   | a reader comes to a switch_up                               | `engine`   |
/// | `engine`  | a reader comes to a switch_down, or leaves the end to the   | `kernel`   |
/// |           | anchor                                                      |            |
///
/// The end mark of the direction in which this end sends (ending.cpp). The steps are made under
/// Sender::mutex(), but for the last row's.
///
/// | mark                 | event                                                | next mark  |
/// | -------------------- | ---------------------------------------------------- | ---------- |
/// | `unsent`             | the program ends the direction where only the anchor | `unneeded` |
/// |                      | can tell the peer; the stream is lost; reset is sent |            |
/// | `unsent`, `unneeded` | the direction has ended; fin, or closed              | `sent`     |
/// | `sent`               | the peer finds it before the end of the anchor; the  | `arrived`  |
/// |                      | stream is lost; reset is sent                        |            |
/// | `arrived`            | a hold takes the end back; the connection fails and  | `sent`     |
/// |                      | the anchor has not ended; a reset is due             |            |
/// | `unneeded`           | the connection fails and the anchor has not ended;   | `unsent`   |
/// |                      | a reset is due                                       |            |
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/stream/carrier.hpp"

namespace sidestep::engine {

/// The order matters: the predicates below are comparisons.
enum class SenderState : uint8_t {
  kernel,      ///< bytes go to the anchor
  announcing,  ///< the same; a switch_up is about to be in the ring
  replaying,   ///< bytes that have not arrived go to the anchor before any others
  holding,     ///< nothing is sent until the peer has returned what it has not read
  offering,    ///< on the engine; a switch_hold is about to be in the ring
  engine,      ///< bytes go into the ring
  rising,      ///< the same; must not come down before the switch_ack
};

enum class ReceiverState : uint8_t {
  kernel,  ///< bytes come from the anchor, and the peer has not been told to send elsewhere
  ready,   ///< bytes come from the anchor until a switch_up says up to where
  engine,  ///< bytes come from the queue of what has arrived
};

constexpr Carrier carrier_of(SenderState state) noexcept {
  return state >= SenderState::offering ? Carrier::engine : Carrier::kernel;
}
/// Whether bytes must go out over the anchor before any others, or may yet have to.
constexpr bool has_replay(SenderState state) noexcept {
  return state >= SenderState::replaying && state <= SenderState::offering;
}
/// Whether the peer may hand bytes back before the anchor may be used.
constexpr bool awaits_return(SenderState state) noexcept {
  return state == SenderState::holding || state == SenderState::offering;
}
/// Whether the peer has been told, or is just being told, of a move up, and has not answered.
constexpr bool awaits_ack(SenderState state) noexcept {
  return state == SenderState::announcing || state == SenderState::rising;
}
constexpr bool may_follow(SenderState from, SenderState to) noexcept {
  using enum SenderState;
  if (to == kernel || to == replaying) return true;
  switch (from) {
    case kernel:
      return to == announcing || to == holding;
    case announcing:
      return to == rising || to == engine;
    case rising:
      return to == engine;
    case engine:
      return to == offering;
    case offering:
      return to == engine || to == holding;
    case replaying:
    case holding:
      return false;
  }
  return false;
}
constexpr const char* name_of(SenderState state) noexcept {
  constexpr std::array kNames{"kernel",   "announcing", "replaying", "holding",
                              "offering", "engine",     "rising"};
  return kNames[static_cast<size_t>(state)];
}

enum class EndMark : uint8_t {
  unsent,    ///< the peer is still to be told of the end, once there is one
  unneeded,  ///< the engine owes the peer no mark: nothing more is to be said
  sent,      ///< in the ring
  arrived,   ///< nothing more is to be said
};
constexpr bool is_told(EndMark mark) noexcept {
  return mark == EndMark::unneeded || mark == EndMark::arrived;
}
constexpr bool is_on_engine(EndMark mark) noexcept {
  return mark == EndMark::sent || mark == EndMark::arrived;
}
constexpr EndMark with_told(EndMark mark, bool told) noexcept {
  if (is_on_engine(mark)) return told ? EndMark::arrived : EndMark::sent;
  return told ? EndMark::unneeded : EndMark::unsent;
}

constexpr Carrier carrier_of(ReceiverState state) noexcept {
  return state == ReceiverState::engine ? Carrier::engine : Carrier::kernel;
}
constexpr bool may_follow(ReceiverState from, ReceiverState to) noexcept {
  using enum ReceiverState;
  return to == kernel || (to == engine && from != engine) || (to == ready && from == kernel);
}
constexpr const char* name_of(ReceiverState state) noexcept {
  constexpr std::array kNames{"kernel", "ready", "engine"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace sidestep::engine
