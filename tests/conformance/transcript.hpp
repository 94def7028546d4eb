#pragma once
/// What a case observes, line by line, to be compared with what the kernel's run observed.
///
/// A case has no expectations of its own: it makes calls through SEE() and NOTE(), in an order that
/// does not depend on chance, and everything that they return is part of its transcript. The run on
/// plain kernel sockets writes all transcripts to a file; the other runs read it.
#include <cerrno>
#include <string>
#include <string_view>
#include <type_traits>

namespace conformance {

/// Of the case that runs now. Its thread only.
void add_line(std::string_view what, std::string_view result);

std::string errno_name(int error);

/// Where the carriers may be made to change.
void before_step();

/// -1 stands for the error; everything else is shown as it is.
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

/// Makes the call, adds what came of it, and returns it, with errno as the call left it.
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
/// Of a call whose result is a number that means nothing in itself, such as a descriptor.
#define SEE_DONE(call) ::conformance::see(#call, [&] { return (call) < 0 ? -1 : 0; })
#define NOTE(value) ::conformance::see(#value, [&] { return value; })
