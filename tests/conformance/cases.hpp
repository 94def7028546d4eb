#pragma once
/// The test cases and the modes that they run in.
#include <functional>
#include <string>

namespace conformance {

enum class Mode {
  kernel,     ///< no Sidestep: this run defines what is right
  engine,     ///< both directions are on the engine before the first byte
  switching,  ///< both directions change carriers at random
};
Mode mode();

/// Adds a case. Its name, such as "receiving.recv.peek", must be unique; the part before the first
/// dot is the suite.
void add_case(std::string name, std::function<void()> body);

struct AddCases {
  explicit AddCases(void (*add)()) { add(); }
};

}  // namespace conformance

/// Defines a single case.
#define CASE(suite, name)                                                        \
  static void case_##suite##_##name();                                           \
  static const ::conformance::AddCases add_##suite##_##name(                     \
      [] { ::conformance::add_case(#suite "." #name, case_##suite##_##name); }); \
  static void case_##suite##_##name()
/// Defines a block that adds many cases.
#define CASES(name)                                                  \
  static void add_cases_##name();                                    \
  static const ::conformance::AddCases add_##name(add_cases_##name); \
  static void add_cases_##name()
