#include "preload/context.hpp"

#include <fcntl.h>
#include <limits.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/base/log.hpp"
#include "engine/base/process_copy.hpp"
#include "engine/base/sys.hpp"
#include "engine/node/node.hpp"
#include "engine/node/status.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"

extern char** environ;

namespace sidestep::preload {

namespace sys = engine::sys;

namespace {

Context load_context() {
  Context result;
  config::Loaded loaded = config::load(environ);
  engine::log_open(loaded.config.log_level,
                   config::expand(loaded.config.log_file, static_cast<int>(getpid())));
  for (const std::string& complaint : loaded.complaints)
    engine::log(engine::LogLevel::warn, "%s", complaint.c_str());
  std::string error;
  if (auto rules = config::Rules::parse(loaded.config.rules, error))
    result.rules = std::move(*rules);
  char path[PATH_MAX];
  const long length = sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path);
  if (length > 0) result.program_path.assign(path, static_cast<size_t>(length));
  const char* const missing = missing_required_call();
  if (missing != nullptr)
    engine::log(engine::LogLevel::error,
                "the C library has no %s(), which Sidestep needs: every stream stays on the kernel",
                missing);
  result.active = missing == nullptr && loaded.config.enable && loaded.config.device != "none";
  result.config = std::move(loaded.config);
  return result;
}

}  // namespace

const Context& context() noexcept {
  // Never destroyed: threads may ask until the very end.
  static const Context* const loaded = []() noexcept -> const Context* {
    try {
      return new Context(load_context());
    } catch (const std::bad_alloc&) {
      // Nothing is active in this context.
      alignas(Context) static std::byte without_memory[sizeof(Context)];
      return new (without_memory) Context;
    }
  }();
  return *loaded;
}

bool is_vfork_child() noexcept {
  if (engine::is_copy()) [[unlikely]]
    settle_copy();
  const engine::Node* node = engine::Node::running();
  return node != nullptr && node->pid() != static_cast<int>(sys::call(SYS_getpid));
}

void write_stats_file() noexcept {
  engine::Node* node = engine::Node::running();
  if (node == nullptr || context().config.stats_file.empty()) return;
  try {
    const std::string path =
        config::expand(context().config.stats_file, static_cast<int>(getpid()));
    const std::string text = engine::status_json(*node, false);
    // A reader must never see half a document.
    const std::string part = path + "." + std::to_string(getpid()) + ".part";
    // In a directory that everybody can write to, the name may already exist, as a link to some
    // file of this user, or as a file of another user: the library never writes through it. It
    // removes a file that an earlier process with this number has left behind.
    constexpr int kFresh = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = sys::open(part.c_str(), kFresh, 0644);
    if (fd == -EEXIST && sys::call(SYS_unlink, part.c_str()) == 0)
      fd = sys::open(part.c_str(), kFresh, 0644);
    if (fd < 0) {
      engine::log(engine::LogLevel::warn, "SIDESTEP_STATS_FILE: '%s' can't be created: %s",
                  part.c_str(), std::strerror(-fd));
      return;
    }
    const long written = sys::write(fd, text.data(), text.size());
    sys::close(fd);
    // The new file replaces a link, too.
    const long renamed = written == static_cast<long>(text.size())
                             ? sys::call(SYS_rename, part.c_str(), path.c_str())
                             : 0;
    if (renamed == 0 && written == static_cast<long>(text.size())) return;
    sys::call(SYS_unlink, part.c_str());
    if (renamed < 0)
      engine::log(engine::LogLevel::warn, "SIDESTEP_STATS_FILE: '%s' can't be written: %s",
                  path.c_str(), std::strerror(static_cast<int>(-renamed)));
  } catch (const std::exception& error) {
    engine::log(engine::LogLevel::warn, "SIDESTEP_STATS_FILE: the file can't be written: %s",
                error.what());
  }
}

}  // namespace sidestep::preload
