// Kernels that write, read and check memory, and whose results the host can recompute. `cargo xtask
// kernels` builds memory.ptx, which is embedded in the binary, so no one else needs a GPU compiler.

#include "common.h"

typedef u32 u32x4 __attribute__((ext_vector_type(4)));

DEVICE u64 first() {
  return (u64)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
}

DEVICE u64 stride() {
  return (u64)__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x();
}

// Expected word: kind 0 is the seed itself, 1 the word's index (inverted for odd indices) plus the
// seed, otherwise pseudo-random bits.
DEVICE u32 word_of(u64 at, u32 kind, u32 seed) {
  if (kind == 0) return seed;
  u32 own = (u32)at ^ (u32)(at >> 32);
  return kind == 1 ? (own ^ (0u - (u32)(at & 1))) + seed : mixed(own + seed);
}

DEVICE u32x4 quad_of(u64 quad, u32 kind, u32 seed) {
  u64 at = quad * 4;
  return (u32x4){word_of(at, kind, seed), word_of(at + 1, kind, seed), word_of(at + 2, kind, seed), word_of(at + 3, kind, seed)};
}

KERNEL fill(u32x4 *memory, u64 quads, u32 kind, u32 seed) {
  for (u64 at = first(); at < quads; at += stride()) memory[at] = quad_of(at, kind, seed);
}

struct Wrong {
  u64 word;
  u32 expected;
  u32 found;
};

#define KEPT 8

struct Found {
  u64 wrong;
  u32 kept;
  u32 unused;
  Wrong some[KEPT];
};

KERNEL check(const u32x4 *memory, u64 quads, u32 kind, u32 seed, Found *found) {
  for (u64 at = first(); at < quads; at += stride()) {
    u32x4 is = memory[at], ought = quad_of(at, kind, seed);
    for (u32 part = 0; part < 4; part++) {
      if (is[part] == ought[part]) continue;
      __nvvm_atom_add_gen_ll((long long *)&found->wrong, 1);
      u32 place = (u32)__nvvm_atom_add_gen_i((int *)&found->kept, 1);
      if (place < KEPT) found->some[place] = (Wrong){at * 4 + part, ought[part], is[part]};
    }
  }
}

// Reads everything. The conditional write keeps the compiler from removing the reads.
KERNEL read(const u32x4 *memory, u64 quads, u32 *sum) {
  u32x4 a = 0, b = 0, c = 0, d = 0;
  u64 step = stride(), at = first();
  for (; at + 3 * step < quads; at += 4 * step) {
    a ^= memory[at];
    b ^= memory[at + step];
    c ^= memory[at + 2 * step];
    d ^= memory[at + 3 * step];
  }
  for (; at < quads; at += step) a ^= memory[at];
  a ^= b ^ c ^ d;
  u32 all = a.x ^ a.y ^ a.z ^ a.w;
  if (all == 0x5bd1e995u) __nvvm_atom_add_gen_i((int *)sum, 1);
}

KERNEL copy(const u32x4 *from, u32x4 *to, u64 quads) {
  u64 step = stride(), at = first();
  for (; at + 3 * step < quads; at += 4 * step) {
    u32x4 a = from[at], b = from[at + step], c = from[at + 2 * step], d = from[at + 3 * step];
    to[at] = a;
    to[at + step] = b;
    to[at + 2 * step] = c;
    to[at + 3 * step] = d;
  }
  for (; at < quads; at += step) to[at] = from[at];
}

DEVICE float fused(float a, float b, float c) {
  float sum;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
  return sum;
}

DEVICE u32 bits_of(float number) {
  u32 bits;
  asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(number));
  return bits;
}

// A chain of integer operations and fused multiply-adds; one wrong bit changes the result.
DEVICE u32 chain(u32 start, u32 rounds) {
  u32 whole = start;
  float real = 1.0f;
  for (u32 round = 0; round < rounds; round++) {
    whole = mixed(whole + round);
    real = fused(real, 0.75f, (float)(whole >> 8) * 5.9604645e-8f);
    whole ^= bits_of(real);
  }
  return whole;
}

KERNEL prove(u32 *out, u32 count, u32 rounds) {
  for (u64 at = first(); at < count; at += stride()) out[at] = chain((u32)at, rounds);
}

// Every thread block does the same work and stores its checksum and its SM.
KERNEL hunt(u32 rounds, u32 *sums, u32 *processors) {
  __attribute__((shared)) static u32 sum;
  u32 thread = __nvvm_read_ptx_sreg_tid_x(), block = __nvvm_read_ptx_sreg_ctaid_x(), processor;
  if (thread == 0) sum = 0;
  __syncthreads();
  __nvvm_atom_add_gen_i((int *)&sum, (int)mixed(chain(thread, rounds) ^ thread));
  __syncthreads();
  if (thread != 0) return;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(processor));
  sums[block] = sum;
  processors[block] = processor;
}

// Fills a matrix with finite numbers of any precision: masks select the random bits of even and odd
// words, the rest is fixed. Must match `matrix_values::word` in Rust.
KERNEL scatter(u32 *words, u64 count, u32 seed, u32 even, u32 even_fixed, u32 odd, u32 odd_fixed) {
  for (u64 at = first(); at < count; at += stride()) {
    u32 bits = mixed((u32)at ^ seed);
    words[at] = at % 2 == 0 ? (bits & even) | even_fixed : (bits & odd) | odd_fixed;
  }
}

// Checksum of a buffer, independent of the order in which it is read.
KERNEL digest(const u32 *words, u64 count, u64 *sum) {
  u64 own = 0;
  for (u64 at = first(); at < count; at += stride()) own += (u64)mixed(words[at] ^ mixed((u32)at)) * 0x9e3779b97f4a7c15ull;
  __nvvm_atom_add_gen_ll((long long *)sum, (long long)own);
}

// The smallest kernel with a visible effect.
KERNEL tick(u32 *counter) { __nvvm_atom_add_gen_i((int *)counter, 1); }
