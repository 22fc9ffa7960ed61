// What kernels for Hopper share: barriers in shared memory, copies of boxes into it, products of
// groups of four warps, and numbers of 16 bits. Compiled with HALF (1: float16, 0: bfloat16).

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) Map { u64 words[16]; };  // a tensor map, as the driver encodes it

// Barriers in shared memory.

__device__ __forceinline__ u32 shared_address(const void *p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ __forceinline__ void barrier_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void load_rows(u32 to, const Map *map, int column, int row,
                                          u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// Products of a group of four warps.

#if HALF
#define TYPES "f32.f16.f16"
#else
#define TYPES "f32.bf16.bf16"
#endif

__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

template <int N>
__device__ __forceinline__ void keep(float (&x)[N]) {  // made above, and read below, this line
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

// A place in a ring, and the parity of its rounds.
template <int SIZE>
struct Ring {
  int at = 0;
  u32 turn = 0;
  __device__ __forceinline__ void next() {
    if (++at == SIZE) at = 0, turn ^= 1;
  }
};

// Two numbers in 16 bits each.
__device__ __forceinline__ u32 rounded(float low, float high) {
  u32 v;
#if HALF
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
#endif
  return v;
}
