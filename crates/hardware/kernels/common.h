// What the kernels share. No header of a toolkit is used: clang alone compiles them.
#pragma once

#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static inline __attribute__((device, always_inline))

typedef unsigned int u32;
typedef unsigned long long u64;

// A number in which every bit depends on every bit of the input; `mixed` in edge.rs does the same.
DEVICE u32 mixed(u32 x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}
