extern "C" __global__ void __launch_bounds__(256) TILESTITCH_KERNEL(const float *__restrict__ x, float *__restrict__ y) {
  int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= ROWS) return;
  float sum = 0.0f;
  for (int i = lane; i < LENGTH; i += 32) sum += x[(long long)row * LENGTH + i];
  for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (lane == 0) y[row] = sum;
}
