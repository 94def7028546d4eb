#pragma once
/// Marks the definitions that the library exports under libc's names. exports.map lists them again;
/// everything else stays hidden.
#define SIDESTEP_EXPORT extern "C" __attribute__((visibility("default")))
