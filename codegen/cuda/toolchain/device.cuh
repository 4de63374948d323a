// Device functions that generated kernels call where CUDA C++ has no operator: asynchronous copies and the matrix
// instructions of the tensor cores. Each is one PTX instruction, which the emulated device stands in for. The text of
// a kernel that calls one of them begins with this file. Fragments lie as the PTX manual says.
//
// Addresses of shared memory are generic pointers into it, 16-byte aligned. Fragments are arrays in registers: they are
// always indexed by constants.
//
// sm_75 has no asynchronous copies, multiplies float16 only, and half as many steps at a time; all else is for sm_80 and
// up. TS_TURING is defined where a kernel is for sm_75 alone, which tells the emulated device.
#if __CUDA_ARCH__ < 800 && !defined(TS_TURING)
#define TS_TURING
#endif

static __device__ __forceinline__ unsigned ts_shared_address(const void *pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Copies 16 bytes from global to shared memory asynchronously; with bytes = 0 writes 16 zero bytes and reads nothing.
// The copy belongs to the group that the thread's next ts_cp_async_commit closes.
static __device__ __forceinline__ void ts_cp_async_16(void *shared, const void *global, int bytes) {
#ifdef TS_TURING
  uint4 value = {0, 0, 0, 0};
  if (bytes) value = *(const uint4 *)global;
  *(uint4 *)shared = value;
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ts_shared_address(shared)), "l"(global),
               "r"(bytes)
               : "memory");
#endif
}

static __device__ __forceinline__ void ts_cp_async_commit() {
#ifndef TS_TURING
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `pending` (0 to 6, a constant) of this thread's newest groups are still under way.
static __device__ __forceinline__ void ts_cp_async_wait(int pending) {
#ifndef TS_TURING
  switch (pending) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
  }
#endif
}

// Loads four 8x8 matrices of 16-bit elements; all 32 threads of the warp take part. Thread 8 i + j gives the address of
// row j of matrix i; r[i] is the thread's two elements of matrix i: row lane / 4, columns 2 (lane % 4) and the next.
static __device__ __forceinline__ void ts_ldmatrix_x4(unsigned *r, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(ts_shared_address(row))
               : "memory");
}

// The same with every matrix transposed.
static __device__ __forceinline__ void ts_ldmatrix_x4_trans(unsigned *r, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(ts_shared_address(row))
               : "memory");
}

// d += a * b for a [16, 16] (row-major, a[0..3]) and b [16, 8] (column-major, b[0..1]) of float16; d [16, 8], float32.
static __device__ __forceinline__ void ts_mma_m16n8k16_f16(float *d, const unsigned *a, const unsigned *b) {
#ifdef TS_TURING
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// The same for bfloat16.
static __device__ __forceinline__ void ts_mma_m16n8k16_bf16(float *d, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same for TF32 and steps of 8: a [16, 8], b [8, 8]. Operands are rounded by ts_round_tf32 before.
static __device__ __forceinline__ void ts_mma_m16n8k8_tf32(float *d, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same for 8-bit integers and steps of 32: a [16, 32], b [32, 8]; d is int32 and wraps around.
static __device__ __forceinline__ void ts_mma_m16n8k32_s8_s8(int *d, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// a signed, b unsigned.
static __device__ __forceinline__ void ts_mma_m16n8k32_s8_u8(int *d, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// a unsigned, b signed.
static __device__ __forceinline__ void ts_mma_m16n8k32_u8_s8(int *d, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// a unsigned, b unsigned.
static __device__ __forceinline__ void ts_mma_m16n8k32_u8_u8(int *d, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two floats of 8 bits as float16, which has all of them; on sm_89 and up.
static __device__ __forceinline__ unsigned ts_widen_e4m3(unsigned two) {
  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)two));
  return halves;
}

static __device__ __forceinline__ unsigned ts_widen_e5m2(unsigned two) {
  unsigned halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)two));
  return halves;
}

// The same for floats of 8 bits and steps of 32, as two multiplications of float16: of the lower two of four neighbours
// along k, and of the upper two; d is float32. Tensor cores of sm_89 that multiply the bytes keep fewer bits of sums, as
// wgmma does (docs/cuda_hopper.md); on sm_90 the instruction that has this shape becomes just this.
#define TS_MMA_SMALL(left, right)                                                                                  \
  static __device__ __forceinline__ void ts_mma_m16n8k32_##left##_##right(float *d, const unsigned *a,             \
                                                                          const unsigned *b) {                     \
    unsigned low_a[4] = {ts_widen_##left(a[0]), ts_widen_##left(a[1]), ts_widen_##left(a[2]), ts_widen_##left(a[3])}; \
    unsigned low_b[2] = {ts_widen_##right(b[0]), ts_widen_##right(b[1])};                                          \
    ts_mma_m16n8k16_f16(d, low_a, low_b);                                                                          \
    unsigned high_a[4] = {ts_widen_##left(a[0] >> 16), ts_widen_##left(a[1] >> 16), ts_widen_##left(a[2] >> 16),   \
                          ts_widen_##left(a[3] >> 16)};                                                            \
    unsigned high_b[2] = {ts_widen_##right(b[0] >> 16), ts_widen_##right(b[1] >> 16)};                             \
    ts_mma_m16n8k16_f16(d, high_a, high_b);                                                                        \
  }

TS_MMA_SMALL(e4m3, e4m3)
TS_MMA_SMALL(e4m3, e5m2)
TS_MMA_SMALL(e5m2, e4m3)
TS_MMA_SMALL(e5m2, e5m2)
#undef TS_MMA_SMALL

// Rounds four float32 in registers to the nearest TF32, ties away from zero.
static __device__ __forceinline__ void ts_round_tf32(unsigned *r) {
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[0]) : "f"(__uint_as_float(r[0])));
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[1]) : "f"(__uint_as_float(r[1])));
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[2]) : "f"(__uint_as_float(r[2])));
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[3]) : "f"(__uint_as_float(r[3])));
}

// Two float32, rounded to the nearest float16 or bfloat16, in one register; the first in its lower half.
static __device__ __forceinline__ unsigned ts_pack_f16(float first, float second) {
#ifdef TS_TURING
  unsigned short low, high;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(low) : "f"(first));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(high) : "f"(second));
  return low | (unsigned)high << 16;
#else
  unsigned packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
#endif
}

static __device__ __forceinline__ unsigned ts_pack_bf16(float first, float second) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// Loads 16 bytes from global memory into an array in registers; both addresses are 16-byte aligned.
static __device__ __forceinline__ void ts_load_16(void *registers, const void *global) {
  *(uint4 *)registers = *(const uint4 *)global;
}

// 2 to the power of x, as exp2f computes it (2 units in the last place), but that what is below the least normal number
// is 0, which saves three instructions.
static __device__ __forceinline__ float ts_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#undef TS_TURING
