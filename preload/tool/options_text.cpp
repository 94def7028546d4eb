#include "preload/tool/options_text.hpp"

#include <fmt/core.h>

#include <string_view>

#include "config/options.hpp"
#include "preload/tool/text_layout.hpp"

namespace sidestep::tool {
namespace {

constexpr size_t kHelpWidth = 66;

std::string shown_default(config::Option const& option) {
  std::string const value = config::default_value(option);
  return value.empty() ? "empty" : value;
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
