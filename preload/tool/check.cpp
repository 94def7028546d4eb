#include "preload/tool/check.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include "engine/base/log.hpp"
#include "preload/tool/check_parts.hpp"

namespace sidestep::tool {

int check(CheckRequest const& request) {
  // The checks find and report what the engine would log.
  engine::log_open(engine::LogLevel::error, "");
  config::Loaded const loaded = config::load(environ);
  Machine machine{loaded.config};
  Findings findings;
  check_configuration(loaded, findings);
  check_key(machine, findings);
  check_shared_memory(machine, findings);
  check_unix_sockets(machine, findings);
  check_proof(findings);
  check_locked_memory(loaded.config, findings);
  check_verbs(machine, findings);
  check_discovery(machine, findings);
  check_nodes(machine, findings);
  check_targets(machine, request.targets, findings);
  fmt::print("{}", request.json ? findings.as_json() : findings.as_text());
  return findings.any_failed() ? 1 : 0;
}

}  // namespace sidestep::tool
