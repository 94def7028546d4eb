#include "config/nodes.hpp"

#include <algorithm>
#include <exception>

#include "config/text.hpp"

namespace sidestep::config {
namespace {

constexpr size_t kLongestHost = 255;

bool is_host(std::string_view word) noexcept {
  auto const allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '-' || c == '_' || c == ':' || c == '%';  // the last two: IPv6 and its scope
  };
  return !word.empty() && word.size() <= kLongestHost && word.front() != '-' &&
         std::all_of(word.begin(), word.end(), allowed);
}

}  // namespace

bool valid_nodes(std::string_view nodes) noexcept {
  if (nodes.starts_with('@')) return nodes.size() > 1;
  while (!nodes.empty()) {
    if (!is_host(text::trim(text::split_off(nodes, ',')))) return false;
  }
  return true;
}

std::vector<std::string> node_hosts(std::string_view nodes) noexcept try {
  bool const from_file = nodes.starts_with('@');
  std::string contents;
  if (from_file) {
    int error = 0;
    auto read = text::read_file(std::string(nodes.substr(1)), error);
    if (!read) return {};
    contents = std::move(*read);
    nodes = contents;
  }
  std::vector<std::string> hosts;
  while (!nodes.empty()) {
    std::string_view word = text::split_off(nodes, from_file ? '\n' : ',');
    if (from_file) word = text::split_off(word, '#');
    word = text::trim(word);
    if (is_host(word)) hosts.emplace_back(word);
  }
  return hosts;
} catch (std::exception const&) {
  return {};
}

}  // namespace sidestep::config
