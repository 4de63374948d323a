// Device functions for Hopper's asynchronous units: barriers in shared memory that count arrivals and bytes (mbarrier),
// the copy engine (TMA), and the order of warpgroup matrix instructions (wgmma). The text of a kernel that calls one of
// them begins with this file. Kernels that call these functions are generated for sm_90a only.
//
// Addresses of shared memory are generic pointers into it. A phase of a barrier is complete when all its arrivals have
// come and all bytes that it was told to expect; waiting for parity 0 waits for the first, third, ... phase.

#ifdef __CUDACC_RTC__
struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
#else
#include <cuda.h>
#endif

static __device__ __forceinline__ unsigned ts_sm90_address(const void *shared) {
  return (unsigned)__cvta_generic_to_shared(shared);
}

static __device__ __forceinline__ void ts_sm90_barrier_init(void *barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ts_sm90_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine; __syncthreads or ts_sm90_enter_cluster must follow.
static __device__ __forceinline__ void ts_sm90_barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void ts_sm90_arrive(void *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ts_sm90_address(barrier)) : "memory");
}

// Arrives, and lets the phase wait for so many bytes of copies.
static __device__ __forceinline__ void ts_sm90_arrive_expecting(void *barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ts_sm90_address(barrier)), "r"(bytes)
               : "memory");
}

// Lets the phase wait for so many bytes of copies, and arrives not.
static __device__ __forceinline__ void ts_sm90_expect(void *barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(ts_sm90_address(barrier)), "r"(bytes)
               : "memory");
}

// So many threads of a block, whole warps, meet at barrier number `id`; 0 is that of __syncthreads.
static __device__ __forceinline__ void ts_sm90_meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void ts_sm90_wait(void *barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra out;\n"
      "bra again;\nout:\n}" ::"r"(ts_sm90_address(barrier)),
      "r"(parity)
      : "memory");
}

static __device__ __forceinline__ void ts_sm90_prefetch_map(unsigned long long map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Arrives at the same barrier of another block of the cluster, to say that a piece in shared memory may be overwritten.
//
// Release at the scope of the block, the default, is enough, though the block that waits is another one: it reads nothing
// that this thread wrote. The piece was read by wgmma only, and wgmma.wait_group has returned, so these reads have been
// performed; the copy engine, which writes the piece next, is asked to after the arrival was seen, and no read that has
// its value changes by a later write. The bytes that come are ordered by the barrier that counts them, which lies in the
// shared memory of the block that waits for it. Release and acquire at the scope of the cluster would be
// MEMBAR.ALL.GPU at every stage, for which the thread's results in global memory must have been written, and an empty L1
// cache. Where ordinary accesses of different blocks are ordered, that is what it takes: see ts_sm90_leave_cluster.
static __device__ __forceinline__ void ts_sm90_arrive_at(void *barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(ts_sm90_address(barrier)),
      "r"(block)
      : "memory");
}

// All threads of the cluster meet, and know the barriers that were made ready before (ts_sm90_barriers_ready, which
// releases their initialisation to the cluster). Other writes are not ordered.
static __device__ __forceinline__ void ts_sm90_enter_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// All threads of the cluster meet. What each did before has been done, arrivals at barriers of other blocks too: after
// this a block may end, and its shared memory with it.
static __device__ __forceinline__ void ts_sm90_leave_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Registers of every thread of the warpgroup from here on. With three warpgroups, whose threads begin with 168 at most:
// one that only copies gives some away, two that multiply take them.
static __device__ __forceinline__ void ts_sm90_few_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;" ::: "memory");
}

static __device__ __forceinline__ void ts_sm90_many_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;" ::: "memory");
}

// A matrix in shared memory as wgmma reads it, with the 128-byte swizzle. Its address is 1024-byte aligned but for the
// step along k. leading: bytes from 64 rows to the next 64, if rows run along memory. stride: bytes from 8 lines of 128
// bytes to the next 8. PTX manual, "Matrix Descriptor Format".
static __device__ __forceinline__ unsigned long long ts_sm90_matrix(const void *shared, int leading, int stride) {
  return (unsigned long long)((ts_sm90_address(shared) & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

// Writes and reads of a register stay on their side of this place, so that the compiler moves none of them to where wgmma
// has the register in flight. It is no instruction.
static __device__ __forceinline__ void ts_sm90_settle(float *d) { asm volatile("" : "+f"(d[0])::"memory"); }
static __device__ __forceinline__ void ts_sm90_settle(int *d) { asm volatile("" : "+r"(d[0])::"memory"); }

// What wgmma reads in registers has been written.
static __device__ __forceinline__ void ts_sm90_wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of the warpgroup's wgmma.
static __device__ __forceinline__ void ts_sm90_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// All but the newest group are done.
static __device__ __forceinline__ void ts_sm90_wgmma_wait_1() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

static __device__ __forceinline__ void ts_sm90_wgmma_wait_0() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

static __device__ __forceinline__ void ts_sm90_sync_warp() { __syncwarp(); }
