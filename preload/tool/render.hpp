#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// Status documents as text of at most 100 columns (more only for what has no shorter form).
/// Documents come from other processes: any field may be missing or of another type.
namespace sidestep::tool {

/// The unsigned number at the JSON pointer `path`; 0 if there is none.
uint64_t number_at(nlohmann::json const& document, char const* path);

/// The text at `path`, fit for a terminal; "" if there is none.
std::string text_at(nlohmann::json const& document, char const* path);

/// Bytes in the unit that fits: "0", "1023", "1.23K", "45.6M".
std::string human_bytes(uint64_t bytes);

/// The whole view of `sidestep stat`, a paragraph for each document.
std::string render(std::vector<nlohmann::json> const& documents);

}  // namespace sidestep::tool
