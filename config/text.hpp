#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

/// Small functions on text that the parsers of this part share. They know only ASCII and no locale,
/// because the locale belongs to the program that the library is loaded into.
namespace sidestep::config::text {

std::string_view trim(std::string_view s) noexcept;

/// The part of `rest` before the first `separator`; takes it and the separator off `rest`.
std::string_view split_off(std::string_view& rest, char separator) noexcept;

/// Whether the two are equal but for case.
bool same_word(std::string_view a, std::string_view b) noexcept;

/// All of `s` as a decimal number, without sign; nothing on anything else or on overflow.
std::optional<uint64_t> parse_number(std::string_view s) noexcept;

/// `s` fit for one line of a log: control characters replaced, and cut short if it is long.
std::string printable(std::string_view s);

/// The parts in one string. (A chain of + draws false warnings from g++ 12.)
std::string joined(std::initializer_list<std::string_view> parts);

/// How many characters have to be inserted, removed or replaced to make `b` of `a`, case ignored.
size_t edit_distance(std::string_view a, std::string_view b);

/// The contents of the file `path` ("" if it is empty), or nothing and an errno value in `error`.
/// Files over 1 MiB are EFBIG. Makes raw system calls only; never blocks on a pipe.
std::optional<std::string> read_file(std::string const& path, int& error);

}  // namespace sidestep::config::text
