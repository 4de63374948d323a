// Functions of float32 for which CUDA's compiler has longer code than the machine needs.

// The larger of two numbers; NaN if either is NaN. One instruction from sm_80 on.
static __device__ __forceinline__ float ts_float_max(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a < b || b != b ? b : a;
#endif
}

static __device__ __forceinline__ float ts_float_min(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return b < a || b != b ? b : a;
#endif
}

// a / b for b of at least 1/4, infinity or NaN, to 2 units in the last place; a quotient by more than 2^126 is 0 times a.
// A division of any numbers has a branch, so that divisions of neighbours wait for one another.
static __device__ __forceinline__ float ts_float_over(float a, float b) {
  float near, most = ts_float_min(b, 3.402823466e38f);
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(most));
  return a * __fmaf_rn(near, __fmaf_rn(-most, near, 1.0f), near);
}

// x / by, rounded once unless it is below the least normal number, given inverse = 1 / by, rounded, and by from 2^-100
// to 2^100. The error is computed as near * by - x: a remainder of 0 then leaves the sign of a zero as it is.
static __device__ __forceinline__ float ts_float_quotient(float x, float by, float inverse) {
  float near = __fmul_rn(x, inverse);
  float quotient = __fmaf_rn(__fmaf_rn(near, by, -x), -inverse, near);
  return fabsf(near) < __int_as_float(0x7f800000) ? quotient : near;
}
