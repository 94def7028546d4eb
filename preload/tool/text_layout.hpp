#pragma once
/// Lines of text, for terminals, Markdown and troff.
#include <cstddef>
#include <string>
#include <string_view>

namespace sidestep::tool {

inline constexpr size_t kTextWidth = 80;

/// `text` in lines of at most `width`, each after `indent`.
std::string wrapped(std::string_view text, std::string_view indent, size_t width = kTextWidth);
/// Each `which` replaced.
std::string escaped(std::string_view text, char which, std::string_view with);
/// As running text of troff: a backslash, a minus and a dot or quote that starts a line are
/// special.
std::string troff(std::string_view text);

}  // namespace sidestep::tool
