#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The users and groups in SIDESTEP_TRUST: `user,@group,...`, each a name or a number. This process
/// may be joined with their processes, besides those of its own user.
namespace sidestep::config {

/// True if `trust` is well formed. The names need not exist.
bool valid_trust(std::string_view trust) noexcept;

/// The list with the names resolved to numbers. A plain value; any thread may use it.
class Trust {
 public:
  Trust() noexcept = default;
  /// Looks names up in these texts, which have the formats of passwd(5) and group(5). A name that
  /// is not found adds nobody to the list, and is put into `unknown`. May throw std::bad_alloc.
  static Trust of(std::string_view trust, std::string_view passwd, std::string_view group,
                  std::vector<std::string>& unknown);
  /// Does the same with /etc/passwd and /etc/group, which it reads by raw system calls: the name
  /// service (NSS) would load libraries into the program. Users who are defined elsewhere must be
  /// given by number.
  static Trust read(std::string_view trust, std::vector<std::string>& unknown);

  bool trusts_nobody() const noexcept { return uids_.empty() && gids_.empty(); }
  /// True if the list names the user of a process or any of its groups; `gids` are all of them.
  bool trusts(uid_t uid, std::span<const gid_t> gids) const noexcept;

 private:
  std::vector<uid_t> uids_;
  std::vector<gid_t> gids_;
};

}  // namespace sidestep::config
