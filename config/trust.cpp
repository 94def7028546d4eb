#include "config/trust.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "config/text.hpp"

namespace sidestep::config {
namespace {

/// True if `word` has only characters that useradd(8) allows. useradd allows the $ only at the end;
/// here it may be anywhere.
bool is_name(std::string_view word) noexcept {
  auto const allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.' || c == '$';
  };
  constexpr size_t kLongest = 32;
  return !word.empty() && word.size() <= kLongest && word.front() != '-' &&
         std::all_of(word.begin(), word.end(), allowed);
}

std::optional<uint32_t> id_of(std::string_view word) noexcept {
  auto const number = text::parse_number(word);
  // The highest number stands for "none" in system calls.
  if (!number || *number >= std::numeric_limits<uint32_t>::max()) return std::nullopt;
  return static_cast<uint32_t>(*number);
}

bool is_number(std::string_view word) noexcept {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Finds the number of `name`. The lines of both files begin with name:password:number.
std::optional<uint32_t> look_up(std::string_view table, std::string_view name) noexcept {
  while (!table.empty()) {
    std::string_view line = text::split_off(table, '\n');
    if (text::split_off(line, ':') != name) continue;
    text::split_off(line, ':');
    return id_of(text::split_off(line, ':'));
  }
  return std::nullopt;
}

}  // namespace

bool valid_trust(std::string_view trust) noexcept {
  while (!trust.empty()) {
    std::string_view word = text::trim(text::split_off(trust, ','));
    if (word.starts_with('@')) word.remove_prefix(1);
    if (!is_name(word) || (is_number(word) && !id_of(word))) return false;
  }
  return true;
}

Trust Trust::of(std::string_view trust, std::string_view passwd, std::string_view group,
                std::vector<std::string>& unknown) {
  Trust result;
  while (!trust.empty()) {
    std::string_view const word = text::trim(text::split_off(trust, ','));
    bool const is_group = word.starts_with('@');
    std::string_view const name = word.substr(is_group ? 1 : 0);
    auto const id = is_number(name) ? id_of(name) : look_up(is_group ? group : passwd, name);
    if (!id) {
      unknown.emplace_back(word);
    } else if (is_group) {
      result.gids_.push_back(*id);
    } else {
      result.uids_.push_back(*id);
    }
  }
  return result;
}

Trust Trust::read(std::string_view trust, std::vector<std::string>& unknown) {
  if (trust.empty()) return {};
  int error = 0;
  auto const passwd = text::read_file("/etc/passwd", error);
  auto const group = text::read_file("/etc/group", error);
  return of(trust, passwd.value_or(""), group.value_or(""), unknown);
}

bool Trust::trusts(uid_t uid, std::span<const gid_t> gids) const noexcept {
  if (std::find(uids_.begin(), uids_.end(), uid) != uids_.end()) return true;
  return std::any_of(gids.begin(), gids.end(), [this](gid_t gid) {
    return std::find(gids_.begin(), gids_.end(), gid) != gids_.end();
  });
}

}  // namespace sidestep::config
