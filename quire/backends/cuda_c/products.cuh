// What products with plain weights on Hopper share: the instruction that multiplies, places in shared
// memory, and neighbouring numbers of 16 bits. Compiled with LINES of a tile, GELU (the activation of
// gates; otherwise silu) and, for that instruction, which names every sum: WIDTH (LINES), SUMS
// (operands), REGISTERS (their numbers), AFTER and LAST (numbers behind them).

#include "hopper.cuh"

typedef unsigned short u16;

#ifndef GELU
#define GELU 0
#endif

constexpr int DEPTH = 64;  // columns of a stage: 128 bytes, as a swizzle spans
constexpr int CONTROL_BYTES = 1024;  // barriers

// sums [64, LINES] (+)= a [64, 16] b [LINES, 16]^T
__device__ __forceinline__ void multiply16(float (&sums)[LINES / 2], u64 a, u64 b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" LAST ", 0;\n"
               "wgmma.mma_async.sync.aligned.m64n" WIDTH "k16." TYPES " {" REGISTERS "}, " AFTER
               ", p, 1, 1, 0, 0;\n}"
               : SUMS
               : "l"(a), "l"(b), "r"(add));
}

// The descriptor of rows of 128 bytes in shared memory, swizzled: 1,024 bytes from 8 rows to the
// next.
__device__ __forceinline__ u64 place(u32 address) {
  return (u64)(address >> 4) | (u64)(1024 >> 4 | 1 << 30) << 32;
}

__device__ __forceinline__ float wide_number(u16 half) {
  float v;
#if HALF
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(half));
#else
  v = __uint_as_float((u32)half << 16);
#endif
  return v;
}

struct Pair {  // neighbouring numbers
  float x, y;

  static __device__ __forceinline__ Pair of(u32 v) {
    return {wide_number((u16)v), wide_number((u16)(v >> 16))};
  }
  __device__ __forceinline__ u32 packed() const { return rounded(x, y); }
  __device__ __forceinline__ Pair in_16_bits() const { return of(packed()); }
};

__device__ __forceinline__ u32& pair_at(u16* numbers) { return *reinterpret_cast<u32*>(numbers); }
__device__ __forceinline__ u32 pair_at(const u16* numbers) {
  return *reinterpret_cast<const u32*>(numbers);
}

__device__ __forceinline__ u32 address_in(int rank, u32 address) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// x times a sigmoid: silu, or with GELU its approximation by tanh.
__device__ __forceinline__ float activated(float x) {
  float by = GELU ? 1.5957691216057308f * (x + 0.044715f * x * x * x) : x;
  return __fdividef(x, 1.f + __expf(-by));
}

__device__ __forceinline__ Pair opened(Pair gate, Pair up) {
  Pair open = Pair{activated(gate.x), activated(gate.y)}.in_16_bits();
  return {open.x * up.x, open.y * up.y};
}
