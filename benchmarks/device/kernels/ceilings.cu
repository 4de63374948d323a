// Ceilings of memory and arithmetic. `size` holds the number of 16-byte words, or of rounds.

extern "C" __global__ void copy(const uint4 *x, uint4 *y, const long long *size) {
  long long n = *size, stride = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    uint4 a = x[i], b = x[i + stride], c = x[i + 2 * stride], d = x[i + 3 * stride];
    y[i] = a; y[i + stride] = b; y[i + 2 * stride] = c; y[i + 3 * stride] = d;
  }
  for (; i < n; i += stride) y[i] = x[i];
}

// The store never happens, but the compiler cannot know.
extern "C" __global__ void read(const uint4 *x, uint4 *y, const long long *size) {
  long long n = *size, stride = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + 3 * stride < n; i += 4 * stride) {
    uint4 a = x[i], b = x[i + stride], c = x[i + 2 * stride], d = x[i + 3 * stride];
    sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
    sum ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < n; i += stride) { uint4 a = x[i]; sum ^= a.x ^ a.y ^ a.z ^ a.w; }
  if (sum == 0x12345679u && n < 0) y[0].x = sum;
}

extern "C" __global__ void write(const uint4 *x, uint4 *y, const long long *size) {
  long long n = *size, stride = (long long)gridDim.x * blockDim.x;
  uint4 v = make_uint4(threadIdx.x, 2u, 3u, 4u);
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = v;
}

// Eight independent chains a thread: 8 * rounds * 2 operations.
extern "C" __global__ void fma32(const uint4 *x, float *y, const long long *size) {
  float a[8];
  for (int k = 0; k < 8; ++k) a[k] = threadIdx.x + k;
  for (long long r = 0; r < *size; ++r)
#pragma unroll
    for (int k = 0; k < 8; ++k) a[k] = fmaf(a[k], 0.999f, 0.5f);
  float s = 0;
  for (int k = 0; k < 8; ++k) s += a[k];
  if (s == 1.25e30f) y[0] = s;
}

// Eight independent chains of ex2: 8 * rounds special-function operations a thread.
extern "C" __global__ void ex2(const uint4 *x, float *y, const long long *size) {
  float a[8];
  for (int k = 0; k < 8; ++k) a[k] = -1.0f / (1 + threadIdx.x + k);
  for (long long r = 0; r < *size; ++r)
#pragma unroll
    for (int k = 0; k < 8; ++k) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(a[k]));
  float s = 0;
  for (int k = 0; k < 8; ++k) s += a[k];
  if (s == 1.25e30f) y[0] = s;
}
