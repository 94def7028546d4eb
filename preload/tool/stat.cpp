#include "preload/tool/stat.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "config/config.hpp"
#include "engine/client/control_client.hpp"
#include "preload/tool/render.hpp"

namespace sidestep::tool {
namespace {

using nlohmann::json;

/// A stopped process keeps its node but can't answer; the other answers must not wait long for it.
constexpr int kAnswerTimeoutMs = 500;

struct Answers {
  std::vector<json> documents;
  std::vector<uint16_t> silent;  ///< nodes without a usable answer
};

Answers ask_all() {
  Answers answers;
  engine::NodeNames const names(config::load(environ).config.directory);
  for (uint16_t const nid : engine::local_nodes(names)) {
    json document = json::parse(engine::fetch_status(names, nid, kAnswerTimeoutMs), nullptr,
                                /*allow_exceptions=*/false);
    if (document.is_object()) {
      answers.documents.push_back(std::move(document));
    } else {
      answers.silent.push_back(nid);
    }
  }
  return answers;
}

void keep_only(std::vector<json>& documents, int pid) {
  std::erase_if(documents, [pid](json const& document) {
    return number_at(document, "/pid") != static_cast<uint64_t>(pid);
  });
}

void print_json(std::vector<json> const& documents, bool on_one_line) {
  // Program names and paths need not be UTF-8; a strict dump would throw.
  std::string const text =
      json(documents).dump(on_one_line ? -1 : 2, ' ', false, json::error_handler_t::replace);
  fmt::print("{}\n", text);
}

int show(StatRequest const& request) {
  Answers answers = ask_all();
  for (uint16_t const nid : answers.silent) {
    fmt::print(stderr, "sidestep: node {} does not answer\n", nid);
  }
  if (request.pid != 0) {
    keep_only(answers.documents, request.pid);
    if (answers.documents.empty()) {
      fmt::print(stderr, "sidestep: process {} of this user is not under Sidestep{}\n", request.pid,
                 answers.silent.empty() ? "" : ", or does not answer");
      return 1;
    }
  }
  if (request.json) {
    print_json(answers.documents, request.interval > 0);
  } else if (!answers.documents.empty()) {
    fmt::print("{}", render(answers.documents));
  }
  if (answers.documents.empty() && answers.silent.empty()) {
    fmt::print(stderr, "sidestep: no process of this user is under Sidestep\n");
  }
  return 0;
}

}  // namespace

int stat(StatRequest const& request) {
  bool const clear = request.interval > 0 && !request.json && isatty(STDOUT_FILENO) == 1;
  while (true) {
    if (clear) fmt::print("\033[H\033[2J");
    int const code = show(request);
    std::fflush(stdout);
    if (code != 0 || request.interval <= 0 || std::ferror(stdout) != 0) return code;
    std::this_thread::sleep_for(std::chrono::seconds(request.interval));
  }
}

}  // namespace sidestep::tool
