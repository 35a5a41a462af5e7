// The Markov chain: logits of one block position, their best two, the confidence.
//
//   lg[v] = base[v] + dot(head[v], embed[previous])          each of the three rounded to bf16 if `round`
//
// For some tokens dot(head[v], embed[token]) is held ready for every v, computed once by the same function
// (markov_bias). For the others only rows that can be among the best two are multiplied, and the result is that
// of the whole product:
// |dot(head[v], e)| <= |head[v]| |e|, roundings are monotone, and some rows' exact logits bound the second
// best from below. What is not certainly below that bound is multiplied; NaN is never certainly below.
// `prune` 0 multiplies every row.
//
//   base   f32 [rows, vocab], rounded already      head   [vocab, rank] of head_format
//   embed  [vocab, rank] of embed_format           head_norm, embed_norm f32 [vocab], rounded up
//   drafts [n] {n_out, first base row, anchor}     ids    i32 [n, positions], written by markov_pick
//
// block 256 everywhere
// twin  drafter/cpu/head.rs

#include "common.cuh"

#define RANK_PAIRS 4u      // pairs of a row a lane holds: rank <= 256
#define DRAFT_TILE 4u      // drafts that share one reading of a row
#define RESIDENT 0x80000000u  // in a count of rows multiplied: the bias row was held ready

// Tables of the chain. Mirrors `MarkovTables` of the host.
struct Tables {
  const float* base;
  const void* head;
  const void* embed;
  const float* head_norm;
  const float* embed_norm;
  const u32* slots;      // u32 [vocab]: row of a token in `bias`, FULL for none; null where none is held
  const void* bias;      // [rows, vocab]: bf16 if `round`, else f32
  u32 head_format;
  u32 embed_format;
  u32 vocab;
  u32 rank;
  u32 round;
  u32 positions;
};

struct DraftHead {
  u32 n_out;
  u32 row0;
  u32 anchor;
};

// The best two of some logits. Index FULL: none yet.
struct Top {
  float best;
  float second;
  u32 id;
  u32 nan;      // whether one is no number
};

DEV Top no_top() {
  Top t = {NEG_INF, NEG_INF, FULL, 0};
  return t;
}

DEV void take(Top& t, float value, u32 id) {
  if (is_nan(value)) {
    t.nan = 1;
  } else if (value > t.best || (value == t.best && id < t.id)) {
    t.second = t.best;
    t.best = value;
    t.id = id;
  } else if (value > t.second) {
    t.second = value;
  }
}

// Both halves' best two; the order does not matter.
DEV Top merge(const Top& a, const Top& b) {
  const bool first = a.best > b.best || (a.best == b.best && a.id < b.id);
  Top t;
  t.best = first ? a.best : b.best;
  t.id = first ? a.id : b.id;
  t.second = fmaxf(first ? b.best : a.best, fmaxf(a.second, b.second));
  t.nan = a.nan | b.nan;
  return t;
}

// Everybody's best two, in thread 0 of 256. `room` [8] is free afterwards.
DEV Top merge_block(Top t, Top* room) {
#pragma unroll
  for (u32 m = LANES / 2; m > 0; m >>= 1) {
    Top other;
    other.best = __shfl_xor_sync(FULL, t.best, m);
    other.second = __shfl_xor_sync(FULL, t.second, m);
    other.id = __shfl_xor_sync(FULL, t.id, m);
    other.nan = __shfl_xor_sync(FULL, t.nan, m);
    t = merge(t, other);
  }
  if ((threadIdx.x & 31u) == 0) room[threadIdx.x >> 5] = t;
  __syncthreads();
  if (threadIdx.x == 0) {
    t = room[0];
    for (u32 w = 1; w < 8; w++) t = merge(t, room[w]);
  }
  __syncthreads();
  return t;
}

DEV u32 previous_of(const DraftHead& draft, const u32* ids, u32 index, u32 position, u32 positions) {
  return position == 0 ? draft.anchor : ids[index * positions + position - 1u];
}

// A lane's pairs of row `row` of a table of `rank` columns.
DEV void load_row(const void* table, u32 format, u32 row, u32 rank, float2 (&v)[RANK_PAIRS]) {
  const u32 lane = threadIdx.x & 31u;
#pragma unroll
  for (u32 i = 0; i < RANK_PAIRS; i++) {
    const u32 pair = lane + LANES * i;
    v[i] = pair < rank / 2u ? load_pair(table, (u64)row * (rank / 2u) + pair, format) : make_float2(0.0f, 0.0f);
  }
}

DEV float dot_rows(const float2 (&a)[RANK_PAIRS], const float2 (&b)[RANK_PAIRS]) {
  float sum = 0.0f;
#pragma unroll
  for (u32 i = 0; i < RANK_PAIRS; i++) {
    // Named operations: a row held ready, a seed and a candidate must have the same bits.
    sum = __fmaf_rn(a[i].x, b[i].x, sum);
    sum = __fmaf_rn(a[i].y, b[i].y, sum);
  }
  return warp_sum(sum);
}

