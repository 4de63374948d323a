// Costs of synchronisation. rounds[0] rounds; `word` is zero at the start.

__device__ unsigned load_acquire(const unsigned *p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ void store_release(unsigned *p, unsigned v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ void add_release(unsigned *p, unsigned v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// All blocks meet. Needs a cooperative launch.
extern "C" __global__ void grid_barrier(unsigned *word, const unsigned *rounds) {
  for (unsigned r = 1; r <= rounds[0]; ++r) {
    __syncthreads();
    if (threadIdx.x == 0) {
      add_release(word, 1);
      while (load_acquire(word) < r * gridDim.x) {}
    }
    __syncthreads();
  }
}

// Blocks 0 and 1 hand a turn back and forth: 2 * rounds hand-overs.
extern "C" __global__ void ping_pong(unsigned *word, const unsigned *rounds) {
  if (threadIdx.x != 0) return;
  for (unsigned r = 0; r < rounds[0]; ++r) {
    while (load_acquire(word) != 2 * r + blockIdx.x) {}
    store_release(word, 2 * r + blockIdx.x + 1);
  }
}

extern "C" __global__ void cluster_barrier(unsigned *word, const unsigned *rounds) {
  for (unsigned r = 0; r < rounds[0]; ++r) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}

extern "C" __global__ void block_barrier(unsigned *word, const unsigned *rounds) {
  for (unsigned r = 0; r < rounds[0]; ++r) __syncthreads();
}

// Two warps of a block hand a turn back and forth through two mbarriers: 2 * rounds hand-overs.
extern "C" __global__ void mbarrier_ping_pong(unsigned *word, const unsigned *rounds) {
  __shared__ alignas(8) unsigned long long bars[2];
  unsigned base = (unsigned)__cvta_generic_to_shared(bars);
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(base + 8 * i) : "memory");
  __syncthreads();
  unsigned warp = threadIdx.x / 32;
  if (threadIdx.x % 32) return;
  for (unsigned r = 0; r < rounds[0]; ++r) {
    unsigned mine = base + 8 * warp, other = base + 8 * (1 - warp), done = 0, parity = r & 1;
    if (warp == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(other) : "memory");
    while (!done)
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
          : "=r"(done) : "r"(mine), "r"(parity) : "memory");
    if (warp == 1) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(other) : "memory");
  }
}
