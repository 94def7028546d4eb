// Fuzzes the list of the host's unix sockets, into which every user can bind any name. '~' stands
// for the text before a node's id, which no input would guess.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "engine/control/node_names.hpp"
#include "engine/wire/version.hpp"

using namespace sidestep::engine;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string prefix = " @sidestep." + std::to_string(kProtocolVersion) + ".";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '~') {
      text += prefix;
    } else {
      text += static_cast<char>(data[i]);
    }
  }
  const auto nids = NodeNames::parse(text);
  require(std::is_sorted(nids.begin(), nids.end()));
  require(std::adjacent_find(nids.begin(), nids.end()) == nids.end());
  for (const uint16_t nid : nids) {
    require(nid != 0);
    require(text.find(prefix) != std::string::npos);
  }
  require(nids.empty() || nids.size() <= text.size() / prefix.size());
  // Another line must not change the result for the lines before it.
  const auto more = NodeNames::parse(text + "\n0: 1 2 3 4 5 6" + prefix + "4660\n");
  require(std::includes(more.begin(), more.end(), nids.begin(), nids.end()));
  require(std::binary_search(more.begin(), more.end(), 4660));
  // The input also serves as a file name: every user can make files in a folder that all share.
  const std::string number(reinterpret_cast<const char*>(data), size);
  const uint16_t nid = NodeNames::nid_of_file(prefix.substr(2) + number);
  require(nid == 0 || number.find(std::to_string(nid)) != std::string::npos);
  return 0;
}
