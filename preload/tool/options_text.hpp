#pragma once

#include <string>

#include "config/options.hpp"

/// The option table as documentation, each ready to print.
namespace sidestep::tool {

/// What an option is for, what it may be and its default, in lines for a column of a help text.
std::string option_help(config::Option const& option);

std::string options_as_text();
std::string options_as_markdown();

/// Paragraphs of man(7) source, one per option, without a heading.
std::string options_as_man();

}  // namespace sidestep::tool
