#pragma once
#include <string>

/// Why streams are on the kernel (engine/base/reasons.def) as documentation, ready to print.
namespace sidestep::tool {

std::string reasons_as_text();
std::string reasons_as_markdown();

/// Paragraphs of man(7) source, one for reasons that are explained together, without a heading.
std::string reasons_as_man();

}  // namespace sidestep::tool
