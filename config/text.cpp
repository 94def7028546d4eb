#include "config/text.hpp"

#include <fcntl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <vector>

#include "config/system_call.hpp"

namespace sidestep::config::text {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";
constexpr size_t kLongestPrinted = 120;
constexpr size_t kLargestFile = 1024 * 1024;

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

struct Descriptor {
  long fd;
  ~Descriptor() {
    if (fd >= 0) system_call(SYS_close, fd);
  }
};

}  // namespace

std::string_view trim(std::string_view s) noexcept {
  size_t const first = s.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlanks) - first + 1);
}

std::string_view split_off(std::string_view& rest, char separator) noexcept {
  size_t const end = rest.find(separator);
  std::string_view const part = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return part;
}

bool same_word(std::string_view a, std::string_view b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<uint64_t> parse_number(std::string_view s) noexcept {
  uint64_t value = 0;
  // For an unsigned type, from_chars accepts only digits: no sign, no blank, no prefix.
  auto const [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc{} || end != s.data() + s.size()) return std::nullopt;
  return value;
}

std::string printable(std::string_view s) {
  std::string out(s.substr(0, kLongestPrinted));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (s.size() > kLongestPrinted) out += "...";
  return out;
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (std::string_view const part : parts) out += part;
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  // One row of the usual table is enough: row[j] is the distance from a[0..i) to b[0..j).
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t const replaced = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::optional<std::string> read_file(std::string const& path, int& error) {
  Descriptor const file{system_call(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path.c_str()),
                                    O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (file.fd < 0) {
    error = static_cast<int>(-file.fd);
    return std::nullopt;
  }
  std::string out;
  std::array<char, 4096> chunk;
  while (true) {
    long const n = system_call(SYS_read, file.fd, reinterpret_cast<long>(chunk.data()),
                               static_cast<long>(chunk.size()));
    if (n == 0) return out;
    if (n == -EINTR) continue;
    error = n < 0 ? static_cast<int>(-n) : EFBIG;
    if (n < 0 || out.size() + static_cast<size_t>(n) > kLargestFile) return std::nullopt;
    out.append(chunk.data(), static_cast<size_t>(n));
  }
}

}  // namespace sidestep::config::text
