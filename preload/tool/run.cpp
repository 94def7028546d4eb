#include "preload/tool/run.hpp"

#include <fmt/core.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

namespace sidestep::tool {
namespace {

namespace fs = std::filesystem;

constexpr char const* kLibraryName = "libsidestep.so";

/// Returns the library of the same build, or the one that was installed with this tool.
std::optional<std::string> find_library() {
  std::error_code error;
  fs::path const self = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    fmt::print(stderr, "sidestep: cannot find out where this tool is: {}\n", error.message());
    return std::nullopt;
  }
  fs::path const folder = self.parent_path();
  fs::path const beside = folder / kLibraryName;
  fs::path const installed = (folder / SIDESTEP_LIBRARY_FROM_TOOL).lexically_normal();
  for (fs::path const& candidate : {beside, installed}) {
    if (fs::exists(candidate, error)) return candidate.string();
  }
  fmt::print(stderr, "sidestep: {} is missing: neither {} nor {} exists\n", kLibraryName,
             beside.string(), installed.string());
  return std::nullopt;
}

/// Returns the value of LD_PRELOAD with `library` in front, where it appears only once.
std::string preload_list(std::string const& library) {
  char const* const now = getenv("LD_PRELOAD");
  std::string list = library;
  std::string_view rest = now == nullptr ? "" : now;
  while (!rest.empty()) {
    size_t const end = rest.find_first_of(": ");
    std::string_view const entry = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (!entry.empty() && entry != library) list.append(":").append(entry);
  }
  return list;
}

bool set_variable(std::string const& name, std::string const& value) {
  if (setenv(name.c_str(), value.c_str(), 1) == 0) return true;
  fmt::print(stderr, "sidestep: cannot set {}: {}\n", name, strerror(errno));
  return false;
}

}  // namespace

std::string flag_of(std::string_view variable) {
  constexpr std::string_view kPrefix = "SIDESTEP_";
  if (variable.starts_with(kPrefix)) variable.remove_prefix(kPrefix.size());
  std::string flag = "--";
  for (char const c : variable) {
    flag += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return flag;
}

int run(Settings const& settings, std::vector<std::string> command) {
  auto const library = find_library();
  if (!library) return kRunFailed;
  if (library->find_first_of(": ") != std::string::npos) {
    // The dynamic linker takes either as the end of a name, and has no way to quote them.
    fmt::print(stderr, "sidestep: LD_PRELOAD cannot name {}: there is a blank or a colon in it\n",
               *library);
    return kRunFailed;
  }
  for (auto const& [name, value] : settings) {
    if (!set_variable(name, value)) return kRunFailed;
  }
  if (!set_variable("LD_PRELOAD", preload_list(*library))) return kRunFailed;

  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  int const error = errno;
  fmt::print(stderr, "sidestep: cannot run {}: {}\n", command[0], strerror(error));
  return error == ENOENT ? kNotFound : kCannotExecute;
}

}  // namespace sidestep::tool