// Row of a token's bias among those held ready, FULL for none.
DEV u32 slot_of(const Tables& t, u32 token) { return t.slots ? t.slots[token] : FULL; }

// Bias of vocabulary row v for the token in `slot`.
DEV float held_bias(const Tables& t, u32 slot, u32 v) {
  const u64 at = (u64)slot * t.vocab + v;
  return t.round ? f32_of_bf16(((const u16*)t.bias)[at]) : ((const float*)t.bias)[at];
}

DEV float biased(float base, float bias, u32 round) {
  return round ? round_bf16(__fadd_rn(base, round_bf16(bias))) : __fadd_rn(base, bias);
}

// Largest bias a row can have. The slack covers the f32 dot product's own error: at most 16 roundings a term.
DEV float bias_bound(float head_norm, float embed_norm) { return head_norm * embed_norm * 1.0001f + 1e-30f; }

// Bias rows held ready: row i is that of tokens[i]. bias [n, vocab], bf16 if `round`, else f32.
// grid (vocab / 8 rounded up, n / 4 rounded up): a warp for one row of the head and four tokens.
KERNEL(256) markov_bias(Tables t, const u32* tokens, u32 n, void* bias) {
  const u32 v = 8u * blockIdx.x + (threadIdx.x >> 5), first = DRAFT_TILE * blockIdx.y;
  if (v >= t.vocab) return;
  float2 h[RANK_PAIRS];
  load_row(t.head, t.head_format, v, t.rank, h);
  for (u32 i = first; i < min(first + DRAFT_TILE, n); i++) {
    float2 e[RANK_PAIRS];
    load_row(t.embed, t.embed_format, tokens[i], t.rank, e);
    const float value = dot_rows(h, e);
    if ((threadIdx.x & 31u) != 0) continue;
    const u64 at = (u64)i * t.vocab + v;
    if (t.round) {
      ((u16*)bias)[at] = bf16_of(value);
    } else {
      ((float*)bias)[at] = value;
    }
  }
}

// Exact logits of the row with the largest base logit of each 128: seeds f32 [n, blocks].
// best u32 [base rows, blocks] of exl3_finish_logits. grid (blocks / 8 rounded up, n): a warp for a block.
KERNEL(256) markov_seed(Tables t, const DraftHead* drafts, const u32* ids, const u32* best, u32 position,
                        float* seeds) {
  const DraftHead draft = drafts[blockIdx.y];
  const u32 blocks = t.vocab / 128u, block = 8u * blockIdx.x + (threadIdx.x >> 5);
  if (position >= draft.n_out || block >= blocks) return;
  const u32 row = draft.row0 + position, v = best[(u64)row * blocks + block];
  const u32 previous = previous_of(draft, ids, blockIdx.y, position, t.positions);
  if (slot_of(t, previous) != FULL) return;
  float2 e[RANK_PAIRS], h[RANK_PAIRS];
  load_row(t.embed, t.embed_format, previous, t.rank, e);
  load_row(t.head, t.head_format, v, t.rank, h);
  const float value = biased(t.base[(u64)row * t.vocab + v], dot_rows(h, e), t.round);
  if ((threadIdx.x & 31u) == 0) seeds[(u64)blockIdx.y * blocks + block] = value;
}

