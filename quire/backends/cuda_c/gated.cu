// Products of gate and up for many rows, with plain weights of 16 bits, and what follows them:
// activation(gate) * up of x[rows, columns] weight^T + bias, where the first half of the weight's lines
// makes the gates.
//
// Every block stays on its core and computes one tile after the other: 128 rows by LINES lines, half
// of them gates. One thread copies boxes of x and of the weight, 64 columns at a time, into a ring of
// STAGES; two groups of four warps multiply 64 rows each and leave their sums, rounded, in shared
// memory; and three warps finish them while the next tile is multiplied. The two blocks of a cluster
// compute the same lines of different rows: one copies the gates' lines into both, one the others.
//
// Compiled with STAGES, HALF, and as products.cuh.

#include "products.cuh"

constexpr int GROUPS = 2, ROWS = 64 * GROUPS, PAIR = 2;  // blocks of a cluster
constexpr int MULTIPLYING = 128 * GROUPS, THREADS = MULTIPLYING + 128;
constexpr int FINISHING = 96;                   // threads
constexpr int X_BYTES = ROWS * 128, WEIGHT_BYTES = LINES * 128;
constexpr int STAGE_BYTES = X_BYTES + WEIGHT_BYTES;
constexpr int LEFT_BYTES = LINES * 2 + 16;      // of a row's sums: rows begin at different banks
constexpr int MADE = LINES / 2;                 // lines of the result to a tile
constexpr int CHUNKS = LINES / 8, MADE_CHUNKS = MADE / 8;  // 16 bytes of a row
constexpr int BAND = 8;                         // so many pairs of rows' tiles take turns

struct Shared {  // its layout
  u32 base;
  __device__ __forceinline__ u32 full(int stage) const { return base + 8 * stage; }
  __device__ __forceinline__ u32 empty(int stage) const { return base + 8 * (STAGES + stage); }
  __device__ __forceinline__ u32 left() const { return base + 8 * (2 * STAGES); }
  __device__ __forceinline__ u32 taken() const { return base + 8 * (2 * STAGES + 1); }
  __device__ __forceinline__ u32 x(int stage) const {
    return base + CONTROL_BYTES + stage * STAGE_BYTES;
  }
  __device__ __forceinline__ u32 weight(int stage) const { return x(stage) + X_BYTES; }
  __device__ __forceinline__ u32 chunk(int row, int chunk) const {
    return x(STAGES) + row * LEFT_BYTES + chunk * 16;
  }
};
static_assert(8 * (2 * STAGES + 2) <= CONTROL_BYTES, "");

struct Given {
  const u16* bias;
  u16* out;
  int num_rows, outer, columns;  // outer: lines of the result
};

// The tiles of a block, at least one, one after the other. Those that are computed at the same time
// share rows and lines, so that these are in the second-level cache.
struct Tiles {
  int pairs, across, at;
  int first_row, first_line;

  __device__ __forceinline__ explicit Tiles(const Given& given) {
    pairs = (given.num_rows + ROWS * PAIR - 1) / (ROWS * PAIR);
    across = (given.outer + MADE - 1) / MADE, at = blockIdx.x / PAIR;
    find();
  }
  __device__ __forceinline__ bool any() const { return at < pairs * across; }
  __device__ __forceinline__ bool is_last() const {
    return at + gridDim.x / PAIR >= pairs * across;
  }
  __device__ __forceinline__ void next() { at += gridDim.x / PAIR, find(); }
  __device__ __forceinline__ void find() {
    int band = at / (BAND * across), within = at - band * BAND * across;
    int high = max(1, min(BAND, pairs - band * BAND));
    first_row = ((band * BAND + within % high) * PAIR + blockIdx.x % PAIR) * ROWS;
    first_line = within / high * MADE;
  }
};

// The loading thread. Weights may be read before the kernel ahead has ended; x may not.

__device__ __forceinline__ void load_rows_into_both(u32 to, const Map* map, int column, int row,
                                                    u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(column),
      "r"(row), "r"(barrier), "h"((u16)3)
      : "memory");
}

__device__ __forceinline__ void load_weight(Shared shared, const Map* weight, const Tiles& tiles,
                                            const Given& given, int column, int stage) {
  int half = blockIdx.x % PAIR;
  int line = tiles.first_line + half * given.outer;
  barrier_expect(shared.full(stage), STAGE_BYTES);
  load_rows_into_both(shared.weight(stage) + half * WEIGHT_BYTES / 2, weight, column, line,
                      shared.full(stage));
}

__device__ void load_tiles(Shared shared, const Map* x, const Map* weight, Tiles tiles,
                           const Given& given) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(x) : "memory");
  Ring<STAGES> ring;
  int ahead = min(STAGES, (given.columns + DEPTH - 1) / DEPTH);  // steps whose weights are loaded
  for (int i = 0; i < ahead; i++) load_weight(shared, weight, tiles, given, i * DEPTH, i);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (; tiles.any(); tiles.next()) {
    for (int column = 0; column < given.columns; column += DEPTH) {
      if (ahead > 0) {
        ahead--;
      } else {
        barrier_wait(shared.empty(ring.at), ring.turn ^ 1);
        load_weight(shared, weight, tiles, given, column, ring.at);
      }
      load_rows(shared.x(ring.at), x, column, tiles.first_row, shared.full(ring.at));
      ring.next();
    }
  }
}

// The groups that multiply.

