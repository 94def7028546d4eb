// Fuzzes the reports of a peer whose connection has failed. Whatever they say, no stream of this
// node may read or send what it must not, and each stream must end or go on.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/connection/connection.hpp"
#include "engine/stream/recovery.hpp"
#include "tests/support/bound_pair.hpp"

using namespace sidestep;
using namespace sidestep::engine;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("SIDESTEP_LOG_FILE", "/dev/null", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte says how much each end has sent before the failure. Most reports get ids and
  // counts near those of the bound streams, which no input could guess.
  if (size < 1) return 0;
  const tests::BoundPair pair;
  Node& node = *Node::running();
  std::vector<std::byte> text(size_t{*data} * 64 + 1, std::byte{'x'});
  const iovec part{text.data(), text.size()};
  for (const size_t end : {0u, 1u}) pair.socket(end).transmit(&part, 1, MSG_DONTWAIT);
  std::vector<StreamReport> reports((size - 1) / sizeof(StreamReport));
  if (!reports.empty())
    std::memcpy(reports.data(), data + 1, reports.size() * sizeof(StreamReport));
  for (StreamReport& report : reports) {
    if (report.stream % 8 == 0) continue;
    const Stream& stream = pair.stream(report.stream % 2);
    report.stream = stream.id();
    report.generation = stream.generation();
    if (report.reserved % 4 != 0) {
      report.sent = stream.receiver().queued() + report.sent % 8;
      report.received =
          stream.sender().engine_bytes() - std::min<uint64_t>(report.received % 8192, text.size());
    }
  }
  Connection& connection = *pair.stream(0).connection();
  node.streams().fail_connection(connection, "a run");
  node.streams().fail_over_streams(connection, reports);
  for (const size_t end : {0u, 1u}) {
    const Stream& stream = pair.stream(end);
    if (!stream.is_aborted() && stream.sender().carrier() == Carrier::engine) std::abort();
    pair.socket(end).receive(&part, 1, MSG_DONTWAIT);
    pair.socket(end).transmit(&part, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  return 0;
}
