// Mixture of experts around its products: router logits, choice and grouping, combination.
//
// Rows are grouped by expert so that each distinct expert's weights are read once a pass; its rows are in
// ascending order, experts too, the shared expert last with every row.
//
// twin  drafter/cpu/moe.rs

#include "exl3.cuh"
#include "hyper.cuh"

#define EXPERTS_MAX 256u
#define CHOSEN_MAX 8u

// logits f32 [rows, experts] = x . gate / temp. x bf16 [rows, hidden]; gate f32 [experts, hidden].
// grid (experts, rows / 8 rounded up), block 256: one expert and eight rows, each warp an eighth of the columns in
// runs of 64, so that a weight is read once for eight rows and no thread waits for many loads in turn.
KERNEL(256) router_logits(const u16* x, const float* gate, float* logits, u32 hidden, u32 experts, float temp,
                          const u32* rows) {
  __shared__ float sums[8][8];
  const u32 expert = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31u, row0 = 8u * blockIdx.y;
  const u32 n = *rows, words = hidden / 2u;
  if (row0 >= n) return;
  float sum[8] = {};
#pragma unroll 2
  for (u32 w = threadIdx.x; w < words; w += 256u) {
    const float2 g = ((const float2*)gate)[(u64)expert * words + w];
#pragma unroll
    for (u32 r = 0; r < 8; r++) {
      // Rows beyond the last one are the last one again, and go nowhere.
      const float2 v = bf16_pair(((const u32*)x)[(u64)min(row0 + r, n - 1u) * words + w]);
      sum[r] += g.x * v.x;
      sum[r] += g.y * v.y;
    }
  }
#pragma unroll
  for (u32 r = 0; r < 8; r++) {
    const float total = warp_sum(sum[r]);
    if (lane == r) sums[warp][r] = total;
  }
  __syncthreads();
  const u32 r = threadIdx.x;
  if (r >= 8u || row0 + r >= n) return;
  float total = sums[0][r];
#pragma unroll
  for (u32 w = 1; w < 8; w++) total += sums[w][r];
  logits[(u64)(row0 + r) * experts + expert] = __fdiv_rn(total, temp);
}

// Numbers of the choice. Mirrors `RouteShape` of the host.
struct Route {
  u32 experts;
  u32 chosen;
  u32 normalise;
  float scale;
  u32 first_linear;   // gate layer of expert 0; an expert's are gate, up, down; the shared expert comes last
  u32 jobs;           // expert jobs there is room for
  u32 rows_max;       // rows_max * (chosen + 1) rotated rows for gates, as many for ups behind them
  u32 gate_sums;      // floats of partial sums a rotated row of gate or up takes: splits * inner
  u32 down_sums;      // the same for down: splits * hidden
};

DEV float softplus(float x) { return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x))); }

// Chooses the experts of one row: by falling score + bias, the lower expert on ties, a score that is no
// number last. The whole warp; `scores` [EXPERTS_MAX] and the results are in shared memory.
DEV void choose(const float* logits, const float* bias, const Route& route, float* scores, u32* ids, float* weights) {
  const u32 lane = threadIdx.x & 31u;
  for (u32 e = lane; e < route.experts; e += LANES) scores[e] = __fsqrt_rn(softplus(logits[e]));
  __syncwarp();
  u32 taken = 0;
  for (u32 rank = 0; rank < route.chosen; rank++) {
    float best = NEG_INF;
    u32 id = FULL;
    for (u32 e = lane; e < route.experts; e += LANES) {
      float value = __fadd_rn(scores[e], bias[e]);
      if (is_nan(value)) value = NEG_INF;
      if ((taken >> (e / LANES)) & 1u) continue;
      if (id == FULL || value > best) {
        best = value;
        id = e;
      }
    }
#pragma unroll
    for (u32 m = LANES / 2; m > 0; m >>= 1) {
      const float other = __shfl_xor_sync(FULL, best, m);
      const u32 other_id = __shfl_xor_sync(FULL, id, m);
      if (other > best || (other == best && other_id < id)) {
        best = other;
        id = other_id;
      }
    }
    if (id % LANES == lane) taken |= 1u << (id / LANES);
    if (lane == 0) {
      ids[rank] = id;
      weights[rank] = scores[id];
    }
  }
  if (lane == 0) {
    float sum = 0.0f;
    for (u32 rank = 0; rank < route.chosen; rank++) sum += weights[rank];
    sum += 1e-20f;
    for (u32 rank = 0; rank < route.chosen; rank++) {
      if (route.normalise) weights[rank] = __fdiv_rn(weights[rank], sum);
      weights[rank] = __fmul_rn(weights[rank], route.scale);
    }
  }
  __syncwarp();
}

// The three jobs of an expert whose rows are row0 .. row0 + rows of the grouped ones.
DEV void write_jobs(const Route& route, u32 index, u32 expert, u32 row0, u32 rows, Job* gate_up, Job* down) {
  const u32 up_rows = route.rows_max * (route.chosen + 1u);
#pragma unroll
  for (u32 i = 0; i < 3; i++) {
    Job job;
    job.linear = route.first_linear + 3u * expert + i;
    job.rows = rows;
    job.row0 = i == 1 ? up_rows + row0 : row0;
    job.part = job.row0 * (i == 2 ? route.down_sums : route.gate_sums);
    job.pitch = rows;
    job.x_col = 0;
    job.y = 0;
    job.y_pitch = 0;
    job.pad = 0;
    if (i == 2) {
      down[index] = job;
    } else {
      gate_up[2u * index + i] = job;
    }
  }
}

