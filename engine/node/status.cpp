#include "engine/node/status.hpp"

#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>

#include "engine/node/node.hpp"

namespace sidestep::engine {
namespace {

/// Writes JSON without a library: this code is linked into every program that runs under Sidestep.
class JsonWriter {
 public:
  void open(char bracket) {
    value_begins();
    text_ += bracket;
    first_ = true;
  }
  void close(char bracket) {
    text_ += bracket;
    first_ = false;
  }
  void key(const std::string& name) {
    value_begins();
    quote(name);
    text_ += ':';
    after_key_ = true;
  }
  void number(uint64_t value) {
    value_begins();
    text_ += std::to_string(value);
  }
  void string(const std::string& value) {
    value_begins();
    quote(value);
  }
  void field(const std::string& name, uint64_t value) {
    key(name);
    number(value);
  }
  void field(const std::string& name, const std::string& value) {
    key(name);
    string(value);
  }
  std::string take() { return std::move(text_); }

 private:
  void value_begins() {
    if (!first_ && !after_key_) text_ += ',';
    first_ = after_key_ = false;
  }
  void quote(const std::string& value) {
    text_ += '"';
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (byte < 0x20 || byte >= 0x7f) {
        // A program's name may be any bytes; read as Latin-1 they are at least valid.
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        text_ += escaped;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }
  std::string text_;
  bool first_ = true;
  bool after_key_ = false;
};

const char* carrier_name(Carrier carrier) noexcept {
  return carrier == Carrier::engine ? "engine" : "kernel";
}

template <typename State>
void write_direction(JsonWriter& json, const char* name, State state, uint64_t engine,
                     uint64_t kernel) {
  json.key(name);
  json.open('{');
  json.field("carrier", carrier_name(carrier_of(state)));
  json.field("state", name_of(state));
  json.field("engine", engine);
  json.field("kernel", kernel);
  json.close('}');
}

void write_stream(JsonWriter& json, const Stream& stream) {
  static constexpr const char* kStates[] = {"undecided", "engine", "kernel"};
  const KernelBytes kernel = kernel_bytes(stream);
  json.open('{');
  json.field("local", to_string(stream.tuple().local));
  json.field("remote", to_string(stream.tuple().remote));
  json.field("state", kStates[static_cast<size_t>(stream.phase())]);
  write_direction(json, "tx", stream.sender().state(), stream.sender().engine_bytes(), kernel.tx);
  write_direction(json, "rx", stream.receiver().state(), stream.receiver().engine_bytes(),
                  kernel.rx);
  const Reason reason = kernel_reason(stream);
  json.field("reason", text_of(reason));
  json.field("reason_code", code_of(reason));
  json.close('}');
}

}  // namespace

std::string status_json(Node& node, bool with_streams) {
  Progress& progress = node.progress();
  NodeStreams& streams = node.streams();
  const StreamTotals totals = streams.totals();
  const std::pair<const char*, uint64_t> numbers[] = {
      {"streams.total", totals.total},        {"streams.engine", totals.engine},
      {"bytes.tx.engine", totals.tx_engine},  {"bytes.tx.kernel", totals.tx_kernel},
      {"bytes.rx.engine", totals.rx_engine},  {"bytes.rx.kernel", totals.rx_kernel},
      {"switches.up", streams.switches_up()}, {"switches.down", streams.switches_down()}};
  JsonWriter json;
  json.open('{');
  json.field("version", 1);
  json.field("pid", static_cast<uint64_t>(getpid()));
  json.field("program", program_invocation_short_name);
  json.field("nid", node.nid());
  for (const auto& [name, value] : numbers) json.field(name, value);
  const auto pair = [&](const char* name, const char* first, uint64_t a, const char* second,
                        uint64_t b) {
    json.key(name);
    json.open('{');
    json.field(first, a);
    json.field(second, b);
    json.close('}');
  };
  pair("streams", "total", totals.total, "engine", totals.engine);
  json.key("bytes");
  json.open('{');
  pair("tx", "engine", totals.tx_engine, "kernel", totals.tx_kernel);
  pair("rx", "engine", totals.rx_engine, "kernel", totals.rx_kernel);
  json.close('}');
  pair("switches", "up", streams.switches_up(), "down", streams.switches_down());
  const auto reasons = [&](const char* name, const char* (*shown)(Reason) noexcept) {
    json.key(name);
    json.open('{');
    for (const auto& [reason, count] : totals.kernel_reasons) json.field(shown(reason), count);
    json.close('}');
  };
  reasons("kernel_reasons", text_of);
  reasons("kernel_reason_codes", code_of);

  std::unique_lock lock(progress.recv_lock());
  const Progress::Posted posted = progress.posted_locked();
  json.key("engine");
  json.open('{');
  json.field("work_requests", posted.work_requests);
  json.field("fragments", posted.fragments);
  const Progress::Received received = progress.received();
  json.field("polls", received.polls);
  json.field("receives", received.receives);
  json.field("fragments_received", received.fragments);
  const NodeTotals counted = node.counted();
#define SIDESTEP_WRITE(name) json.field(#name, counted.name);
  SIDESTEP_NODE_COUNTERS(SIDESTEP_WRITE)
#undef SIDESTEP_WRITE
  json.close('}');
  if (with_streams) {
    struct Sum {
      uint64_t lanes = 0, streams = 0;
    };
    std::map<uint32_t, Sum> peers;  // all that joins two nodes is reported as one
    for (const auto& connection : progress.connections().all()) {
      Sum& peer = peers[connection->peer().number];
      ++peer.lanes;
      peer.streams += connection->stream_count();
    }
    json.key("connections");
    json.open('[');
    for (const auto& connection : progress.connections().all()) {
      const auto peer = peers.find(connection->peer().number);
      if (peer == peers.end()) continue;
      json.open('{');
      json.field("nid", connection->peer().nid);
      if (connection->peer().is_remote()) {
        json.field("host", ip_text(connection->peer().host));
      } else {
        json.field("pid", static_cast<uint64_t>(connection->peer().pid));
      }
      json.field("device", connection->device().name());
      json.field("lanes", peer->second.lanes);
      json.field("streams", peer->second.streams);
      json.close('}');
      peers.erase(peer);
    }
    json.close(']');
    json.key("open_streams");
    json.open('[');
    for (const Stream* stream : streams.open_locked()) write_stream(json, *stream);
    json.close(']');
  }
  lock.unlock();
  json.close('}');
  return json.take() + "\n";
}

}  // namespace sidestep::engine
