#pragma once
/// Takes received work requests apart and gives every fragment to its stream. Runs under the lock
/// of its lane. It reads what a peer wrote and believes nothing in it unchecked.
#include <cstddef>

#include "engine/base/counters.hpp"
#include "engine/device/device.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine {

class Connection;
class Stream;
class StreamTable;

class Dispatcher {
 public:
  /// `fragments` counts received fragments.
  Dispatcher(StreamTable& streams, Counter& fragments) noexcept
      : streams_(streams), fragments_(fragments) {}

  /// Hands the completion's buffer on to the streams. Returns false if the peer broke the protocol;
  /// the connection must not be used any more after that.
  bool dispatch(const RecvCompletion& completion) noexcept;
  /// Called after a batch: passes a full barrier, then tells the watchers of every touched stream.
  void notify() noexcept;

 private:
  /// `part`: how many bytes of the payload are in this completion.
  [[gnu::always_inline]] inline bool handle(Connection& connection, const FragmentHeader& header,
                                            const std::byte* payload, uint32_t part,
                                            const RecvCompletion& completion,
                                            uint32_t& handed_on) noexcept;
  [[gnu::always_inline]] inline void take_data(Stream& stream, const std::byte* payload,
                                               uint32_t length, const RecvCompletion& completion,
                                               uint32_t& handed_on) noexcept;
  /// Handles the first `bytes` of the completion, which continue a fragment of the one before.
  bool continue_cut(Connection& connection, uint32_t bytes, const RecvCompletion& completion,
                    uint32_t& handed_on) noexcept;
  /// Handles a cut fragment that is not data and whose end has come.
  bool handle_cut_control(Connection& connection, const RecvCompletion& completion) noexcept;
  void answer_probe(Connection& connection, Stream* stream, const std::byte* payload) noexcept;
  /// Called when the peer broke the protocol: logs that, after which nothing that comes from the
  /// peer is looked at any more. Returns false.
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
  Counter& fragments_;
  Touched touched_[kTouched];
  size_t touched_count_ = 0;
};

}  // namespace sidestep::engine
