// What a wgmma instruction asks for. Shared by the kernels, which know the numbers, and the device, which knows what waits.
#pragma once
#include <cstdint>

// Rows of 32 bytes along K: `a` has 64, `b` has `columns`. `sums` are the accumulators of 128 threads, as bits.
using emu_multiply = void (*)(const uint8_t* a, const uint8_t* b, uint32_t* const* sums, int columns, int flags);

enum emu_wgmma_flag { emu_accumulate = 1, emu_negate_a = 2, emu_negate_b = 4, emu_saturate_sums = 8 };

struct emu_wgmma_request {
  uint64_t a, b;              // descriptors of operands in shared memory; `a` is unused if `a_registers` is not null
  const uint32_t* a_registers;  // four
  uint32_t* const* sums;      // addresses of the accumulators
  uint32_t sum_count;
  int columns, item_bytes, flags;
  int a_transposed, b_transposed;  // M or N is contiguous in shared memory, not K
  emu_multiply multiply;
};
