// Shared by all kernels. They use no toolkit header, so clang alone compiles them.
#pragma once

#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static inline __attribute__((device, always_inline))

typedef unsigned int u32;
typedef unsigned long long u64;

// Hash in which every output bit depends on every input bit. Must match `mix` in backend.rs.
DEVICE u32 mixed(u32 x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}
