// Shuffles, votes and reductions of a warp. Each lane hands in a record; the last of the mask to come computes for all.
#pragma once

using emu_combine = void (*)(void** lanes, uint32_t mask);
extern "C" void emu_collective(uint32_t mask, emu_combine combine, void* argument, const char* name, uint32_t line);
extern "C" uint32_t emu_active_mask(uint32_t line);

#define __activemask() emu_active_mask(__builtin_LINE())
inline void __syncwarp(unsigned mask = 0xffffffffu, uint32_t line = __builtin_LINE()) {
  emu_collective(mask, nullptr, nullptr, "__syncwarp", line);
}

template <class T>
struct emu_shuffled {
  T value, result;
  int source;
};

// A lane that asks for the value of one that takes no part gets bytes of 0xff: NaN, or -1.
template <class T>
EMU_UNCHECKED inline void emu_combine_shuffle(void** lanes, uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    auto* mine = static_cast<emu_shuffled<T>*>(lanes[lane]);
    bool there = mask >> mine->source & 1;
    if (there)
      __builtin_memcpy(&mine->result, &static_cast<emu_shuffled<T>*>(lanes[mine->source])->value, sizeof(T));
    else
      __builtin_memset(&mine->result, 0xff, sizeof(T));
  }
}

template <class T>
EMU_UNCHECKED inline T emu_shuffle(unsigned mask, T value, int source, const char* name, uint32_t line) {
  emu_shuffled<T> mine;
  mine.value = value;
  mine.source = source;
  emu_collective(mask, emu_combine_shuffle<T>, &mine, name, line);
  return mine.result;
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, uint32_t line = __builtin_LINE()) {
  int me = int(emu_lane());
  return emu_shuffle(mask, value, (me & ~(width - 1)) | (lane & (width - 1)), "__shfl_sync", line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, uint32_t line = __builtin_LINE()) {
  int me = int(emu_lane()), source = me - int(delta);
  return emu_shuffle(mask, value, source < (me & ~(width - 1)) ? me : source, "__shfl_up_sync", line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, uint32_t line = __builtin_LINE()) {
  int me = int(emu_lane()), source = me + int(delta);
  return emu_shuffle(mask, value, source > (me | (width - 1)) ? me : source, "__shfl_down_sync", line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, uint32_t line = __builtin_LINE()) {
  int me = int(emu_lane()), source = me ^ bits;
  return emu_shuffle(mask, value, source > (me | (width - 1)) ? me : source, "__shfl_xor_sync", line);
}

struct emu_vote {
  uint64_t value, result;
};
// `Fold` takes the result so far, the next lane's value, and whether it is the first.
template <class Fold>
EMU_UNCHECKED inline void emu_combine_fold(void** lanes, uint32_t mask) {
  uint64_t total = 0;
  bool first = true;
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) total = Fold::fold(total, static_cast<emu_vote*>(lanes[lane])->value, lane, first), first = false;
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) static_cast<emu_vote*>(lanes[lane])->result = total;
}
template <class Fold>
EMU_UNCHECKED inline uint64_t emu_fold(unsigned mask, uint64_t value, const char* name, uint32_t line) {
  emu_vote mine = {value, 0};
  emu_collective(mask, emu_combine_fold<Fold>, &mine, name, line);
  return mine.result;
}

#define EMU_FOLD(name, expression)                                                        \
  struct emu_fold_##name {                                                                \
    static uint64_t fold(uint64_t total, uint64_t value, int lane, bool first) {          \
      (void)lane, (void)first, (void)total;                                               \
      return expression;                                                                  \
    }                                                                                     \
  };
EMU_FOLD(ballot, total | uint64_t(value != 0) << lane)
EMU_FOLD(add, uint32_t(total + value))
EMU_FOLD(and, first ? value : total & value)
EMU_FOLD(or, total | value)
EMU_FOLD(xor, total ^ value)
EMU_FOLD(min, first || uint32_t(value) < uint32_t(total) ? value : total)
EMU_FOLD(max, first || uint32_t(value) > uint32_t(total) ? value : total)
EMU_FOLD(smin, first || int32_t(value) < int32_t(total) ? value : total)
EMU_FOLD(smax, first || int32_t(value) > int32_t(total) ? value : total)
#undef EMU_FOLD

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_LINE) {
  return unsigned(emu_fold<emu_fold_ballot>(mask, predicate != 0, "__ballot_sync", line));
}
inline int __any_sync(unsigned mask, int predicate, EMU_LINE) {
  return emu_fold<emu_fold_or>(mask, predicate != 0, "__any_sync", line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_LINE) {
  return emu_fold<emu_fold_and>(mask, predicate != 0, "__all_sync", line) != 0;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v, EMU_LINE) {
  return unsigned(emu_fold<emu_fold_add>(mask, v, "__reduce_add_sync", line));
}
inline int __reduce_add_sync(unsigned mask, int v, EMU_LINE) { return int(__reduce_add_sync(mask, unsigned(v), line)); }
inline unsigned __reduce_and_sync(unsigned mask, unsigned v, EMU_LINE) {
  return unsigned(emu_fold<emu_fold_and>(mask, v, "__reduce_and_sync", line));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, EMU_LINE) {
  return unsigned(emu_fold<emu_fold_or>(mask, v, "__reduce_or_sync", line));
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v, EMU_LINE) {
  return unsigned(emu_fold<emu_fold_xor>(mask, v, "__reduce_xor_sync", line));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v, EMU_LINE) {
  return unsigned(emu_fold<emu_fold_min>(mask, v, "__reduce_min_sync", line));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, EMU_LINE) {
  return unsigned(emu_fold<emu_fold_max>(mask, v, "__reduce_max_sync", line));
}
inline int __reduce_min_sync(unsigned mask, int v, EMU_LINE) {
  return int(emu_fold<emu_fold_smin>(mask, unsigned(v), "__reduce_min_sync", line));
}
inline int __reduce_max_sync(unsigned mask, int v, EMU_LINE) {
  return int(emu_fold<emu_fold_smax>(mask, unsigned(v), "__reduce_max_sync", line));
}

template <class T>
EMU_UNCHECKED inline void emu_combine_match(void** lanes, uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    auto* mine = static_cast<emu_vote*>(lanes[lane]);
    mine->result = 0;
    for (int other = 0; other < 32; ++other)
      if (mask >> other & 1 && static_cast<emu_vote*>(lanes[other])->value == mine->value) mine->result |= 1u << other;
  }
}
template <class T>
EMU_UNCHECKED inline unsigned __match_any_sync(unsigned mask, T value, EMU_LINE) {
  emu_vote mine = {0, 0};
  __builtin_memcpy(&mine.value, &value, sizeof value);
  emu_collective(mask, emu_combine_match<void>, &mine, "__match_any_sync", line);
  return unsigned(mine.result);
}
