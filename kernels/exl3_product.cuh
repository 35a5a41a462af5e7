// Products with EXL3 layers: part[split] = xh * W_inner over the split's inputs.
//
//   xh    f16 [rows, in]            rotated inputs (exl3_rotate.cu)
//   part  f32 [splits, pitch, out]  sums of each split, to be added in order (exl3_finish.cu)
//
// GROUPS  groups of eight rows a block computes at most
// STAGES  inputs under way at once, 64 of each row a stage
// tiles   runs of 8 * GROUPS rows that blocks share out; those of the same weights are neighbours
//
// grid    (out / 128 * tiles, splits, jobs); larger than a job needs is allowed
// block   256: warp w computes columns 16 w .. of the block's 128, for all rows of its tile
// shared  STAGES * (1024 * K + 144 * rows padded to 8) bytes, dynamic
// twin    exl3/product.rs, Exl3Linear::forward_rotated without the output rotation
//
// Each weight is read and decoded once whatever the number of rows of a tile: the decoded weights are the A
// operand, groups of eight rows are B operands. A row's sums depend on the layer's splits alone, so they are the same bits in
// any company and under any GROUPS. A launch with another K or codebook than a job's layer leaves the job
// alone, so mixed widths take one launch a width.
#pragma once

#include "exl3.cuh"

#define STEP 64u          // inputs a stage
#define X_PITCH 144u      // bytes of a row of a stage: 128 and 16 that spread rows over the banks

template <int K>
DEV void load_stage(const Linear& linear, u32 block, u32 rows, u32 groups, const u16* xh, u32 k0, u32 to) {
  const u64 row_bytes = (u64)linear.row_tiles * 32u * K;
  const u8* tiles = linear.trellis + (k0 / 16u) * row_bytes + block * 256u * K;
  for (u32 c = threadIdx.x; c < 64u * K; c += 256u) {
    const u32 k_row = c / (16u * K), at = c % (16u * K);
    copy16(to + 16u * c, tiles + k_row * row_bytes + 16u * at, 16u);
  }
  const u32 x_to = to + 1024u * K;
  for (u32 c = threadIdx.x; c < 64u * groups; c += 256u) {
    const u32 row = c >> 3, at = c & 7u;
    const u32 source = row < rows ? row : 0u;
    const u16* from = xh + (u64)source * linear.in + k0 + 8u * at;
    copy16(x_to + X_PITCH * row + 16u * at, from, row < rows ? 16u : 0u);
  }
}

template <int K, int CODEBOOK, int GROUPS, int STAGES>
DEV void multiply(const Linear* linears, const Job* jobs, const u32* rows_of_launch, const u16* xh, float* part,
                  u32 tiles) {
  extern __shared__ __align__(128) u8 shared[];
  const Job job = jobs[blockIdx.z];
  // A launch of few rows is one tile: nothing to divide by.
  const bool one = GROUPS * 8 <= ROWS_MAX;
  const u32 block = one ? blockIdx.x : blockIdx.x / tiles;
  const u32 row0 = one ? 0u : blockIdx.x % tiles * (8u * GROUPS);
  const u32 all = rows_of(job, rows_of_launch);
  if (row0 >= all) return;
  const u32 rows = one ? all : min(all - row0, 8u * GROUPS);
  const Linear linear = linears[job.linear];
  if (linear.kind != (K | CODEBOOK << 8)) return;
  if (block * 128u >= linear.out || blockIdx.y >= linear.splits) return;

  xh += (u64)(job.row0 + row0) * linear.in;
  const u32 units = linear.in / 128u, groups = (rows + 7u) / 8u;
  const u32 first = 2u * (blockIdx.y * units / linear.splits);
  const u32 steps = 2u * ((blockIdx.y + 1u) * units / linear.splits) - first;
  const u32 stage_bytes = 1024u * K + 8u * X_PITCH * groups;
  const u32 base = shared_address(shared);
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31u;
  const Windows<K> windows = Windows<K>::of_lane(lane);

#pragma unroll
  for (u32 s = 0; s < STAGES - 1; s++) {
    if (s < steps) load_stage<K>(linear, block, rows, groups, xh, (first + s) * STEP, base + s * stage_bytes);
    commit_copies();
  }
  float acc[GROUPS][4] = {};
  for (u32 s = 0; s < steps; s++) {
    wait_copies<STAGES - 2>();
    // Every warp has arrived, so the stage of the step before is free to be loaded.
    __syncthreads();
    const u32 next = s + STAGES - 1;
    if (next < steps) {
      load_stage<K>(linear, block, rows, groups, xh, (first + next) * STEP, base + next % STAGES * stage_bytes);
    }
    commit_copies();
    const u8* stage = shared + s % STAGES * stage_bytes;
    const u8* x = stage + 1024u * K + X_PITCH * (lane >> 2) + 4u * (lane & 3u);
    // Sixteen products of one tile keep tensor cores busy; unrolled further they only fill the instruction cache.
#pragma unroll (GROUPS > 4 ? 1 : STEP / 16u)
    for (u32 k = 0; k < STEP / 16u; k++) {
      u32 a[4];
      decode_tile<K, CODEBOOK>(stage + 256u * K * k + 32u * K * warp, windows, a);
#pragma unroll
      for (u32 g = 0; g < GROUPS; g++) {
        if (g < groups) {
          const u8* b = x + 8u * X_PITCH * g + 32u * k;
          mma_16816(acc[g], a, *(const u32*)b, *(const u32*)(b + 16));
        }
      }
    }
  }

  const u32 column = block * 128u + 16u * warp + (lane >> 2);
  float* out = part + job.part + ((u64)blockIdx.y * job.pitch + row0) * linear.out + column;
#pragma unroll
  for (u32 g = 0; g < GROUPS; g++) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 row = 8u * g + 2u * (lane & 3u) + (i & 1u);
      if (row < rows) out[(u64)row * linear.out + 8u * (i >> 1)] = acc[g][i];
    }
  }
}

// One entry point a width and codebook.
#define ENTRY(name, K, CODEBOOK, GROUPS, STAGES)                                                          \
  KERNEL(256) name(const Linear* linears, const Job* jobs, const u32* rows, const u16* xh, float* part,   \
                   u32 tiles) {                                                                           \
    multiply<K, CODEBOOK, GROUPS, STAGES>(linears, jobs, rows, xh, part, tiles);                          \
  }
#define ENTRIES_OF(prefix, CODEBOOK, GROUPS, STAGES) \
  ENTRY(prefix##_k2, 2, CODEBOOK, GROUPS, STAGES)    \
  ENTRY(prefix##_k3, 3, CODEBOOK, GROUPS, STAGES)    \
  ENTRY(prefix##_k4, 4, CODEBOOK, GROUPS, STAGES)    \
  ENTRY(prefix##_k5, 5, CODEBOOK, GROUPS, STAGES)    \
  ENTRY(prefix##_k6, 6, CODEBOOK, GROUPS, STAGES)    \
  ENTRY(prefix##_k7, 7, CODEBOOK, GROUPS, STAGES)    \
  ENTRY(prefix##_k8, 8, CODEBOOK, GROUPS, STAGES)
#define ENTRIES(prefix, GROUPS, STAGES)            \
  ENTRIES_OF(prefix##_mul1, MUL1, GROUPS, STAGES)  \
  ENTRIES_OF(prefix##_mcg, MCG, GROUPS, STAGES)    \
  ENTRIES_OF(prefix##_3inst, THREE_INST, GROUPS, STAGES)
