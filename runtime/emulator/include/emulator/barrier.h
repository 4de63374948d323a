// Barriers and fences.
#pragma once

extern "C" {
void emu_barrier(int id, uint32_t count, const char* name, uint32_t line);
void emu_barrier_arrive(int id, uint32_t count, uint32_t line);
int emu_barrier_count(int id, uint32_t count, int predicate, const char* name, uint32_t line);
void emu_grid_barrier(uint32_t line);
void emu_cluster_arrive(int releases, uint32_t line);
void emu_cluster_wait(uint32_t line);
void emu_fence();
void emu_pause(const char* name, uint32_t line);
void emu_trigger();
int emu_dependencies_over();
}

inline void __syncthreads(EMU_LINE) { emu_barrier(0, 0, "__syncthreads", line); }
inline int __syncthreads_count(int predicate, EMU_LINE) {
  return emu_barrier_count(0, 0, predicate, "__syncthreads_count", line);
}
inline int __syncthreads_or(int predicate, EMU_LINE) {
  return emu_barrier_count(0, 0, predicate, "__syncthreads_or", line) != 0;
}
inline int __syncthreads_and(int predicate, EMU_LINE) {
  return emu_barrier_count(0, 0, !predicate, "__syncthreads_and", line) == 0;
}
inline void __threadfence() { emu_fence(); }
inline void __threadfence_block() { emu_fence(); }
inline void __threadfence_system() { emu_fence(); }
inline void __nanosleep(unsigned, EMU_LINE) { emu_pause("__nanosleep", line); }

namespace cooperative_groups {
struct emu_grid {
  void sync(EMU_LINE) const { emu_grid_barrier(line); }
  unsigned long long size() const { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z; }
  bool is_valid() const { return true; }
};
struct emu_block {
  void sync(EMU_LINE) const { emu_barrier(0, 0, "block.sync", line); }
  unsigned thread_rank() const { return emu_linear_thread(); }
};
struct emu_cluster {
  void sync(EMU_LINE) const { emu_cluster_arrive(1, line), emu_cluster_wait(line); }
  void barrier_arrive(EMU_LINE) const { emu_cluster_arrive(1, line); }
  void barrier_wait(EMU_LINE) const { emu_cluster_wait(line); }
  static unsigned block_rank();
  static unsigned num_blocks();
  template <class T> static T* map_shared_rank(T* pointer, unsigned rank) {
    return static_cast<T*>(emu_from_shared(emu_map_shared(emu_to_shared(pointer), rank)));
  }
};
inline emu_grid this_grid() { return {}; }
inline emu_block this_thread_block() { return {}; }
inline emu_cluster this_cluster() { return {}; }
}  // namespace cooperative_groups
