// Output side of EXL3 layers: partial sums added in split order, rotated, scaled, and stored in the form the
// next step reads.
//
//   part  f32 [splits, pitch, out] a job (exl3_gemm.cu)
//
// grid   (out / 512 rounded up, rows, jobs), larger allowed
// block  128: a warp for 128 columns of one row, four a lane
// twin   exl3/product.rs, the end of multiply_block

#include "exl3.cuh"
#include "hyper.cuh"

// y bf16 [rows, y_pitch]. With `angles` (f32 [rows, rotary / 2, 2]) the last `rotary` of every `head_dim`
// columns are turned forward after the rounding and rounded again: drafter/cpu/rope.rs, Angles::rotate.
KERNEL(128) exl3_finish_bf16(const Linear* linears, const Job* jobs, const u32* rows, const float* part,
                             const float2* angles, u32 head_dim, u32 rotary) {
  const Job job = jobs[blockIdx.z];
  const u32 row = blockIdx.y, column = (4u * blockIdx.x + (threadIdx.x >> 5)) * 128u;
  if (row >= rows_of(job, rows)) return;
  const Linear linear = linears[job.linear];
  if (column >= linear.out) return;
  float v[4];
  finish128(linear, job, row, column, part, v);
  u16 y[4] = {bf16_of(v[0]), bf16_of(v[1]), bf16_of(v[2]), bf16_of(v[3])};
  const u32 at = column + 4u * (threadIdx.x & 31u);
  if (angles) {
    const u32 dim = at % head_dim, tail = head_dim - rotary;
    if (dim >= tail) {
      const float2* turns = angles + (u64)row * (rotary / 2u) + (dim - tail) / 2u;
#pragma unroll
      for (u32 i = 0; i < 2; i++) {
        const float2 pair = make_float2(f32_of_bf16(y[2 * i]), f32_of_bf16(y[2 * i + 1]));
        const float2 turned = turn(pair, turns[i].x, turns[i].y);
        y[2 * i] = bf16_of(turned.x);
        y[2 * i + 1] = bf16_of(turned.y);
      }
    }
  }
  *(uint2*)((u16*)job.y + (u64)row * job.y_pitch + at) = make_uint2(pack16(y[0], y[1]), pack16(y[2], y[3]));
}

// A sublayer's output, bf16 [rows, y_pitch], and what it makes of the streams x bf16 [rows, 4, y_pitch] by
// post f32 [rows, 4] and comb f32 [rows, 4, 4] (hyper.cuh).
KERNEL(128) exl3_finish_post(const Linear* linears, const Job* jobs, const u32* rows, const float* part, u16* x,
                             const float* post, const float* comb) {
  const Job job = jobs[blockIdx.z];
  const u32 row = blockIdx.y, column = (4u * blockIdx.x + (threadIdx.x >> 5)) * 128u;
  if (row >= rows_of(job, rows)) return;
  const Linear linear = linears[job.linear];
  if (column >= linear.out) return;
  float v[4];
  finish128(linear, job, row, column, part, v);
  const uint2 y = make_uint2(pack16(bf16_of(v[0]), bf16_of(v[1])), pack16(bf16_of(v[2]), bf16_of(v[3])));
  const u32 at = column + 4u * (threadIdx.x & 31u);
  *(uint2*)((u16*)job.y + (u64)row * job.y_pitch + at) = y;
  write_back(x + (u64)row * STREAMS * job.y_pitch + at, job.y_pitch, y, post + row * STREAMS, comb + row * 16u);
}

// Between two layers of which the second reads the first's outputs, rounded to bf16: the rotated inputs of the
// second. Job j of `jobs` has columns j * out .. of them. xh f16 [*, in of the second].
KERNEL(128) exl3_finish_rotate(const Linear* linears, const Job* jobs, const Job* second, const u32* rows,
                               const float* part, u16* xh) {
  const Job job = jobs[blockIdx.z];
  const u32 row = blockIdx.y, column = (4u * blockIdx.x + (threadIdx.x >> 5)) * 128u;
  if (row >= rows_of(job, rows)) return;
  const Linear linear = linears[job.linear];
  if (column >= linear.out) return;
  float v[4];
  finish128(linear, job, row, column, part, v);
#pragma unroll
  for (u32 i = 0; i < 4; i++) v[i] = round_bf16(v[i]);
  const Job to = *second;
  const Linear& next = linears[to.linear];
  const u32 at = blockIdx.z * linear.out + column + 4u * (threadIdx.x & 31u);
  *(uint2*)(xh + (u64)(to.row0 + row) * next.in + at) = rotate_input(v, next.suh + at);
}

