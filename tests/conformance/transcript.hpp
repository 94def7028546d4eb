#pragma once
/// What a case observes, line by line, for comparison with what the kernel's run observed.
///
/// A case has no expectations of its own. It makes calls through SEE() and NOTE() in an order that
/// does not depend on chance, and every result becomes part of its transcript. The run on plain
/// kernel sockets writes all transcripts to a file; the other runs read it.
#include <cerrno>
#include <string>
#include <string_view>
#include <type_traits>

namespace conformance {

/// Adds a line to the transcript of the running case. One thread at a time may call this.
void add_line(std::string_view what, std::string_view result);

std::string errno_name(int error);

/// A point at which the suite may change the carriers.
void before_step();

/// Returns a result as text. For -1 it includes the error; all else is shown as it is.
template <typename Result>
std::string describe(const Result& result, int error) {
  if constexpr (std::is_same_v<Result, bool>) {
    return result ? "yes" : "no";
  } else if constexpr (std::is_integral_v<Result>) {
    return result == static_cast<Result>(-1) ? "-1 " + errno_name(error) : std::to_string(result);
  } else {
    return std::string(result);
  }
}

/// Makes the call, adds its result to the transcript, and returns the result with errno as the call
/// left it.
template <typename Call>
auto see(std::string_view text, Call call) {
  before_step();
  errno = 0;
  const auto result = call();
  const int error = errno;
  add_line(text, describe(result, error));
  errno = error;
  return result;
}

}  // namespace conformance

#define SEE(call) ::conformance::see(#call, [&] { return call; })
/// SEE() for a call whose result is a number without meaning of its own, such as a descriptor.
#define SEE_DONE(call) ::conformance::see(#call, [&] { return (call) < 0 ? -1 : 0; })
#define NOTE(value) ::conformance::see(#value, [&] { return value; })
