// Tensor core kernels for compute capability 8.0 and higher. `cargo xtask kernels` builds
// tensor.ptx.

#include "common.h"

typedef unsigned short u16;

// One 16 x 8 x 16 bfloat16 product, accumulated in float32.
DEVICE void multiply(float sum[4], const u32 a[4], const u32 b[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two pseudo-random bfloat16 values between 0.5 and 2, of either sign.
DEVICE u32 pair_of(u32 seed) { return (mixed(seed) & 0x80ff80ffu) | 0x3f003f00u; }

// Every thread block does the same products in registers and stores its checksum and its SM.
KERNEL hunt_tensor(u32 rounds, u32 *sums, u32 *processors) {
  __attribute__((shared)) static u32 sum;
  u32 thread = __nvvm_read_ptx_sreg_tid_x(), block = __nvvm_read_ptx_sreg_ctaid_x(), processor;
  u32 a[4], b[4][2];
  float c[4][4];
  for (u32 i = 0; i < 4; i++) {
    a[i] = pair_of(thread * 16 + i);
    b[i][0] = pair_of(thread * 16 + 4 + 2 * i);
    b[i][1] = pair_of(thread * 16 + 5 + 2 * i);
    for (u32 j = 0; j < 4; j++) c[i][j] = 0.0f;
  }
  if (thread == 0) sum = 0;
  __syncthreads();
  for (u32 round = 0; round < rounds; round++) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) multiply(c[i], a, b[i]);
    // Vary the operands, so that more than one path through the multipliers is exercised.
    a[round & 3] ^= 0x00100010u;
  }
  u32 own = thread;
  for (u32 i = 0; i < 4; i++)
    for (u32 j = 0; j < 4; j++) {
      u32 bits;
      asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(c[i][j]));
      own = mixed(own ^ bits);
    }
  __nvvm_atom_add_gen_i((int *)&sum, (int)own);
  __syncthreads();
  if (thread != 0) return;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(processor));
  sums[block] = sum;
  processors[block] = processor;
}

// GEMM for machines without cuBLASLt: C (m x n) = A (m x k, row-major) times B (n x k, row-major)
// transposed, bfloat16 into float32. m and n are multiples of 128, k of 32; 256 threads per block.
#define TILE 128
#define DEPTH 32
#define STAGES 3
// Values are stored in groups of eight. The position of a row's four groups is swizzled by the row,
// so that no two rows of a read share a shared-memory bank.
#define GROUP(row, group) (((row)*DEPTH) + ((((group) ^ (((row) >> 1) & 3))) * 8))

DEVICE u32 shared_address(const void *at) {
  u32 address;
  asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(address) : "l"(at));
  return address;
}

DEVICE void fetch(u32 to, const u16 *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from)); }

DEVICE void load_four(u32 out[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

KERNEL product(const u16 *a, const u16 *b, float *c, u32 n, u32 k) {
  __attribute__((shared, aligned(16))) static u16 tiles[STAGES][2][TILE * DEPTH];
  u32 thread = __nvvm_read_ptx_sreg_tid_x(), lane = thread & 31, warp = thread >> 5;
  u32 row0 = __nvvm_read_ptx_sreg_ctaid_y() * TILE, column0 = __nvvm_read_ptx_sreg_ctaid_x() * TILE;
  u32 base = shared_address(&tiles[0][0][0]);
  u32 steps = k / DEPTH;
  const u32 half = TILE * DEPTH * 2, stage_bytes = 2 * half;

  // Each thread loads two groups of A's tile and two of B's.
  u32 own_row = thread >> 2, own_group = thread & 3;
#define BRING(step)                                                                                      \
  do {                                                                                                   \
    u32 stage = base + ((step) % STAGES) * stage_bytes;                                                  \
    for (u32 part = 0; part < 2; part++) {                                                               \
      u32 row = own_row + part * 64, place = GROUP(row, own_group) * 2;                                  \
      u64 column = (u64)(step)*DEPTH + own_group * 8;                                                    \
      fetch(stage + place, a + (u64)(row0 + row) * k + column);                                          \
      fetch(stage + half + place, b + (u64)(column0 + row) * k + column);                                \
    }                                                                                                    \
  } while (0)

  for (u32 step = 0; step < STAGES - 1; step++) {
    if (step < steps) BRING(step);
    asm volatile("cp.async.commit_group;");
  }
  // Eight warps in a 2 x 4 layout, each covering 64 rows by 32 columns.
  u32 warp_row = (warp >> 2) * 64, warp_column = (warp & 3) * 32;
  float sums[4][4][4] = {};
  for (u32 step = 0; step < steps; step++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
    __syncthreads();
    if (step + STAGES - 1 < steps) BRING(step + STAGES - 1);
    asm volatile("cp.async.commit_group;");
    u32 stage = base + (step % STAGES) * stage_bytes;
#pragma unroll
    for (u32 deep = 0; deep < DEPTH; deep += 16) {
      u32 as[4][4], bs[4][2];
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        u32 row = warp_row + i * 16 + (lane & 15), group = deep / 8 + (lane >> 4);
        load_four(as[i], stage + GROUP(row, group) * 2);
      }
#pragma unroll
      for (u32 j = 0; j < 4; j += 2) {
        u32 out[4], row = warp_column + j * 8 + (lane & 7) + ((lane >> 4) << 3), group = deep / 8 + ((lane >> 3) & 1);
        load_four(out, stage + half + GROUP(row, group) * 2);
        bs[j][0] = out[0];
        bs[j][1] = out[1];
        bs[j + 1][0] = out[2];
        bs[j + 1][1] = out[3];
      }
#pragma unroll
      for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) multiply(sums[i][j], as[i], bs[j]);
    }
  }
#pragma unroll
  for (u32 i = 0; i < 4; i++)
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u64 row = row0 + warp_row + i * 16 + (lane >> 2), column = column0 + warp_column + j * 8 + (lane & 3) * 2;
      c[row * n + column] = sums[i][j][0];
      c[row * n + column + 1] = sums[i][j][1];
      c[(row + 8) * n + column] = sums[i][j][2];
      c[(row + 8) * n + column + 1] = sums[i][j][3];
    }
}
