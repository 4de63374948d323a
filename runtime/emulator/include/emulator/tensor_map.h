// The emulated device's tensor map: the fields of cuTensorMapEncodeTiled. runtime/emulator/kernels.py writes the same.
#pragma once
#include <cstdint>

struct alignas(64) CUtensorMap {
  uint64_t mark;
  char* address;
  uint64_t dims[5];
  uint64_t strides[4];  // bytes, of dimensions 1 to 4
  uint16_t box[5];
  uint8_t element_strides[5];
  uint8_t dtype, item_bytes, rank;
  uint8_t swizzle;  // the power of two of 16 bytes that a row spans; 0: none
  uint8_t fill;     // the byte that stands for what lies outside
};
static_assert(sizeof(CUtensorMap) == 128);
constexpr uint64_t emu_tensor_map_mark = 0x70616d726f736e74;

// Where a swizzle puts a byte of shared memory. Bits 7 and up of an address say how its bits 4 and up are changed.
inline uint64_t emu_swizzle(uint64_t address, int swizzle) {
  return address ^ ((address >> 7 & ((1u << swizzle) - 1)) << 4);
}
