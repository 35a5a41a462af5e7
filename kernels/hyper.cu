// Hyper-connections over four residual streams: the block's start, mixes before a sublayer, the last collapse.
// What writes a sublayer's output back is in hyper.cuh, at the end of the kernels that compute it.
//
//   x  bf16 [T, 4, hidden], the streams
//
// twins  drafter/cpu/hyper.rs; drafter/cpu/block.rs, start and mix

#include "hyper.cuh"

#define MIXES 24u         // 4 pre, 4 post, 16 comb
#define PARTS 25u         // and the sum of squares
#define CHUNK 256u        // columns of the flattened streams a block of hc_mix reads

// Streams and pre-mix of fresh block rows. embed [vocab, hidden] of `format`; tokens u32 [rows];
// pre f32 [rows, 4] becomes the identity (1, 0, 0, 0). grid (hidden / 512 rounded up, rows), block 256.
KERNEL(256) block_start(const void* embed, u32 format, const u32* tokens, u16* x, float* pre, u32 hidden,
                        const u32* rows) {
  const u32 row = blockIdx.y, pair = blockIdx.x * 256u + threadIdx.x;
  if (row >= *rows) return;
  if (pair < STREAMS) pre[row * STREAMS + pair] = pair == 0 ? 1.0f : 0.0f;
  if (pair >= hidden / 2u) return;
  const float2 v = load_pair(embed, (u64)tokens[row] * (hidden / 2u) + pair, format);
  const u32 word = pack16(bf16_of(v.x), bf16_of(v.y));
#pragma unroll
  for (u32 s = 0; s < STREAMS; s++) ((u32*)x)[((u64)row * STREAMS + s) * (hidden / 2u) + pair] = word;
}

// Dot products of 256 columns of every row with the 24 mix functions, and the sum of their squares.
// function f32 [24, 4 * hidden]; part f32 [chunks, 32, 25]. grid (4 * hidden / 256): each block reads its part
// of `function` once for all rows. block 256: warp w has the functions 3 w .. 3 w + 2.
KERNEL(256) hc_mix(const u16* x, const float* function, float* part, u32 hidden, const u32* rows) {
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31u;
  const u32 words = STREAMS * hidden / 2u, at = blockIdx.x * (CHUNK / 2u) + lane;
  float2 f[3][4];
#pragma unroll
  for (u32 i = 0; i < 3; i++) {
    const float2* row = (const float2*)function + (u64)(3u * warp + i) * words + at;
#pragma unroll
    for (u32 k = 0; k < 4; k++) f[i][k] = row[LANES * k];
  }
  const u32 n = *rows;
  u32 ahead[4];
#pragma unroll
  for (u32 k = 0; k < 4; k++) ahead[k] = ((const u32*)x)[at + LANES * k];
  for (u32 r = 0; r < n; r++) {
    u32 row[4];
    // The next row's loads run beside this row's sums.
    const u32* next = (const u32*)x + (u64)min(r + 1u, n - 1u) * words + at;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      row[k] = ahead[k];
      ahead[k] = next[LANES * k];
    }
    float sum[3] = {}, square = 0.0f;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      const float2 v = bf16_pair(row[k]);
#pragma unroll
      for (u32 i = 0; i < 3; i++) {
        sum[i] += f[i][k].x * v.x;
        sum[i] += f[i][k].y * v.y;
      }
      square += v.x * v.x;
      square += v.y * v.y;
    }
    float* to = part + ((u64)blockIdx.x * ROWS_MAX + r) * PARTS;
#pragma unroll
    for (u32 i = 0; i < 3; i++) {
      sum[i] = warp_sum(sum[i]);
      if (lane == 0) to[3u * warp + i] = sum[i];
    }
    if (warp == r % 8u) {
      square = warp_sum(square);
      if (lane == 0) to[MIXES] = square;
    }
  }
}

// One element of the 4 x 4 mix a lane, lane 4 i + j: softmax over j, then column and row passes, ending on
// columns. Sums run in ascending index.
DEV float sinkhorn(float v, u32 lane, u32 iterations, float eps) {
  const u32 row = lane & 12u, column = lane & 3u;
  float a = __shfl_sync(FULL, v, row), b = __shfl_sync(FULL, v, row + 1u);
  float c = __shfl_sync(FULL, v, row + 2u), d = __shfl_sync(FULL, v, row + 3u);
  v = expf(v - fmaxf(fmaxf(a, b), fmaxf(c, d)));
  for (u32 pass = 0; pass < iterations; pass++) {
    a = __shfl_sync(FULL, v, row), b = __shfl_sync(FULL, v, row + 1u);
    c = __shfl_sync(FULL, v, row + 2u), d = __shfl_sync(FULL, v, row + 3u);
    const float sum = a + b + c + d;
    v = pass == 0 ? __fadd_rn(__fdiv_rn(v, sum), eps) : __fdiv_rn(v, sum + eps);
    a = __shfl_sync(FULL, v, column), b = __shfl_sync(FULL, v, column + 4u);
    c = __shfl_sync(FULL, v, column + 8u), d = __shfl_sync(FULL, v, column + 12u);
    v = __fdiv_rn(v, a + b + c + d + eps);
  }
  return v;
}

