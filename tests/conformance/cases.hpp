#pragma once
/// The cases, and how they are run.
#include <functional>
#include <string>

namespace conformance {

enum class Mode {
  kernel,     ///< no Sidestep: what is seen is what is right
  engine,     ///< both directions are on the engine before the first byte
  switching,  ///< both directions change their carriers at random
};
Mode mode();

/// Names must be unique: "receiving.recv.peek". What is before the first dot is the suite.
void add_case(std::string name, std::function<void()> body);

struct AddCases {
  explicit AddCases(void (*add)()) { add(); }
};

}  // namespace conformance

/// A case by itself.
#define CASE(suite, name)                                                        \
  static void case_##suite##_##name();                                           \
  static const ::conformance::AddCases add_##suite##_##name(                     \
      [] { ::conformance::add_case(#suite "." #name, case_##suite##_##name); }); \
  static void case_##suite##_##name()
/// A block that adds many.
#define CASES(name)                                                  \
  static void add_cases_##name();                                    \
  static const ::conformance::AddCases add_##name(add_cases_##name); \
  static void add_cases_##name()
