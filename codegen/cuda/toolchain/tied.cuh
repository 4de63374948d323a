// Launches that overlap, whose blocks wait for tiles of others. `words` is memory that they share, 0 when the model is
// loaded: for a launch that waits, how many of its blocks have ended in this run, and how many runs have ended.

// Launches after this one may begin when all its blocks have come here. It says nothing of what the block has written.
static __device__ __forceinline__ void ts_tied_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// How many runs have ended, modulo 2^32.
static __device__ __forceinline__ unsigned ts_tied_runs(unsigned *words) {
  unsigned runs;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(runs) : "l"(words + 1) : "memory");
  return runs;
}

// The block is over. The last one counts the run, as no other looks at the words again, and ends only when the launches
// before have: what comes after this launch then comes after them.
static __device__ __forceinline__ void ts_tied_end(unsigned *words) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    unsigned over, before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(over) : "l"(words), "r"(1u) : "memory");
    if (over == gridDim.x - 1u) {
      asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(before) : "l"(words), "r"(0u) : "memory");
      asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(words + 1), "r"(1u) : "memory");
      asm volatile("griddepcontrol.wait;" ::: "memory");
    }
  }
}
