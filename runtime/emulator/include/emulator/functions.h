// The functions of C's library that CUDA has built in, with its overloads, and its integer and bit intrinsics.
#pragma once

#define EMU_UNARY(name)                                                     \
  inline double name(double x) { return __builtin_##name(x); }              \
  inline float name(float x) { return __builtin_##name##f(x); }             \
  inline float name##f(float x) { return __builtin_##name##f(x); }
#define EMU_BINARY(name)                                                              \
  inline double name(double x, double y) { return __builtin_##name(x, y); }           \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); }           \
  inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }
namespace emu_functions {
EMU_UNARY(exp) EMU_UNARY(exp2) EMU_UNARY(exp10) EMU_UNARY(expm1) EMU_UNARY(log) EMU_UNARY(log2) EMU_UNARY(log10) EMU_UNARY(log1p)
EMU_UNARY(sin) EMU_UNARY(cos) EMU_UNARY(tan) EMU_UNARY(asin) EMU_UNARY(acos) EMU_UNARY(atan)
EMU_UNARY(sinh) EMU_UNARY(cosh) EMU_UNARY(tanh) EMU_UNARY(asinh) EMU_UNARY(acosh) EMU_UNARY(atanh)
EMU_UNARY(sqrt) EMU_UNARY(cbrt) EMU_UNARY(erf) EMU_UNARY(erfc) EMU_UNARY(tgamma) EMU_UNARY(lgamma)
EMU_UNARY(floor) EMU_UNARY(ceil) EMU_UNARY(trunc) EMU_UNARY(round) EMU_UNARY(rint) EMU_UNARY(nearbyint) EMU_UNARY(fabs)
EMU_BINARY(pow) EMU_BINARY(atan2) EMU_BINARY(fmod) EMU_BINARY(remainder) EMU_BINARY(hypot) EMU_BINARY(fdim)
EMU_BINARY(copysign) EMU_BINARY(fmax) EMU_BINARY(fmin) EMU_BINARY(nextafter)
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
inline float ldexpf(float x, int n) { return __builtin_ldexpf(x, n); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float rsqrt(float x) { return float(1.0 / __builtin_sqrt(double(x))); }
inline float rsqrtf(float x) { return rsqrt(x); }
inline int abs(int x) { return x < 0 ? int(0u - unsigned(x)) : x; }
inline long abs(long x) { return x < 0 ? long(0ul - (unsigned long)x) : x; }
inline long long abs(long long x) { return x < 0 ? (long long)(0ull - (unsigned long long)x) : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
inline bool isnan(double x) { return x != x; }
inline bool isnan(float x) { return x != x; }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool signbit(double x) { return __builtin_signbit(x); }
inline bool signbit(float x) { return __builtin_signbit(x); }
inline long long llrint(double x) { return __builtin_llrint(x); }
inline long lrint(double x) { return __builtin_lrint(x); }
inline float frexpf(float x, int* e) { return __builtin_frexpf(x, e); }
inline void sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x); *c = __builtin_cosf(x); }

template <class T>
constexpr bool emu_is_number = std::is_arithmetic_v<T>;
// min and max of floats return the operand that is no NaN; integers of two types are compared in their common type.
template <class A, class B, class = std::enable_if_t<emu_is_number<A> && emu_is_number<B>>>
inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_same_v<T, float>) return __builtin_fmaxf(a, b);
  else if constexpr (std::is_floating_point_v<T>) return __builtin_fmax(a, b);
  else return T(a) > T(b) ? T(a) : T(b);
}
template <class A, class B, class = std::enable_if_t<emu_is_number<A> && emu_is_number<B>>>
inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_same_v<T, float>) return __builtin_fminf(a, b);
  else if constexpr (std::is_floating_point_v<T>) return __builtin_fmin(a, b);
  else return T(a) < T(b) ? T(a) : T(b);
}
}  // namespace emu_functions
using namespace emu_functions;
#undef EMU_UNARY
#undef EMU_BINARY

inline float __expf(float x) { return __builtin_expf(x); }
inline float __exp10f(float x) { return __builtin_exp10f(x); }
inline float __logf(float x) { return __builtin_logf(x); }
inline float __log2f(float x) { return __builtin_log2f(x); }
inline float __log10f(float x) { return __builtin_log10f(x); }
inline float __sinf(float x) { return __builtin_sinf(x); }
inline float __cosf(float x) { return __builtin_cosf(x); }
inline float __tanf(float x) { return __builtin_tanf(x); }
inline float __powf(float x, float y) { return __builtin_powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

// Rounded by itself, also where the compiler fuses multiplications and additions: it does not see what r is.
template <class T>
inline T emu_rounded(T r) {
  asm("" : "+m"(r));
  return r;
}

inline float __fadd_rn(float x, float y) { return emu_rounded(emu_rounded(x) + emu_rounded(y)); }
inline float __fsub_rn(float x, float y) { return emu_rounded(emu_rounded(x) - emu_rounded(y)); }
inline float __fmul_rn(float x, float y) { return emu_rounded(x * y); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline double __dadd_rn(double x, double y) { return emu_rounded(emu_rounded(x) + emu_rounded(y)); }
inline double __dsub_rn(double x, double y) { return emu_rounded(emu_rounded(x) - emu_rounded(y)); }
inline double __dmul_rn(double x, double y) { return emu_rounded(x * y); }
inline double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }

// Conversions saturate as on the GPU, and take NaN for 0.
template <class To, class From>
inline To emu_saturate(From x) {
  constexpr double low = double(std::is_signed_v<To> ? To(1) << (sizeof(To) * 8 - 1) : To(0));
  constexpr To smallest = std::is_signed_v<To> ? To(typename std::make_unsigned_t<To>(1) << (sizeof(To) * 8 - 1)) : To(0);
  constexpr To largest = To(~smallest);
  (void)low;
  if (x != x) return 0;
  if (double(x) <= double(smallest)) return smallest;
  return double(x) >= double(largest) ? largest : To(x);
}
inline int __float2int_rn(float x) { return emu_saturate<int>(__builtin_rintf(x)); }
inline int __float2int_rz(float x) { return emu_saturate<int>(x); }
inline int __float2int_rd(float x) { return emu_saturate<int>(__builtin_floorf(x)); }
inline int __float2int_ru(float x) { return emu_saturate<int>(__builtin_ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return emu_saturate<unsigned>(__builtin_rintf(x)); }
inline unsigned __float2uint_rz(float x) { return emu_saturate<unsigned>(x); }
inline long long __float2ll_rn(float x) { return emu_saturate<long long>(__builtin_rintf(x)); }
inline long long __float2ll_rz(float x) { return emu_saturate<long long>(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline int __double2int_rn(double x) { return emu_saturate<int>(__builtin_rint(x)); }
inline int __double2int_rz(double x) { return emu_saturate<int>(x); }

inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned code = selector >> 4 * i & 15, byte = bytes >> 8 * (code & 7) & 255;
    if (code & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int(int8_t(a >> 8 * i)) * int(int8_t(b >> 8 * i));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}
