// Products with weights in 4-bit codes: out[rows, lines] = x[rows, columns] weight^T + bias.
//
// The weight is packed (quantised/fragments.py) in the order in which mma.m16n8k16 reads it: a
// thread reads 16 bytes, its part of 16 lines by 64 columns. Codes go through shared memory only so
// that many copies are in flight, and a thread reads back what it copied itself.
//
// A block computes LINES lines for ROWS rows, with WN warps along lines and WK along columns; a
// cluster of blocks shares the columns. Codes are multiplied as whole numbers minus their zero
// point, which 16 bits represent exactly, and the sums of a group are scaled in float32. Sums are
// added in a fixed order: warps of a block, then blocks of the cluster.
//
// Macros: ROWS, WN, WK, MT (tiles of 16 lines per warp), STAGES, GROUP (columns with one scale, at
// most those of a stage), HALF (float16 instead of bfloat16), SCALES_HALF (of scales and minima),
// FP4 (codes are floats of 4 bits), SECOND (0: all zero points are ZERO, 1: one per group, 2:
// minima), ZERO, FEWEST (blocks per core), SPLITS (blocks that share the columns); and for steps of
// few rows (defined in triton/small_batch.py) NORMED, GATED (silu of the first half of the lines
// times the second half) and ADDS.

typedef unsigned int u32;
typedef unsigned short u16;

#define THREADS (32 * WN * WK)
#define LINES (16 * MT * WN)
#define DEPTH (64 * WK)                      // columns to a stage
#define SETS (DEPTH / GROUP)                 // scales to a line and stage
#define BLOCKS64 ((LINES + 63) / 64)         // of 64 lines
#define NB (ROWS / 8)                        // tiles of 8 rows
#define CHUNKS (DEPTH / 8)                   // of 16 bytes to a row of x
#define CODE_BYTES (LINES * DEPTH / 2)
#define X_BYTES (ROWS * DEPTH * 2)
#define MADE (GATED ? LINES / 2 : LINES)     // lines of the result to a block
#define SCALE_BYTES (SETS * BLOCKS64 * 128)
#define STAGE_BYTES (CODE_BYTES + X_BYTES + SCALE_BYTES * (SECOND ? 2 : 1))
#define PITCH (LINES + 4)                    // floats to a row of sums, so that banks differ

__device__ __forceinline__ u32 shared_place(const void* at) {
  return (u32)__cvta_generic_to_shared(at);
}

// Begin to copy 16 bytes; zeros if not `known`.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool known) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(known ? 16 : 0));
}

__device__ __forceinline__ uint4 read16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}

__device__ __forceinline__ u32 word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Read x of 8 rows by 32 columns, or of 16 by 16, in the layout of the product.
__device__ __forceinline__ void read_x(u32 (&to)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

#if HALF
#define MAGIC 0x64006400u  // 1024, whose last bits a code becomes
#define ONES 0x3C003C00u
#define TYPE "f16"
#define LESS (0xE400E400u + (ZERO) * 0x00010001u)
#define EXPONENT 9  // where a float of 4 bits has its lowest bit
#define RAISED 0x74007400u  // 2^14, the difference of the exponents' biases
#else
#define MAGIC 0x43004300u  // 128
#define ONES 0x3F803F80u
#define TYPE "bf16"
#define LESS (0xC300C300u + (ZERO) * 0x00010001u)
#define EXPONENT 6
#define RAISED 0x7E807E80u  // 2^126
#endif

__device__ __forceinline__ void multiply16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Codes of a word, less zero points: those of line g, and of line g + 8. Floats of 4 bits (a sign,
// two bits of exponent, one of fraction) become longer ones with the same bits, whose exponent is
// then raised; that makes numbers without exponent right, too.
__device__ __forceinline__ void made_plain(u32 (&a)[4], u32 word, u32 less, u32 less8) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 t;
#if FP4
    const int up = EXPONENT - 4 * i;
    t = (up > 0 ? word << (up & 31) : word >> (-up & 31)) & 0x00070007u << EXPONENT;
    t |= word << (12 - 4 * i) & 0x80008000u;
    asm("mul.rn." TYPE "x2 %0, %1, %2;" : "=r"(a[i]) : "r"(t), "r"(RAISED));
#else
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(t) : "r"(word >> (4 * i)), "r"(MAGIC));
    asm("fma.rn." TYPE "x2 %0, %1, %2, %3;"
        : "=r"(a[i]) : "r"(t), "r"(ONES), "r"(i & 1 ? less8 : less));
#endif
  }
}