// Best two of 256 rows of the vocabulary for up to four drafts.
//   tops Top [n, gridDim.x]; rows_read u32 [n, gridDim.x]: rows multiplied, RESIDENT where the bias row was held
// grid (vocab / 256 rounded up, n / 4 rounded up)
KERNEL(256) markov_scan(Tables t, const DraftHead* drafts, const u32* ids, const float* seeds, u32 position, u32 n,
                        u32 prune, Top* tops, u32* rows_read) {
  __shared__ Top room[8];
  __shared__ float bounds[DRAFT_TILE];
  __shared__ u32 read[8][DRAFT_TILE];
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31u, draft0 = DRAFT_TILE * blockIdx.y;
  const u32 blocks = t.vocab / 128u, v = 256u * blockIdx.x + threadIdx.x;
  float2 e[DRAFT_TILE][RANK_PAIRS];
  float base[DRAFT_TILE];
  u32 wanted[DRAFT_TILE];
  bool held[DRAFT_TILE];
  Top top[DRAFT_TILE];
  u32 any = 0;
#pragma unroll
  for (u32 i = 0; i < DRAFT_TILE; i++) {
    const u32 index = draft0 + i;
    top[i] = no_top();
    wanted[i] = 0;
    held[i] = false;
    base[i] = 0.0f;
    // The same for every thread of the block.
    if (index >= n || position >= drafts[index].n_out) continue;
    const DraftHead draft = drafts[index];
    const u32 previous = previous_of(draft, ids, index, position, t.positions);
    const u32 slot = slot_of(t, previous);
    if (v < t.vocab) base[i] = t.base[(u64)(draft.row0 + position) * t.vocab + v];
    held[i] = slot != FULL;
    if (held[i]) {
      if (v < t.vocab) take(top[i], biased(base[i], held_bias(t, slot, v), t.round), v);
      continue;
    }
    Top seed = no_top();
    if (prune) {
      for (u32 b = threadIdx.x; b < blocks; b += 256u) take(seed, seeds[(u64)index * blocks + b], b);
    }
    seed = merge_block(seed, room);
    if (threadIdx.x == 0) bounds[i] = seed.second;
    __syncthreads();
    load_row(t.embed, t.embed_format, previous, t.rank, e[i]);
    bool candidate = false;
    if (v < t.vocab) {
      const float bound = biased(base[i], bias_bound(t.head_norm[v], t.embed_norm[previous]), t.round);
      candidate = !(bound < bounds[i]);
    }
    wanted[i] = __ballot_sync(FULL, candidate);
    any |= wanted[i];
  }
  while (any) {
    const u32 bit = __ffs(any) - 1u;
    any &= any - 1u;
    const u32 row = 256u * blockIdx.x + 32u * warp + bit;
    float2 h[RANK_PAIRS];
    load_row(t.head, t.head_format, row, t.rank, h);
#pragma unroll
    for (u32 i = 0; i < DRAFT_TILE; i++) {
      if ((wanted[i] >> bit) & 1u) {
        const float own = __shfl_sync(FULL, base[i], bit);
        take(top[i], biased(own, dot_rows(h, e[i]), t.round), row);
      }
    }
  }
#pragma unroll
  for (u32 i = 0; i < DRAFT_TILE; i++) {
    if (lane == 0) read[warp][i] = __popc(wanted[i]);
  }
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < DRAFT_TILE; i++) {
    const u32 index = draft0 + i;
    if (index >= n) continue;
    // Where rows were multiplied, all lanes of a warp hold the same best two, which must count once.
    const Top all = merge_block(held[i] || lane == 0 ? top[i] : no_top(), room);
    if (threadIdx.x == 0) {
      u32 total = held[i] ? RESIDENT : 0u;
      for (u32 w = 0; w < 8; w++) total += read[w][i];
      tops[(u64)index * gridDim.x + blockIdx.x] = all;
      rows_read[(u64)index * gridDim.x + blockIdx.x] = total;
    }
  }
}

// Chooses the position's token and its confidence.
//
//   hidden      bf16 [n * positions, width], before the final norm
//   weights     f32 [width + rank]: the hidden part, then the part of the previous token's embedding
//   confidence, margin f32 [n, positions]; sound u32 [n, positions]: whether all of it is finite
//   counts      u32 [n, positions]: rows of the vocabulary multiplied, RESIDENT where the bias row was held
//
// Positions at or beyond n_out get zeros and are sound. grid (n)
KERNEL(256) markov_pick(Tables t, const DraftHead* drafts, const Top* tops, const u32* rows_read, u32 chunks,
                        u32 position, const u16* hidden, u32 width, const float* weights, u32* ids, float* confidence,
                        float* margin, u32* sound, u32* counts) {
  __shared__ Top room[8];
  __shared__ float sums[8];
  __shared__ float more[8];
  const u32 index = blockIdx.x, at = index * t.positions + position;
  const DraftHead draft = drafts[index];
  if (position >= draft.n_out) {
    if (threadIdx.x == 0) {
      ids[at] = 0;
      confidence[at] = 0.0f;
      margin[at] = 0.0f;
      sound[at] = 1;
      counts[at] = 0;
    }
    return;
  }
  Top top = no_top();
  u32 count = 0;
  for (u32 c = threadIdx.x; c < chunks; c += 256u) {
    top = merge(top, tops[(u64)index * chunks + c]);
    count += rows_read[(u64)index * chunks + c] & ~RESIDENT;
  }
  top = merge_block(top, room);
  float sum = 0.0f;
  const u32* row = (const u32*)(hidden + (u64)at * width);
#pragma unroll 4
  for (u32 w = threadIdx.x; w < width / 2u; w += 256u) {
    const float2 h = bf16_pair(row[w]), c = ((const float2*)weights)[w];
    sum += h.x * c.x;
    sum += h.y * c.y;
  }
  float own = 0.0f;
  const u32 previous = previous_of(draft, ids, index, position, t.positions);
  for (u32 w = threadIdx.x; w < t.rank / 2u; w += 256u) {
    const float2 e = load_pair(t.embed, (u64)previous * (t.rank / 2u) + w, t.embed_format);
    own += e.x * weights[width + 2u * w];
    own += e.y * weights[width + 2u * w + 1u];
  }
  sum = block_sum(sum, sums);
  own = block_sum(own, more);
  // Counts are below 2^24, so their sum is exact in f32.
  __syncthreads();
  const float total = block_sum((float)count, sums);
  if (threadIdx.x == 0) {
    const float value = sigmoid(sum + own), gap = top.best - top.second + 0.0f;
    const bool good = !top.nan && is_finite(top.best) && is_finite(gap) && is_finite(value);
    ids[at] = good ? top.id : 0u;
    confidence[at] = good ? value : 0.0f;
    margin[at] = good ? gap : 0.0f;
    sound[at] = good ? 1u : 0u;
    counts[at] = (u32)total | (rows_read[(u64)index * chunks] & RESIDENT);
  }
}
