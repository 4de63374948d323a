// The numbers of wgmma. With g = lane / 4 and t = lane % 4, accumulator i of a thread of warp w lies in
// row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2; float16 accumulators lie two in a register.
#pragma once
#include "wgmma_request.h"

extern "C" {
void emu_wgmma_fence();
void emu_wgmma_issue(const emu_wgmma_request* request, uint32_t line, const void* place);
void emu_wgmma_commit();
void emu_wgmma_wait(uint32_t pending, uint32_t line);
}

struct emu_sum_f32 {
  using Total = double;
  static constexpr int per_register = 1;
  EMU_UNCHECKED static Total get(const uint32_t* sums, int i) { return emu_bits_float(sums[i]); }
  EMU_UNCHECKED static void set(uint32_t* sums, int i, Total value, bool) { sums[i] = emu_float_bits(float(value)); }
};
struct emu_sum_f16 {
  using Total = double;
  static constexpr int per_register = 2;
  EMU_UNCHECKED static Total get(const uint32_t* sums, int i) { return emu_half_to_float(uint16_t(sums[i / 2] >> 16 * (i % 2))); }
  EMU_UNCHECKED static void set(uint32_t* sums, int i, Total value, bool) {
    uint32_t shift = 16 * (i % 2), half = emu_float_to_half(float(value));
    sums[i / 2] = (sums[i / 2] & ~(0xffffu << shift)) | half << shift;
  }
};
struct emu_sum_s32 {
  using Total = int64_t;
  static constexpr int per_register = 1;
  EMU_UNCHECKED static Total get(const uint32_t* sums, int i) { return int32_t(sums[i]); }
  EMU_UNCHECKED static void set(uint32_t* sums, int i, Total value, bool saturate) {
    if (saturate) value = value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value;
    sums[i] = uint32_t(value);
  }
};

template <class T>
EMU_UNCHECKED inline auto emu_decode_row(const uint8_t* row, int k) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, row + k * (T::bits / 8), T::bits / 8);
  return T::decode(bits);
}

// Products of floats of 8 bits are added up to 13 bits below the largest of them and of the sum before; what is below is cut
// off, and of the sum, too. This is what others measured on Hopper (docs/cuda_hopper.md), and in no manual.
EMU_UNCHECKED inline double emu_cut(double x, double unit) { return double(int64_t(x / unit)) * unit; }
EMU_UNCHECKED inline double emu_last_bit(double x) { return __builtin_ldexp(1.0, __builtin_ilogb(x) - 13); }
EMU_UNCHECKED inline double emu_add_cut(double total, const double* row, const double* column, int depth) {
  double largest = __builtin_fabs(total), exact = total;
  for (int k = 0; k < depth; ++k) {
    double product = row[k] * column[k];
    exact += product;
    largest = __builtin_fmax(largest, __builtin_fabs(product));
  }
  if (largest == 0 || !__builtin_isfinite(exact)) return exact;
  double unit = emu_last_bit(largest);
  total = emu_cut(total, unit);
  for (int k = 0; k < depth; ++k) total += emu_cut(row[k] * column[k], unit);
  return total == 0 ? 0 : emu_cut(total, emu_last_bit(total));
}

template <class A, class B, class Sum>
EMU_UNCHECKED void emu_multiply_rows(const uint8_t* a, const uint8_t* b, uint32_t* const* sums, int columns, int flags) {
  constexpr int depth = 256 / A::bits;
  using Total = typename Sum::Total;
  static Total left[64][depth], right[256][depth];
  Total sign = (flags & emu_negate_a ? -1 : 1) * (flags & emu_negate_b ? -1 : 1);
  for (int k = 0; k < depth; ++k) {
    for (int row = 0; row < 64; ++row) left[row][k] = sign * Total(emu_decode_row<A>(a + row * 32, k));
    for (int column = 0; column < columns; ++column) right[column][k] = Total(emu_decode_row<B>(b + column * 32, k));
  }
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < columns / 2; ++i) {
      const Total* row = left[thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2)];
      const Total* column = right[i / 4 * 8 + thread % 4 * 2 + i % 2];
      Total total = flags & emu_accumulate ? Sum::get(sums[thread], i) : 0;
      if constexpr (A::bits == 8 && std::is_same_v<Total, double>)
        total = emu_add_cut(total, row, column, depth);
      else
        for (int k = 0; k < depth; ++k) total += row[k] * column[k];
      Sum::set(sums[thread], i, total, flags & emu_saturate_sums);
    }
}

struct emu_a_registers {
  uint32_t item[4];
};
inline uint32_t* emu_sum_address(float& x) { return reinterpret_cast<uint32_t*>(&x); }
inline uint32_t* emu_sum_address(uint32_t& x) { return &x; }
inline uint32_t* emu_sum_address(int32_t& x) { return reinterpret_cast<uint32_t*>(&x); }

// `a_registers` or descriptor `a`; the sums come last. They are not touched here: the unit changes them when it is done.
template <class A, class B, class Sum, class... D>
EMU_UNCHECKED __attribute__((noinline)) void emu_wgmma(int columns, uint64_t a, const emu_a_registers* a_registers, uint64_t b,
                                                       int flags, int a_transposed, int b_transposed, uint32_t line, D&... sums) {
  static_assert(A::bits == B::bits);
  uint32_t* const places[] = {emu_sum_address(sums)...};
  if (int(sizeof...(D)) != columns / 2 / Sum::per_register) emu_fault("wgmma has the wrong number of accumulators", line);
  emu_wgmma_request request = {a, b, a_registers ? a_registers->item : nullptr, places, sizeof...(D), columns, A::bits / 8, flags,
                                 a_transposed, b_transposed, emu_multiply_rows<A, B, Sum>};
  emu_wgmma_issue(&request, line, EMU_PLACE);
}
template <class A, class B, class Sum, class... D>
EMU_UNCHECKED inline void emu_wgmma_registers(int columns, emu_a_registers a, uint64_t b, int flags, int b_transposed, uint32_t line, D&... sums) {
  emu_wgmma<A, B, Sum>(columns, 0, &a, b, flags, 0, b_transposed, line, sums...);
}
