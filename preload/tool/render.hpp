#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// Renders status documents as text of at most 100 columns; only items that have no shorter form
/// may be wider. The documents come from other processes, so any field may be missing or have
/// another type.
namespace sidestep::tool {

/// Returns the unsigned number at the JSON pointer `path`; 0 if there is none.
uint64_t number_at(nlohmann::json const& document, char const* path);

/// Returns the text at `path`, made safe for a terminal; "" if there is none.
std::string text_at(nlohmann::json const& document, char const* path);

/// Returns a byte count in the unit that fits: "0", "1023", "1.23K", "45.6M".
std::string human_bytes(uint64_t bytes);

/// Returns the whole view of `sidestep stat`, one paragraph per document.
std::string render(std::vector<nlohmann::json> const& documents);

}  // namespace sidestep::tool
