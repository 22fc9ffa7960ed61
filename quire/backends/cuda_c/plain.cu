// Products with plain weights of 16 bits: out[rows, lines] = x[rows, columns] weight^T + bias, for so
// few rows that reading the weights takes most of the time.
//
// A block computes LINES lines for 64 * GROUPS rows. One thread copies boxes of x and of the weight,
// 64 columns at a time, into a ring of STAGES; GROUPS of four warps multiply 64 rows each. The blocks
// of a cluster share the columns, and each finishes some of the lines: a thread sends the others
// their sums, and adds to its own what theirs sent, always in the same order.
//
// Compiled with GROUPS, LINES, STAGES, SPLITS (blocks that share the columns), HALF, and for steps of
// few rows (defined in triton/small_batch.py) NORMED, GATED (silu of the first half of the lines
// times the second half) and ADDS; and as products.cuh.

#include "products.cuh"

constexpr int ROWS = 64 * GROUPS;
constexpr int MULTIPLYING = 128 * GROUPS, THREADS = MULTIPLYING + 32;
constexpr int X_BYTES = ROWS * 128, WEIGHT_BYTES = LINES * 128;
constexpr int STAGE_BYTES = X_BYTES + WEIGHT_BYTES;
constexpr int MADE = GATED ? LINES / 2 : LINES; // lines of the result to a tile
constexpr int EIGHTS = MADE / 8, OWN = EIGHTS / SPLITS;  // eight lines of a tile, and of a block
constexpr int KINDS = GATED ? 2 : 1;            // of sums that make a number of the result
constexpr int SLOT_BYTES = MULTIPLYING * 16;    // of sums that each thread sends to another block

struct Shared {  // its layout
  u32 base;
  __device__ __forceinline__ u32 full(int stage) const { return base + 8 * stage; }
  __device__ __forceinline__ u32 empty(int stage) const { return base + 8 * (STAGES + stage); }
  __device__ __forceinline__ u32 all_sent() const { return base + 8 * (2 * STAGES); }
  __device__ __forceinline__ u32 x(int stage) const {
    return base + CONTROL_BYTES + stage * STAGE_BYTES;
  }
  __device__ __forceinline__ u32 weight(int stage) const { return x(stage) + X_BYTES; }
  // What the other blocks of the cluster send: sums of a kind, of eight lines, from one of them.
  __device__ __forceinline__ u32 sent(int from, int eight, int kind) const {
    return x(STAGES) + ((from * OWN + eight) * KINDS + kind) * SLOT_BYTES + threadIdx.x * 16;
  }
};

struct Tile {
  int split, first_line, first_row, x_rows;  // so many rows are copied
  int first_step, count;  // of DEPTH columns

  __device__ __forceinline__ Tile(int columns, int x_rows_) {
    int steps = (columns + DEPTH - 1) / DEPTH;
    split = blockIdx.x % SPLITS, first_line = blockIdx.x / SPLITS * MADE;
    first_row = blockIdx.y * ROWS, x_rows = x_rows_;
    first_step = steps * split / SPLITS, count = steps * (split + 1) / SPLITS - first_step;
  }
};

// Before a block writes into another one, that must have begun.
__device__ __forceinline__ void cluster_arrive() {
  if (SPLITS > 1) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  if (SPLITS > 1) asm volatile("barrier.cluster.wait;" ::: "memory");
}

// The loading thread. Weights may be read before the kernel ahead has ended; x may not.

__device__ __forceinline__ void load_weight(Shared shared, const Map* weight, const Tile& tile,
                                            int outer, int step, int stage) {
  int column = (tile.first_step + step) * DEPTH;
  barrier_expect(shared.full(stage), WEIGHT_BYTES + tile.x_rows * 128);
  load_rows(shared.weight(stage), weight, column, tile.first_line, shared.full(stage));
  if (GATED)
    load_rows(shared.weight(stage) + WEIGHT_BYTES / 2, weight, column, outer + tile.first_line,
              shared.full(stage));
}

__device__ __forceinline__ void load_x(Shared shared, const Map* x, const Tile& tile, int step,
                                       int stage) {
  load_rows(shared.x(stage), x, (tile.first_step + step) * DEPTH, tile.first_row,
            shared.full(stage));
}

