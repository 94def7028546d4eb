#include "preload/tool/findings.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/text.hpp"

namespace sidestep::tool {
namespace {

using nlohmann::ordered_json;

char const* name_of(Verdict verdict, char const* failed) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::warn:
      return "warn";
    case Verdict::fail:
      return failed;
  }
  return "";
}

}  // namespace

void Findings::add(Verdict verdict, std::string_view check, std::string_view subject,
                   std::string found, std::string advice) {
  if (verdict == Verdict::ok) advice.clear();
  all_.push_back(
      {verdict, std::string(check), std::string(subject), std::move(found), std::move(advice)});
}

void Findings::ok(std::string_view check, std::string_view subject, std::string found) {
  add(Verdict::ok, check, subject, std::move(found), {});
}

void Findings::warn(std::string_view check, std::string_view subject, std::string found,
                    std::string advice) {
  add(Verdict::warn, check, subject, std::move(found), std::move(advice));
}

void Findings::fail(std::string_view check, std::string_view subject, std::string found,
                    std::string advice) {
  add(Verdict::fail, check, subject, std::move(found), std::move(advice));
}

bool Findings::any_failed() const noexcept {
  return std::any_of(all_.begin(), all_.end(),
                     [](Finding const& finding) { return finding.verdict == Verdict::fail; });
}

std::string Findings::as_text() const {
  std::string out;
  for (Finding const& f : all_) {
    std::string const subject = f.subject.empty() ? "" : f.subject + ": ";
    out +=
        fmt::format("{:<5} {:<14} {}{}\n", name_of(f.verdict, "FAIL"), f.check, subject, f.found);
    if (!f.advice.empty()) out += fmt::format("{:21}-> {}\n", "", f.advice);
  }
  return out;
}

std::string Findings::as_json() const {
  ordered_json checks = ordered_json::array();
  for (Finding const& f : all_) {
    ordered_json check = {{"check", f.check}, {"verdict", name_of(f.verdict, "fail")}};
    if (!f.subject.empty()) check["subject"] = f.subject;
    check["found"] = f.found;
    if (!f.advice.empty()) check["advice"] = f.advice;
    checks.push_back(std::move(check));
  }
  ordered_json const document = {{"ok", !any_failed()}, {"checks", std::move(checks)}};
  // Host and device names need not be UTF-8; a strict dump would throw.
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sidestep::tool
