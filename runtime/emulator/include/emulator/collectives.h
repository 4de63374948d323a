// Instructions of a whole warp beside those of matrix.h: stmatrix and elect.sync; and where a block is in its cluster.
#pragma once

extern "C" void emu_check_write(const void* address, uint32_t bytes, const void* pc);

struct emu_matrix_store {
  char* row;
  char* rows[4][8];
};
template <int Count>
EMU_UNCHECKED inline void emu_combine_store(void** lanes, uint32_t) {
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < Count; ++m)
      for (int row = 0; row < 8; ++row)
        static_cast<emu_matrix_store*>(lanes[lane])->rows[m][row] = static_cast<emu_matrix_store*>(lanes[8 * m + row])->row;
}

// Lane l holds elements 2 (l % 4) and the next of row l / 4 of each matrix or, transposed, of column l / 4.
template <bool Transposed, class... R>
EMU_UNCHECKED __attribute__((noinline)) void emu_store_matrices(void* row, uint32_t line, R... registers) {
  constexpr int count = int(sizeof...(R));
  const uint32_t values[] = {__builtin_bit_cast(uint32_t, registers)...};
  int lane = int(emu_lane()), low = 2 * (lane % 4);
  emu_matrix_store mine = {static_cast<char*>(row), {}};
  emu_collective(0xffffffffu, emu_combine_store<count>, &mine, "stmatrix", line);
  for (int m = 0; m < count; ++m)
    for (int i = 0; i < 2; ++i) {
      int row = Transposed ? low + i : lane / 4, column = Transposed ? lane / 4 : low + i;
      char* to = mine.rows[m][row] + 2 * column;
      if (reinterpret_cast<uintptr_t>(mine.rows[m][row]) % 16) emu_fault("stmatrix to a row that is not aligned to 16 bytes", line);
      emu_check_write(to, 2, EMU_PLACE);
      uint16_t value = uint16_t(values[m] >> 16 * i);
      __builtin_memcpy(to, &value, 2);
    }
}

// The lowest lane of the mask is elected; a GPU may elect another.
template <class L, class P>
inline void emu_elect(L& leader, P& is_leader, uint32_t mask, uint32_t line) {
  leader = L(__builtin_ctz(uint32_t(emu_fold<emu_fold_ballot>(mask, 1, "elect.sync", line))));
  is_leader = P(emu_lane() == uint32_t(leader));
}

inline uint32_t emu_block_in_cluster(int axis) {
  const uint32_t block[3] = {blockIdx.x, blockIdx.y, blockIdx.z};
  const uint32_t size[3] = {emu_cluster_dim.x, emu_cluster_dim.y, emu_cluster_dim.z};
  return block[axis] % size[axis];
}
inline uint32_t emu_cluster_rank() {
  return emu_block_in_cluster(0) + emu_cluster_dim.x * (emu_block_in_cluster(1) + emu_cluster_dim.y * emu_block_in_cluster(2));
}
inline uint32_t emu_cluster_blocks() { return emu_cluster_dim.x * emu_cluster_dim.y * emu_cluster_dim.z; }
inline unsigned cooperative_groups::emu_cluster::block_rank() { return emu_cluster_rank(); }
inline unsigned cooperative_groups::emu_cluster::num_blocks() { return emu_cluster_blocks(); }

// Special registers, by their names in PTX with `.` as `_`.
namespace emu_registers {
#define EMU_REGISTER(name, expression) inline uint32_t name() { return uint32_t(expression); }
#define EMU_REGISTERS(name, object) EMU_REGISTER(name##_x, object.x) EMU_REGISTER(name##_y, object.y) EMU_REGISTER(name##_z, object.z)
EMU_REGISTERS(tid, threadIdx)
EMU_REGISTERS(ntid, blockDim)
EMU_REGISTERS(ctaid, blockIdx)
EMU_REGISTERS(nctaid, gridDim)
EMU_REGISTERS(cluster_nctaid, emu_cluster_dim)
EMU_REGISTER(cluster_ctaid_x, emu_block_in_cluster(0))
EMU_REGISTER(cluster_ctaid_y, emu_block_in_cluster(1))
EMU_REGISTER(cluster_ctaid_z, emu_block_in_cluster(2))
EMU_REGISTER(clusterid_x, blockIdx.x / emu_cluster_dim.x)
EMU_REGISTER(clusterid_y, blockIdx.y / emu_cluster_dim.y)
EMU_REGISTER(clusterid_z, blockIdx.z / emu_cluster_dim.z)
EMU_REGISTER(nclusterid_x, gridDim.x / emu_cluster_dim.x)
EMU_REGISTER(nclusterid_y, gridDim.y / emu_cluster_dim.y)
EMU_REGISTER(nclusterid_z, gridDim.z / emu_cluster_dim.z)
EMU_REGISTER(cluster_ctarank, emu_cluster_rank())
EMU_REGISTER(cluster_nctarank, emu_cluster_blocks())
EMU_REGISTER(laneid, emu_lane())
EMU_REGISTER(warpid, emu_linear_thread() / 32)
#undef EMU_REGISTERS
#undef EMU_REGISTER
}  // namespace emu_registers
