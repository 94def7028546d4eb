// The command line of `sidestep`. Exit codes: 0; 1 for a PID that is not under Sidestep, a failed
// check or another failure; 2 for a command line that makes no sense. `run` uses the codes in
// run.hpp instead.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/options.hpp"
#include "preload/tool/check.hpp"
#include "preload/tool/options_text.hpp"
#include "preload/tool/reasons_text.hpp"
#include "preload/tool/run.hpp"
#include "preload/tool/stat.hpp"

namespace sidestep::tool {
namespace {

constexpr int kUsageError = 2;
constexpr int kLargestPid = 1 << 22;  // the kernel's own limit
constexpr int kShortestInterval = 1;  // seconds
constexpr int kLongestInterval = 86400;

/// The words of the command line. Those of the command of `run` are kept apart, so that an option
/// of a program is never taken for one of ours.
struct Words {
  std::vector<std::string> ours;
  std::vector<std::string> command;
};

Words split(int argc, char** argv) {
  Words words;
  std::vector<std::string> all(argv + 1, argv + argc);
  size_t i = 0;
  if (!all.empty() && all.front() == "run") {
    words.ours.push_back(all[i++]);
    // Flags are --name=value, so the first word without a dash starts the command.
    while (i < all.size() && all[i].starts_with('-') && all[i] != "--")
      words.ours.push_back(all[i++]);
    if (i < all.size() && all[i] == "--") ++i;
    words.command.assign(all.begin() + static_cast<std::ptrdiff_t>(i), all.end());
  } else {
    words.ours = std::move(all);
  }
  return words;
}

constexpr char const* kRunUsage = "sidestep run [--option=value ...] -- COMMAND [ARGUMENT ...]";
constexpr char const* kStatUsage = "sidestep stat [--json] [--watch SECONDS] [PID]";
constexpr char const* kCheckUsage = "sidestep check [--json] [HOST[:PORT] ...]";
constexpr char const* kOptionsUsage = "sidestep options [--markdown | --man]";
constexpr char const* kReasonsUsage = "sidestep reasons [--markdown | --man]";

/// Returns the settings that the flags of `run` ask for, after checking them. If an option appears
/// more than once, the last one counts. On an error, prints a line on standard error and returns
/// nothing. CLI11 can't be used here: it would take the word after `--nodes=` for its value, but an
/// empty value has a meaning here.
std::optional<Settings> settings_of(std::vector<std::string> const& flags) {
  Settings settings;
  config::Config checked;
  for (std::string const& word : flags) {
    size_t const equals = word.find('=');
    std::string const flag = word.substr(0, equals);
    auto const known = config::options();
    auto const option = std::find_if(known.begin(), known.end(), [&](config::Option const& o) {
      return flag_of(o.name) == flag;
    });
    if (option == known.end()) {
      fmt::print(stderr, "sidestep: run has no option {} (try `sidestep run --help`)\n", flag);
      return std::nullopt;
    }
    if (equals == std::string::npos) {
      fmt::print(stderr, "sidestep: {} needs a value: {}=VALUE\n", flag, flag);
      return std::nullopt;
    }
    std::string const value = word.substr(equals + 1);
    std::string why;
    if (!value.empty() && !config::set_option(checked, *option, value, why)) {
      fmt::print(stderr, "sidestep: {}: {}\n", flag, config::refusal(*option, value, why));
      return std::nullopt;
    }
    settings.emplace_back(option->name, value);
  }
  return settings;
}

int execute_run(Words words) {
  words.ours.erase(words.ours.begin());  // "run"
  auto const settings = settings_of(words.ours);
  if (!settings) return kRunFailed;
  if (words.command.empty()) {
    fmt::print(stderr, "sidestep: run needs a command: {}\n", kRunUsage);
    return kRunFailed;
  }
  return run(*settings, std::move(words.command));
}

/// CLI11's help with usage lines of our own, because CLI11 does not know about COMMAND.
class Help : public CLI::Formatter {
 public:
  std::string make_usage(CLI::App const* app, std::string) const override {
    const std::string& name = app->get_name();
    if (name == "run") return fmt::format("Usage: {}\n", kRunUsage);
    if (name == "stat") return fmt::format("Usage: {}\n", kStatUsage);
    if (name == "check") return fmt::format("Usage: {}\n", kCheckUsage);
    if (name == "options") return fmt::format("Usage: {}\n", kOptionsUsage);
    if (name == "reasons") return fmt::format("Usage: {}\n", kReasonsUsage);
    return fmt::format(
        "Usage: {}\n       {}\n       {}\n       {}\n       {}\n       sidestep help | --version\n",
        kRunUsage, kStatUsage, kCheckUsage, kOptionsUsage, kReasonsUsage);
  }
};

/// The command line and the requests that it filled in.
class CommandLine {
 public:
  CommandLine();
  int execute(Words words);

