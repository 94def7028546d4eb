#pragma once

#include <string>
#include <vector>

#include "config/config.hpp"
#include "engine/control/cluster_key.hpp"
#include "preload/tool/findings.hpp"

/// The parts of `sidestep check`. Each reports what it found and continues; Machine holds what
/// later parts need to know.
namespace sidestep::tool {

/// What the checks have found out about this machine.
struct Machine {
  explicit Machine(config::Config const& settings) : config(settings) {}
  /// True with a usable key, or where the settings ask for none.
  bool talks_to_other_hosts() const { return key.lets_talk(); }

  config::Config const& config;
  engine::ClusterKey key;
  bool shared_memory = false;  ///< shared memory works
  bool verbs = false;          ///< a node would open a device
  std::string verbs_port;      ///< the device and port, for people to read
  std::string verbs_fault;     ///< why verbs can't be used
  bool cannot_answer = false;  ///< nodes of this user can't get the discovery port
};

/// Returns the verdict on something missing that only SIDESTEP_DEVICE=verbs insists on.
Verdict verdict_without_verbs(config::Config const& config);

void check_configuration(config::Loaded const& loaded, Findings& findings);
void check_key(Machine& machine, Findings& findings);
void check_shared_memory(Machine& machine, Findings& findings);
void check_unix_sockets(Machine const& machine, Findings& findings);
void check_proof(Findings& findings);
void check_discovery(Machine& machine, Findings& findings);

void check_locked_memory(config::Config const& config, Findings& findings);
void check_verbs(Machine& machine, Findings& findings);

void check_nodes(Machine const& machine, Findings& findings);
void check_targets(Machine const& machine, std::vector<std::string> const& targets,
                   Findings& findings);

}  // namespace sidestep::tool
