#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "config/config.hpp"

/// The option table as data. The loader checks settings against it, and the tool makes its flags
/// and its documentation from it. The table is immutable and may be read from any thread.
namespace sidestep::config {

enum class Kind : uint8_t {
  yes_no,
  level,
  number,
  size,
  power,
  path,
  file,
  device,
  nodes,
  rules,
  folder,
  trust
};

struct Option {
  std::string_view name;    ///< the variable, such as SIDESTEP_SPIN_US
  std::string_view member;  ///< the member of Config, such as spin_us
  Kind kind;
  uint64_t min;           ///< the minimum of a number or size, or the minimum length of a text
  uint64_t max;           ///< the maximum of a number or size, or the maximum length of a text
  std::string_view unit;  ///< "" if it has none
  std::string_view text;  ///< one or two sentences
};

/// Returns all options in the order of options.def.
std::span<Option const> options() noexcept;

/// Returns the option of the variable `name`, with or without SIDESTEP_; null if there is none.
Option const* find_option(std::string_view name) noexcept;

/// Returns the option whose name is nearest to the unknown `name`; null if none is near.
Option const* nearest_option(std::string_view name);

/// Sets the member of `config` from `value`. If the value is bad, leaves the member unchanged and
/// returns false. `why` then says what is wrong where that says more than allowed_values(). Throws
/// nothing but std::bad_alloc.
bool set_option(Config& config, Option const& option, std::string_view value, std::string& why);

/// Returns the allowed values as a phrase to follow "it must be": "a number from 0 to 65535".
std::string allowed_values(Option const& option);

/// Returns the default as a user would write it; may be empty.
std::string default_value(Option const& option);

/// Returns why `value` is refused, as a phrase: "'x' is not valid: it must be yes or no".
std::string refusal(Option const& option, std::string_view value, std::string_view why);

}  // namespace sidestep::config
