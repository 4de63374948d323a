// float16 and bfloat16. Arithmetic goes through float and rounds once, to nearest even, as the GPU's does.
#pragma once

inline float emu_bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t emu_float_bits(float value) { return __builtin_bit_cast(uint32_t, value); }

inline float emu_half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return emu_bits_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x0400) return emu_bits_float(sign | ((rest << 13) + (112u << 23)));
  float tiny = float(rest) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

inline uint16_t emu_float_to_half(float value) {
  uint32_t bits = emu_float_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return uint16_t(0x7fff);  // the GPU's NaN
  if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (rest >= 0x38800000) return uint16_t(sign | ((rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13));
  float shifted = emu_bits_float(rest) + 0.5f;  // its last place is half's smallest number
  return uint16_t(sign | (emu_float_bits(shifted) - 0x3f000000));
}

inline float emu_bfloat_to_float(uint16_t b) { return emu_bits_float(uint32_t(b) << 16); }

inline uint16_t emu_float_to_bfloat(float value) {
  uint32_t bits = emu_float_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(0x7fff);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <float (*Widen)(uint16_t), uint16_t (*Narrow)(float)>
struct emu_half {
  uint16_t __x;
  emu_half() = default;
  emu_half(float value) : __x(Narrow(value)) {}
  emu_half(double value) : __x(Narrow(float(value))) {}
  emu_half(int value) : __x(Narrow(float(value))) {}
  emu_half(unsigned value) : __x(Narrow(float(value))) {}
  emu_half(short value) : __x(Narrow(float(value))) {}
  emu_half(unsigned short value) : __x(Narrow(float(value))) {}
  emu_half(signed char value) : __x(Narrow(float(value))) {}
  emu_half(char value) : __x(Narrow(float(value))) {}
  emu_half(unsigned char value) : __x(Narrow(float(value))) {}
  emu_half(bool value) : __x(Narrow(float(value))) {}
  emu_half(long value) : __x(Narrow(float(value))) {}
  emu_half(unsigned long value) : __x(Narrow(float(value))) {}
  emu_half(long long value) : __x(Narrow(float(value))) {}
  emu_half(unsigned long long value) : __x(Narrow(float(value))) {}
  template <class T, class = decltype(T::emu_is_small_float)>
  explicit emu_half(const T& value) : __x(Narrow(float(value))) {}
  emu_half(const emu_half&) = default;
  emu_half& operator=(const emu_half&) = default;
  emu_half(const volatile emu_half& other) : __x(other.__x) {}
  void operator=(const emu_half& other) volatile { __x = other.__x; }
  operator float() const { return Widen(__x); }
  static emu_half from_bits(uint16_t bits) {
    emu_half result;
    result.__x = bits;
    return result;
  }
#define EMU_OPERATOR(op)                                                                                             \
  friend emu_half operator op(emu_half a, emu_half b) { return emu_half(Widen(a.__x) op Widen(b.__x)); }             \
  emu_half& operator op##=(emu_half b) { return *this = emu_half(Widen(__x) op Widen(b.__x)); }
  EMU_OPERATOR(+)
  EMU_OPERATOR(-)
  EMU_OPERATOR(*)
  EMU_OPERATOR(/)
#undef EMU_OPERATOR
#define EMU_COMPARISON(op) \
  friend bool operator op(emu_half a, emu_half b) { return Widen(a.__x) op Widen(b.__x); }
  EMU_COMPARISON(==)
  EMU_COMPARISON(!=)
  EMU_COMPARISON(<)
  EMU_COMPARISON(<=)
  EMU_COMPARISON(>)
  EMU_COMPARISON(>=)
#undef EMU_COMPARISON
  friend emu_half operator-(emu_half a) { return from_bits(a.__x ^ 0x8000); }
  friend emu_half operator+(emu_half a) { return a; }
};

using __half = emu_half<emu_half_to_float, emu_float_to_half>;
using __nv_bfloat16 = emu_half<emu_bfloat_to_float, emu_float_to_bfloat>;
using half = __half;
using nv_bfloat16 = __nv_bfloat16;

template <class T>
struct alignas(4) emu_half2 {
  T x, y;
  emu_half2() = default;
  emu_half2(T x, T y) : x(x), y(y) {}
#define EMU_OPERATOR(op) \
  friend emu_half2 operator op(emu_half2 a, emu_half2 b) { return {a.x op b.x, a.y op b.y}; }
  EMU_OPERATOR(+)
  EMU_OPERATOR(-)
  EMU_OPERATOR(*)
  EMU_OPERATOR(/)
#undef EMU_OPERATOR
};
using __half2 = emu_half2<__half>;
using __nv_bfloat162 = emu_half2<__nv_bfloat16>;
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;
inline half2 make_half2(half x, half y) { return {x, y}; }
inline nv_bfloat162 make_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }

inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline half __double2half(double x) { return half(float(x)); }
inline float __half2float(half x) { return float(x); }
inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __double2bfloat16(double x) { return nv_bfloat16(float(x)); }
inline float __bfloat162float(nv_bfloat16 x) { return float(x); }
inline half2 __float22half2_rn(float2 v) { return {half(v.x), half(v.y)}; }
inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
inline nv_bfloat162 __float22bfloat162_rn(float2 v) { return {nv_bfloat16(v.x), nv_bfloat16(v.y)}; }
inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {nv_bfloat16(x), nv_bfloat16(y)}; }
inline float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
inline float2 __bfloat1622float2(nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline unsigned short __half_as_ushort(half x) { return x.__x; }
inline short __half_as_short(half x) { return short(x.__x); }
inline half __ushort_as_half(unsigned short x) { return half::from_bits(x); }
inline half __short_as_half(short x) { return half::from_bits(uint16_t(x)); }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 x) { return x.__x; }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return nv_bfloat16::from_bits(x); }

