#pragma once
#include <string>

/// The reasons why streams are on the kernel (engine/base/reasons.def), as documentation that is
/// ready to print.
namespace sidestep::tool {

std::string reasons_as_text();
std::string reasons_as_markdown();

/// Returns paragraphs of man(7) source without a heading. Reasons that are explained together share
/// a paragraph.
std::string reasons_as_man();

}  // namespace sidestep::tool
