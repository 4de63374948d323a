// In which order the hardware places blocks, and whether a waiting kernel starves the one it waits for.

__device__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
__device__ void spin(unsigned long long ns) {
  unsigned long long start = now();
  while (now() - start < ns) {}
}

// Each block draws a ticket when it starts and stores tag[0] there; then it works for tag[1] nanoseconds.
extern "C" __global__ void draw(unsigned *next, unsigned *order, const unsigned *tag) {
  if (threadIdx.x == 0) {
    order[atomicAdd(next, 1u)] = tag[0];
    spin(tag[1]);
  }
  __syncthreads();
}

// Waits for flag[0], at most limit[0] nanoseconds; counts blocks that saw it and blocks that gave up.
extern "C" __global__ void wait_for(const unsigned *flag, unsigned *seen, const unsigned *limit) {
  if (threadIdx.x == 0) {
    unsigned long long start = now();
    unsigned v = 0;
    while (!v && now() - start < limit[0])
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    atomicAdd(seen + (v ? 0 : 1), 1u);
  }
  __syncthreads();
}

extern "C" __global__ void post(unsigned *flag) {
  if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
}

// Each block waits for all of its grid to have come, at most limit[0] nanoseconds; counts blocks that saw them come and
// blocks that gave up.
extern "C" __global__ void meet(unsigned *arrived, unsigned *seen, const unsigned *limit) {
  if (threadIdx.x == 0) {
    unsigned long long start = now();
    unsigned v = 0;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrived), "r"(1u) : "memory");
    while (v < gridDim.x && now() - start < limit[0])
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(arrived) : "memory");
    atomicAdd(seen + (v < gridDim.x), 1u);
  }
  __syncthreads();
}