 private:
  void add_run();
  void add_stat();
  void add_check();
  void add_texts();
  int execute_texts() const;

  CLI::App app_{"Runs programs with their TCP streams on the Sidestep engine, and shows them."};
  CLI::App* run_ = nullptr;
  CLI::App* stat_ = nullptr;
  CLI::App* check_ = nullptr;
  CLI::App* options_ = nullptr;
  CLI::App* reasons_ = nullptr;
  CLI::App* help_ = nullptr;
  StatRequest request_;
  CheckRequest check_request_;
  bool as_markdown_ = false;
  bool as_man_ = false;
};

CommandLine::CommandLine() {
  app_.name("sidestep");
  app_.formatter(std::make_shared<Help>());  // inherited by the subcommands below
  app_.set_version_flag("--version", "sidestep " SIDESTEP_VERSION);
  app_.require_subcommand(0, 1);
  app_.failure_message(CLI::FailureMessage::simple);
  add_run();
  add_stat();
  add_check();
  add_texts();
  help_ = app_.add_subcommand("help", "Show this text");
  app_.footer(
      "`sidestep COMMAND --help` says more about one. See also sidestep(1) and sidestep(7).");
}

void CommandLine::add_run() {
  run_ = app_.add_subcommand("run", "Run a command under Sidestep");
  for (config::Option const& option : config::options()) {
    // These serve only the help text; settings_of() reads the flags.
    std::string const help = option_help(option);
    run_->add_option(flag_of(option.name), help)
        ->type_name("VALUE")
        ->group("Options, each for the variable SIDESTEP_... of the same name");
  }
}

void CommandLine::add_stat() {
  stat_ = app_.add_subcommand("stat", "Show the processes of this user under Sidestep");
  stat_->add_option("PID", request_.pid, "Only this process")
      ->type_name("")
      ->check(CLI::Range(1, kLargestPid).description(""));
  stat_->add_flag("--json", request_.json, "Print the status documents as a JSON array");
  stat_->add_option("--watch", request_.interval, "Show it again at this interval")
      ->type_name("SECONDS")
      ->check(CLI::Range(kShortestInterval, kLongestInterval).description(""));
}

void CommandLine::add_check() {
  check_ = app_.add_subcommand("check", "Say what works on this machine, and what to do if not");
  check_
      ->add_option("HOST[:PORT]", check_request_.targets,
                   "Ask for nodes on this host, or say what becomes of a stream to this port")
      ->type_name("");
  check_->add_flag("--json", check_request_.json, "Print the same as JSON");
}

void CommandLine::add_texts() {
  options_ = app_.add_subcommand("options", "Show all options with their defaults");
  reasons_ = app_.add_subcommand("reasons", "Show why streams may be on the kernel");
  for (CLI::App* const command : {options_, reasons_}) {
    auto* const markdown = command->add_flag("--markdown", as_markdown_, "As a Markdown table");
    command->add_flag("--man", as_man_, "As source for a man page")->excludes(markdown);
  }
}

int CommandLine::execute_texts() const {
  bool const options = options_->parsed();
  auto* const text = as_markdown_ ? (options ? options_as_markdown : reasons_as_markdown)
                     : as_man_    ? (options ? options_as_man : reasons_as_man)
                                  : (options ? options_as_text : reasons_as_text);
  fmt::print("{}", text());
  return 0;
}

int CommandLine::execute(Words words) {
  if (!words.ours.empty() && words.ours.front() == "run") {
    auto const asks = [](std::string const& word) { return word == "--help" || word == "-h"; };
    if (std::none_of(words.ours.begin(), words.ours.end(), asks)) {
      return execute_run(std::move(words));
    }
    words.ours = {"run", "--help"};
  }
  try {
    std::vector<std::string> reversed(words.ours.rbegin(), words.ours.rend());
    app_.parse(std::move(reversed));    // CLI11 takes them from the back
  } catch (CLI::Success const& wish) {  // --help, --version
    return app_.exit(wish);
  } catch (CLI::ParseError const& error) {
    fmt::print(stderr, "sidestep: {} (try `sidestep help`)\n", error.what());
    return kUsageError;
  }
  if (stat_->parsed()) return stat(request_);
  if (check_->parsed()) return check(check_request_);
  if (options_->parsed() || reasons_->parsed()) return execute_texts();
  bool const asked = help_->parsed();
  fmt::print(asked ? stdout : stderr, "{}",
             app_.get_formatter()->make_help(&app_, "", CLI::AppFormatMode::Normal));
  return asked ? 0 : kUsageError;
}

}  // namespace
}  // namespace sidestep::tool

int main(int argc, char** argv) try {
  sidestep::tool::CommandLine line;
  int const code = line.execute(sidestep::tool::split(argc, argv));
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "sidestep: cannot write the output\n");
  return 1;
} catch (std::exception const& error) {
  fmt::print(stderr, "sidestep: {}\n", error.what());
  return 1;
}
