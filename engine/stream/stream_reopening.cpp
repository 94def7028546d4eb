#include "engine/stream/stream_reopening.hpp"

#include <algorithm>

namespace sidestep::engine {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLongestWait = 64 * kSecond;
constexpr unsigned kMostRefusals = 100;  // more than an hour; then the stream stays where it is

}  // namespace

bool StreamReopening::expect(uint64_t now) noexcept {
  Stream::Reopening& it = back();
  // A stream that could stay for long begins anew; one that is sent away again and again waits
  // longer.
  const bool stayed = it.bound_at != 0 && now - it.bound_at > kLongestWait;
  it.wait = it.wait == 0 || stayed ? kSecond : std::min(it.wait * 2, kLongestWait);
  it.at = now + it.wait;
  it.traffic = stream_.sender_.kernel_bytes() + stream_.receiver_.kernel_bytes();
  if (it.expected) return false;
  it.expected = true;
  return true;
}

bool StreamReopening::may_try_again(bool begin) noexcept {
  return (begin || is_expected()) && !stream_.for_good_.load(std::memory_order_relaxed) &&
         ++back().refusals <= kMostRefusals;
}

StreamReopening::Step StreamReopening::look(uint64_t now) noexcept {
  const auto over = [this](Step step) {
    back().expected = false;
    return step;
  };
  if (stream_.is_aborted() || stream_.is_closed() ||
      stream_.for_good_.load(std::memory_order_relaxed))
    return over(Step::over);
  const Phase phase = stream_.phase();
  if (phase == Phase::bound)
    // If it has failed over, it has not settled yet; otherwise it is back.
    return stream_.failed_over_ ? Step::none : over(Step::over);
  if (phase == Phase::kernel) {
    const std::optional<bool> begun = stream_.start_over();
    if (!begun) return Step::none;
    if (!*begun) return over(Step::over);
    return stream_.phase() == Phase::undecided ? Step::left : over(Step::left_alone);
  }
  if (!stream_.is_accepted() || now < back().at ||
      stream_.sender_.kernel_bytes() + stream_.receiver_.kernel_bytes() == back().traffic)
    return Step::none;
  back().at = now + kLongestWait;  // an answer is waited for no longer than that
  return Step::asks;
}

}  // namespace sidestep::engine
