// Where a thread is, shared memory, and addresses. The functions that are only declared are in the emulator's library.
#pragma once
#include "tensor_map.h"

#define EMU_INDEX(name, object)                                       \
  extern "C" __attribute__((const)) uint32_t name##_x();              \
  extern "C" __attribute__((const)) uint32_t name##_y();              \
  extern "C" __attribute__((const)) uint32_t name##_z();              \
  struct name##_t {                                                   \
    struct { operator unsigned() const { return name##_x(); } } x;    \
    struct { operator unsigned() const { return name##_y(); } } y;    \
    struct { operator unsigned() const { return name##_z(); } } z;    \
  };                                                                  \
  static constexpr name##_t object = {};
EMU_INDEX(emu_thread, threadIdx)
EMU_INDEX(emu_block, blockIdx)
EMU_INDEX(emu_block_size, blockDim)
EMU_INDEX(emu_grid_size, gridDim)
EMU_INDEX(emu_cluster_size, emu_cluster_dim)
#undef EMU_INDEX
static constexpr int warpSize = 32;

extern "C" {
void* emu_dynamic_shared(uint64_t alignment, uint64_t of_type, uint32_t line);
void* emu_static_shared(uint32_t id, uint64_t bytes, uint64_t alignment, uint32_t line, const char* name);
uint32_t emu_to_shared(const void* pointer);
void* emu_from_shared(uint32_t address);
uint32_t emu_map_shared(uint32_t address, uint32_t rank);
[[noreturn]] void emu_fault(const char* text, uint32_t line);
__attribute__((const)) uint32_t emu_lane();
__attribute__((const)) uint32_t emu_linear_thread();
}

// Addresses in PTX are pointers or numbers.
template <class T> inline const void* emu_address(const volatile T* pointer) { return const_cast<const T*>(pointer); }
inline const void* emu_address(const void* pointer) { return pointer; }
inline const void* emu_address(unsigned long number) { return reinterpret_cast<const void*>(number); }
inline const void* emu_address(unsigned long long number) { return reinterpret_cast<const void*>(number); }
// A PTX register that is an address: of 32 bits in shared memory, of 64 bits anywhere.
inline uint32_t emu_register_address(uint32_t number) { return number; }
inline uint32_t emu_register_address(int32_t number) { return uint32_t(number); }
inline const void* emu_register_address(uint64_t number) { return reinterpret_cast<const void*>(number); }
inline const void* emu_register_address(int64_t number) { return reinterpret_cast<const void*>(number); }

inline size_t __cvta_generic_to_shared(const void* pointer) { return emu_to_shared(pointer); }
inline void* __cvta_shared_to_generic(size_t address) { return emu_from_shared(uint32_t(address)); }
inline size_t __cvta_generic_to_global(const void* pointer) { return size_t(pointer); }

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldlu(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *(const volatile T*)p; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stwb(T* p, T v) { *p = v; }
template <class T> inline void __stwt(T* p, T v) { *p = v; }

// A static shared variable; the build writes declarations of `__shared__` variables in terms of it.
template <class T>
inline T& emu_shared(uint32_t id, uint64_t alignment, uint32_t line, const char* name) {
  return *static_cast<T*>(emu_static_shared(id, sizeof(T), alignment > alignof(T) ? alignment : alignof(T), line, name));
}

// How the library calls a kernel: every parameter is a pointer or a tensor map, which is given as a pointer to it.
template <class T>
EMU_UNCHECKED inline T emu_parameter(void* argument) {
  using Plain = std::remove_cv_t<T>;
  static_assert(std::is_pointer_v<Plain> || std::is_same_v<Plain, CUtensorMap>, "a kernel's parameters are pointers and tensor maps");
  if constexpr (std::is_pointer_v<Plain>)
    return static_cast<Plain>(argument);
  else
    return *static_cast<const CUtensorMap*>(argument);
}
template <class... T, size_t... I>
EMU_UNCHECKED inline void emu_call_with(void (*kernel)(T...), void** arguments, std::index_sequence<I...>) {
  kernel(emu_parameter<T>(arguments[I])...);
}
template <class... Pointers>
EMU_UNCHECKED inline void emu_call(void (*kernel)(Pointers...), void** arguments) {
  emu_call_with(kernel, arguments, std::index_sequence_for<Pointers...>());
}
// A letter for each parameter: `p` for a pointer, `m` for a tensor map.
template <class... T>
inline const char* emu_signature(void (*)(T...)) {
  static constexpr char kinds[] = {(std::is_pointer_v<std::remove_cv_t<T>> ? 'p' : 'm')..., '\0'};
  return kinds;
}

inline long long clock64() { return 0; }
inline void __trap() { emu_fault("__trap() was called", 0); }
template <class T> inline void emu_ignore(const T&) {}
#define __builtin_assume(x) emu_ignore(x)
#define __assume(x) emu_ignore(x)
#define __isShared(p) (emu_to_shared(p) < 0xffffffffu)
