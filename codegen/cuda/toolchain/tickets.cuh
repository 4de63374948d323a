// Blocks that draw tiles. `words` is memory of the launch's own, 0 when the model is loaded: how many tickets were drawn,
// how many runs have ended, and semaphores.

// How many runs have ended, modulo 2^32.
static __device__ __forceinline__ unsigned ts_ticket_runs(unsigned *words) {
  unsigned runs;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(runs) : "l"(words + 1) : "memory");
  return runs;
}

// The next ticket, for all threads of the block, which are through with the last one. Every block draws one ticket from
// `total` on. The last block to do so finds all tiles done, and all others with nothing left to look at: it counts the run.
static __device__ __forceinline__ int ts_ticket_draw(unsigned *words, unsigned total, int *held) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    unsigned drawn, before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(drawn) : "l"(words), "r"(1u) : "memory");
    if (drawn == total + gridDim.x - 1u) {
      asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(before) : "l"(words), "r"(0u) : "memory");
      asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(words + 1), "r"(1u) : "memory");
    }
    *held = (int)drawn;
  }
  __syncthreads();
  return *held;
}

// The next tile of a block that has a queue of its own, for all threads of the block, which are through with the last one.
static __device__ __forceinline__ int ts_ticket_next(int ticket) {
  __syncthreads();
  return ticket + (int)gridDim.x;
}

// The queue of a block is over. The last block counts the run, as no other looks at the words again.
static __device__ __forceinline__ void ts_ticket_over(unsigned *words) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    unsigned over, before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(over) : "l"(words), "r"(1u) : "memory");
    if (over == gridDim.x - 1u) {
      asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(before) : "l"(words), "r"(0u) : "memory");
      asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(words + 1), "r"(1u) : "memory");
    }
  }
}

// Asks for a line of global memory in the L2 cache, and waits for nothing.
static __device__ __forceinline__ void ts_ticket_prefetch(const void *global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

// One thread's part of a wait: returns when `posts` posts have come in this run, of as many as the semaphore gets. What
// was written before them, it reads after. Looking orders nothing, and one acquire follows it.
static __device__ __forceinline__ void ts_ticket_await(unsigned *semaphore, unsigned runs, unsigned posts) {
  unsigned now, before = runs * posts;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
  } while (now - before < posts);
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
}

// What the thread has written, or what it has seen of others, is there for copies of tensors (TMA), which read by another
// way than loads. Before a post, and after a wait.
static __device__ __forceinline__ void ts_ticket_show() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// One thread of those that have stored a tile, and have met.
static __device__ __forceinline__ void ts_ticket_post_one(unsigned *semaphore) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(semaphore), "r"(1u) : "memory");
}

// The block has stored its tile.
static __device__ __forceinline__ void ts_ticket_post(unsigned *semaphore) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(semaphore), "r"(1u) : "memory");
  }
}
