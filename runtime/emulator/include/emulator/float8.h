// float8 as CUDA converts it: to nearest even, and saturating to the largest finite number.
#pragma once

template <int Exponent, int Mantissa, int Bias, bool HasInfinity>
inline float emu_small_to_float(uint8_t bits) {
  int exponent = bits >> Mantissa & ((1 << Exponent) - 1), mantissa = bits & ((1 << Mantissa) - 1);
  float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (HasInfinity && exponent == (1 << Exponent) - 1) return mantissa ? __builtin_nanf("") : sign * __builtin_inff();
  if (!HasInfinity && (bits & 0x7f) == 0x7f) return __builtin_nanf("");
  if (!exponent) return sign * __builtin_ldexpf(float(mantissa), 1 - Bias - Mantissa);
  return sign * __builtin_ldexpf(float(mantissa + (1 << Mantissa)), exponent - Bias - Mantissa);
}

template <int Exponent, int Mantissa, int Bias, bool HasInfinity>
inline uint8_t emu_float_to_small(float value) {
  uint8_t sign = emu_float_bits(value) >> 24 & 0x80;
  if (value != value) return 0x7f;
  uint8_t largest = HasInfinity ? uint8_t(((1 << Exponent) - 1) << Mantissa) - 1 : 0x7e;
  float size = __builtin_fabsf(value);
  int exponent = size ? __builtin_ilogbf(size) : -1000;
  if (exponent < 1 - Bias) exponent = 1 - Bias;
  float places = __builtin_rintf(__builtin_ldexpf(size, Mantissa - exponent));
  if (size >= __builtin_ldexpf(1.0f, 60)) return sign | largest;
  int bits = int(places) + (exponent - 1 + Bias) * (1 << Mantissa);
  return sign | uint8_t(bits > largest ? largest : bits);
}

template <int E, int M, int B, bool I>
struct emu_float8 {
  static constexpr bool emu_is_small_float = true;
  uint8_t __x;
  emu_float8() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  explicit emu_float8(T value) : __x(emu_float_to_small<E, M, B, I>(float(value))) {}
  explicit emu_float8(half value) : emu_float8(float(value)) {}
  explicit emu_float8(nv_bfloat16 value) : emu_float8(float(value)) {}
  explicit operator float() const { return emu_small_to_float<E, M, B, I>(__x); }
  explicit operator double() const { return float(*this); }
  explicit operator int() const { return int(float(*this)); }
  explicit operator bool() const { return float(*this) != 0; }
};
using __nv_fp8_e4m3 = emu_float8<4, 3, 7, false>;
using __nv_fp8_e5m2 = emu_float8<5, 2, 15, true>;
using __nv_fp8_storage_t = unsigned char;
