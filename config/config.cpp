#include "config/config.hpp"

#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>

#include "config/options.hpp"
#include "config/text.hpp"

namespace sidestep::config {
namespace {

constexpr std::string_view kPrefix = "SIDESTEP_";
constexpr std::string_view kFileVariable = "SIDESTEP_CONFIG";
constexpr size_t kMostComplaints = 20;

/// What is known about one option before it is parsed: the value that won, and where it was found.
struct Setting {
  bool present = false;
  std::string_view value;
  size_t line = 0;  ///< in the file; 0 means the environment
};

class Loader {
 public:
  explicit Loader(std::string_view file_name) : settings_(options().size()), file_(file_name) {}

  void read_file_text(std::string_view file_text);
  void read_environment(char const* const* block);
  void complain(std::string line);
  Loaded finish();

 private:
  void read_line(std::string_view line, size_t number);
  void unknown(std::string_view name, size_t line);
  Setting& setting_of(Option const& option) {
    return settings_[static_cast<size_t>(&option - options().data())];
  }
  /// Returns " (FILE:LINE)", or nothing for the environment.
  std::string place(size_t line) const {
    if (line == 0) return {};
    return text::joined({" (", text::printable(file_), ":", std::to_string(line), ")"});
  }

  std::vector<Setting> settings_;
  std::string_view file_;
  Loaded loaded_;
  size_t left_out_ = 0;
};

void Loader::complain(std::string line) {
  if (loaded_.complaints.size() < kMostComplaints) {
    loaded_.complaints.push_back(std::move(line));
  } else {
    ++left_out_;
  }
}

void Loader::unknown(std::string_view name, size_t line) {
  std::string out = text::printable(name) + place(line) + " is not an option";
  // Distances cost time, and a file full of something else must not cost much.
  if (loaded_.complaints.size() < kMostComplaints) {
    if (Option const* near = nearest_option(name)) {
      out += text::joined({" (did you mean ", near->name, "?)"});
    }
  }
  complain(out + "; it is ignored");
}

/// Returns the value of a line: the text between a pair of quotes, or else the text without its
/// comment. The # of a comment needs a blank before it.
std::string_view file_value(std::string_view value) noexcept {
  value = text::trim(value);
  if (value.starts_with('"') || value.starts_with('\'')) {
    size_t const end = value.find(value.front(), 1);
    if (end != std::string_view::npos) {
      std::string_view const rest = text::trim(value.substr(end + 1));
      if (rest.empty() || rest.starts_with('#')) return value.substr(1, end - 1);
    }
  }
  for (size_t i = 0; i < value.size(); ++i) {
    bool const starts = i == 0 || value[i - 1] == ' ' || value[i - 1] == '\t';
    if (value[i] == '#' && starts) return text::trim(value.substr(0, i));
  }
  return value;
}

void Loader::read_line(std::string_view line, size_t number) {
  line = text::trim(line);
  if (line.empty() || line.starts_with('#')) return;
  if (line.find('=') == std::string_view::npos) {
    complain(text::joined(
        {"'", text::printable(line), "'", place(number), " is not NAME=value; it is ignored"}));
    return;
  }
  std::string_view value = line;
  std::string_view const name = text::trim(text::split_off(value, '='));
  Option const* option = find_option(name);
  if (option == nullptr) return unknown(name, number);
  if (option->name == kFileVariable) {
    complain(text::joined(
        {kFileVariable, place(number), " can be set in the environment only; it is ignored"}));
    return;
  }
  setting_of(*option) = {true, file_value(value), number};
}

void Loader::read_file_text(std::string_view file_text) {
  for (size_t number = 1; !file_text.empty(); ++number) {
    read_line(text::split_off(file_text, '\n'), number);
  }
}

void Loader::read_environment(char const* const* block) {
  if (block == nullptr) return;
  std::vector<bool> seen(settings_.size(), false);
  for (; *block != nullptr; ++block) {
    std::string_view value = *block;
    if (!value.starts_with(kPrefix)) continue;
    std::string_view const name = text::split_off(value, '=');
    Option const* option = find_option(name);
    if (option == nullptr) {
      unknown(name, 0);
      continue;
    }
    // If a variable appears twice, the first one counts, as for getenv.
    Setting& setting = setting_of(*option);
    if (setting.present && setting.line == 0) continue;
    setting = {true, value, 0};
  }
}

Loaded Loader::finish() {
  for (Option const& option : options()) {
    Setting const& setting = setting_of(option);
    if (!setting.present || setting.value.empty()) continue;
    std::string why;
    if (set_option(loaded_.config, option, setting.value, why)) continue;
    std::string const fallback = default_value(option);
    complain(text::joined({option.name, place(setting.line), ": ",
                           refusal(option, setting.value, why), "; the default",
                           fallback.empty() ? " (empty)" : text::joined({", ", fallback, ","}),
                           " is used"}));
  }
  if (left_out_ != 0) {
    loaded_.complaints.push_back(
        text::joined({"and ", std::to_string(left_out_), " more complaints"}));
  }
  return std::move(loaded_);
}

/// Returns the value of SIDESTEP_CONFIG in the environment; empty if it is not set.
std::string_view file_in(char const* const* block) noexcept {
  for (; block != nullptr && *block != nullptr; ++block) {
    std::string_view value = *block;
    if (text::split_off(value, '=') == kFileVariable) return value;
  }
  return {};
}

Loaded load_anyhow(char const* const* environ_block) {
  std::string_view const wanted = file_in(environ_block);
  std::string const file(wanted.empty() ? kDefaultFile : wanted);
  int error = 0;
  auto const contents = text::read_file(file, error);
  Loader loader(file);
  if (contents) {
    loader.read_file_text(*contents);
  } else if (!wanted.empty() || (error != ENOENT && error != ENOTDIR)) {
    loader.complain(
        text::joined({kFileVariable, ": '", text::printable(file), "' can't be read (errno ",
                      std::to_string(error), "); the settings in it are not used"}));
  }
  loader.read_environment(environ_block);
  return loader.finish();
}

}  // namespace

Loaded load(char const* const* environ_block) noexcept {
  // The library may load in the middle of a call by the program, which owns this errno.
  int const saved = errno;
  Loaded loaded;
  try {
    loaded = load_anyhow(environ_block);
  } catch (std::exception const&) {
    loaded = Loaded{};
  }
  errno = saved;
  return loaded;
}

Loaded load_text(std::string_view file_text, std::string_view file_name,
                 char const* const* environ_block) noexcept try {
  Loader loader(file_name);
  loader.read_file_text(file_text);
  loader.read_environment(environ_block);
  return loader.finish();
} catch (std::exception const&) {
  return {};
}

std::string expand(std::string const& pattern, int pid) noexcept try {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    char const next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (pattern[i] != '%' || (next != 'p' && next != '%')) {
      out += pattern[i];
      continue;
    }
    if (next == 'p') out += std::to_string(pid);
    if (next == '%') out += '%';
    ++i;
  }
  return out;
} catch (std::exception const&) {
  return {};
}

}  // namespace sidestep::config