// y f32 [rows, y_pitch], not rounded.
KERNEL(128) exl3_finish_f32(const Linear* linears, const Job* jobs, const u32* rows, const float* part) {
  const Job job = jobs[blockIdx.z];
  const u32 row = blockIdx.y, column = (4u * blockIdx.x + (threadIdx.x >> 5)) * 128u;
  if (row >= rows_of(job, rows)) return;
  const Linear linear = linears[job.linear];
  if (column >= linear.out) return;
  float v[4];
  finish128(linear, job, row, column, part, v);
  float* y = (float*)job.y + (u64)row * job.y_pitch + column + 4u * (threadIdx.x & 31u);
  *(float4*)y = make_float4(v[0], v[1], v[2], v[3]);
}

// Base logits: y f32 [rows, y_pitch], rounded to bf16 if `round`; best u32 [rows, out / 128]: where the
// largest logit of each 128 is, the lowest index on ties.
KERNEL(128) exl3_finish_logits(const Linear* linears, const Job* jobs, const u32* rows, const float* part, u32 round,
                               u32* best) {
  const Job job = jobs[blockIdx.z];
  const u32 row = blockIdx.y, block = 4u * blockIdx.x + (threadIdx.x >> 5);
  if (row >= rows_of(job, rows)) return;
  const Linear linear = linears[job.linear];
  if (block * 128u >= linear.out) return;
  float v[4];
  finish128(linear, job, row, block * 128u, part, v);
  const u32 at = block * 128u + 4u * (threadIdx.x & 31u);
  if (round) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] = round_bf16(v[i]);
  }
  *(float4*)((float*)job.y + (u64)row * job.y_pitch + at) = make_float4(v[0], v[1], v[2], v[3]);
  float top = v[0];
  u32 index = at;
#pragma unroll
  for (u32 i = 1; i < 4; i++) {
    if (v[i] > top) {
      top = v[i];
      index = at + i;
    }
  }
#pragma unroll
  for (u32 m = LANES / 2; m > 0; m >>= 1) {
    const float other = __shfl_xor_sync(FULL, top, m);
    const u32 other_index = __shfl_xor_sync(FULL, index, m);
    if (other > top || (other == top && other_index < index)) {
      top = other;
      index = other_index;
    }
  }
  if ((threadIdx.x & 31u) == 0) best[(u64)row * (linear.out / 128u) + block] = index;
}

// Between the products of an expert: gate and up finished, act = silu(min(gate, limit)) * clamp(up, limit) in
// f32, and the input rotation of the down layer. Jobs 2 j and 2 j + 1 of `jobs` are gate and up of expert job
// j, `down` its down layer. limit 0: no clamp. xh f16 [*, out]. Twin: drafter/cpu/moe.rs, swiglu.
KERNEL(128) exl3_finish_swiglu(const Linear* linears, const Job* jobs, const Job* down, const u32* rows,
                               const float* part, float limit, u16* xh) {
  const Job gate_job = jobs[2u * blockIdx.z], up_job = jobs[2u * blockIdx.z + 1u];
  const u32 row = blockIdx.y, column = (4u * blockIdx.x + (threadIdx.x >> 5)) * 128u;
  if (row >= rows_of(gate_job, rows)) return;
  const Linear gate_layer = linears[gate_job.linear];
  if (column >= gate_layer.out) return;
  float gate[4], up[4];
  finish128(gate_layer, gate_job, row, column, part, gate);
  finish128(linears[up_job.linear], up_job, row, column, part, up);
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    float g = gate[i], u = up[i];
    if (limit != 0.0f) {
      // Comparisons, unlike fminf, let a NaN through.
      g = g > limit ? limit : g;
      u = u > limit ? limit : u;
      u = u < -limit ? -limit : u;
    }
    gate[i] = __fmul_rn(__fmul_rn(g, sigmoid(g)), u);
  }
  const Job job = down[blockIdx.z];
  const u32 at = column + 4u * (threadIdx.x & 31u);
  const uint2 out = rotate_input(gate, linears[job.linear].suh + at);
  *(uint2*)(xh + (u64)(job.row0 + row) * gate_layer.out + at) = out;
}
