// Sink attention of the block rows over their window and over each other, all rows seeing all keys.
//
//   q       bf16 [T, heads, head_dim], rotated      out  bf16 [T, heads, head_dim], not turned back
//   window  bf16 [slots * window, head_dim] of one layer, position p of a slot in row p mod window
//   block   bf16 [T, head_dim], the rows' own keys
//   sinks   f32 [heads]
//   drafts  [n] {first row of the slot, ring index of the oldest key, context keys}
//
// Values are the keys. score = q . key / sqrt(head_dim); the sink joins the denominator only.
//
// grid    (heads, drafts, block rows / 8 rounded up): one head of up to eight rows of one draft
// block   256
// shared  4 * (8 * head_dim + 8 * (window + n)) bytes, dynamic: queries, then scores
// twin    drafter/cpu/attention.rs

#include "common.cuh"

#define TILE 8u
#define KEYS 4u

struct DraftKeys {
  u32 slot_row;
  u32 first;
  u32 context;
};

DEV const u32* key_row(const u16* window, const u16* block, const DraftKeys& draft, u32 j, u32 size, u32 head_dim) {
  if (j >= draft.context) return (const u32*)(block + (u64)(j - draft.context) * head_dim);
  u32 index = draft.first + j;
  if (index >= size) index -= size;
  return (const u32*)(window + (u64)(draft.slot_row + index) * head_dim);
}

KERNEL(256) attention(const u16* q, const u16* window, const u16* block, const float* sinks, const DraftKeys* drafts,
                      u16* out, u32 rows_per_draft, u32 head_dim, u32 window_size, const u32* rows) {
  extern __shared__ __align__(16) float room[];
  const u32 head = blockIdx.x, heads = gridDim.x, row0 = TILE * blockIdx.z;
  const u32 first_row = blockIdx.y * rows_per_draft;
  if (first_row >= *rows) return;
  const u32 n = min(TILE, rows_per_draft - row0);
  const DraftKeys draft = drafts[blockIdx.y];
  const u32 keys = draft.context + rows_per_draft, words = head_dim / 2u;
  const u16* own = block + (u64)first_row * head_dim;
  float2* queries = (float2*)room;               // [TILE, words]
  float* scores = room + TILE * head_dim;        // [window + n, TILE]
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31u;

  for (u32 i = threadIdx.x; i < TILE * words; i += 256u) {
    const u32 r = i / words, w = i % words;
    const u64 at = ((u64)(first_row + row0 + r) * heads + head) * words + w;
    queries[i] = r < n ? bf16_pair(((const u32*)q)[at]) : make_float2(0.0f, 0.0f);
  }
  __syncthreads();

  // A warp takes four keys at once, so that each reading of the queries serves four and their loads overlap.
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn((float)head_dim));
  for (u32 first = warp; first < keys; first += 8u * KEYS) {
    const u32* key[KEYS];
#pragma unroll
    for (u32 i = 0; i < KEYS; i++) {
      // Keys beyond the last one are the last one again.
      key[i] = key_row(window, own, draft, min(first + 8u * i, keys - 1u), window_size, head_dim);
    }
    float dot[KEYS][TILE] = {};
#pragma unroll 4
    for (u32 w = lane; w < words; w += LANES) {
      float2 k[KEYS];
#pragma unroll
      for (u32 i = 0; i < KEYS; i++) k[i] = bf16_pair(key[i][w]);
#pragma unroll
      for (u32 r = 0; r < TILE; r++) {
        if (r < n) {
          const float2 v = queries[r * words + w];
#pragma unroll
          for (u32 i = 0; i < KEYS; i++) {
            dot[i][r] += v.x * k[i].x;
            dot[i][r] += v.y * k[i].y;
          }
        }
      }
    }
#pragma unroll
    for (u32 i = 0; i < KEYS; i++) {
#pragma unroll
      for (u32 r = 0; r < TILE; r++) {
        if (r < n) {
          const float sum = warp_sum(dot[i][r]);
          if (lane == r && first + 8u * i < keys) scores[(first + 8u * i) * TILE + r] = scale * sum;
        }
      }
    }
  }
  __syncthreads();

  // Warp r turns the scores of row r into weights.
  if (warp < n) {
    float* score = scores + warp;
    const float sink = sinks[head];
    float top = sink;
    for (u32 j = lane; j < keys; j += LANES) top = fmaxf(top, score[j * TILE]);
#pragma unroll
    for (u32 m = LANES / 2; m > 0; m >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, m));
    float total = 0.0f;
    for (u32 j = lane; j < keys; j += LANES) {
      const float weight = expf(score[j * TILE] - top);
      score[j * TILE] = weight;
      total += weight;
    }
    total = warp_sum(total) + expf(sink - top);
    // Row r's queries are used up; their place keeps the denominator.
    if (lane == 0) queries[warp * words].x = total;
  }
  __syncthreads();

  for (u32 w = threadIdx.x; w < words; w += 256u) {
    float2 sum[TILE] = {};
    // Several keys' loads under way.
#pragma unroll 8
    for (u32 j = 0; j < keys; j++) {
      const float2 k = bf16_pair(key_row(window, own, draft, j, window_size, head_dim)[w]);
      const float4 low = *(const float4*)(scores + j * TILE), high = *(const float4*)(scores + j * TILE + 4u);
      const float weight[TILE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (u32 r = 0; r < TILE; r++) {
        if (r < n) {
          sum[r].x += weight[r] * k.x;
          sum[r].y += weight[r] * k.y;
        }
      }
    }
#pragma unroll
    for (u32 r = 0; r < TILE; r++) {
      if (r < n) {
        const float total = queries[r * words].x;
        const u64 at = ((u64)(first_row + row0 + r) * heads + head) * words + w;
        ((u32*)out)[at] = pack16(bf16_of(__fdiv_rn(sum[r].x, total)), bf16_of(__fdiv_rn(sum[r].y, total)));
      }
    }
  }
}
