#pragma once
/// Shared by the tests of the configuration: settings as text, complaints, a file.
#include <stdlib.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.hpp"

namespace sidestep::tests {

using Environment = std::initializer_list<char const*>;

inline std::vector<char const*> block_of(Environment variables) {
  std::vector<char const*> block(variables);
  block.push_back(nullptr);
  return block;
}

inline config::Loaded from_environment(Environment variables) {
  return config::load_text("", "none", block_of(variables).data());
}

inline config::Loaded from_file(std::string_view text, Environment variables = {}) {
  return config::load_text(text, "test.conf", block_of(variables).data());
}

inline bool mentions(std::string const& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Returns the only complaint of `loaded`; the test ends here if there is not exactly one.
inline std::string only_complaint(config::Loaded const& loaded) {
  BOOST_REQUIRE_EQUAL(loaded.complaints.size(), 1u);
  return loaded.complaints.front();
}

struct TemporaryFile {
  explicit TemporaryFile(std::string_view contents) {
    int const fd = mkstemp(path.data());
    BOOST_REQUIRE(fd >= 0);
    close(fd);
    write(contents);
  }
  ~TemporaryFile() { unlink(path.c_str()); }
  void write(std::string_view contents) const { std::ofstream(path) << contents; }

  std::string path = "/tmp/sidestep-config-test-XXXXXX";
};

}  // namespace sidestep::tests
