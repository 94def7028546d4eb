#include "preload/tool/options_text.hpp"

#include <fmt/core.h>

#include <string_view>

#include "config/options.hpp"

namespace sidestep::tool {
namespace {

constexpr size_t kTextWidth = 80;
constexpr size_t kHelpWidth = 66;

/// `text` in lines of at most `width`, each after `indent`.
std::string wrapped(std::string_view text, std::string_view indent, size_t width = kTextWidth) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    size_t const end = text.find(' ');
    std::string_view const word = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (column == 0 || column + 1 + word.size() > width) {
      if (column != 0) out += '\n';
      out += indent;
      column = indent.size();
    } else {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string shown_default(config::Option const& option) {
  std::string const value = config::default_value(option);
  return value.empty() ? "empty" : value;
}

std::string escaped(std::string_view text, char which, std::string_view with) {
  std::string out;
  for (char const c : text) {
    if (c == which) {
      out += with;
    } else {
      out += c;
    }
  }
  return out;
}

/// As running text of troff: a backslash, a minus and a dot or quote that starts a line are
/// special.
std::string troff(std::string_view text) {
  std::string const out = escaped(escaped(text, '\\', "\\e"), '-', "\\-");
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

}  // namespace

std::string option_help(config::Option const& option) {
  std::string const text = fmt::format("{} It must be {}; the default is {}.", option.text,
                                       config::allowed_values(option), shown_default(option));
  std::string lines = wrapped(text, "", kHelpWidth);
  lines.pop_back();  // the last line end
  return lines;
}

std::string options_as_text() {
  std::string out;
  for (config::Option const& option : config::options()) {
    out += fmt::format("{}={}\n", option.name, config::default_value(option));
    out += wrapped(option.text, "    ");
    out += wrapped(fmt::format("Allowed: {}.", config::allowed_values(option)), "    ");
    out += '\n';
  }
  return out +
         "Above are the defaults. Set an option in the environment, as a flag of `sidestep run`\n"
         "(SIDESTEP_SPIN_US is --spin-us), or in /etc/sidestep.conf as NAME=value.\n";
}

std::string options_as_markdown() {
  std::string out = "| Variable | Default | Allowed | Meaning |\n| --- | --- | --- | --- |\n";
  for (config::Option const& option : config::options()) {
    out += fmt::format("| `{}` | {} | {} | {} |\n", option.name, shown_default(option),
                       escaped(config::allowed_values(option), '|', "\\|"),
                       escaped(option.text, '|', "\\|"));
  }
  return out;
}

std::string options_as_man() {
  std::string out;
  for (config::Option const& option : config::options()) {
    out += fmt::format(".TP\n.B {}\n{}\n", option.name, troff(option.text));
    out += fmt::format("It must be {}; the default is {}.\n", troff(config::allowed_values(option)),
                       troff(shown_default(option)));
  }
  return out;
}

}  // namespace sidestep::tool
