#pragma once

#include <string>

#include "config/options.hpp"

/// The option table as documentation. Every function returns text that is ready to print.
namespace sidestep::tool {

/// Returns what an option is for, its allowed values and its default, as lines for a column of a
/// help text.
std::string option_help(config::Option const& option);

std::string options_as_text();
std::string options_as_markdown();

/// Returns paragraphs of man(7) source, one per option, without a heading.
std::string options_as_man();

}  // namespace sidestep::tool