// Both blocks copy into a stage, so both are told that it has been read.
__device__ __forceinline__ void release(Shared shared, int stage) {
  int lane = threadIdx.x % 32;
  if (lane < PAIR)
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                     address_in(lane, shared.empty(stage)))
                 : "memory");
}

__device__ __forceinline__ void store_eights(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// A thread has two neighbouring sums of every eight lines in one row, and two in the row eight
// further.
__device__ __forceinline__ void leave(Shared shared, float (&sums)[LINES / 2], const Given& given,
                                      int first_line, int group) {
  int lane = threadIdx.x % 32, row = group * 64 + threadIdx.x / 32 % 4 * 16;
  if (given.bias) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      int line = first_line + i % MADE_CHUNKS * 8 + lane % 4 * 2;
      if (line >= given.outer) continue;
      Pair more = Pair::of(pair_at(given.bias + line + (i < MADE_CHUNKS ? 0 : given.outer)));
      sums[4 * i] += more.x, sums[4 * i + 1] += more.y;
      sums[4 * i + 2] += more.x, sums[4 * i + 3] += more.y;
    }
  }
#pragma unroll
  for (int i = 0; i < CHUNKS; i += 2) {
    const float* s = sums + 4 * i;
    store_eights(shared.chunk(row + lane % 16, i + lane / 16), rounded(s[0], s[1]),
                 rounded(s[2], s[3]), rounded(s[4], s[5]), rounded(s[6], s[7]));
  }
}

// The warps that finish.

struct Eight {  // neighbouring numbers
  u32 pairs[4];

  static __device__ __forceinline__ Eight in_shared(u32 from) {
    Eight v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
                 : "r"(from));
    return v;
  }
  __device__ __forceinline__ void write(u16* to) const {
    *reinterpret_cast<uint4*>(to) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};

// By a number of threads, of which this is one.
__device__ __forceinline__ void finish_tile(Shared shared, const Tiles& tiles, const Given& given,
                                            int thread, int threads) {
  int rows = min(ROWS, given.num_rows - tiles.first_row);
#pragma unroll 4
  for (int i = thread; i < ROWS * MADE_CHUNKS; i += threads) {
    int row = i / MADE_CHUNKS, chunk = i % MADE_CHUNKS, line = tiles.first_line + chunk * 8;
    if (row >= rows || line >= given.outer) continue;
    Eight made = Eight::in_shared(shared.chunk(row, chunk));
    Eight up = Eight::in_shared(shared.chunk(row, chunk + MADE_CHUNKS));
#pragma unroll
    for (int k = 0; k < 4; k++)
      made.pairs[k] = opened(Pair::of(made.pairs[k]), Pair::of(up.pairs[k])).packed();
    made.write(given.out + (long long)(tiles.first_row + row) * given.outer + line);
  }
}

__device__ void finish_tiles(Shared shared, Tiles tiles, const Given& given, int thread) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  bool speaks = thread % 32 == 0;  // for its warp
  u32 turn = 0;
  for (; tiles.any(); tiles.next()) {
    barrier_wait(shared.left(), turn);
    // Of the last tile, by all that have nothing else to do.
    finish_tile(shared, tiles, given, thread, tiles.is_last() ? THREADS - 32 : FINISHING);
    __syncwarp();
    if (speaks) barrier_arrive(shared.taken());
    turn ^= 1;
  }
}

__device__ void multiply_tiles(Shared shared, Tiles tiles, const Given& given, int group) {
  Ring<STAGES> ring;
  u32 turn = 0;
  int steps = (given.columns + DEPTH - 1) / DEPTH;
  float sums[LINES / 2];
  for (;; tiles.next()) {
    int last = 0;
    for (int i = 0; i < steps; i++) {
      barrier_wait(shared.full(ring.at), ring.turn);
      u64 a = place(shared.x(ring.at) + group * 64 * 128), b = place(shared.weight(ring.at));
      products_begin();
#pragma unroll
      for (int k = 0; k < DEPTH / 16; k++) multiply16(sums, a + k * 2, b + k * 2, i + k > 0);
      products_end();
      products_wait<1>();
      if (i > 0) release(shared, last);
      last = ring.at;
      ring.next();
    }
    products_wait<0>();
    keep(sums);
    release(shared, last);
    barrier_wait(shared.taken(), turn ^ 1);
    leave(shared, sums, given, tiles.first_line, group);
    barrier_arrive(shared.left());
    if (tiles.is_last()) break;
    turn ^= 1;
  }
  barrier_wait(shared.left(), turn);
  finish_tile(shared, tiles, given, FINISHING + threadIdx.x, THREADS - 32);
}

// The blocks of a cluster begin and end together: each writes into the other one.
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    multiply(const __grid_constant__ Map x, const __grid_constant__ Map weight,
             const __grid_constant__ Given given) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(shared.full(i), 1);
      barrier_init(shared.empty(i), MULTIPLYING / 32 * PAIR);
    }
    barrier_init(shared.left(), MULTIPLYING);
    barrier_init(shared.taken(), FINISHING / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  meet();
  asm volatile("griddepcontrol.launch_dependents;");
  Tiles tiles(given);
  int group = __shfl_sync(~0u, threadIdx.x / 128, 0);  // one number for the compiler, too
  int thread = threadIdx.x - MULTIPLYING;
  if (group < GROUPS)
    multiply_tiles(shared, tiles, given, group);
  else if (thread < FINISHING)
    finish_tiles(shared, tiles, given, thread);
  else if (thread == FINISHING)
    load_tiles(shared, &x, &weight, tiles, given);
  __syncwarp();
  meet();
}
