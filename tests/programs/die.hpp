#pragma once
/// Ends a program after a call that must not fail has failed.
#include <cstdio>
#include <cstdlib>

namespace pair {

[[noreturn]] inline void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace pair
