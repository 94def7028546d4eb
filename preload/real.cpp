#include "preload/real.hpp"

#include <dlfcn.h>

namespace sidestep::preload {

namespace real {
#define CALL(type, name, need, parameters) \
  type(*name) parameters = MissingCall<type(*) parameters, returns_its_error(#name)>::call;
#include "preload/calls.def"
#undef CALL
}  // namespace real

std::atomic<bool> g_resolved{false};

namespace {

enum class Need { required, optional };

// relaxed, here and below: g_resolved orders it, as it orders the pointers.
std::atomic<const char*> g_missing{nullptr};

/// `missing`: the first required function that was not found.
template <typename Pointer>
void resolve(Pointer& call, Pointer instead, void* found, Need need, const char* name,
             const char*& missing) noexcept {
  call = found != nullptr ? reinterpret_cast<Pointer>(found) : instead;
  if (found == nullptr && need == Need::required && missing == nullptr) missing = name;
}

}  // namespace

void resolve_real_by(void* (*find)(const char* name)) noexcept {
  const char* missing = nullptr;
#define CALL(type, name, need, parameters)                                              \
  resolve(real::name, &MissingCall<type(*) parameters, returns_its_error(#name)>::call, \
          find(#name), Need::need, #name, missing);
#include "preload/calls.def"
#undef CALL
  g_missing.store(missing, std::memory_order_relaxed);
  g_resolved.store(true, std::memory_order_release);
}

void resolve_real_slow() noexcept {
  // dlsym() may allocate, but none of the calls in the table is malloc's, so there is no loop.
  resolve_real_by([](const char* name) { return dlsym(RTLD_NEXT, name); });
}

const char* missing_required_call() noexcept {
  resolve_real();
  return g_missing.load(std::memory_order_relaxed);
}

}  // namespace sidestep::preload