// Choice of experts for every row, grouped by expert.
//
//   logits   f32 [rows, experts]       bias     f32 [experts]
//   ids      u32 [rows, chosen]        weights  f32 [rows, chosen], by falling biased score
//   places   u32 [rows, chosen]        factors  f32 [rows, chosen], by rising expert: grouped row and weight
//   owners   u32 [rows, chosen] and one more: jobs of the grouped rows at `places`, then the shared expert's
//   gather   u32 [2, rows_max * (chosen + 1)]   source row of each grouped row, for gates and for ups
//   gate_up  Job [2 * jobs]            down     Job [jobs]; unused ones get no rows
//
// grid (1), block 256
KERNEL(256) route(const float* logits, const float* bias, Route route, u32* ids, float* weights, u32* places,
                  float* factors, u32* owners, u32* gather, Job* gate_up, Job* down, const u32* rows) {
  __shared__ float scores[8][EXPERTS_MAX];
  __shared__ u32 chosen[ROWS_MAX * CHOSEN_MAX];
  __shared__ float weight[ROWS_MAX * CHOSEN_MAX];
  __shared__ u32 place[ROWS_MAX * CHOSEN_MAX];
  __shared__ u32 owner[ROWS_MAX * CHOSEN_MAX];
  __shared__ u32 count[EXPERTS_MAX];
  const u32 n = *rows, k = route.chosen, warp = threadIdx.x >> 5, expert = threadIdx.x;
  for (u32 r = warp; r < n; r += 8u) {
    choose(logits + (u64)r * route.experts, bias, route, scores[warp], chosen + r * k, weight + r * k);
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < n * k; i += 256u) {
    ids[i] = chosen[i];
    weights[i] = weight[i];
  }
  u32 mine = 0;
  if (expert < route.experts) {
    for (u32 i = 0; i < n * k; i++) mine += chosen[i] == expert;
  }
  count[expert] = mine;
  __syncthreads();
  u32 row0 = 0, index = 0, distinct = 0;
#pragma unroll 8
  for (u32 e = 0; e < route.experts; e++) {
    const u32 c = count[e];
    if (e < expert) {
      row0 += c;
      index += c > 0;
    }
    distinct += c > 0;
  }
  const u32 up_rows = route.rows_max * (k + 1u);
  if (mine > 0) {
    write_jobs(route, index, expert, row0, mine, gate_up, down);
    for (u32 i = 0, at = row0; i < n * k; i++) {
      if (chosen[i] == expert) {
        place[i] = at;
        owner[i] = index;
        gather[at] = i / k;
        gather[up_rows + at] = i / k;
        at++;
      }
    }
  }
  if (threadIdx.x == 0) {
    write_jobs(route, distinct, route.experts, n * k, n, gate_up, down);
    owners[n * k] = distinct;
  }
  for (u32 j = distinct + 1u + threadIdx.x; j < route.jobs; j += 256u) {
    write_jobs(route, j, route.experts, 0, 0, gate_up, down);
  }
  for (u32 r = threadIdx.x; r < n; r += 256u) {
    gather[n * k + r] = r;
    gather[up_rows + n * k + r] = r;
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < n * k; i += 256u) {
    const u32 r = i / k;
    u32 rank = 0;
    for (u32 q = 0; q < k; q++) rank += chosen[r * k + q] < chosen[i];
    places[r * k + rank] = place[i];
    factors[r * k + rank] = weight[i];
    owners[r * k + rank] = owner[i];
  }
}

// The sublayer's output: the chosen experts' outputs times their weights in ascending expert order, then the shared
// expert's, rounded once; and what it makes of the streams.
//
//   part    f32, sums of the down jobs              down    Job [jobs] of `route`
//   owners, places, factors of `route`
//   out     bf16 [rows, hidden]                     x       bf16 [rows, 4, hidden]
//   post    f32 [rows, 4]                           comb    f32 [rows, 4, 4] (hyper.cuh)
//
// grid (hidden / 512 rounded up, rows), block 128: a warp for 128 columns of one row, four a lane
KERNEL(128) moe_combine(const Linear* linears, const Job* down, const float* part, const u32* owners,
                        const u32* places, const float* factors, u16* out, u16* x, const float* post,
                        const float* comb, u32 chosen, u32 hidden, const u32* rows) {
  const u32 row = blockIdx.y, column = (4u * blockIdx.x + (threadIdx.x >> 5)) * 128u, n = *rows;
  if (row >= n || column >= hidden) return;
  float sum[4] = {};
#pragma unroll 4
  for (u32 i = 0; i < chosen; i++) {
    const u32 at = row * chosen + i;
    const Job job = down[owners[at]];
    float v[4];
    finish128(linears[job.linear], job, places[at] - job.row0, column, part, v);
    const float factor = factors[at];
#pragma unroll
    for (u32 c = 0; c < 4; c++) sum[c] = mul_add(factor, v[c], sum[c]);
  }
  const Job shared_job = down[owners[n * chosen]];
  float v[4];
  finish128(linears[shared_job.linear], shared_job, row, column, part, v);
  u16 y[4];
#pragma unroll
  for (u32 c = 0; c < 4; c++) y[c] = bf16_of(__fadd_rn(sum[c], v[c]));
  const uint2 words = make_uint2(pack16(y[0], y[1]), pack16(y[2], y[3]));
  const u32 at = column + 4u * (threadIdx.x & 31u);
  *(uint2*)(out + (u64)row * hidden + at) = words;
  write_back(x + (u64)row * STREAMS * hidden + at, hidden, words, post + row * STREAMS, comb + row * 16u);
}
