// Barriers in memory, bulk copies, and what orders them. The build writes the PTX of these in terms of the functions here.
#pragma once
#include "tensor_map.h"

using emu_reduce = void (*)(void* to, const void* from, uint32_t bytes);

extern "C" {
void emu_mbarrier_init(const void* address, uint32_t count, uint32_t line);
void emu_mbarrier_inval(const void* address, uint32_t line);
void emu_mbarrier_expect(const void* address, uint32_t bytes, uint32_t line);
void emu_mbarrier_complete(const void* address, uint32_t bytes, uint32_t line);
uint64_t emu_mbarrier_arrive(const void* address, uint32_t count, int flags, uint32_t line);
int emu_mbarrier_test(const void* address, uint64_t phase, int by_parity, int acquires, const char* name, uint32_t line);
void emu_bulk_load(void* to, const void* from, uint32_t bytes, const void* mbarrier, uint32_t mask, uint32_t line);
void emu_bulk_store(void* to, const void* from, uint32_t bytes, emu_reduce reduce, uint32_t line);
void emu_tensor_load(void* to, const CUtensorMap* map, const int* start, int rank, const void* mbarrier, uint32_t mask, uint32_t line,
                     const void* place);
void emu_tensor_store(const CUtensorMap* map, const int* start, int rank, const void* from, emu_reduce reduce, uint32_t line,
                      const void* place);
void emu_tensor_prefetch(const CUtensorMap* map, int rank, uint32_t line);
void emu_bulk_commit();
void emu_bulk_wait(uint32_t pending, int reads_only);
void emu_fence_async(int spaces);
uint32_t emu_rank_of(const void* address);
}

// Shared memory is named by a number or by a pointer.
inline void* emu_pointer(uint32_t shared) { return emu_from_shared(shared); }
inline void* emu_pointer(const void* pointer) { return const_cast<void*>(pointer); }
inline const CUtensorMap* emu_tensor_map(const void* pointer) { return static_cast<const CUtensorMap*>(pointer); }

// ld and st of one register or several that lie together.
template <class T, class D>
inline void emu_move(D& to, const T& from) {
  if constexpr (sizeof(D) == sizeof(T)) to = __builtin_bit_cast(D, from);
  else to = D(from);
}
inline void emu_need_alignment(const void* address, size_t bytes, uint32_t line) {
  if (reinterpret_cast<uintptr_t>(address) % bytes) emu_fault("ld or st at an address that is not aligned to its bytes", line);
}
template <class T, class... D>
inline void emu_plain_ld(const void* address, uint32_t line, D&... registers) {
  emu_need_alignment(address, sizeof(T) * sizeof...(D), line);
  const T* from = static_cast<const T*>(address);
  (emu_move(registers, *from++), ...);
}
template <class T, class... D>
inline void emu_plain_st(void* address, uint32_t line, const D&... registers) {
  emu_need_alignment(address, sizeof(T) * sizeof...(D), line);
  T* to = static_cast<T*>(address);
  (emu_move(*to++, registers), ...);
}

inline uint64_t emu_arrive_and_expect(const void* address, uint32_t bytes, int flags, uint32_t line) {
  emu_mbarrier_expect(address, bytes, line);
  return emu_mbarrier_arrive(address, 1, flags, line);
}

// cp.async.mbarrier.arrive: here the thread's copies are done at once.
inline void emu_arrive_after_copies(const void* address, int flags, uint32_t line) {
  emu_copy_wait_all();
  emu_mbarrier_arrive(address, 1, flags, line);
}

template <class... C>
EMU_UNCHECKED __attribute__((noinline)) void emu_load_box(void* to, const CUtensorMap* map, const void* mbarrier, uint32_t mask, uint32_t line, C... start) {
  int at[] = {int(start)...};
  emu_tensor_load(to, map, at, int(sizeof...(C)), mbarrier, mask, line, EMU_PLACE);
}
template <class... C>
EMU_UNCHECKED __attribute__((noinline)) void emu_store_box(const CUtensorMap* map, const void* from, emu_reduce reduce, uint32_t line, C... start) {
  int at[] = {int(start)...};
  emu_tensor_store(map, at, int(sizeof...(C)), from, reduce, line, EMU_PLACE);
}

template <class T, class Fold>
EMU_UNCHECKED inline void emu_reduce_items(void* to, const void* from, uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += sizeof(T)) {
    T old, item;
    __builtin_memcpy(&old, static_cast<char*>(to) + at, sizeof(T));
    __builtin_memcpy(&item, static_cast<const char*>(from) + at, sizeof(T));
    old = Fold::fold(old, item);
    __builtin_memcpy(static_cast<char*>(to) + at, &old, sizeof(T));
  }
}
#define EMU_REDUCTION(name, expression) \
  struct emu_reduce_##name { template <class T> EMU_UNCHECKED static T fold(T a, T b) { return T(expression); } };
EMU_REDUCTION(add, a + b)
EMU_REDUCTION(min, b < a ? b : a)
EMU_REDUCTION(max, b > a ? b : a)
EMU_REDUCTION(and, a & b)
EMU_REDUCTION(or, a | b)
EMU_REDUCTION(xor, a ^ b)
EMU_REDUCTION(inc, a >= b ? T(0) : T(a + 1))
EMU_REDUCTION(dec, a == 0 || a > b ? b : T(a - 1))
#undef EMU_REDUCTION

// The reduction of a tensor, whose elements its map names.
template <class Fold>
inline emu_reduce emu_reduction_of(const CUtensorMap* map) {
  constexpr bool bitwise = std::is_same_v<Fold, emu_reduce_and> || std::is_same_v<Fold, emu_reduce_or> ||
                           std::is_same_v<Fold, emu_reduce_xor> || std::is_same_v<Fold, emu_reduce_inc> ||
                           std::is_same_v<Fold, emu_reduce_dec>;
  switch (map->dtype) {  // CUtensorMapDataType
    case 2: return emu_reduce_items<uint32_t, Fold>;
    case 3: return emu_reduce_items<int32_t, Fold>;
    case 4: return emu_reduce_items<uint64_t, Fold>;
    case 5: return emu_reduce_items<int64_t, Fold>;
  }
  if constexpr (!bitwise) switch (map->dtype) {
    case 6: return emu_reduce_items<half, Fold>;
    case 7: case 10: return emu_reduce_items<float, Fold>;
    case 8: return emu_reduce_items<double, Fold>;
    case 9: return emu_reduce_items<nv_bfloat16, Fold>;
  }
  emu_fault("a reduction that there is not for elements of this type", 0);
}
