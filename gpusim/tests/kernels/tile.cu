// A small tensor-core product for the emulator's own tests: everything a real kernel of this kind
// does (asynchronous double buffering, padded tiles, matrix loads, a warp reduction) and no more.
//
// c [16, N] f32 = a [16, K] f16 · w [N, K]^T f16; row_max [N / 64, 16] f32: maxima per block of 64
// columns. Grid N / 64, block 128, 2 · (16 + 64) · 72 · 2 bytes of dynamic shared memory.
// tile.ptx: `cargo run -p xtask -- kernels --dir gpusim/tests/kernels --loose <folder>`.
#include <cuda_fp16.h>

typedef unsigned int u32;

static const int COLUMNS = 64, DEPTH = 64, PITCH = DEPTH + 8, THREADS = 128;
static const int STAGE = (16 + COLUMNS) * PITCH;

__device__ __forceinline__ void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows of 64 halves into padded rows: 8 threads a row.
__device__ __forceinline__ void fetch(u32 to, const __half* from, int rows, int k, int at, int thread) {
  for (int row = thread >> 3; row < rows; row += THREADS >> 3) {
    int column = (thread & 7) * 8;
    copy16(to + 2 * (row * PITCH + column), from + (size_t)row * k + at + column);
  }
}

extern "C" __global__ void __launch_bounds__(128)
    tile(const __half* a, const __half* w, float* c, float* row_max, int n, int k) {
  extern __shared__ __align__(128) unsigned char dynamic[];
  const u32 base = (u32)__cvta_generic_to_shared(dynamic);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const __half* rows = w + (size_t)blockIdx.x * COLUMNS * k;
  float sums[2][4] = {};
  fetch(base, a, 16, k, 0, thread);
  fetch(base + 2 * 16 * PITCH, rows, COLUMNS, k, 0, thread);
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int at = 0, stage = 0; at < k; at += DEPTH, stage ^= 1) {
    if (at + DEPTH < k) {
      u32 next = base + 2 * (stage ^ 1) * STAGE;
      fetch(next, a, 16, k, at + DEPTH, thread);
      fetch(next + 2 * 16 * PITCH, rows, COLUMNS, k, at + DEPTH, thread);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    u32 left = base + 2 * stage * STAGE, right = left + 2 * 16 * PITCH;
#pragma unroll
    for (int depth = 0; depth < DEPTH; depth += 16) {
      u32 x[4], y[4];
      load_matrices(x, left + 2 * ((lane & 15) * PITCH + depth + (lane >> 4) * 8));
      int row = warp * 16 + (lane & 7) + (lane >> 4) * 8;
      load_matrices(y, right + 2 * (row * PITCH + depth + (lane >> 3 & 1) * 8));
      multiply(sums[0], x, y[0], y[1]);
      multiply(sums[1], x, y[2], y[3]);
    }
    __syncthreads();
  }
  const int group = lane >> 2, pair = lane & 3;
  float* best = reinterpret_cast<float*>(dynamic);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float most = -3.0e38f;
    for (int part = 0; part < 2; part++) {
      float2 value = make_float2(sums[part][2 * half], sums[part][2 * half + 1]);
      size_t at = (size_t)(group + 8 * half) * n + blockIdx.x * COLUMNS + warp * 16 + part * 8 + pair * 2;
      *reinterpret_cast<float2*>(c + at) = value;
      most = fmaxf(most, fmaxf(value.x, value.y));
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    if (pair == 0) best[warp * 16 + group + 8 * half] = most;
  }
  __syncthreads();
  if (thread < 16) {
    float most = best[thread];
    for (int other = 1; other < 4; other++) most = fmaxf(most, best[other * 16 + thread]);
    row_max[blockIdx.x * 16 + thread] = most;
  }
}
