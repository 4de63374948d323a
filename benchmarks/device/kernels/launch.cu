// Kernels that do nothing, to time what surrounds them.

extern "C" __global__ void empty(unsigned *x) {}

// For programmatic edges: lets the next launch start at once, and waits for the one before.
extern "C" __global__ void empty_programmatic(unsigned *x) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Works about as long as x[0] says, in nanoseconds.
extern "C" __global__ void busy(const unsigned *x) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < x[0]);
}
