// CUDA's vector types.
#pragma once

#define EMU_VECTOR(name, type, align2, align4)                                                               \
  struct name##1 { type x; };                                                                                \
  struct alignas(align2) name##2 { type x, y; };                                                             \
  struct name##3 { type x, y, z; };                                                                          \
  struct alignas(align4) name##4 { type x, y, z, w; };                                                       \
  inline name##1 make_##name##1(type x) { return {x}; }                                                      \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                           \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                                \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

EMU_VECTOR(char, signed char, 2, 4)
EMU_VECTOR(uchar, unsigned char, 2, 4)
EMU_VECTOR(short, short, 4, 8)
EMU_VECTOR(ushort, unsigned short, 4, 8)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(uint, unsigned int, 8, 16)
EMU_VECTOR(long, long, 16, 16)
EMU_VECTOR(ulong, unsigned long, 16, 16)
EMU_VECTOR(longlong, long long, 16, 16)
EMU_VECTOR(ulonglong, unsigned long long, 16, 16)
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(double, double, 16, 16)
#undef EMU_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
