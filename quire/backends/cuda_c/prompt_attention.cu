// Attention of prompts on Hopper: softmax(q k^T) v over keys and values in blocks of a cache.
//
// Every thread block stays on its core and computes one tile after the other: TOKENS neighbouring
// tokens of one sequence with all GROUP query heads of one KV head, 128 rows in all. A block takes
// the next tile when it is done; the result of a tile does not depend on the block.
//
// Four warps load (the queries of the next tile, keys, values, block by block, straight into
// swizzled shared memory); two groups of four warps compute 64 rows each. A group starts the
// product of queries with the next keys and that of weights with the last values together, and
// computes the exponents of the next scores while the second product runs. The two groups
// alternate, so that one multiplies while the other computes exponents. There is no pause between
// tiles: the first scores of a tile are computed beside the last product of the previous one.
//
// Compiled with: WIDTH (head_dim: 64 or 128), GROUP, KV_HEADS, SLOTS (of a block), STAGES (of keys
// or values that are held), HALF (1: float16, 0: bfloat16), WINDOW (1: queries see only the last
// `window` tokens), SINKS (1: each head has one more key, with value 0 and the head's sink as
// score).

#include "hopper.cuh"

constexpr int ROWS = 128;                // of a tile
constexpr int TOKENS = ROWS / GROUP;     // of a tile
constexpr int KEYS = 128;                // at a time
constexpr int PANELS = WIDTH / 64;       // of 128 bytes a row: what a swizzle spans
constexpr int PANEL_BYTES = 128 * 128;   // of 128 rows
constexpr int STAGE_BYTES = PANELS * PANEL_BYTES;
constexpr int BLOCKS = KEYS / SLOTS;     // of a stage
constexpr int COPIES = BLOCKS * PANELS;  // that fill a stage
constexpr int LOADERS = 4, WARPS = 8;    // warps that load, and that multiply
constexpr int CONTROL_BYTES = 1024;      // barriers and what tiles are, in front
constexpr float NO_SCORE = -1e30f;       // below every score, and finite: differences are numbers

// Tokens from `first`, of a sequence that has tokens up to `end` and a context of so many. `owner` is
// the sequence in the list, and the KV head (-1: no more tiles) in what the loading warps tell.
struct Tile { int first, end, context, owner; };

__device__ __forceinline__ void turn_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void turn_give(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void load_heads(u32 to, const Map *map, int column, int head, int token,
                                           u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(column), "r"(head), "r"(token),
      "r"(barrier)
      : "memory");
}

// Products of a group.

#define F4(a, i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3])
#define F16(a, i) F4(a, i), F4(a, i + 4), F4(a, i + 8), F4(a, i + 12)
#define F32(a) F16(a, 0), F16(a, 16)
#define F64(a) F16(a, 0), F16(a, 16), F16(a, 32), F16(a, 48)
#define R32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define R64 \
  R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
      "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// x [64, 128 or 64] (+)= a [64, 16], in registers, times b [16, ..] or, not TURNED, b [.., 16]^T
