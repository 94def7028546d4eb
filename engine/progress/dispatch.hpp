#pragma once
/// Takes received work requests apart and gives every fragment to its stream.
/// Under the lock of its lane. Reads what a peer wrote: nothing in it is believed unchecked.
#include <cstddef>

#include "engine/base/counters.hpp"
#include "engine/device/device.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine {

class Connection;
class Stream;
class StreamServices;
class StreamTable;

class Dispatcher {
 public:
  /// `fragments`: counts those that are received.
  Dispatcher(StreamTable& streams, StreamServices& node, Counter& fragments) noexcept
      : streams_(streams), node_(node), fragments_(fragments) {}

  /// Hands the completion's buffer on to the streams; returns false when the peer broke the
  /// protocol, after which the connection must not be used any more.
  bool dispatch(const RecvCompletion& completion) noexcept;
  /// After a batch: a full barrier, then tells the watchers of every stream that was touched.
  void notify() noexcept;

 private:
  /// `part`: bytes of the payload that are in this completion.
  [[gnu::always_inline]] inline bool handle(Connection& connection, const FragmentHeader& header,
                                            const std::byte* payload, uint32_t part,
                                            const RecvCompletion& completion,
                                            uint32_t& handed_on) noexcept;
  [[gnu::always_inline]] inline void queue_data(Stream& stream, const std::byte* payload,
                                                uint32_t length, const RecvCompletion& completion,
                                                uint32_t& handed_on) noexcept;
  /// The first `bytes` of the completion end a fragment of the one before.
  bool continue_cut(Connection& connection, uint32_t bytes, const RecvCompletion& completion,
                    uint32_t& handed_on) noexcept;
  /// Of a fragment that is not data, and whose end has come.
  bool handle_cut_control(Connection& connection, const RecvCompletion& completion) noexcept;
  bool handle_control(Connection& connection, Stream& stream, const FragmentHeader& header,
                      const std::byte* payload) noexcept;
  /// Whether the peer's stream that says go, or joins, is the other end of this one. It is bound if
  /// need be; another is refused.
  bool admit(Connection& connection, Stream& stream, const GoPayload& go) noexcept;
  void answer_probe(Connection& connection, const Stream* stream,
                    const std::byte* payload) noexcept;
  /// The peer broke the protocol, which is logged; nothing that comes from it is looked at any
  /// more. False.
  [[gnu::cold]] static bool breach(Connection& connection, const char* what) noexcept;
  [[gnu::always_inline]] void touch(Stream& stream, uint32_t events) noexcept {
    if (touched_count_ != 0 && touched_[touched_count_ - 1].stream == &stream) {
      touched_[touched_count_ - 1].events |= events;
      return;
    }
    if (touched_count_ == kTouched) [[unlikely]]
      notify();
    touched_[touched_count_++] = {&stream, events};
  }

  static constexpr size_t kTouched = 64;
  struct Touched {
    Stream* stream;
    uint32_t events;
  };
  StreamTable& streams_;
  StreamServices& node_;
  Counter& fragments_;
  Touched touched_[kTouched];
  size_t touched_count_ = 0;
};

}  // namespace sidestep::engine
