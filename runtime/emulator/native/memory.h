// Records of the emulated device's memory; see memory.cc and checks.cc.
#pragma once
#include "device.h"

namespace emu {

// The last accesses to a granule of memory. `reader` is several_readers when more than one thread read since the write.
struct Access {
  Stamp written, read;
  uint64_t writer : 31, is_atomic : 1, reader : 31, is_pending : 1;
};
constexpr uint64_t several_readers = (1u << 31) - 1;

struct Slot {
  char *home, *data;  // where the argument lies for the caller, and for the kernel
  uint64_t bytes;
  uint32_t granule;  // bytes that share a record
  bool read_only, written;
  Access* shadow;
  std::vector<uint32_t> readers;  // of each granule the set of launches that have read it since it was written; across.cc
};

constexpr uint64_t slot_stride = 16ull << 30, slot_start = 4ull << 30, most_slots = 2048;

extern char* argument_base;
extern std::vector<Slot> slots;
extern uint64_t slot_count;  // that addresses are reserved for

const char* describe_shared(uint64_t offset);  // in the shared memory of a block: "byte 4 of shared variable t"
const Slot* slot_at(const void* address);

// across.cc: reads by several launches
void begin_across();
void across_read(uint32_t& set);
const Running* across_write(uint32_t& set);  // a launch that may read at the same time; null if there is none

}  // namespace emu
