#include "engine/verbs/library.hpp"

#include <dlfcn.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "engine/base/lock.hpp"
#include "engine/base/log.hpp"

namespace sidestep::engine::verbs {
namespace {

Mutex g_lock;
bool g_tried = false;
Library g_library;
const Library* g_loaded = nullptr;
char g_why[160];

void load() noexcept {
  void* const handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    std::snprintf(g_why, sizeof g_why, "%s", reason != nullptr ? reason : "libibverbs.so.1");
    return;
  }
  const char* missing = nullptr;
  const auto find = [&](const char* name) {
    void* const symbol = dlsym(handle, name);
    if (symbol == nullptr && missing == nullptr) missing = name;
    return symbol;
  };
#define SIDESTEP_FIND(name) g_library.name = reinterpret_cast<decltype(&::name)>(find(#name));
  SIDESTEP_VERBS_FUNCTIONS(SIDESTEP_FIND)
#undef SIDESTEP_FIND
  if (missing != nullptr) {
    std::snprintf(g_why, sizeof g_why, "libibverbs.so.1 is too old: it has no %s", missing);
    dlclose(handle);
    return;
  }
  // Must come before any other call. It is needed only if the kernel does not copy pinned pages at
  // fork (before Linux 5.12); otherwise it does nothing.
  g_library.ibv_fork_init();
  g_loaded = &g_library;
}

}  // namespace

void Library::forget_after_fork() noexcept {
  if (g_lock.is_locked()) g_tried = g_loaded != nullptr;
  g_lock.reset_after_fork();
}

const Library* Library::get(const char** why) noexcept {
  const Library* loaded = nullptr;
  {
    const std::lock_guard guard(g_lock);
    if (!g_tried) {
      g_tried = true;
      load();
    }
    loaded = g_loaded;
  }
  if (why != nullptr) *why = g_why;
  return loaded;
}

int Library::query_port(ibv_context* context, uint8_t port, ibv_port_attr& attributes) noexcept {
  verbs_context* const extended = verbs_get_ctx_op(context, query_port);
  if (extended == nullptr) return EOPNOTSUPP;
  std::memset(&attributes, 0, sizeof attributes);
  return extended->query_port(context, port, &attributes, sizeof attributes);
}

}  // namespace sidestep::engine::verbs
