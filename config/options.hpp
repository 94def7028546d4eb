#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "config/config.hpp"

/// The option table as data: what the loader checks against, and what the tool makes its flags and
/// its documentation from. Immutable; any thread.
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
  uint64_t min;           ///< of a number or size; the least length of a text
  uint64_t max;           ///< of a number or size; the greatest length of a text
  std::string_view unit;  ///< "" if it has none
  std::string_view text;  ///< one or two sentences
};

/// In the order of options.def.
std::span<Option const> options() noexcept;

/// The option of the variable `name`, with or without SIDESTEP_; null if there is none.
Option const* find_option(std::string_view name) noexcept;

/// The option whose name is nearest to the unknown `name`; null if none is near.
Option const* nearest_option(std::string_view name);

/// Sets the member of `config` from `value`. On a bad value leaves it and returns false, with what
/// is wrong in `why` where that says more than allowed_values(). May throw std::bad_alloc only.
bool set_option(Config& config, Option const& option, std::string_view value, std::string& why);

/// What may be written, to follow "it must be": "a number from 0 to 65535".
std::string allowed_values(Option const& option);

/// The default as one would write it; may be empty.
std::string default_value(Option const& option);

/// Why `value` is refused, as a phrase: "'x' is not valid: it must be yes or no".
std::string refusal(Option const& option, std::string_view value, std::string_view why);

}  // namespace sidestep::config