__device__ __forceinline__ float wide(u32 half) {
#if SCALES_HALF
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((u16)half));
  return v;
#else
  return __uint_as_float(half << 16);
#endif
}

__device__ __forceinline__ float wide_number(u16 half) {
  float v;
  asm("cvt.f32." TYPE " %0, %1;" : "=f"(v) : "h"(half));
  return v;
}

__device__ __forceinline__ u32 rounded(float low, float high) {
  u32 v;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ float2 read_of(u32 block, u32 at) {
  u32 there;
  float2 v;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(there));
  return v;
}

struct Rows {
  const u16* x;
  int first, count, columns;
};

#define AT_ONCE (THREADS / CHUNKS)           // rows of x that are copied at once: 4 or more
#define SCALE_COPIES ((SETS * BLOCKS64 * 8 + THREADS - 1) / THREADS)

// What a thread copies for each stage, and its sources: pointers that are only incremented, because
// computing addresses costs more than the products.
struct Copies {
  const uint4 *codes, *scales[SCALE_COPIES], *seconds[SCALE_COPIES];
  const u16* x;
  u32 to_codes, to_x, to_scales;
  int steps, rows_left, columns_left, groups_left, group, into;
  bool known;

  __device__ __forceinline__ Copies(const uint4* all_codes, const uint4* all_scales,
                                    const uint4* all_seconds, const Rows& rows, int lines,
                                    int group_, int tile, int first, u32 stages) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int along = warp % WN, at = first * WK + warp / WN;
    int blocks = (lines + 63) / 64, groups = rows.columns / group_, mine = block(along * MT / 4, tile, blocks);
    group = group_, steps = rows.columns / 64 - at, known = mine < blocks;
    codes = all_codes + ((long long)(known ? mine : 0) * (rows.columns / 64) + at) * 128 +
            along * MT % 4 * 32 + lane;
    to_codes = stages + (warp * MT * 32 + lane) * 16;
    int r = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
    rows_left = rows.count - rows.first - r;
    columns_left = rows.columns - first * DEPTH - c * 8;
    x = rows.x + (long long)(rows.first + r) * rows.columns + first * DEPTH + c * 8;
    to_x = stages + CODE_BYTES + (r * CHUNKS + (c ^ (r & 7))) * 16;
    to_scales = stages + CODE_BYTES + X_BYTES + threadIdx.x * 16;
    int now = first * DEPTH / group;
    into = first * DEPTH - now * group, groups_left = groups - now;
#pragma unroll
    for (int j = 0; j < SCALE_COPIES; j++) {
      int i = threadIdx.x + j * THREADS, own = block(i / 8 % BLOCKS64, tile, blocks);
      long long place = ((long long)min(own, blocks - 1) * groups + now + i / (8 * BLOCKS64)) * 8 + i % 8;
      scales[j] = all_scales + place;
      if (SECOND) seconds[j] = all_seconds + place;
    }
  }

  // The i-th block of 64 lines of a tile.
  static __device__ __forceinline__ int block(int i, int tile, int blocks) {
    if (!GATED) return tile * BLOCKS64 + i;
    return tile * (BLOCKS64 / 2) + i + (i < BLOCKS64 / 2 ? 0 : blocks / 2 - BLOCKS64 / 2);
  }

  __device__ __forceinline__ void weight(u32 stage) {
    bool there = known && steps > 0;
#pragma unroll
    for (int m = 0; m < MT; m++) copy16(to_codes + stage + m * 512, codes + m * 32, there);
    steps -= WK, codes += WK * 128;
#pragma unroll
    for (int j = 0; j < SCALE_COPIES; j++) {
      int i = threadIdx.x + j * THREADS;
      if (i < SETS * BLOCKS64 * 8) {
        bool one = i / (8 * BLOCKS64) < groups_left;
        copy16(to_scales + stage + j * THREADS * 16, scales[j], one);
        if (SECOND) copy16(to_scales + stage + SCALE_BYTES + j * THREADS * 16, seconds[j], one);
      }
    }
    int gone = SETS;  // groups that end with this stage
    if (SETS == 1) into += DEPTH, gone = into >= group, into = gone ? 0 : into;
    groups_left -= gone;
#pragma unroll
    for (int j = 0; j < SCALE_COPIES; j++) {
      scales[j] += gone * 8;
      if (SECOND) seconds[j] += gone * 8;
    }
  }

  __device__ __forceinline__ void rows_of_x(const Rows& rows, u32 stage) {
    bool there = columns_left > 0;
    const u16* from = x;
#pragma unroll
    for (int r = 0; r < ROWS; r += AT_ONCE) {
      if (AT_ONCE <= ROWS || threadIdx.x / CHUNKS < ROWS)
        copy16((to_x + stage + r * CHUNKS * 16) ^ (r & 4) * 16, from, there && r < rows_left);
      from += AT_ONCE * (long long)rows.columns;
    }
    x += DEPTH, columns_left -= DEPTH;
  }
};

