#pragma once
/// What closing does, for the calls of other files that close.

namespace sidestep::preload {

/// Whatever the library knows of `fd` ends; the caller closes the number itself.
void forget_descriptor(int fd) noexcept;

}  // namespace sidestep::preload
