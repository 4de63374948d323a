// Tensor maps by the rules of the driver's manual. An encoded map holds what it was given, marked, so that a launch can
// tell it from other bytes.
#include <cstring>

#include "standin.h"

namespace standin {
namespace {

constexpr int kMostRank = 5;
constexpr uint64_t kMark = 0x70616D726F736E74;
const uint32_t kItemBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // in the order of CUtensorMapDataType
const uint32_t kSwizzleBytes[] = {0, 32, 64, 128};

// The layout is the emulated device's (runtime/emulator/include/emulator/tensor_map.h), whose kernels can read it.
struct __attribute__((packed)) Encoded {
  uint64_t mark, address, dims[kMostRank], strides[kMostRank - 1];
  uint16_t box[kMostRank];
  uint8_t element_strides[kMostRank], dtype, item_bytes, rank, swizzle, fill;
  uint8_t padding[20];
};
static_assert(sizeof(Encoded) == sizeof(CUtensorMap), "a map has 128 bytes");

bool is_float(CUtensorMapDataType type) {
  return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

void check_extents(const Encoded& map, const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                   const cuuint32_t* steps) {
  for (int axis = 0; axis < map.rank; ++axis) {
    if (dims[axis] < 1 || dims[axis] > uint64_t(1) << 31) refuse(CUDA_ERROR_INVALID_VALUE, "dimension %d is %lu", axis, dims[axis]);
    if (box[axis] < 1 || box[axis] > 256) refuse(CUDA_ERROR_INVALID_VALUE, "the box has %u along dimension %d", box[axis], axis);
    if (steps[axis] < 1 || steps[axis] > 8) refuse(CUDA_ERROR_INVALID_VALUE, "element stride %d is %u", axis, steps[axis]);
    if (axis + 1 < map.rank && (strides[axis] % 16 || strides[axis] >= uint64_t(1) << 40))
      refuse(CUDA_ERROR_INVALID_VALUE, "stride %d is %lu bytes", axis, strides[axis]);
  }
}

uint64_t span(const Encoded& map) {
  uint64_t nbytes = map.dims[0] * map.item_bytes;
  for (int axis = 1; axis < map.rank; ++axis) nbytes += (map.dims[axis] - 1) * map.strides[axis - 1];
  return nbytes;
}

}  // namespace

void check_tensor_map(Device& device, const std::vector<uint8_t>& bytes, const std::string& where) {
  Encoded map;
  memcpy(&map, bytes.data(), sizeof map);
  if (map.mark != kMark) refuse(CUDA_ERROR_ILLEGAL_INSTRUCTION, "%s is no encoded tensor map", where.c_str());
  check_memory(device, map.address, span(map), CUDA_ERROR_ILLEGAL_ADDRESS, where.c_str());
}

}  // namespace standin

using namespace standin;

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                           const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                           const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                           CUtensorMapFloatOOBfill fill) {
  return guarded(__func__, Needs::context, [&] {
    constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
    if (current_device().gpu->major < 9) refuse(kInvalid, "the GPU has no tensor maps");
    if (uintptr_t(map) % 64) refuse(kInvalid, "the map lies at %p, which is no multiple of 64", (void*)map);
    if (unsigned(type) >= std::size(kItemBytes)) refuse(kInvalid, "data type %d", int(type));
    if (rank < 1 || rank > kMostRank) refuse(kInvalid, "rank %u", rank);
    if (uintptr_t(address) % 16) refuse(kInvalid, "the tensor lies at %p, which is no multiple of 16", address);
    if (!dims || !box || !steps || (rank > 1 && !strides)) refuse(kInvalid, "an array is missing");
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) refuse(kInvalid, "interleaved layouts are not checked here");
    if (unsigned(swizzle) >= std::size(kSwizzleBytes)) refuse(kInvalid, "swizzle %d is not checked here", int(swizzle));
    if (unsigned(promotion) > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) refuse(kInvalid, "L2 promotion %d", int(promotion));
    if (unsigned(fill) > 1 || (fill && !is_float(type))) refuse(kInvalid, "fill %d of data type %d", int(fill), int(type));
    Encoded made{kMark, uint64_t(address)};
    made.rank = uint8_t(rank), made.dtype = uint8_t(type), made.item_bytes = uint8_t(kItemBytes[type]);
    made.swizzle = uint8_t(swizzle), made.fill = fill ? 0xFF : 0;
    check_extents(made, dims, strides, box, steps);
    uint32_t row = box[0] * made.item_bytes;
    if (row % 16) refuse(kInvalid, "a row of the box has %u bytes, which is no multiple of 16", row);
    if (swizzle && row > kSwizzleBytes[swizzle]) refuse(kInvalid, "a row of the box has %u bytes, more than swizzle %d", row, int(swizzle));
    for (uint32_t axis = 0; axis < rank; ++axis) {
      made.dims[axis] = dims[axis], made.box[axis] = uint16_t(box[axis]), made.element_strides[axis] = uint8_t(steps[axis]);
      if (axis + 1 < rank) made.strides[axis] = strides[axis];
    }
    memcpy(map, &made, sizeof made);
  });
}
