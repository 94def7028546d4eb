// Checks of what streams to other hosts need: memory that may be pinned, libibverbs, and a port.
#include <fmt/core.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/devices/survey.hpp"
#include "preload/tool/check_parts.hpp"
#include "preload/tool/render.hpp"

namespace sidestep::tool {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShownGids = 8;

bool verbs_wanted(config::Config const& config) {
  return config.enable && (config.device == "auto" || config.device.starts_with("verbs"));
}

std::vector<std::string> names_in(fs::path const& folder, std::string_view prefix = "") {
  std::vector<std::string> names;
  std::error_code error;
  for (auto const& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename();
    if (name.starts_with(prefix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string joined(std::vector<std::string> const& words) {
  std::string out;
  for (std::string const& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string text_of(engine::VerbsGid const& gid) {
  return fmt::format("{} {} ({})", gid.index, gid.address, gid.type);
}

std::string text_of(std::vector<engine::VerbsGid> const& gids) {
  if (gids.empty()) return "no GID";
  std::string out = gids.size() == 1 ? "GID " : "GIDs ";
  for (size_t i = 0; i < std::min(gids.size(), kShownGids); ++i)
    out += (i == 0 ? "" : ", ") + text_of(gids[i]);
  if (gids.size() > kShownGids) out += fmt::format(" and {} more", gids.size() - kShownGids);
  return out;
}

/// Returns owner, group and mode: "root:rdma 0660".
std::string owner_of(struct stat const& status) {
  passwd const* const user = getpwuid(status.st_uid);
  group const* const its_group = getgrgid(status.st_gid);
  return fmt::format("{}:{} {:04o}",
                     user != nullptr ? user->pw_name : std::to_string(status.st_uid),
                     its_group != nullptr ? its_group->gr_name : std::to_string(status.st_gid),
                     status.st_mode & 07777);
}

void check_permissions(Verdict without, Findings& findings) {
  for (std::string const& name : names_in("/dev/infiniband", "uverbs")) {
    std::string const path = "/dev/infiniband/" + name;
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) continue;
    if (eaccess(path.c_str(), R_OK | W_OK) == 0) {
      findings.ok("permissions", path, "this user may use it (" + owner_of(status) + ")");
    } else {
      std::string const why = std::strerror(errno);
      findings.add(without, "permissions", path,
                   fmt::format("this user may not use it ({}): {}", owner_of(status), why),
                   "Give the user read and write access to it, by its group or by a udev rule.");
    }
  }
}

void show_port(std::string const& adapter, engine::VerbsPort const& port, Verdict if_inactive,
               Findings& findings) {
  std::string const subject = fmt::format("{} port {}", adapter, port.number);
  if (!port.active) {
    findings.add(
        if_inactive, "RDMA port", subject,
        port.link_layer[0] == '\0' ? std::string(port.state)
                                   : fmt::format("{}, {}", port.state, port.link_layer),
        "Check its cable and its switch; on InfiniBand a subnet manager must be running, on "
        "Ethernet the network interface must be up.");
    return;
  }
  bool const ethernet = std::string_view(port.link_layer) == "Ethernet";
  findings.ok("RDMA port", subject,
              fmt::format("active, {}, MTU {}{}, {}", port.link_layer, port.mtu,
                          ethernet ? "" : fmt::format(", LID {}", port.lid), text_of(port.gids)));
}

void show_adapters(engine::VerbsSurvey const& survey, bool usable, Verdict without,
                   Findings& findings) {
  // A fault of one adapter does not matter if another one works.
  Verdict const verdict = usable ? Verdict::ok : without;
  for (engine::VerbsAdapter const& adapter : survey.adapters) {
    if (!adapter.fault.empty())
      findings.add(verdict, "RDMA device", adapter.name, adapter.fault,
                   "Check the permissions of /dev/infiniband and the messages of the kernel.");
    for (engine::VerbsPort const& port : adapter.ports)
      show_port(adapter.name, port, verdict, findings);
  }
}

/// Reports on libibverbs. Returns true if there is an adapter to look at.
bool check_library(engine::VerbsSurvey const& survey, Verdict without, Findings& findings) {
  auto const known = names_in("/sys/class/infiniband");
  if (!survey.fault.empty()) {
    findings.add(without, "libibverbs", "", survey.fault,
                 "For streams to other hosts, install rdma-core's libibverbs and its providers "
                 "(on Debian: libibverbs1 and ibverbs-providers).");
    return false;
  }
  findings.ok("libibverbs", "", "loaded");
  if (!survey.adapters.empty()) return true;
  if (known.empty()) {
    findings.add(without, "RDMA device", "", "this machine has none",
                 "Streams to other hosts stay on the kernel; they need an RDMA adapter with its "
                 "driver, or Soft-RoCE (rdma link add rxe0 type rxe netdev INTERFACE).");
  } else {
    findings.add(without, "RDMA device", "",
                 fmt::format("the kernel has {}, but libibverbs doesn't show it", joined(known)),
                 names_in("/dev/infiniband", "uverbs").empty()
                     ? "Load the kernel module ib_uverbs; in a container, give it /dev/infiniband."
                     : "Install the provider of this adapter (on Debian: ibverbs-providers).");
  }
  return false;
}

}  // namespace

Verdict verdict_without_verbs(config::Config const& config) {
  if (!verbs_wanted(config)) return Verdict::ok;
  return config.device == "auto" ? Verdict::warn : Verdict::fail;
}

void check_locked_memory(config::Config const& config, Findings& findings) {
  constexpr std::string_view kCheck = "locked memory";
  if (!verbs_wanted(config)) {
    findings.ok(kCheck, "", "not needed without verbs");
    return;
  }
  engine::PinnedMemory const memory = engine::pinned_memory(config);
  if (memory.limit == UINT64_MAX) {
    findings.ok(kCheck, "", "not limited for this process");
    return;
  }
  std::string const limit = "RLIMIT_MEMLOCK is " + human_bytes(memory.limit);
  constexpr char const* kAdvice =
      "Raise it (ulimit -l, memlock in /etc/security/limits.conf, LimitMEMLOCK= in systemd), best "
      "to unlimited.";
  if (memory.limit < memory.least) {
    findings.add(verdict_without_verbs(config), kCheck, "",
                 fmt::format("{}, and verbs need {} at least", limit, human_bytes(memory.least)),
                 kAdvice);
    return;
  }
  uint64_t const rings = (memory.limit - memory.pool) / memory.ring;
  auto const share = [](uint64_t got, uint64_t wanted) {
    return human_bytes(got) + (got < wanted ? " instead of " + human_bytes(wanted) : "");
  };
  bool const less = memory.pool < config.pool_size || memory.ring < config.orb_size;
  findings.add(
      less ? Verdict::warn : Verdict::ok, kCheck, "",
      fmt::format("{}: {} for the receive pool, {} for each ring, room for {} connections", limit,
                  share(memory.pool, config.pool_size), share(memory.ring, config.orb_size), rings),
      kAdvice);
}

void check_verbs(Machine& machine, Findings& findings) {
  constexpr std::string_view kCheck = "verbs";
  config::Config const& config = machine.config;
  if (!verbs_wanted(config)) {
    machine.verbs_fault = "SIDESTEP_DEVICE is " + config.device;
    findings.ok(kCheck, "", "not wanted");
    return;
  }
  Verdict const without = verdict_without_verbs(config);
  engine::VerbsSurvey const survey = engine::survey_verbs();
  check_permissions(without, findings);
  if (!check_library(survey, without, findings)) {
    machine.verbs_fault =
        survey.fault.empty() ? "this machine has no RDMA device" : "libibverbs can't be used";
    return;
  }
  engine::VerbsTrial const trial = engine::try_verbs(config);
  machine.verbs = trial.why.empty();
  machine.verbs_fault = trial.why;
  show_adapters(survey, machine.verbs, without, findings);
  if (!machine.verbs) {
    findings.add(without, kCheck, "", "not usable: " + trial.why,
                 "Streams to other hosts stay on the kernel; see the lines above, and "
                 "SIDESTEP_DEVICE, SIDESTEP_VERBS_PORT, SIDESTEP_GID_INDEX and SIDESTEP_PKEY.");
    return;
  }
  machine.verbs_port = fmt::format("{} port {}", trial.adapter, trial.port);
  findings.ok(kCheck, "",
              fmt::format("{} is used, with MTU {} and {}", machine.verbs_port, trial.mtu,
                          trial.gids.empty() ? "its LID" : "GID " + text_of(trial.gids.front())));
}

}  // namespace sidestep::tool
