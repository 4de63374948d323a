// Blocks that wait for each other, or hand work on.

// Whether the calling block is the last of `count` that call it with this word; what the others wrote before, the last
// one reads after it. `word` is 32 bits of the launch's own memory, 0 when the model is loaded; the last block leaves it 0.
static __device__ __forceinline__ int ts_grid_last(unsigned *word, unsigned count) {
  int last = 0;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(count - 1u) : "memory");
    last = before == count - 1u;
  }
  return __syncthreads_or(last);
}

// The same for warps: whether the calling warp is the last of `count`.
static __device__ __forceinline__ int ts_grid_last_warp(unsigned *word, unsigned count) {
  int last = 0;
  __syncwarp();
  if ((threadIdx.x & 31) == 0) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(count - 1u) : "memory");
    last = before == count - 1u;
  }
  __syncwarp();
  return __shfl_sync(0xffffffffu, last, 0);
}

// A band of rows that `count` blocks store together. `word` is 0 when the model is loaded: the block that calls with
// `first` adds 2^31 - (count - 1), every other block 1. When the last one has come the top bit has flipped, and the bits
// below are 0 again. One thread's part: 2 for the last one, 1 for one that saw the last one come while it looked `polls`
// times, else 0. Looking orders nothing, since an acquire throws the L1 cache away that other blocks of the SM use: a
// block that has seen the last one come acquires once.
static __device__ __forceinline__ int ts_grid_count(unsigned *word, int first, unsigned count, int polls) {
  unsigned step = first ? 0x80000000u - (count - 1u) : 1u, before, now;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(step) : "memory");
  if (((before + step) ^ before) & 0x80000000u) return 2;
  for (int poll = 0; poll < polls; ++poll) {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    if ((before ^ now) & 0x80000000u) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
      return 1;
    }
  }
  return 0;
}

// Whether no block has taken a share of a band yet whose blocks have all come; one thread's part.
static __device__ __forceinline__ int ts_grid_claim(unsigned *share, unsigned *word) {
  unsigned run, before;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(run) : "l"(word) : "memory");
  run &= 0x80000000u;
  asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(before) : "l"(share), "r"(run) : "memory");
  return before != run;
}

// For a block: what the others wrote before, it reads after a result that is not 0.
static __device__ __forceinline__ int ts_grid_arrive(unsigned *word, int first, unsigned count, int polls) {
  int found = 0;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) found = ts_grid_count(word, first, count, polls);
  if (!__syncthreads_or(found)) return 0;
  return 1 + __syncthreads_or(found == 2);
}

static __device__ __forceinline__ int ts_grid_take(unsigned *share, unsigned *word) {
  int taken = 0;
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) taken = ts_grid_claim(share, word);
  return __syncthreads_or(taken);
}

// The same for a warp.
static __device__ __forceinline__ int ts_grid_arrive_warp(unsigned *word, int first, unsigned count, int polls) {
  int found = 0;
  __syncwarp();
  if ((threadIdx.x & 31) == 0) found = ts_grid_count(word, first, count, polls);
  __syncwarp();
  return __shfl_sync(0xffffffffu, found, 0);
}

static __device__ __forceinline__ int ts_grid_take_warp(unsigned *share, unsigned *word) {
  int taken = 0;
  if ((threadIdx.x & 31) == 0) taken = ts_grid_claim(share, word);
  __syncwarp();
  return __shfl_sync(0xffffffffu, taken, 0);
}

static __device__ __forceinline__ void ts_grid_sync_warp() { __syncwarp(); }

// The barrier of a whole grid, for cooperative launches: all blocks are resident together.
//
// `word` is 32 bits of the launch's own memory, 0 when the model is loaded, and needs no clearing after that: block 0
// adds 2^31 - (blocks - 1), every other block 1. When the last one has come the top bit has flipped, and the bits below
// are 0 again.

// Returns when all threads of the grid have called it; what any of them wrote before, all of them read after. Waiting
// orders nothing, and one acquire follows it: each throws the L1 cache away that blocks still at work use. It reads the
// last arrival or something later, so it synchronises with all arrivals, whose atomics are one chain (PTX manual,
// "Release and Acquire Patterns").
static __device__ __forceinline__ void ts_grid_barrier(unsigned *word) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    unsigned step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1u) : 1u, before, now;
    asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(step) : "memory");
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    } while (((before ^ now) & 0x80000000u) == 0u);
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  }
  __syncthreads();
}

// The first `threads` threads of a block, whole warps, wait for each other.
static __device__ __forceinline__ void ts_grid_part_barrier(int threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}

// As `ts_grid_last`, for the first `threads` threads of a block, whole warps.
static __device__ __forceinline__ int ts_grid_last_part(unsigned *word, unsigned count, int threads) {
  int last = 0;
  ts_grid_part_barrier(threads);
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(count - 1u) : "memory");
    last = before == count - 1u;
  }
  int found;
  asm volatile("{\n.reg .pred own;\nsetp.ne.s32 own, %1, 0;\nbar.red.popc.u32 %0, 1, %2, own;\n}"
               : "=r"(found) : "r"(last), "r"(threads) : "memory");
  return found;
}

static __device__ __forceinline__ int ts_grid_blocks() { return (int)gridDim.x; }
