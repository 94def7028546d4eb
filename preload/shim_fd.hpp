#pragma once
/// What closing a descriptor does, for calls in other files that close one.

namespace sidestep::preload {

/// Drops whatever the library knows of `fd`; the caller closes the number itself.
void forget_descriptor(int fd) noexcept;

}  // namespace sidestep::preload
