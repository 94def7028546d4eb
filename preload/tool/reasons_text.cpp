#include "preload/tool/reasons_text.hpp"

#include <fmt/core.h>

#include <string_view>

#include "engine/base/reason.hpp"
#include "preload/tool/text_layout.hpp"

namespace sidestep::tool {
namespace {

using engine::Reason;

char const* lasting(Reason reason) {
  return engine::is_for_good(reason) ? "It stays on the kernel." : "It may leave the kernel later.";
}

/// True if `reason` is explained together with the one before it.
bool continues(std::string_view& explained, Reason reason) {
  bool const same = explained == engine::explanation_of(reason);
  explained = engine::explanation_of(reason);
  return same;
}

}  // namespace

std::string reasons_as_text() {
  std::string out;
  for (Reason const reason : engine::all_reasons()) {
    out += fmt::format("{} ({})\n", engine::text_of(reason), engine::code_of(reason));
    out += wrapped(engine::explanation_of(reason), "    ");
    out += fmt::format("    {}\n\n", lasting(reason));
  }
  return out;
}

std::string reasons_as_markdown() {
  std::string out = "| Reason | Code | For good | Meaning |\n| --- | --- | --- | --- |\n";
  for (Reason const reason : engine::all_reasons())
    out += fmt::format("| {} | `{}` | {} | {} |\n", escaped(engine::text_of(reason), '|', "\\|"),
                       engine::code_of(reason), engine::is_for_good(reason) ? "yes" : "no",
                       escaped(engine::explanation_of(reason), '|', "\\|"));
  return out;
}

std::string reasons_as_man() {
  std::string out;
  std::string_view explained;
  for (Reason const reason : engine::all_reasons()) {
    std::string_view const before = explained;
    bool const together = continues(explained, reason);
    if (!together && !before.empty()) out += troff(before) + "\n";
    out += fmt::format("{}\n.BR \"{}\" \" ({})\"\n", together ? ".TQ" : ".TP",
                       troff(engine::text_of(reason)), troff(engine::code_of(reason)));
  }
  return out + troff(explained) + "\n";
}

}  // namespace sidestep::tool
