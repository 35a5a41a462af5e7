// EXL3 tiles and rotations: one trellis tile to the registers of one warp, the 128-point transform, and the
// tables that describe a launch. Format: turboderp-org/exllamav3 exllamav3_ext/quant. Twin: src/exl3.
#pragma once

#include "common.cuh"

// One quantised layer, y = x * W. Mirrors `LinearRecord` of the host.
struct Linear {
  const u8* trellis;   // first tile of the layer; tiles of 32 * K bytes
  const u16* suh;      // f16 [in]
  const u16* svh;      // f16 [out]
  const float* bias;   // f32 [out] or null
  u32 in;
  u32 out;
  u32 row_tiles;       // tiles from one row of tiles to the next: more than out / 16 where columns were cut
  u32 kind;            // K | codebook << 8
  u32 splits;          // runs the inputs are cut into; a function of the layer alone
  u32 pad[3];
};

// A layer applied to some rows. Mirrors `JobRecord` of the host.
struct Job {
  u64 y;        // output of row 0 of the job; its type is the finishing kernel's
  u32 linear;   // index of the layer
  u32 rows;     // rows of the job, or ALL_ROWS: the launch's own count
  u32 row0;     // first row of the job in the rotated inputs
  u32 part;     // first partial sum of the job
  u32 pitch;    // rows from one split's partial sums to the next
  u32 x_col;    // first column of the job's input in a source row
  u32 y_pitch;  // elements from one output row to the next
  u32 pad;
};

#define ALL_ROWS 0xFFFFFFFFu

enum Codebook { THREE_INST = 0, MCG = 1, MUL1 = 2 };

DEV u32 rows_of(const Job& job, const u32* rows) { return job.rows == ALL_ROWS ? *rows : job.rows; }

// Multiplies the 128 values of a warp, four consecutive ones a lane, by H / sqrt(128). Butterflies by rising
// stride, as exl3/hadamard.rs, so that results are its bits.
DEV void rotate128(float (&v)[4]) {
  const u32 lane = threadIdx.x & 31u;
  float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c;
  v[1] = b + d;
  v[2] = a - c;
  v[3] = b - d;
#pragma unroll
  for (u32 m = 1; m < LANES; m <<= 1) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const float other = __shfl_xor_sync(FULL, v[i], m);
      v[i] = (lane & m) ? other - v[i] : v[i] + other;
    }
  }
#pragma unroll
  for (u32 i = 0; i < 4; i++) v[i] = __fmul_rn(v[i], __int_as_float(0x3DB504F3));
}

// Input rotation of the 128 values of a warp: f16(x), f16(x * suh), transform in f32, f16. Returns the lane's
// four results, two a word.
DEV uint2 rotate_input(float (&v)[4], const u16* suh) {
  const uint2 scales = *(const uint2*)suh;
  const u16 s[4] = {(u16)scales.x, (u16)(scales.x >> 16), (u16)scales.y, (u16)(scales.y >> 16)};
#pragma unroll
  for (u32 i = 0; i < 4; i++) v[i] = round_f16(round_f16(v[i]) * f32_of_f16(s[i]));
  rotate128(v);
  return make_uint2(pack16(f16_of(v[0]), f16_of(v[1])), pack16(f16_of(v[2]), f16_of(v[3])));
}

// Two states to two values in one word of f16 numbers, the first in the low half.
template <int CODEBOOK>
DEV u32 decode_pair(u32 s0, u32 s1) {
  if (CODEBOOK == MUL1) {
    // 0x6400 + S is the f16 number 1024 + S.
    const u32 h0 = dp4a(s0 * 0x83DCD12Du, 0x01010101u, 0x6400u);
    const u32 h1 = dp4a(s1 * 0x83DCD12Du, 0x01010101u, 0x6400u);
    return fma_f16x2(__byte_perm(h0, h1, 0x5410), 0x1EEE1EEEu, 0xC931C931u);
  }
  const u32 mul = CODEBOOK == MCG ? 0xCBAC1FEDu : 89226354u;
  const u32 add = CODEBOOK == MCG ? 0u : 64248484u;
  const u32 y0 = ((s0 * mul + add) & 0x8FFF8FFFu) ^ 0x3B603B60u;
  const u32 y1 = ((s1 * mul + add) & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return add_f16x2(__byte_perm(y0, y1, 0x5410), __byte_perm(y0, y1, 0x7632));
}

// Where a lane finds the K + 2 stream bytes of its eight values: words of a tile and a shift, the same for
// every tile.
template <int K>
struct Windows {
  u32 word[3];
  u32 shift;

  DEV Windows<K> of_lane(u32 lane) {
    Windows<K> w;
    const u32 bit = (lane * 8u * K + 256u * K - 16u) % (256u * K);
#pragma unroll
    for (u32 i = 0; i < 3; i++) w.word[i] = ((bit >> 5) + i) % (8u * K);
    w.shift = bit & 31u;
    return w;
  }
};

// The tile at `tile` as the A fragment of mma.m16n8k16, transposed: rows are output columns, k is the input.
// The values 8 * lane .. of the stream are the lane's own, in an order that only swaps two words.
template <int K, int CODEBOOK>
DEV void decode_tile(const u8* tile, const Windows<K>& w, u32 (&a)[4]) {
  const u32* words = (const u32*)tile;
  const u32 w0 = words[w.word[0]], w1 = words[w.word[1]];
  const u32 w2 = K > 4 ? words[w.word[2]] : 0u;
  const u32 x[4] = {__funnelshift_l(w1, w0, w.shift), __funnelshift_l(w2, w1, w.shift),
                    __funnelshift_l(0u, w2, w.shift), 0u};
  u32 s[8];
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int at = (j + 1) * K, i = at >> 5, o = at & 31;
    s[j] = o <= 16 ? (x[i] >> (16 - o)) & 0xFFFFu : __funnelshift_l(x[i + 1], x[i], o) >> 16;
  }
  a[0] = decode_pair<CODEBOOK>(s[0], s[1]);
  a[1] = decode_pair<CODEBOOK>(s[4], s[5]);
  a[2] = decode_pair<CODEBOOK>(s[2], s[3]);
  a[3] = decode_pair<CODEBOOK>(s[6], s[7]);
}

// Lane's four sums of columns 4 * lane .. of the 128 at `column`, over all splits in order, rotated, scaled
// and biased: the layer's output in f32.
DEV void finish128(const Linear& linear, const Job& job, u32 row, u32 column, const float* part, float (&v)[4]) {
  const u32 at = column + 4u * (threadIdx.x & 31u);
  const float* p = part + job.part + (u64)row * linear.out + at;
  const u64 step = (u64)job.pitch * linear.out;
  float4 sum = *(const float4*)p;
  // Several loads under way: the sums of a layer that is cut often would else be a chain of latencies.
#pragma unroll 8
  for (u32 s = 1; s < linear.splits; s++) {
    const float4 next = *(const float4*)(p + s * step);
    sum.x += next.x;
    sum.y += next.y;
    sum.z += next.z;
    sum.w += next.w;
  }
  v[0] = sum.x;
  v[1] = sum.y;
  v[2] = sum.z;
  v[3] = sum.w;
  rotate128(v);
  const uint2 scales = *(const uint2*)(linear.svh + at);
  const u16 s[4] = {(u16)scales.x, (u16)(scales.x >> 16), (u16)scales.y, (u16)(scales.y >> 16)};
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    v[i] = __fmul_rn(v[i], f32_of_f16(s[i]));
    if (linear.bias) v[i] = __fadd_rn(v[i], linear.bias[at + i]);
  }
}
