// Hyper-connections: a sublayer's output into the four residual streams. Twin: drafter/cpu/hyper.rs.
#pragma once

#include "common.cuh"

#define STREAMS 4u

// Four consecutive columns of one row: stream j becomes bf16(post[j] * out + sum_i comb[i][j] * x[i]).
//
//   x     bf16 [4, hidden] from the first of the columns on     out   bf16 numbers, two a word
//   post  f32 [4]                                               comb  f32 [4, 4], source before destination
DEV void write_back(u16* x, u32 hidden, uint2 out, const float* post, const float* comb) {
  const float2 low = bf16_pair(out.x), high = bf16_pair(out.y);
  const float value[4] = {low.x, low.y, high.x, high.y};
  float old[STREAMS][4];
#pragma unroll
  for (u32 i = 0; i < STREAMS; i++) {
    const uint2 words = *(const uint2*)(x + (u64)i * hidden);
    const float2 a = bf16_pair(words.x), b = bf16_pair(words.y);
    old[i][0] = a.x;
    old[i][1] = a.y;
    old[i][2] = b.x;
    old[i][3] = b.y;
  }
#pragma unroll
  for (u32 j = 0; j < STREAMS; j++) {
    u16 y[4];
#pragma unroll
    for (u32 c = 0; c < 4; c++) {
      float v = __fmul_rn(post[j], value[c]);
#pragma unroll
      for (u32 i = 0; i < STREAMS; i++) v = mul_add(comb[4u * i + j], old[i][c], v);
      y[c] = bf16_of(v);
    }
    *(uint2*)(x + (u64)j * hidden) = make_uint2(pack16(y[0], y[1]), pack16(y[2], y[3]));
  }
}
