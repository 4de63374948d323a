// Where the arguments and the shared variables of a launch lie. With checks on, every argument is copied to a slot of
// its own in a huge reserved range of addresses, so that a wrong index of 32 bits never reaches another argument.
#include "memory.h"

#include "../include/emulator/tensor_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace emu {

char* shared_base;
uint64_t shared_total;
char* argument_base;
std::vector<Slot> slots;
uint64_t slot_count;

static std::vector<uint64_t> committed;        // bytes of each slot that may be touched
static std::vector<std::pair<void*, uint64_t>> shadows;  // of each slot
constexpr uint64_t dynamic_alignment = 1024;  // at most
static std::vector<CUtensorMap> tensor_maps;

// A parameter is the address of its memory or, for a tensor map, of a copy of the map that has that address.
static void* parameter(const Argument& argument, char* memory) {
  if (!argument.tensor_map) return memory;
  CUtensorMap map;
  memcpy(&map, argument.tensor_map, sizeof map);
  map.address = memory;
  tensor_maps.push_back(map);
  return &tensor_maps.back();
}

static char* reserve(uint64_t bytes, int protection) {
  void* found = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}

static bool commit(size_t number, uint64_t bytes) {
  if (committed.size() <= number) committed.resize(number + 1);
  if (committed[number] >= bytes) return true;
  bytes = (bytes + 65535) & ~uint64_t(65535);
  if (mprotect(argument_base + number * slot_stride + slot_start, bytes, PROT_READ | PROT_WRITE)) return false;
  committed[number] = bytes;
  return true;
}

static bool shadow(size_t number, Slot& slot) {
  uint64_t bytes = (slot.bytes / slot.granule + 2) * sizeof(Access);
  if (shadows.size() <= number) shadows.resize(number + 1);
  auto& [memory, size] = shadows[number];
  if (size < bytes) {
    if (memory) munmap(memory, size);
    memory = reserve(bytes, PROT_READ | PROT_WRITE);
    size = memory ? bytes : 0;
  }
  slot.shadow = static_cast<Access*>(memory);
  return memory;
}

static bool fill_slot(size_t number) {
  Slot& slot = slots[number];
  if (number >= slot_count || slot.bytes > slot_stride - 2 * slot_start) return false;
  uint64_t skew = reinterpret_cast<uintptr_t>(slot.home) & 15;  // an argument keeps its alignment
  if (!commit(number, slot.bytes + skew + 64)) return false;
  slot.data = argument_base + number * slot_stride + slot_start + skew;
  memcpy(slot.data, slot.home, slot.bytes);
  if (launches.size() > 1 && !slot.read_only) slot.readers.assign(slot.bytes / slot.granule + 1, 0);
  return slot.read_only || shadow(number, slot);
}

static bool reserve_slots(uint64_t count) {
  if (count <= slot_count) return true;
  if (argument_base) munmap(argument_base, slot_stride * slot_count);
  committed.clear();
  argument_base = reserve(slot_stride * count, PROT_NONE);
  slot_count = argument_base ? count : 0;
  return argument_base;
}

static std::vector<const Argument*> by_address(std::vector<const Argument*> arguments) {
  std::stable_sort(arguments.begin(), arguments.end(), [](auto* a, auto* b) { return a->data < b->data; });
  return arguments;
}

static std::vector<const Argument*> arguments_of(const Launch& one) {
  std::vector<const Argument*> found;
  for (uint32_t i = 0; i < one.argument_count; ++i) found.push_back(one.arguments + i);
  return found;
}

// Arguments that overlap are one range.
static void find_ranges(Running& one) {
  for (const Argument* argument : by_address(arguments_of(*one.launch))) {
    bool read_only = argument->kind & 1, unordered = argument->kind & 2;
    if (one.ranges.empty() || argument->data >= one.ranges.back().home + one.ranges.back().bytes) {
      one.ranges.push_back({argument->data, argument->bytes, read_only, unordered, uint32_t(argument - one.launch->arguments)});
      continue;
    }
    Range& range = one.ranges.back();
    range.bytes = std::max<uint64_t>(range.bytes, argument->data + argument->bytes - range.home);
    range.read_only = range.read_only && read_only;
    range.unordered = range.unordered && unordered;
  }
}

// Arguments that overlap share a slot.
static void find_slots() {
  std::vector<const Argument*> all;
  for (auto& one : launches)
    for (const Argument* argument : arguments_of(*one->launch)) all.push_back(argument);
  for (const Argument* argument : by_address(std::move(all))) {
    uint32_t granule = std::min<uint32_t>(4, std::max<uint32_t>(1, argument->item_bytes));
    if (slots.empty() || argument->data >= slots.back().home + slots.back().bytes) {
      slots.push_back({argument->data, nullptr, argument->bytes, granule, (argument->kind & 1) != 0, false, nullptr, {}});
      continue;
    }
    Slot& slot = slots.back();
    slot.bytes = std::max<uint64_t>(slot.bytes, argument->data + argument->bytes - slot.home);
    slot.granule = std::min(slot.granule, granule);
    slot.read_only = slot.read_only && (argument->kind & 1);
  }
}

static char* placed(char* home) {
  auto after = std::upper_bound(slots.begin(), slots.end(), home, [](char* at, const Slot& slot) { return at < slot.home; });
  const Slot& slot = *(after - 1);
  return slot.data + (home - slot.home);
}