#define EMU_HALF_FUNCTIONS(T)                                                                             \
  inline T __hadd(T a, T b) { return a + b; }                                                             \
  inline T __hsub(T a, T b) { return a - b; }                                                             \
  inline T __hmul(T a, T b) { return a * b; }                                                             \
  inline T __hdiv(T a, T b) { return a / b; }                                                             \
  inline T __hneg(T a) { return -a; }                                                                     \
  inline T __habs(T a) { return T::from_bits(a.__x & 0x7fff); }                                           \
  inline T __hfma(T a, T b, T c) { return T(double(float(a)) * double(float(b)) + double(float(c))); }    \
  inline T __hmax(T a, T b) { return T(__builtin_fmaxf(float(a), float(b))); }                            \
  inline T __hmin(T a, T b) { return T(__builtin_fminf(float(a), float(b))); }                            \
  inline bool __heq(T a, T b) { return a == b; }                                                          \
  inline bool __hne(T a, T b) { return a != b; }                                                          \
  inline bool __hlt(T a, T b) { return a < b; }                                                           \
  inline bool __hle(T a, T b) { return a <= b; }                                                          \
  inline bool __hgt(T a, T b) { return a > b; }                                                           \
  inline bool __hge(T a, T b) { return a >= b; }                                                          \
  inline bool __hisnan(T a) { return float(a) != float(a); }                                              \
  inline T hexp(T x) { return T(__builtin_expf(float(x))); }                                              \
  inline T hexp2(T x) { return T(__builtin_exp2f(float(x))); }                                            \
  inline T hlog(T x) { return T(__builtin_logf(float(x))); }                                              \
  inline T hlog2(T x) { return T(__builtin_log2f(float(x))); }                                            \
  inline T hlog10(T x) { return T(__builtin_log10f(float(x))); }                                          \
  inline T hsqrt(T x) { return T(__builtin_sqrtf(float(x))); }                                            \
  inline T hrsqrt(T x) { return T(1.0f / __builtin_sqrtf(float(x))); }                                    \
  inline T hrcp(T x) { return T(1.0f / float(x)); }                                                       \
  inline T hsin(T x) { return T(__builtin_sinf(float(x))); }                                              \
  inline T hcos(T x) { return T(__builtin_cosf(float(x))); }                                              \
  inline T htanh(T x) { return T(__builtin_tanhf(float(x))); }                                            \
  inline T hfloor(T x) { return T(__builtin_floorf(float(x))); }                                          \
  inline T hceil(T x) { return T(__builtin_ceilf(float(x))); }                                            \
  inline T htrunc(T x) { return T(__builtin_truncf(float(x))); }                                          \
  inline T hrint(T x) { return T(__builtin_rintf(float(x))); }
EMU_HALF_FUNCTIONS(half)
EMU_HALF_FUNCTIONS(nv_bfloat16)
#undef EMU_HALF_FUNCTIONS

inline half2 __hadd2(half2 a, half2 b) { return a + b; }
inline half2 __hmul2(half2 a, half2 b) { return a * b; }
inline half2 __hfma2(half2 a, half2 b, half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
