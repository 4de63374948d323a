// Atomics. One thread runs at a time, so that plain operations are atomic; the library is told for its checks.
#pragma once

enum { emu_relaxed = 0, emu_release = 1, emu_acquire = 2, emu_acq_rel = 3 };
extern "C" {
void emu_atomic(const void* address, uint32_t bytes, int order, int writes, const void* pc);
void emu_wrote();
void emu_poll(const void* address, uint64_t value, const char* name, uint32_t line);
}

// Memory is touched by memcpy: the copying of half floats is a function, which would be checked as a plain access.
template <class T>
EMU_UNCHECKED inline uint64_t emu_as_bits(T value) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T) < 8 ? sizeof(T) : 8);
  return bits;
}

template <class T>
EMU_UNCHECKED __attribute__((noinline)) T emu_load(const T* address, int order, const char* name, uint32_t line) {
  emu_atomic(address, sizeof(T), order & emu_acquire, 0, EMU_PLACE);
  T value;
  __builtin_memcpy(&value, address, sizeof(T));
  emu_poll(address, emu_as_bits(value), name, line);
  return value;
}
template <class T>
EMU_UNCHECKED __attribute__((noinline)) void emu_store(T* address, T value, int order) {
  emu_atomic(address, sizeof(T), order & emu_release, 1, EMU_PLACE);
  __builtin_memcpy(address, &value, sizeof(T));
  emu_wrote();
}

// Reads, computes, writes; returns the old value. A write of the same value may be a poll.
template <class T, class Operation>
EMU_UNCHECKED __attribute__((noinline)) T emu_update(T* address, int order, const char* name, uint32_t line, Operation operation) {
  emu_atomic(address, sizeof(T), order, 1, EMU_PLACE);
  T old;
  __builtin_memcpy(&old, address, sizeof(T));
  T changed = operation(old);
  __builtin_memcpy(address, &changed, sizeof(T));
  if (emu_as_bits(old) == emu_as_bits(changed))
    emu_poll(address, emu_as_bits(old), name, line);
  else
    emu_wrote();
  return old;
}

#define EMU_ATOMIC(name, expression)                                                              \
  template <class T, class V>                                                                     \
  __forceinline__ T name(T* address, V operand, EMU_LINE) {                                                \
    T value = T(operand);                                                                         \
    return emu_update(address, emu_relaxed, #name, line, [=](T old) { return T(expression); });   \
  }                                                                                               \
  template <class T, class V>                                                                     \
  __forceinline__ T name##_block(T* address, V operand, EMU_LINE) { return name(address, operand, line); } \
  template <class T, class V>                                                                     \
  __forceinline__ T name##_system(T* address, V operand, EMU_LINE) { return name(address, operand, line); }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicMax, old > value ? old : value)
EMU_ATOMIC(atomicMin, old < value ? old : value)
EMU_ATOMIC(atomicAnd, old & value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicExch, value)
EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef EMU_ATOMIC

template <class T, class A, class B>
__forceinline__ T atomicCAS(T* address, A expected, B desired, EMU_LINE) {
  T compare = T(expected), value = T(desired);
  return emu_update(address, emu_relaxed, "atomicCAS", line,
                    [=](T old) { return emu_as_bits(old) == emu_as_bits(compare) ? value : old; });
}
