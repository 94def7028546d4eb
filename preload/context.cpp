#include "preload/context.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/log.hpp"
#include "engine/node.hpp"
#include "engine/sys.hpp"

extern char** environ;

namespace sidestep::preload {

namespace sys = engine::sys;

namespace {

Context load_context() noexcept {
  Context result;
  config::Loaded loaded = config::load(environ);
  engine::log_open(loaded.config.log_level,
                   config::expand(loaded.config.log_file, static_cast<int>(getpid())));
  for (const std::string& complaint : loaded.complaints)
    engine::log(engine::LogLevel::warn, "%s", complaint.c_str());
  std::string error;
  if (auto rules = config::Rules::parse(loaded.config.rules, error))
    result.rules = std::move(*rules);
  result.active = loaded.config.enable && loaded.config.device != "none";
  result.config = std::move(loaded.config);
  return result;
}

}  // namespace

const Context& context() noexcept {
  // Never destroyed: threads may ask until the very end.
  static const Context* const loaded = new Context(load_context());
  return *loaded;
}

bool is_vfork_child() noexcept {
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
    const std::string part = path + ".part";
    const int fd = sys::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
      engine::log(engine::LogLevel::warn, "SIDESTEP_STATS_FILE: %s: %s", part.c_str(),
                  std::strerror(-fd));
      return;
    }
    const long written = sys::write(fd, text.data(), text.size());
    sys::close(fd);
    if (written == static_cast<long>(text.size())) {
      std::rename(part.c_str(), path.c_str());
    } else {
      sys::call(SYS_unlink, part.c_str());
    }
  } catch (const std::exception& error) {
    engine::log(engine::LogLevel::warn, "SIDESTEP_STATS_FILE: %s", error.what());
  }
}

}  // namespace sidestep::preload
