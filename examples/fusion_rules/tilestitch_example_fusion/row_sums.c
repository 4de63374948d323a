void TILESTITCH_KERNEL(const float *restrict x, float *restrict y, int64_t row) {
  enum { LANES = 16 }; /* partial sums, which a compiler may add up in vectors */
  float sums[LANES] = {0}, sum = 0;
  const float *first = x + row * LENGTH;
  int whole = LENGTH / LANES * LANES;
  for (int i = 0; i < whole; i += LANES)
    for (int lane = 0; lane < LANES; ++lane) sums[lane] += first[i + lane];
  for (int i = whole; i < LENGTH; ++i) sum += first[i];
  for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
  y[row] = sum;
}