__device__ void load_tile(Shared shared, const Map* x, const Map* weight, const Tile& tile,
                          int outer) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(x) : "memory");
  for (int i = 0; i < STAGES && i < tile.count; i++) load_weight(shared, weight, tile, outer, i, i);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (int i = 0; i < STAGES && i < tile.count; i++) load_x(shared, x, tile, i, i);
  Ring<STAGES> ring;
  for (int i = STAGES; i < tile.count; i++) {
    barrier_wait(shared.empty(ring.at), ring.turn);
    load_weight(shared, weight, tile, outer, i, ring.at);
    load_x(shared, x, tile, i, ring.at);
    ring.next();
  }
}

// The norm's factors of a thread's two rows, 1 / sqrt(mean of squares + eps), from partial sums of
// squares: a warp reads those of its 16 rows at once, four lots of four rows, with eight lanes for
// each row.
__device__ __forceinline__ void find_factors(float (&factors)[2], const float* squares,
                                             int num_squares, int columns, float eps,
                                             int rows_left) {
  int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 8;
  float sums[4] = {};
  for (int i = lane % 8; i - lane % 8 < num_squares; i += 32) {
#pragma unroll
    for (int lot = 0; lot < 4; lot++)
#pragma unroll
      for (int j = 0; j < 32; j += 8) {
        int row = first + lot * 4;
        if (row < rows_left && i + j < num_squares)
          sums[lot] += squares[row * num_squares + i + j];
      }
  }
#pragma unroll
  for (int apart = 4; apart; apart /= 2)
#pragma unroll
    for (int lot = 0; lot < 4; lot++) sums[lot] += __shfl_xor_sync(~0u, sums[lot], apart);
  int from = lane / 4 % 4 * 8;  // the lanes that have the sums of row lane / 4, and of that + 8
#pragma unroll
  for (int lot = 0; lot < 4; lot++) sums[lot] = __shfl_sync(~0u, sums[lot], from);
#pragma unroll
  for (int half = 0; half < 2; half++)
    factors[half] = rsqrtf((lane < 16 ? sums[2 * half] : sums[2 * half + 1]) / columns + eps);
}

// The products of a group: 64 rows of the tile by all its lines.
__device__ __forceinline__ void multiply_tile(Shared shared, float (&sums)[LINES / 2],
                                              const Tile& tile, int group) {
  bool speaks = threadIdx.x % 32 == 0;  // for its warp
  Ring<STAGES> ring;
  int last = 0;
  for (int i = 0; i < tile.count; i++) {
    barrier_wait(shared.full(ring.at), ring.turn);
    u64 a = place(shared.x(ring.at) + group * 64 * 128), b = place(shared.weight(ring.at));
    products_begin();
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) multiply16(sums, a + k * 2, b + k * 2, i + k > 0);
    products_end();
    products_wait<1>();
    if (speaks && i > 0) barrier_arrive(shared.empty(last));
    last = ring.at;
    ring.next();
  }
  products_wait<0>();
}

// Give each block the sums that it finishes, keep one's own, and add the others' to them. A thread
// has two neighbouring sums of every eight lines in one row, and two in the row eight further.
__device__ __forceinline__ void exchange(Shared shared, const float (&sums)[LINES / 2],
                                         const Tile& tile, float4 (&own)[KINDS][OWN]) {
  cluster_wait();
#pragma unroll
  for (int to = 0; to < SPLITS; to++)
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
      for (int kind = 0; kind < KINDS; kind++) {
        const float* at = sums + (kind * EIGHTS + to * OWN + i) * 4;
        float4 made = {at[0], at[1], at[2], at[3]};
        if (to == tile.split) {
          own[kind][i] = made;
          continue;
        }
        u32 there = shared.sent(tile.split < to ? tile.split : tile.split - 1, i, kind);
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
            " [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address_in(to, there)), "f"(made.x),
            "f"(made.y), "f"(made.z), "f"(made.w), "r"(address_in(to, shared.all_sent()))
            : "memory");
      }
  if (SPLITS > 1) barrier_wait(shared.all_sent(), 0);
#pragma unroll
  for (int from = 0; from < SPLITS - 1; from++)
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
      for (int kind = 0; kind < KINDS; kind++) {
        float4 more;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(more.x), "=f"(more.y), "=f"(more.z), "=f"(more.w)
                     : "r"(shared.sent(from, i, kind)));
        float4& all = own[kind][i];
        all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
      }
}

struct Given {  // what is finished with what, and where that goes
  const u16 *bias, *norm;
  u16 *out, *scaled;  // `out` is the stream, where that is added to
  float* squares;
  int num_rows, outer;
};

// The numbers that a thread finishes: two of every eight lines of the block, in two rows.
struct Place {
  int row, line;
  bool known[2];

