// What every kernel shares: short names, number formats, warp and block sums, and all inline PTX of the
// project, one instruction a wrapper, none newer than PTX 7.0.
//
// Sums are taken in an order that depends on the length alone, never on the grid or on the other rows.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEV static __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

#define LANES 32u
#define FULL 0xFFFFFFFFu
#define NEG_INF __int_as_float(0xFF800000)

// Rows one launch of a product computes at most.
#define ROWS_MAX 32u
#define CONTEXT_ROWS 512u

// ---- number formats; a bf16 or f16 number is kept as its 16 bits ----

DEV u16 f16_of(float v) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}

DEV float f32_of_f16(u16 v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
  return r;
}

DEV u16 bf16_of(float v) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}

DEV float f32_of_bf16(u16 v) { return __uint_as_float((u32)v << 16); }

// Rounds to bf16 and back.
DEV float round_bf16(float v) { return f32_of_bf16(bf16_of(v)); }

// Rounds to f16 and back.
DEV float round_f16(float v) { return f32_of_f16(f16_of(v)); }

// The two bf16 numbers of a word, low half first.
DEV float2 bf16_pair(u32 word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
}

DEV u32 pack16(u16 low, u16 high) { return (u32)low | ((u32)high << 16); }

// How a table of plain numbers is stored.
enum Format { BF16 = 0, F16 = 1, F32 = 2 };

// Numbers 2 * pair and 2 * pair + 1 of a table.
DEV float2 load_pair(const void* table, u64 pair, u32 format) {
  if (format == F32) return ((const float2*)table)[pair];
  const u32 word = ((const u32*)table)[pair];
  if (format == BF16) return bf16_pair(word);
  return make_float2(f32_of_f16((u16)word), f32_of_f16((u16)(word >> 16)));
}

// ---- packed f16 arithmetic ----

DEV u32 fma_f16x2(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

DEV u32 add_f16x2(u32 a, u32 b) {
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// c plus the sum of the products of the four unsigned bytes of a and b.
DEV u32 dp4a(u32 a, u32 b, u32 c) {
  u32 r;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// ---- tensor cores: d [16, 8] += a [16, 16] * b [16, 8], f16 in, f32 sums ----

DEV void mma_16816(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- asynchronous copies into shared memory ----

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies `bytes` (0 or 16) and fills the rest of the 16 bytes with zeros.
DEV void copy16(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

DEV void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
DEV void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- sums ----

DEV float warp_sum(float v) {
#pragma unroll
  for (u32 m = LANES / 2; m > 0; m >>= 1) v += __shfl_xor_sync(FULL, v, m);
  return v;
}

// Sum over a block of 256 threads: within warps by halves, then the warps in order. Every thread gets it.
// `room` holds 8 values and may be used again after the next barrier.
DEV float block_sum(float v, float* room) {
  v = warp_sum(v);
  if ((threadIdx.x & 31u) == 0) room[threadIdx.x >> 5] = v;
  __syncthreads();
  float sum = room[0];
#pragma unroll
  for (u32 w = 1; w < 8; w++) sum += room[w];
  return sum;
}

// ---- scalar functions, as drafter/cpu/math.rs ----

DEV float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEV bool is_nan(float x) { return x != x; }

DEV bool is_finite(float x) { return fabsf(x) < __int_as_float(0x7F800000); }

// a * b + c in two roundings, as the CPU computes it.
DEV float mul_add(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

// Turns the pair (even, odd) by an angle of cosine `c` and sine `s`, each product and sum rounded.
DEV float2 turn(float2 v, float c, float s) {
  return make_float2(__fsub_rn(__fmul_rn(v.x, c), __fmul_rn(v.y, s)),
                     __fadd_rn(__fmul_rn(v.x, s), __fmul_rn(v.y, c)));
}
