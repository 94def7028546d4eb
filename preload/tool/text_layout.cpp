#include "preload/tool/text_layout.hpp"

namespace sidestep::tool {

std::string wrapped(std::string_view text, std::string_view indent, size_t width) {
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

std::string troff(std::string_view text) {
  std::string const out = escaped(escaped(text, '\\', "\\e"), '-', "\\-");
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

}  // namespace sidestep::tool