  __device__ __forceinline__ Place(const Tile& tile, const Given& given) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row = tile.first_row + warp * 16 + lane / 4;
    line = tile.first_line + tile.split * OWN * 8 + lane % 4 * 2;
    known[0] = row < given.num_rows, known[1] = row + 8 < given.num_rows;
  }
  __device__ __forceinline__ long long at(const Given& given, int half, int i) const {
    return (long long)(row + half * 8) * given.outer + line + i * 8;
  }
  __device__ __forceinline__ bool has(const Given& given, int half, int i) const {
    return known[half] && line + i * 8 < given.outer;
  }
};

// What the stream has, read before the sums are there.
__device__ __forceinline__ void read_stream(u32 (&stream)[2][OWN], const Place& place,
                                            const Given& given) {
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int i = 0; i < OWN; i++)
      if (place.has(given, half, i)) stream[half][i] = pair_at(given.out + place.at(given, half, i));
}

__device__ __forceinline__ Pair finished(Pair sums, float factor, const u16* bias, int line) {
  if (NORMED) sums.x *= factor, sums.y *= factor;
  if (bias) {
    Pair more = Pair::of(pair_at(bias + line));
    sums.x += more.x, sums.y += more.y;
  }
  return sums.in_16_bits();
}

__device__ __forceinline__ Pair of_row(float4 sums, int half) {
  return half ? Pair{sums.z, sums.w} : Pair{sums.x, sums.y};
}

// The numbers of one of a thread's rows. Added to the stream, they are also multiplied with the
// weight of the next norm, which needs the sum of their squares, too.
__device__ __forceinline__ void finish(const float4 (&own)[KINDS][OWN], const u32 (&stream)[2][OWN],
                                       float factor, const Place& place, const Given& given,
                                       int half) {
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    if (!place.has(given, half, i)) continue;
    int line = place.line + i * 8;
    Pair made = finished(of_row(own[0][i], half), factor, given.bias, line);
    if (GATED)
      made = opened(made, finished(of_row(own[KINDS - 1][i], half), factor, given.bias,
                                   given.outer + line));
    long long at = place.at(given, half, i);
    if (ADDS) {
      Pair before = Pair::of(stream[half][i]), by = Pair::of(pair_at(given.norm + line));
      made = Pair{made.x + before.x, made.y + before.y}.in_16_bits();
      squares += made.x * made.x + made.y * made.y;
      pair_at(given.scaled + at) = Pair{made.x * by.x, made.y * by.y}.packed();
    }
    pair_at(given.out + at) = made.packed();
  }
  if (!ADDS) return;
  squares += __shfl_xor_sync(~0u, squares, 1);
  squares += __shfl_xor_sync(~0u, squares, 2);
  if (place.known[half] && threadIdx.x % 4 == 0)
    given.squares[(long long)(place.row + half * 8) * gridDim.x + blockIdx.x] = squares;
}

// x_rows: the rows of x that are copied, in whole eights.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    multiply(const __grid_constant__ Map x, const __grid_constant__ Map weight, const u16* bias,
             u16* out, int num_rows, int x_rows, int outer, int columns, const float* squares,
             int num_squares, float eps, const u16* norm, u16* scaled, float* made_squares) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared shared{shared_address(memory)};
  Tile tile(columns, x_rows);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(shared.full(i), 1);
      barrier_init(shared.empty(i), 4 * GROUPS);
    }
    barrier_init(shared.all_sent(), 1);
    if (SPLITS > 1) barrier_expect(shared.all_sent(), (SPLITS - 1) * OWN * KINDS * SLOT_BYTES);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  cluster_arrive();
  asm volatile("griddepcontrol.launch_dependents;");
  int group = __shfl_sync(~0u, threadIdx.x / 128, 0);  // one number for the compiler, too
  if (group == GROUPS) {
    if (threadIdx.x == MULTIPLYING) load_tile(shared, &x, &weight, tile, outer);
    __syncwarp();
    cluster_wait();
    return;
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
  Given given = {bias, norm, out, scaled, made_squares, num_rows, outer};
  Place place(tile, given);
  u32 stream[2][OWN];
  if (ADDS) read_stream(stream, place, given);
  float factors[2] = {1.f, 1.f};
  if (NORMED)
    find_factors(factors, squares + (long long)tile.first_row * num_squares, num_squares, columns,
                 eps, num_rows - tile.first_row);
  float sums[LINES / 2];
  multiply_tile(shared, sums, tile, group);
  float4 own[KINDS][OWN];
  exchange(shared, sums, tile, own);
#pragma unroll
  for (int half = 0; half < 2; half++) finish(own, stream, factors[half], place, given, half);
}
