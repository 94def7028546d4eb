#pragma once
/// What stands in the place of a function that the C library lacks: a function of the same type
/// that fails with ENOSYS, in the way in which the missing one reports errors.
#include <signal.h>

#include <cerrno>
#include <string_view>
#include <type_traits>

namespace sidestep::preload {

/// True if the function of that name returns its error and leaves errno alone.
constexpr bool returns_its_error(std::string_view name) noexcept {
  return name.starts_with("pthread_") || name.starts_with("posix_");
}

template <typename Result, bool kReturnsError>
Result fail_as_missing() noexcept {
  if constexpr (kReturnsError) return ENOSYS;
  errno = ENOSYS;
  if constexpr (std::is_same_v<Result, sighandler_t>) {
    return SIG_ERR;
  } else if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else if constexpr (!std::is_void_v<Result>) {
    return -1;
  }
}

/// `Pointer`: the type of a pointer to the function.
template <typename Pointer, bool kReturnsError = false>
struct MissingCall;

template <typename Result, typename... Parameters, bool kReturnsError>
struct MissingCall<Result (*)(Parameters...), kReturnsError> {
  static Result call(Parameters...) { return fail_as_missing<Result, kReturnsError>(); }
};

template <typename Result, typename... Parameters, bool kReturnsError>
struct MissingCall<Result (*)(Parameters..., ...), kReturnsError> {
  static Result call(Parameters..., ...) { return fail_as_missing<Result, kReturnsError>(); }
};

}  // namespace sidestep::preload