// One warp's part of a stage: 16 MT lines by 64 columns, for all rows.
__device__ __forceinline__ void multiply_stage(float (&sums)[MT][NB][4], u32 stage) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int along = warp % WN, part = warp / WN;
  u32 b[4][NB][2];
#if ROWS == 8
  u32 mine = stage + CODE_BYTES + (lane % 8 * CHUNKS + part * 8 + (lane / 8 ^ lane % 8)) * 16;
#pragma unroll
  for (int k = 0; k < 4; k += 2) {  // four 8 by 8: columns 0, 8, 16 and 24 of 32
    u32 got[4];
    read_x(got, mine ^ (k * 32));
    b[k][0][0] = got[0], b[k][0][1] = got[1], b[k + 1][0][0] = got[2], b[k + 1][0][1] = got[3];
  }
#else
  u32 mine = stage + CODE_BYTES + ((lane % 8 + lane / 16 * 8) * CHUNKS + part * 8) * 16 +
             (lane / 8 % 2 ^ lane % 8) * 16;
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int n = 0; n < NB; n += 2) {  // two tiles of 8 rows, each of two halves of 16 columns
      u32 got[4];
      read_x(got, (mine ^ (k * 32)) + n * 8 * CHUNKS * 16);
      b[k][n][0] = got[0], b[k][n][1] = got[1], b[k][n + 1][0] = got[2], b[k][n + 1][1] = got[3];
    }
#endif
  const int inside = GROUP < 64 ? 64 / GROUP : 1;  // groups to a warp's 64 columns
  const int steps = 4 / inside;
#pragma unroll
  for (int j = 0; j < inside; j++) {
    int set = GROUP < 64 ? part * inside + j : part * 64 / GROUP;
    u32 at = stage + CODE_BYTES + X_BYTES +
             ((set * BLOCKS64 + along * MT / 4) * 8 + lane / 4) * 16 + along * MT % 4 * 4;
#if SECOND == 2
    const u32 ones[4] = {ONES, ONES, ONES, ONES};
    float totals[NB][4];
#pragma unroll
    for (int n = 0; n < NB; n++) {
      totals[n][0] = totals[n][1] = totals[n][2] = totals[n][3] = 0.f;
#pragma unroll
      for (int k = j * steps; k < (j + 1) * steps; k++)
        multiply16(totals[n], ones, b[k][n][0], b[k][n][1]);
    }
#endif
#pragma unroll
    for (int m = 0; m < MT; m++) {
      uint4 words = read16(stage + ((warp * MT + m) * 32 + lane) * 16);
      u32 scales, second = 0, less = LESS, less8 = LESS;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(scales) : "r"(at + m * 4));
      if (SECOND) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(second) : "r"(at + SCALE_BYTES + m * 4));
      if (SECOND == 1) less = __byte_perm(second, 0, 0x1010), less8 = __byte_perm(second, 0, 0x3232);
      float made[NB][4];
#pragma unroll
      for (int n = 0; n < NB; n++) made[n][0] = made[n][1] = made[n][2] = made[n][3] = 0.f;
#pragma unroll
      for (int k = j * steps; k < (j + 1) * steps; k++) {
        u32 a[4];
        made_plain(a, word_of(words, k), less, less8);
#pragma unroll
        for (int n = 0; n < NB; n++) multiply16(made[n], a, b[k][n][0], b[k][n][1]);
      }
      float scale = wide(scales & 0xffff), scale8 = wide(scales >> 16);
#pragma unroll
      for (int n = 0; n < NB; n++) {
        sums[m][n][0] += scale * made[n][0], sums[m][n][1] += scale * made[n][1];
        sums[m][n][2] += scale8 * made[n][2], sums[m][n][3] += scale8 * made[n][3];
#if SECOND == 2
        float low = wide(second & 0xffff), low8 = wide(second >> 16);
        sums[m][n][0] += low * totals[n][0], sums[m][n][1] += low * totals[n][1];
        sums[m][n][2] += low8 * totals[n][0], sums[m][n][3] += low8 * totals[n][1];
#endif
      }
    }
  }
}

