#pragma once
/// The end of a program in which a call failed that has to work.
#include <cstdio>
#include <cstdlib>

namespace pair {

[[noreturn]] inline void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace pair