template <int TURNED>
__device__ __forceinline__ void multiply(float (&x)[64], const u32 *a, u64 b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16." TYPES " {" R64
               "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}"
               : F64(x)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}

template <int TURNED>
__device__ __forceinline__ void multiply(float (&x)[32], const u32 *a, u64 b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16." TYPES " {" R32
               "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
               : F32(x)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}

// The descriptor of a matrix in shared memory, `offset` bytes after an address: 128-byte swizzle,
// 1,024 bytes from 8 rows to the next, and a panel's size from one panel to the next.
__device__ __forceinline__ u64 place(u32 address, int offset) {
  u32 low = (address >> 4 | (PANEL_BYTES >> 4) << 16) + (offset >> 4);
  return (u64)low | (u64)(1024 >> 4 | 1 << 30) << 32;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The layout of shared memory.
struct Shared {
  u32 base;
  __device__ __forceinline__ u32 full(int stage) const { return base + 8 * stage; }
  __device__ __forceinline__ u32 empty(int stage) const { return base + 8 * (STAGES + stage); }
  __device__ __forceinline__ u32 q_full() const { return base + 8 * (2 * STAGES); }
  __device__ __forceinline__ u32 q_empty() const { return base + 8 * (2 * STAGES + 1); }
  __device__ __forceinline__ u32 q() const { return base + CONTROL_BYTES; }
  __device__ __forceinline__ u32 stage(int i) const { return q() + (1 + i) * STAGE_BYTES; }
};

struct Span {  // of key tiles that a tile's queries see, and its first token's position
  int lowest, begin, last;
  __device__ __forceinline__ Span(const Tile &tile, int window) {
    lowest = tile.context - tile.end + tile.first;
    last = (min(lowest + TOKENS, tile.context) - 1) / KEYS;
    begin = WINDOW ? max(lowest - window + 1, 0) / KEYS : 0;
  }
};

// The loading warps. A copy is of one block and one panel; each warp has every fourth one, since
// copies of a warp's lanes are started one after the other.

__device__ __forceinline__ void load_stage(Shared shared, Ring<STAGES> &ring, const Map *map,
                                           int row, int copy) {
  int block = copy % BLOCKS, panel = copy / BLOCKS, warp = copy % LOADERS;
  barrier_wait(shared.empty(ring.at), ring.turn ^ 1);
  u32 full = shared.full(ring.at);
  if (copy < LOADERS)  // the first lane of each warp
    barrier_expect(full, (COPIES - warp + LOADERS - 1) / LOADERS * SLOTS * 128);
  if (copy < COPIES)
    load_rows(shared.stage(ring.at) + panel * PANEL_BYTES + block * SLOTS * 128, map, panel * 64,
              row, full);
  __syncwarp();
  ring.next();
}

__device__ void load_tiles(Shared shared, Tile *told, int *numbers, const Map *q, const Map *k,
                           const Map *v, const Tile *tiles, const int *num_tiles,
                           const int *tables, int table_stride, int window, int *counter,
                           int thread) {
  Ring<STAGES> ring;
  u32 q_turn = 0;
  int copy = (thread & 31) * LOADERS + thread / 32, block = copy % BLOCKS;
  int per_head = *num_tiles, number = blockIdx.x, values_row = -1;
  while (number < per_head * KV_HEADS) {
    int coming = 0;
    if (thread == 0) coming = atomicAdd(counter, 1) + gridDim.x;
    int head = number / per_head;
    Tile tile = tiles[number - head * per_head];
    Span span(tile, window);
    const int *table = tables + (long long)tile.owner * table_stride;
    int most = (tile.context - 1) / SLOTS;
    // Before a window a table may have -1. Whatever is read there is masked, but a row below 0
    // would mean "no values yet", and the multiplying warps would wait for them forever.
    int entry = max(table[min(span.last * BLOCKS + block, most)], 0);
    if (thread == 0) {
      barrier_wait(shared.q_empty(), q_turn ^ 1);
      *told = Tile{tile.first, tile.end, tile.context, head};
      barrier_expect(shared.q_full(), PANELS * TOKENS * GROUP * 128);
      for (int panel = 0; panel < PANELS; panel++)
        load_heads(shared.q() + panel * PANEL_BYTES, q, panel * 64, head * GROUP, tile.first,
                   shared.q_full());
    }
    __syncwarp();
    for (int at = span.last; at >= span.begin; at--) {
      int row = (entry * KV_HEADS + head) * SLOTS;
      if (at > span.begin) entry = max(table[min((at - 1) * BLOCKS + block, most)], 0);
      load_stage(shared, ring, k, row, copy);
      if (values_row >= 0) load_stage(shared, ring, v, values_row, copy);
      values_row = row;
    }
    // Two places in turn: a place is read before it is written again.
    if (thread == 0) numbers[q_turn] = coming;
    turn_wait(5, 32 * LOADERS);
    number = numbers[q_turn];
    q_turn ^= 1;
  }
  if (values_row >= 0) load_stage(shared, ring, v, values_row, copy);
  if (thread == 0) {
    barrier_wait(shared.q_empty(), q_turn ^ 1);
    *told = Tile{0, 0, 0, -1};
    barrier_arrive(shared.q_full());
    // The last block resets the counters for the next launch.
    if (atomicAdd(counter + 1, 1) == gridDim.x - 1) counter[0] = 0, counter[1] = 0;
  }
}

// The multiplying warps. A thread has two rows: `row` and row + 8.

struct Softmax {
  float top[2], sum[2];

  __device__ __forceinline__ void reset() { top[0] = top[1] = NO_SCORE, sum[0] = sum[1] = 0.f; }

  // Turn scores into weights; `shrink`: the factor of earlier sums.
  __device__ __forceinline__ void weigh(float (&s)[64], float scale, float (&shrink)[2]) {
    float high[2] = {top[0], top[1]}, other[2] = {s[1], s[3]};
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
      high[(i >> 1) & 1] = fmaxf(high[(i >> 1) & 1], s[i]);
      other[(i >> 1) & 1] = fmaxf(other[(i >> 1) & 1], s[i + 1]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      high[r] = fmaxf(high[r], other[r]);
      high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffff, high[r], 1));
      high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffff, high[r], 2));
      shrink[r] = exp2_fast((top[r] - high[r]) * scale);
      top[r] = high[r];
      sum[r] *= shrink[r];
    }
    float below[2] = {high[0] * scale, high[1] * scale};
#pragma unroll
    for (int i = 0; i < 64; i++) {
      s[i] = exp2_fast(fmaf(s[i], scale, -below[(i >> 1) & 1]));
      sum[(i >> 1) & 1] += s[i];
    }
  }

  // Of a weight, where a sink has one, too.
  __device__ __forceinline__ float share(int r, float scale, const float *sink) const {
    float all = sum[r];
    all += __shfl_xor_sync(0xffffffff, all, 1);
    all += __shfl_xor_sync(0xffffffff, all, 2);
    if (SINKS) all += exp2_fast(*sink * 1.44269504f - top[r] * scale);
    return __fdividef(1.f, all);
  }
};

