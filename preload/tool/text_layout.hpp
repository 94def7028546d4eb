#pragma once
/// Lines of text, for terminals, Markdown and troff.
#include <cstddef>
#include <string>
#include <string_view>

namespace sidestep::tool {

inline constexpr size_t kTextWidth = 80;

/// Returns `text` in lines of at most `width`, each of which starts with `indent`.
std::string wrapped(std::string_view text, std::string_view indent, size_t width = kTextWidth);
/// Returns `text` with each `which` replaced by `with`.
std::string escaped(std::string_view text, char which, std::string_view with);
/// Returns `text` as running text of troff, where a backslash, a minus, and a dot or quote at the
/// start are special. `text` is one line.
std::string troff(std::string_view text);

}  // namespace sidestep::tool
