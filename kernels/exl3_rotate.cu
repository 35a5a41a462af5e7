// Input side of EXL3 layers: xh = f16(H (f16(f16(x) * suh))) / sqrt(128).
//
//   x       bf16 [*, x_pitch]   source rows; a job reads columns x_col .. x_col + in
//   gather  u32 or null         source row of row row0 + r of the rotated inputs; null: row r itself
//   angles  f32 [rows, rotary / 2, 2] or null: cosine and sine by which the last `rotary` of every
//           `head_dim` source columns are turned back, and rounded to bf16, before anything else
//   xh      f16 [*, in]         all layers of a launch have one `in`
//
// grid   (in / 512 rounded up, rows, jobs)
// block  128: a warp for 128 features, four a lane
// twin   exl3/product.rs, Exl3Linear::rotate_input; drafter/cpu/rope.rs, Angles::rotate with Turn::Inverse

#include "exl3.cuh"

KERNEL(128) exl3_rotate(const Linear* linears, const Job* jobs, const u32* rows, const u16* x, u32 x_pitch,
                        const u32* gather, const float2* angles, u32 head_dim, u32 rotary, u16* xh) {
  const Job job = jobs[blockIdx.z];
  const u32 row = blockIdx.y;
  if (row >= rows_of(job, rows)) return;
  const Linear linear = linears[job.linear];
  const u32 column = (4u * blockIdx.x + (threadIdx.x >> 5)) * 128u + 4u * (threadIdx.x & 31u);
  if (column >= linear.in) return;
  const u32 source = gather ? gather[job.row0 + row] : row;
  const uint2 words = *(const uint2*)(x + (u64)source * x_pitch + job.x_col + column);
  float2 low = bf16_pair(words.x), high = bf16_pair(words.y);
  if (angles) {
    const u32 dim = (job.x_col + column) % head_dim, tail = head_dim - rotary;
    if (dim >= tail) {
      const float2* turns = angles + (u64)row * (rotary / 2u) + (dim - tail) / 2u;
      const float2 first = turns[0], second = turns[1];
      low = turn(low, first.x, -first.y);
      high = turn(high, second.x, -second.y);
      low = make_float2(round_bf16(low.x), round_bf16(low.y));
      high = make_float2(round_bf16(high.x), round_bf16(high.y));
    }
  }
  float v[4] = {low.x, low.y, high.x, high.y};
  const uint2 out = rotate_input(v, linear.suh + column);
  *(uint2*)(xh + (u64)(job.row0 + row) * linear.in + column) = out;
}