// Hide keys that a row does not see: position - window < key <= position.
__device__ __forceinline__ void hide(float (&s)[64], int first_key, int lowest, int row, int column,
                                     int window) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int position = lowest + (row + 8 * r) / GROUP - first_key - column;
#pragma unroll
    for (int i = 0; i < 64; i++) {
      if (((i >> 1) & 1) != r) continue;
      int key = (i >> 2) * 8 + (i & 1);
      bool seen = key <= position && (!WINDOW || key > position - window);
      if (!seen) s[i] = __int_as_float(0xff800000);  // minus infinity
    }
  }
}

__device__ __forceinline__ void weights_of(u32 (&p)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; i++) p[i] = rounded(s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ void swap(u32 &low, u32 &high, int distance, bool upper) {
  u32 given = __shfl_xor_sync(0xffffffff, upper ? low : high, distance);
  if (upper) low = given;
  else high = given;
}

// Of four threads, each has two columns of every eight: they change places so that each writes
// eight columns of every 32.
__device__ __forceinline__ void write_out(const float (&o)[WIDTH / 2], const Softmax &softmax,
                                          const Tile &tile, int row, int lane, float scale,
                                          const float *sinks, char *out) {
  bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int mine = row + 8 * r, token = tile.first + mine / GROUP;
    int head = tile.owner * GROUP + mine % GROUP;
    float share = softmax.share(r, scale, sinks + head);
    bool wanted = token < tile.end && mine < TOKENS * GROUP;
    char *to = out + ((long long)token * (KV_HEADS * GROUP) + head) * (WIDTH * 2) + (lane & 3) * 16;
#pragma unroll
    for (int j = 0; j < WIDTH / 32; j++) {
      u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int at = (4 * j + i) * 4 + 2 * r;
        x[i] = rounded(o[at] * share, o[at + 1] * share);
      }
      swap(x[0], x[1], 1, odd);
      swap(x[2], x[3], 1, odd);
      swap(x[0], x[2], 2, high);
      swap(x[1], x[3], 2, high);
      if (wanted) *reinterpret_cast<uint4 *>(to + j * 64) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
}

// Values after the context were not written, and blocks before a window may belong to other rows:
// they may be NaN, and 0 times NaN is NaN.
__device__ __forceinline__ void clear_others(u32 stage, const Tile &tile, const Span &span, int at,
                                             int window, int thread, int group) {
  int first = WINDOW ? span.lowest - window + 1 - at * KEYS : 0, end = tile.context - at * KEYS;
  if (first <= 0 && end >= KEYS) return;
  for (int row = thread / 8; row < KEYS; row += 16)
    if (row < first || row >= end)
      for (int panel = 0; panel < PANELS; panel++) {
        u32 to = stage + panel * PANEL_BYTES + row * 128 + thread % 8 * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
      }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  turn_wait(3 + group, 128);
}

// The queries of a warp's 16 rows, as products take them.
__device__ __forceinline__ void fetch_queries(u32 (&q)[WIDTH / 4], u32 rows, int lane) {
  int row = lane & 15;
#pragma unroll
  for (int i = 0; i < WIDTH / 16; i++) {
    int chunk = i % 4 * 2 + (lane >> 4);
    u32 from = rows + i / 4 * PANEL_BYTES + row * 128 + (chunk ^ row & 7) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q[4 * i]), "=r"(q[4 * i + 1]), "=r"(q[4 * i + 2]), "=r"(q[4 * i + 3])
                 : "r"(from) : "memory");
  }
}