// Add the sums of a block's warps along columns, in shared memory: float [ROWS, PITCH].
__device__ __forceinline__ void add_warps(float (&sums)[MT][NB][4], float* pool) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* mine = pool + (warp / WN) * ROWS * PITCH + warp % WN * MT * 16 + lane / 4;
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        mine[(n * 8 + lane % 4 * 2 + i % 2) * PITCH + m * 16 + i / 2 * 8] = sums[m][n][i];
  __syncthreads();
  if (WK == 1) return;
  for (int i = threadIdx.x; i < ROWS * LINES / 4; i += THREADS) {
    int place = i * 4 / LINES * PITCH + i * 4 % LINES;
    float4 total = *(float4*)(pool + place);
#pragma unroll
    for (int k = 1; k < WK; k++) {
      float4 more = *(float4*)(pool + k * ROWS * PITCH + place);
      total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    *(float4*)(pool + place) = total;
  }
}

// The norm's factor of each row: 1 / sqrt(mean of squares + eps), from partial sums of squares.
__device__ __forceinline__ void find_factors(float* factors, const float* squares, int num_squares,
                                             const Rows& rows, float eps) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int r = warp; r < ROWS; r += THREADS / 32) {
    float total = 0.f;
    if (rows.first + r < rows.count)
      for (int i = lane; i < num_squares; i += 32)
        total += squares[(long long)(rows.first + r) * num_squares + i];
    for (int apart = 16; apart; apart /= 2) total += __shfl_xor_sync(~0u, total, apart);
    if (lane == 0) factors[r] = rsqrtf(total / rows.columns + eps);
  }
}

// Two numbers of the result before rounding, added up over the blocks of the cluster.
__device__ __forceinline__ float2 sums_of(u32 sums, int r, int at) {
  float2 parts[SPLITS];
#pragma unroll
  for (int k = 0; k < SPLITS; k++) parts[k] = read_of(k, sums + (r * PITCH + at) * 4);
#pragma unroll
  for (int k = 1; k < SPLITS; k++) parts[0].x += parts[k].x, parts[0].y += parts[k].y;
  return parts[0];
}

__device__ __forceinline__ float2 taken_apart(u32 pair) {
  return {wide_number((u16)pair), wide_number((u16)(pair >> 16))};
}

__device__ __forceinline__ u32 finished(float2 total, float factor, const u16* bias, int line,
                                        int lines) {
  total.x *= factor, total.y *= factor;
  if (bias) {
    total.x += wide_number(bias[line]);
    if (line + 1 < lines) total.y += wide_number(bias[line + 1]);
  }
  return rounded(total.x, total.y);
}

__device__ __forceinline__ float opened(float gate, float up) {
  return wide_number((u16)rounded(gate / (1.f + __expf(-gate)), 0.f)) * up;
}

