#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The users and groups in SIDESTEP_TRUST, whose processes may be joined with this one besides
/// those of its own user: `user,@group,...`, each a name or a number.
namespace sidestep::config {

/// Whether `trust` is well formed. Names need not exist.
bool valid_trust(std::string_view trust) noexcept;

/// The list with numbers for names. A plain value; any thread.
class Trust {
 public:
  Trust() noexcept = default;
  /// Looks names up in these texts, which are formatted as passwd(5) and group(5). Those that are
  /// not there trust nobody, and are put into `unknown`. May throw std::bad_alloc.
  static Trust of(std::string_view trust, std::string_view passwd, std::string_view group,
                  std::vector<std::string>& unknown);
  /// The same with /etc/passwd and /etc/group, by raw system calls: the name service (NSS) would
  /// load libraries into the program. A user that is elsewhere is named by its number.
  static Trust read(std::string_view trust, std::vector<std::string>& unknown);

  bool trusts_nobody() const noexcept { return uids_.empty() && gids_.empty(); }
  /// Of a process: its user, and all of its groups.
  bool trusts(uid_t uid, std::span<const gid_t> gids) const noexcept;

 private:
  std::vector<uid_t> uids_;
  std::vector<gid_t> gids_;
};

}  // namespace sidestep::config