// Mixes of one row from their parts, and the sublayer's input: the streams collapsed with the pre-mix of the
// sublayer before, rounded, normed, rounded.
//
//   part   f32 [chunks, 32, 25] of hc_mix     base f32 [24]     scale f32 [3]: pre, post, comb
//   pre_in, pre_out, post  f32 [rows, 4]      comb f32 [rows, 4, 4], source before destination
//   weight f32 [hidden]                       y bf16 [rows, hidden]
//
// grid (rows), block 256, shared 4 * hidden bytes, dynamic
KERNEL(256) hc_input(const u16* x, const float* part, u32 chunks, const float* base, const float* scale,
                     const float* pre_in, float* pre_out, float* post, float* comb, const float* weight, u16* y,
                     u32 hidden, u32 iterations, float hc_eps, float rms_eps, const u32* rows) {
  extern __shared__ __align__(8) float collapsed[];
  __shared__ float raw[LANES];
  __shared__ float room[8];
  const u32 row = blockIdx.x;
  if (row >= *rows) return;
  if (threadIdx.x < LANES) {
    const u32 lane = threadIdx.x;
    float sum = 0.0f;
    if (lane < PARTS) {
      // Several loads under way.
#pragma unroll 16
      for (u32 c = 0; c < chunks; c++) sum += part[((u64)c * ROWS_MAX + row) * PARTS + lane];
    }
    const float mean = __fdiv_rn(__shfl_sync(FULL, sum, MIXES), (float)(STREAMS * hidden));
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, rms_eps)));
    if (lane < MIXES) {
      const float factor = scale[lane < 4 ? 0 : lane < 8 ? 1 : 2];
      const float v = mul_add(__fmul_rn(sum, inverse), factor, base[lane]);
      raw[lane] = v;
      if (lane < 4) pre_out[row * STREAMS + lane] = __fadd_rn(sigmoid(v), hc_eps);
      if (lane >= 4 && lane < 8) post[row * STREAMS + lane - 4u] = __fmul_rn(sigmoid(v), 2.0f);
    }
    __syncwarp();
    const float mixed = sinkhorn(raw[8u + (lane & 15u)], lane & 15u, iterations, hc_eps);
    if (lane < 16) comb[row * 16u + lane] = mixed;
  }
  const float4 pre = *(const float4*)(pre_in + row * STREAMS);
  const u32 words = hidden / 2u;
  const u32* streams = (const u32*)(x + (u64)row * STREAMS * hidden);
  float sum = 0.0f;
#pragma unroll 4
  for (u32 w = threadIdx.x; w < words; w += 256u) {
    const float2 a = bf16_pair(streams[w]), b = bf16_pair(streams[words + w]);
    const float2 c = bf16_pair(streams[2u * words + w]), d = bf16_pair(streams[3u * words + w]);
    float2 v = make_float2(__fmul_rn(pre.x, a.x), __fmul_rn(pre.x, a.y));
    v = make_float2(mul_add(pre.y, b.x, v.x), mul_add(pre.y, b.y, v.y));
    v = make_float2(mul_add(pre.z, c.x, v.x), mul_add(pre.z, c.y, v.y));
    v = make_float2(mul_add(pre.w, d.x, v.x), mul_add(pre.w, d.y, v.y));
    v = make_float2(round_bf16(v.x), round_bf16(v.y));
    ((float2*)collapsed)[w] = v;
    sum += v.x * v.x;
    sum += v.y * v.y;
  }
  const float mean = __fdiv_rn(block_sum(sum, room), (float)hidden);
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, rms_eps)));
  u32* to = (u32*)(y + (u64)row * hidden);
#pragma unroll 4
  for (u32 i = threadIdx.x; i < words; i += 256u) {
    const float2 v = ((const float2*)collapsed)[i], w = ((const float2*)weight)[i];
    to[i] = pack16(bf16_of(w.x * (v.x * inverse)), bf16_of(w.y * (v.y * inverse)));
  }
}

// The head's hidden rows: streams collapsed with the last pre-mix, rounded. y bf16 [rows, hidden].
// grid (hidden / 256 rounded up, rows), block 256.
KERNEL(256) hc_collapse(const u16* x, const float* pre, u16* y, u32 hidden, const u32* rows) {
  const u32 row = blockIdx.y, d = blockIdx.x * 256u + threadIdx.x;
  if (row >= *rows || d >= hidden) return;
  const u16* streams = x + (u64)row * STREAMS * hidden + d;
  float v = 0.0f;
#pragma unroll
  for (u32 s = 0; s < STREAMS; s++) {
    v = mul_add(pre[row * STREAMS + s], f32_of_bf16(streams[(u64)s * hidden]), v);
  }
  y[(u64)row * hidden + d] = bf16_of(v);
}