__device__ __forceinline__ void start_keys(float (&s)[64], const u32 (&q)[WIDTH / 4], u32 k) {
#pragma unroll
  for (int i = 0; i < WIDTH / 16; i++)
    multiply<0>(s, q + 4 * i, place(k, i / 4 * PANEL_BYTES + i % 4 * 32), i > 0);
  products_end();
}

__device__ __forceinline__ void start_values(float (&o)[WIDTH / 2], const u32 (&p)[32], u32 v,
                                             bool add) {
#pragma unroll
  for (int i = 0; i < KEYS / 16; i++)
    multiply<1>(o, p + 4 * i, place(v, i * 16 * 128), i > 0 || add);
  products_end();
}

__device__ __forceinline__ void attend_tiles(Shared shared, const Tile *told, char *out,
                                             const float *sinks, float scale, int window,
                                             int group, int thread) {
  int lane = thread & 31, row = group * 64 + (thread >> 5) * 16 + lane / 4;
  int column = (lane & 3) * 2;
  u32 q_rows = shared.q() + (group * 64 + (thread >> 5) * 16) * 128;
  bool speaks = lane == 0;  // for its warp
  Ring<STAGES> ring;
  u32 q_turn = 0;
  float s[64], o[WIDTH / 2];
  u32 p[32], q[WIDTH / 4];
  Softmax softmax;
  float shrink[2];

  if (group == 1) turn_give(1, 256);  // group 0 begins
  barrier_wait(shared.q_full(), 0);
  Tile tile = *told;
  if (tile.owner < 0) return;
  fetch_queries(q, q_rows, lane);
  if (speaks) barrier_arrive(shared.q_empty());
  Span span(tile, window);
  int at = span.last;

  softmax.reset();
  barrier_wait(shared.full(0), 0);
  products_begin();
  start_keys(s, q, shared.stage(0));
  products_wait<0>();
  keep(s);
  if (speaks) barrier_arrive(shared.empty(0));
  ring.next();
  hide(s, at * KEYS, span.lowest, row, column, window);
  softmax.weigh(s, scale, shrink);
  weights_of(p, s);

  bool add = false;  // to what values of this tile have made so far
  for (;;) {
    bool ends = at == span.begin;  // the tile, with these values
    Tile next = tile;
    Span next_span = span;
    int next_at = at - 1;
    if (ends) {
      q_turn ^= 1;
      barrier_wait(shared.q_full(), q_turn);
      next = *told;
      if (next.owner < 0) break;
      fetch_queries(q, q_rows, lane);
      if (speaks) barrier_arrive(shared.q_empty());
      next_span = Span(next, window);
      next_at = next_span.last;
    }
    int k_stage = ring.at;
    barrier_wait(shared.full(k_stage), ring.turn);
    ring.next();
    int v_stage = ring.at;
    u32 v_turn = ring.turn;
    ring.next();

    turn_wait(1 + group, 256);
    products_begin();
    start_keys(s, q, shared.stage(k_stage));
    barrier_wait(shared.full(v_stage), v_turn);
    clear_others(shared.stage(v_stage), tile, span, at, window, thread, group);
    products_begin();
    start_values(o, p, shared.stage(v_stage), add);
    turn_give(2 - group, 256);

    products_wait<1>();
    keep(s);
    if (speaks) barrier_arrive(shared.empty(k_stage));
    int first_key = next_at * KEYS;
    if (first_key + KEYS > next_span.lowest + 1 ||
        (WINDOW && first_key <= next_span.lowest + TOKENS - 1 - window))
      hide(s, first_key, next_span.lowest, row, column, window);
    Softmax before = softmax;
    if (ends) softmax.reset();
    softmax.weigh(s, scale, shrink);
    keep(s);
    // Never true. The compiler moves the wait up as far as possible, which is to here.
    if (softmax.sum[0] + softmax.sum[1] < 0.f) __trap();
    products_wait<0>();
    keep(o);
    if (speaks) barrier_arrive(shared.empty(v_stage));
    if (ends) {
      write_out(o, before, tile, row, lane, scale, sinks, out);
    } else {
#pragma unroll
      for (int i = 0; i < WIDTH / 2; i++) o[i] *= shrink[(i >> 1) & 1];
    }
    add = !ends;
    weights_of(p, s);
    tile = next, span = next_span, at = next_at;
  }

  barrier_wait(shared.full(ring.at), ring.turn);
  clear_others(shared.stage(ring.at), tile, span, at, window, thread, group);
  products_begin();
  start_values(o, p, shared.stage(ring.at), add);
  products_wait<0>();
  keep(o);
  write_out(o, softmax, tile, row, lane, scale, sinks, out);
}

// tiles: those with the most keys first. counter: two zeros, which are zeros again at the end.
extern "C" __global__ void __launch_bounds__(384, 1)
    attend_prompts(const __grid_constant__ Map q, const __grid_constant__ Map k,
                   const __grid_constant__ Map v, char *out, const float *sinks, const Tile *tiles,
                   const int *num_tiles, const int *tables, int *counter, int table_stride,
                   int window, float scale) {
  extern __shared__ __align__(1024) char memory[];
  Shared shared{shared_address(memory)};
  Tile *told = reinterpret_cast<Tile *>(memory + CONTROL_BYTES / 2);
  int *numbers = reinterpret_cast<int *>(told + 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(shared.full(i), LOADERS);
      barrier_init(shared.empty(i), WARPS);
    }
    barrier_init(shared.q_full(), 1);
    barrier_init(shared.q_empty(), WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // one number for the compiler, too
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    load_tiles(shared, told, numbers, &q, &k, &v, tiles, num_tiles, tables, table_stride, window,
               counter, threadIdx.x);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    attend_tiles(shared, told, out, sinks, scale, window, group - 1, threadIdx.x & 127);
  }
}