// This block's part of a tile's numbers; a warp has 64 neighbouring numbers of a row.
__device__ __forceinline__ void store(u32 sums, const float* factors, const u16* bias, u16* out,
                                      const u16* norm, u16* scaled, float* made_squares,
                                      const Rows& rows, int tile, int lines, int split) {
  const int share = ROWS * MADE / 2 / SPLITS;
  int outer = GATED ? lines / 2 : lines;
  for (int i = share * split + threadIdx.x; i < share * (split + 1); i += THREADS) {
    int r = i / (MADE / 2), at = i % (MADE / 2) * 2, line = tile * MADE + at;
    if (rows.first + r >= rows.count || line >= outer) continue;
    float factor = NORMED ? factors[r] : 1.f;
    u32 made = finished(sums_of(sums, r, at), factor, bias, line, lines);
    u16* place = out + (long long)(rows.first + r) * outer + line;
    if (GATED) {
      float2 gate = taken_apart(made);
      float2 up = taken_apart(
          finished(sums_of(sums, r, at + MADE), factor, bias, outer + line, lines));
      made = rounded(opened(gate.x, up.x), opened(gate.y, up.y));
    }
    if (ADDS) {
      float2 more = taken_apart(made), stream = taken_apart(*(u32*)place);
      made = rounded(more.x + stream.x, more.y + stream.y);
      float2 kept = taken_apart(made);
      float square = kept.x * kept.x + kept.y * kept.y;
      for (int apart = 16; apart; apart /= 2) square += __shfl_xor_sync(~0u, square, apart);
      if (threadIdx.x % 32 == 0)
        made_squares[(rows.first + r) * (lines / 64) + line / 64] = square;
      float2 by = taken_apart(*(const u32*)(norm + line));
      *(u32*)(scaled + (place - out)) = rounded(kept.x * by.x, kept.y * by.y);
    }
    if (lines % 2 == 0) *(u32*)place = made;
    else {
      place[0] = (u16)made;
      if (line + 1 < lines) place[1] = (u16)(made >> 16);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, FEWEST)
multiply(const uint4* codes, const uint4* scales, const uint4* seconds, const u16* x,
         const u16* bias, u16* out, int num_rows, int lines, int columns, int group,
         const float* squares, int num_squares, float eps, const u16* norm, u16* scaled,
         float* made_squares) {
  extern __shared__ __align__(128) unsigned char pool[];
  __shared__ float factors[ROWS];
  u32 stages = shared_place(pool);
  int split = blockIdx.x % SPLITS, tile = blockIdx.x / SPLITS;
  Rows rows = {x, (int)blockIdx.y * ROWS, num_rows, columns};
  int all = (columns / 64 + WK - 1) / WK, first = all * split / SPLITS;
  int count = all * (split + 1) / SPLITS - first;
  Copies copies(codes, scales, seconds, rows, lines, group, tile, first, stages);

  // Weights may be read before the previous kernel has ended; x may not.
  asm volatile("griddepcontrol.launch_dependents;");
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++)
    if (i < count) copies.weight(i * STAGE_BYTES);
  asm volatile("griddepcontrol.wait;" ::: "memory");
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (i < count) copies.rows_of_x(rows, i * STAGE_BYTES);
    asm volatile("cp.async.commit_group;");
  }
  if (NORMED) find_factors(factors, squares, num_squares, rows, eps);
  float sums[MT][NB][4] = {};
  u32 from = 0, to = (STAGES - 1) * STAGE_BYTES;
  for (int i = 0; i < count; i++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    if (i + STAGES - 1 < count) {
      copies.weight(to);
      copies.rows_of_x(rows, to);
    }
    asm volatile("cp.async.commit_group;");
    multiply_stage(sums, stages + from);
    from = from + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : from + STAGE_BYTES;
    to = to + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : to + STAGE_BYTES;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  add_warps(sums, (float*)pool);
  if (SPLITS > 1) meet_cluster(); else __syncthreads();
  store(stages, factors, bias, out, norm, scaled, made_squares, rows, tile, lines, split);
  if (SPLITS > 1) meet_cluster();
}

// The dequantised weight [lines, columns], each number rounded once; a warp makes 16 lines by 64
// columns of it.
extern "C" __global__ void __launch_bounds__(128)
spread(const uint4* codes, const u16* scales, const u16* seconds, u16* out, int lines, int columns,
       int group) {
  __shared__ u32 held[4][16][36];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int block = blockIdx.y, step = blockIdx.x, groups = columns / group;
  uint4 words = codes[(((long long)block * (columns / 64) + step) * 4 + warp) * 32 + lane];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    int one = (step * 64 + k * 16) / group;
    long long place = (((long long)block * groups + one) * 8 + g) * 8 + warp * 2;
    u32 word = word_of(words, k);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float scale = wide(scales[place + i % 2]);
      float2 made = {(float)(word >> (4 * i) & 15), (float)(word >> (16 + 4 * i) & 15)};
      float zero = ZERO;
#if FP4
      u32 low = word >> (4 * i), high = word >> (16 + 4 * i);
      made.x = __uint_as_float((low & 7) << 22 | (low & 8) << 28) * 0x1p126f;
      made.y = __uint_as_float((high & 7) << 22 | (high & 8) << 28) * 0x1p126f;
#endif
      if (SECOND == 1) zero = -wide_number(seconds[place + i % 2]) - (HALF ? 1024.f : 128.f);
      made.x = __fmul_rn(made.x - zero, scale), made.y = __fmul_rn(made.y - zero, scale);
      if (SECOND == 2) {
        float low = wide(seconds[place + i % 2]);
        made.x = __fadd_rn(made.x, low), made.y = __fadd_rn(made.y, low);
      }
      held[warp][g + i % 2 * 8][k * 8 + t + i / 2 * 4] = rounded(made.x, made.y);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 128; i += 32) {
    int line = block * 64 + warp * 16 + i / 8;
    u32* from = &held[warp][i / 8][i % 8 * 4];
    uint4 made = {from[0], from[1], from[2], from[3]};
    if (line < lines) *(uint4*)(out + (long long)line * columns + step * 64 + i % 8 * 8) = made;
  }
}
