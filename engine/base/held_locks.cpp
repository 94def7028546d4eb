#include "engine/base/held_locks.hpp"

namespace sidestep::engine {

constinit thread_local HeldLocks held_locks;
void (*on_last_unlock)() noexcept = nullptr;

}  // namespace sidestep::engine