bool place_arguments() {
  slots.clear();
  tensor_maps.clear();
  uint64_t count = 0;
  for (auto& one : launches) count += one->launch->argument_count;
  tensor_maps.reserve(count);
  bool checked = launches[0]->launch->checked;
  if (checked) {
    find_slots();
    if (!reserve_slots(slots.size() > 256 ? most_slots : 256)) return false;
  }
  for (size_t i = 0; i < slots.size(); ++i)
    if (!fill_slot(i)) return false;
  for (auto& one : launches) {
    if (checked) find_ranges(*one);
    for (const Argument* argument : arguments_of(*one->launch))
      one->pointers.push_back(parameter(*argument, checked ? placed(argument->data) : argument->data));
  }
  return true;
}

void take_back_arguments() {
  constexpr uint64_t keep = 16 << 20;
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    if (slot.written) memcpy(slot.home, slot.data, slot.bytes);
    if (slot.bytes > keep) madvise(argument_base + i * slot_stride + slot_start, committed[i], MADV_DONTNEED);
    if (slot.shadow && shadows[i].second > keep) madvise(shadows[i].first, shadows[i].second, MADV_DONTNEED);
  }
}

bool begin_shared(uint64_t slots) {
  uint64_t needed = slots * shared_stride;
  if (shared_total < needed) {
    if (shared_base) munmap(shared_base, shared_total);
    shared_base = reserve(needed, PROT_READ | PROT_WRITE);
    shared_total = shared_base ? needed : 0;
  }
  for (auto& one : launches) one->shared.top = (dynamic_alignment + one->launch->shared_bytes + 127) / 64 * 64;
  begin_checks();
  return shared_base;
}

const char* describe_shared(uint64_t offset) {
  static char text[160];
  const SharedLayout& layout = running->shared;
  snprintf(text, sizeof text, "byte %llu of dynamic shared memory", (unsigned long long)(offset - layout.dynamic_start));
  for (const SharedVariable& variable : layout.variables)
    if (offset >= variable.offset && variable.bytes)
      snprintf(text, sizeof text, "byte %llu of shared variable %s", (unsigned long long)(offset - variable.offset), variable.name);
  return text;
}

void* from_shared(uint32_t address) { return shared_base + address; }

static void own(SharedLayout& layout, uint64_t offset, uint64_t bytes, uint8_t owner) {
  memset(layout.owner.data() + offset, owner, bytes);
}

const Slot* slot_at(const void* address) {
  uint64_t offset = static_cast<const char*>(address) - argument_base;
  return offset < slot_stride * slots.size() ? &slots[offset / slot_stride] : nullptr;
}

}  // namespace emu

using namespace emu;

// Dynamic shared memory is aligned as its declaration says and no further.
EXPORT void* emu_dynamic_shared(uint64_t alignment, uint64_t of_type, uint32_t line) {
  alignment = std::min(std::max<uint64_t>(16, std::max(alignment, of_type)), dynamic_alignment);
  SharedLayout& layout = running->shared;
  if (!layout.dynamic_start) {
    layout.dynamic_start = alignment;
    if (launch->shared_bytes > shared_limit)
      fault(nullptr, line, "%llu bytes of shared memory; a block has %llu", (unsigned long long)launch->shared_bytes,
            (unsigned long long)shared_limit);
    own(layout, alignment, launch->shared_bytes, 1);
  }
  if (layout.dynamic_start < alignment)
    fault(nullptr, line, "dynamic shared memory is declared with an alignment of %llu and of %llu; declare it alike",
          (unsigned long long)layout.dynamic_start, (unsigned long long)alignment);
  return shared_base + self->block->slot * shared_stride + layout.dynamic_start;
}

// The address of static shared variable `id` of the kernel; all blocks lay them out alike, 64 bytes or more apart.
EXPORT void* emu_static_shared(uint32_t id, uint64_t bytes, uint64_t alignment, uint32_t line, const char* name) {
  SharedLayout& layout = running->shared;
  if (id >= layout.variables.size()) layout.variables.resize(id + 1);
  SharedVariable& variable = layout.variables[id];
  if (!variable.bytes) {
    alignment = std::max<uint64_t>(alignment, 16);
    variable.offset = (layout.top + alignment - 1) / alignment * alignment;
    variable.bytes = bytes;
    variable.name = name;
    layout.static_bytes += bytes;
    if (layout.static_bytes > static_limit)
      fault(nullptr, line, "%llu bytes of static shared memory; a block has %llu", (unsigned long long)layout.static_bytes,
            (unsigned long long)static_limit);
    if (layout.static_bytes + launch->shared_bytes > shared_limit)
      fault(nullptr, line, "%llu bytes of shared memory; a block has %llu",
            (unsigned long long)(layout.static_bytes + launch->shared_bytes), (unsigned long long)shared_limit);
    own(layout, variable.offset, bytes, uint8_t(2 + id % 250));
    layout.top = variable.offset + (bytes + 63) / 64 * 64 + 64;
  }
  return shared_base + self->block->slot * shared_stride + variable.offset;
}

EXPORT uint32_t emu_to_shared(const void* pointer) {
  return uint32_t(static_cast<const char*>(pointer) - shared_base);
}
EXPORT void* emu_from_shared(uint32_t address) { return from_shared(address); }
EXPORT uint32_t emu_map_shared(uint32_t address, uint32_t rank) {  // mapa: the same place in a block of the cluster
  uint32_t group = uint32_t(launch->cluster.count()), first = self->block->slot / group * group;
  return uint32_t(address % shared_stride + (first + rank) * shared_stride);
}
EXPORT uint32_t emu_rank_of(const void* address) {  // getctarank
  return emu_to_shared(address) / shared_stride % uint32_t(launch->cluster.count());
}
