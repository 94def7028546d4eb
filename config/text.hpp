#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

/// Small text functions that the parsers in this folder share. They handle only ASCII and ignore
/// the locale, because the locale belongs to the program that the library is loaded into.
namespace sidestep::config::text {

std::string_view trim(std::string_view s) noexcept;

/// Returns the part of `rest` before the first `separator`, and removes it and the separator from
/// `rest`.
std::string_view split_off(std::string_view& rest, char separator) noexcept;

/// True if the two are equal when case is ignored.
bool same_word(std::string_view a, std::string_view b) noexcept;

/// Returns all of `s` as an unsigned decimal number; nothing if it is anything else or overflows.
std::optional<uint64_t> parse_number(std::string_view s) noexcept;

/// Returns `s` made fit for one line of a log: control characters are replaced, and a long text is
/// cut short.
std::string printable(std::string_view s);

/// Returns the parts in one string. (A chain of + draws false warnings from g++ 12.)
std::string joined(std::initializer_list<std::string_view> parts);

/// Returns how many characters must be inserted, removed or replaced to turn `a` into `b`. Ignores
/// case.
size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the contents of the file `path` ("" if it is empty). On failure returns nothing and puts
/// an errno value into `error`; a file over 1 MiB gives EFBIG. Makes only raw system calls, and
/// never blocks on a pipe.
std::optional<std::string> read_file(std::string const& path, int& error);

}  // namespace sidestep::config::text
