#include "preload/real.hpp"

#include <dlfcn.h>

namespace sidestep::preload {

namespace real {
#define CALL(type, name, parameters) type(*name) parameters = nullptr;
#include "preload/calls.def"
#undef CALL
}  // namespace real

std::atomic<bool> g_resolved{false};

void resolve_real_slow() noexcept {
  // dlsym() may allocate, but none of the calls in the table is malloc's, so there is no loop.
#define CALL(type, name, parameters) \
  real::name = reinterpret_cast<type(*) parameters>(dlsym(RTLD_NEXT, #name));
#include "preload/calls.def"
#undef CALL
  g_resolved.store(true, std::memory_order_release);
}

}  // namespace sidestep::preload
