#pragma once

#include <string>
#include <string_view>
#include <vector>

/// What `sidestep check` has found, and how it is shown.
namespace sidestep::tool {

enum class Verdict {
  ok,
  warn,  ///< something that Sidestep could use is missing, and it does without
  fail,  ///< something that it always needs, or that was asked for, does not work
};

struct Finding {
  Verdict verdict;
  std::string check;    ///< what was looked at, one of a fixed list; see sidestep(1)
  std::string subject;  ///< which of them: a device, a host; may be empty
  std::string found;    ///< a sentence or part of one
  std::string advice;   ///< what to do; empty if ok
};

class Findings {
 public:
  void ok(std::string_view check, std::string_view subject, std::string found);
  void warn(std::string_view check, std::string_view subject, std::string found,
            std::string advice);
  void fail(std::string_view check, std::string_view subject, std::string found,
            std::string advice);
  void add(Verdict verdict, std::string_view check, std::string_view subject, std::string found,
           std::string advice);

  bool any_failed() const noexcept;
  /// A line for each, and one below it with the advice.
  std::string as_text() const;
  std::string as_json() const;

 private:
  std::vector<Finding> all_;
};

}  // namespace sidestep::tool
