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
uint8_t shared_owner[shared_stride];

static std::vector<uint64_t> committed;        // bytes of each slot that may be touched
static std::vector<std::pair<void*, uint64_t>> shadows;  // of each slot
static std::vector<SharedVariable> variables;
static uint64_t shared_top, static_bytes;
static uint64_t dynamic_start;  // 0: not yet known
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
  return slot.read_only || shadow(number, slot);
}

bool place_arguments(std::vector<void*>& pointers) {
  pointers.clear();
  slots.clear();
  tensor_maps.clear();
  uint32_t count = launch->argument_count;
  tensor_maps.reserve(count);
  if (!launch->checked) {
    for (uint32_t i = 0; i < count; ++i) pointers.push_back(parameter(launch->arguments[i], launch->arguments[i].data));
    return true;
  }
  if (!argument_base && !(argument_base = reserve(slot_stride * slot_count, PROT_NONE))) return false;
  std::vector<const Argument*> sorted;
  for (uint32_t i = 0; i < count; ++i) sorted.push_back(launch->arguments + i);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->data < b->data; });
  std::vector<uint32_t> slot_of(count);
  for (const Argument* argument : sorted) {  // arguments that overlap share a slot
    uint32_t granule = std::min<uint32_t>(4, std::max<uint32_t>(1, argument->item_bytes));
    if (!slots.empty() && argument->data < slots.back().home + slots.back().bytes) {
      Slot& slot = slots.back();
      slot.bytes = std::max<uint64_t>(slot.bytes, argument->data + argument->bytes - slot.home);
      slot.granule = std::min(slot.granule, granule);
      slot.read_only = slot.read_only && (argument->kind & 1);
      slot.unordered = slot.unordered && (argument->kind & 2);
    } else {
      slots.push_back({argument->data, nullptr, argument->bytes, granule, (argument->kind & 1) != 0, (argument->kind & 2) != 0, false, 0, nullptr});
      slots.back().argument = uint32_t(argument - launch->arguments);
    }
    slot_of[argument - launch->arguments] = uint32_t(slots.size() - 1);
  }
  for (size_t i = 0; i < slots.size(); ++i)
    if (!fill_slot(i)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    Slot& slot = slots[slot_of[i]];
    pointers.push_back(parameter(launch->arguments[i], slot.data + (launch->arguments[i].data - slot.home)));
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

void begin_shared() {
  uint64_t needed = resident_count() * shared_stride;
  if (shared_total < needed) {
    if (shared_base) munmap(shared_base, shared_total);
    shared_base = reserve(needed, PROT_READ | PROT_WRITE);
    shared_total = shared_base ? needed : 0;
  }
  memset(shared_owner, 0, shared_top + 1024);
  variables.clear();
  static_bytes = dynamic_start = 0;
  shared_top = (dynamic_alignment + launch->shared_bytes + 127) / 64 * 64;
  begin_checks();
}

const char* describe_shared(uint64_t offset) {
  static char text[160];
  snprintf(text, sizeof text, "byte %llu of dynamic shared memory", (unsigned long long)(offset - dynamic_start));
  for (const SharedVariable& variable : variables)
    if (offset >= variable.offset && variable.bytes)
      snprintf(text, sizeof text, "byte %llu of shared variable %s", (unsigned long long)(offset - variable.offset), variable.name);
  return text;
}

void* from_shared(uint32_t address) { return shared_base + address; }

const Slot* slot_at(const void* address) {
  uint64_t offset = static_cast<const char*>(address) - argument_base;
  return offset < slot_stride * slots.size() ? &slots[offset / slot_stride] : nullptr;
}

uint64_t resident_count() {
  uint64_t total = launch->grid.count(), group = launch->cluster.count();
  uint64_t count = launch->cooperative ? total : std::min<uint64_t>(total, std::max<uint32_t>(1, launch->resident));
  return (count + group - 1) / group * group;
}

}  // namespace emu

using namespace emu;

// Dynamic shared memory is aligned as its declaration says and no further.
EXPORT void* emu_dynamic_shared(uint64_t alignment, uint64_t of_type, uint32_t line) {
  alignment = std::min(std::max<uint64_t>(16, std::max(alignment, of_type)), dynamic_alignment);
  if (!dynamic_start) {
    dynamic_start = alignment;
    if (launch->shared_bytes > shared_limit)
      fault(nullptr, line, "%llu bytes of shared memory; a block has %llu", (unsigned long long)launch->shared_bytes,
            (unsigned long long)shared_limit);
    memset(shared_owner + dynamic_start, 1, launch->shared_bytes);
  }
  if (dynamic_start < alignment)
    fault(nullptr, line, "dynamic shared memory is declared with an alignment of %llu and of %llu; declare it alike",
          (unsigned long long)dynamic_start, (unsigned long long)alignment);
  return shared_base + self->block->slot * shared_stride + dynamic_start;
}

// The address of static shared variable `id` of the kernel; all blocks lay them out alike, 64 bytes or more apart.
EXPORT void* emu_static_shared(uint32_t id, uint64_t bytes, uint64_t alignment, uint32_t line, const char* name) {
  if (id >= variables.size()) variables.resize(id + 1);
  SharedVariable& variable = variables[id];
  if (!variable.bytes) {
    alignment = std::max<uint64_t>(alignment, 16);
    variable.offset = (shared_top + alignment - 1) / alignment * alignment;
    variable.bytes = bytes;
    variable.name = name;
    static_bytes += bytes;
    if (static_bytes > static_limit)
      fault(nullptr, line, "%llu bytes of static shared memory; a block has %llu", (unsigned long long)static_bytes,
            (unsigned long long)static_limit);
    if (static_bytes + launch->shared_bytes > shared_limit)
      fault(nullptr, line, "%llu bytes of shared memory; a block has %llu",
            (unsigned long long)(static_bytes + launch->shared_bytes), (unsigned long long)shared_limit);
    memset(shared_owner + variable.offset, 2 + id % 250, bytes);
    shared_top = variable.offset + (bytes + 63) / 64 * 64 + 64;
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
