// RMS norms with a plain weight, and what follows them: bf16(w * (x * rsqrt(mean(x^2) + eps))).
//
// block  256 for one row
// twins  drafter/cpu/norm.rs, rms_norm; exl3/product.rs, rotate_input; drafter/cpu/rope.rs, Angles::rotate; drafter/cpu/kv.rs, store

#include "exl3.cuh"

// 1 / sqrt(sum / len + eps), as inverse_rms.
DEV float inverse_rms(float sum, u32 len, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)len), eps)));
}

// A norm, and the rotated inputs of the layers that read it.
//
//   x     bf16 [*, len], source row gather[r] or r     weight  f32 [len]
//   y     bf16 [rows, len]                             xh      f16 [*, len], rows as the jobs name them
//
// grid (rows, jobs): each job's block norms the row for itself. shared 2 * len bytes, dynamic
KERNEL(256) norm_rotate(const u16* x, const u32* gather, const float* weight, u16* y, u32 len, float eps,
                        const Linear* linears, const Job* jobs, u16* xh, const u32* rows) {
  extern __shared__ __align__(8) u32 normed[];
  __shared__ float room[8];
  const u32 row = blockIdx.x;
  if (row >= *rows) return;
  const u32* from = (const u32*)(x + (u64)(gather ? gather[row] : row) * len);
  u32* to = (u32*)(y + (u64)row * len);
  float sum = 0.0f;
#pragma unroll 4
  for (u32 i = threadIdx.x; i < len / 2u; i += 256u) {
    const float2 v = bf16_pair(from[i]);
    sum += v.x * v.x;
    sum += v.y * v.y;
  }
  const float scale = inverse_rms(block_sum(sum, room), len, eps);
#pragma unroll 4
  for (u32 i = threadIdx.x; i < len / 2u; i += 256u) {
    const float2 v = bf16_pair(from[i]), w = ((const float2*)weight)[i];
    const u32 word = pack16(bf16_of(w.x * (v.x * scale)), bf16_of(w.y * (v.y * scale)));
    normed[i] = word;
    if (blockIdx.y == 0) to[i] = word;
  }
  __syncthreads();
  const Job job = jobs[blockIdx.y];
  const u16* suh = linears[job.linear].suh;
  for (u32 at = 4u * threadIdx.x; at < len; at += 1024u) {
    const uint2 words = *(const uint2*)(normed + at / 2u);
    const float2 low = bf16_pair(words.x), high = bf16_pair(words.y);
    float v[4] = {low.x, low.y, high.x, high.y};
    *(uint2*)(xh + (u64)(job.row0 + row) * len + at) = rotate_input(v, suh + at);
  }
}

// K=V rows: norm, rotation of the last `rotary` dims, both rounded to bf16, stored where they belong.
//
//   raw      bf16 [layers, 512, head_dim]    weights  f32 [layers, head_dim]
//   angles   f32 [rows, rotary / 2, 2]
//   places   u32 [rows] or null: row of a layer's store; null: row r itself
//   store    bf16 [layers, layer_rows, head_dim]
//
// grid (rows, layers)
KERNEL(256) kv_store(const u16* raw, const float* weights, const float2* angles, const u32* places, u16* store,
                     u32 layer_rows, u32 head_dim, u32 rotary, float eps, const u32* rows) {
  __shared__ float room[8];
  const u32 row = blockIdx.x, layer = blockIdx.y;
  if (row >= *rows) return;
  const u32* from = (const u32*)(raw + (u64)(layer * CONTEXT_ROWS + row) * head_dim);
  const float* weight = weights + (u64)layer * head_dim;
  const u32 place = places ? places[row] : row;
  u32* to = (u32*)(store + ((u64)layer * layer_rows + place) * head_dim);
  float sum = 0.0f;
#pragma unroll 4
  for (u32 i = threadIdx.x; i < head_dim / 2u; i += 256u) {
    const float2 v = bf16_pair(from[i]);
    sum += v.x * v.x;
    sum += v.y * v.y;
  }
  const float scale = inverse_rms(block_sum(sum, room), head_dim, eps);
  const u32 tail = (head_dim - rotary) / 2u;
  for (u32 i = threadIdx.x; i < head_dim / 2u; i += 256u) {
    float2 v = bf16_pair(from[i]);
    const float2 w = ((const float2*)weight)[i];
    v = make_float2(round_bf16(w.x * (v.x * scale)), round_bf16(w.y * (v.y * scale)));
    if (i >= tail) {
      const float2 angle = angles[(u64)row * (rotary / 2u) + i - tail];
      v = turn(v, angle.x, angle.y);
    }
    to[i] = pack16(bf16_of(v.x), bf16_of(v.y));
  }
}
