#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The findings of `sidestep check`, and how they are shown.
namespace sidestep::tool {

enum class Verdict {
  ok,
  warn,  ///< Sidestep does without something that it could use
  fail,  ///< something that Sidestep always needs, or that was asked for, does not work
};

struct Finding {
  Verdict verdict;
  std::string check;    ///< what was checked, from a fixed list; see sidestep(1)
  std::string subject;  ///< which one of its kind: a device, a host; may be empty
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
  /// Returns one line per finding, with the advice on a line below it.
  std::string as_text() const;
  std::string as_json() const;

 private:
  std::vector<Finding> all_;
};

}  // namespace sidestep::tool
