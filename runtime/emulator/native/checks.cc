// Checks every access of a kernel to memory. The kernels are compiled with the instrumentation of the thread sanitizer,
// which calls the functions at the end of this file; the sanitizer's own library is not used.
#include <sys/mman.h>

#include <algorithm>

#include "memory.h"

namespace emu {

static Access* shared_shadow;
static uint64_t shadow_bytes;

void begin_checks() {
  uint64_t needed = launch->checked ? shared_total * sizeof(Access) : 0;
  if (needed > shadow_bytes) {
    if (shared_shadow) munmap(shared_shadow, shadow_bytes);
    void* found = mmap(nullptr, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    shared_shadow = found == MAP_FAILED ? nullptr : static_cast<Access*>(found);
    shadow_bytes = shared_shadow ? needed : 0;
  }
}

static const char* access_name(bool write, bool atomic) {
  return atomic ? "atomic access to" : write ? "write to" : "read of";
}

// What a history belongs to, for messages: an argument, or shared memory.
struct Place {
  const Slot* slot;
  uint64_t offset;
};

[[noreturn]] static void race(const Access& access, bool write, bool by_reader, const Place& place, const void* pc) {
  char what[192];
  if (place.slot)
    snprintf(what, sizeof what, "byte %llu of argument %u", (unsigned long long)place.offset, place.slot->argument);
  else
    snprintf(what, sizeof what, "%s", describe_shared(place.offset));
  bool several = by_reader && access.reader == several_readers;
  fault(pc, 0, "%s: %s %s races with a %s %s; %s", describe(*self), write ? "write to" : "read of", what,
        by_reader ? "read by" : "write by", several ? "several threads" : describe(by_reader ? access.reader : access.writer),
        place.slot ? "order the blocks: release after the write, acquire before the read"
                   : "a __syncthreads() is missing between them");
}

// Checks one granule's history and records the access. Ids are 31 bits: those of blocks beyond wrap.
static inline void record(Access& access, bool write, bool atomic, Stamp started, const Place& place, const void* pc) {
  uint64_t me = thread_id(*self);
  bool was_written = access.written >= started;
  if (was_written && access.writer != me && !(atomic && access.is_atomic) && !ordered(access.writer, access.written))
    race(access, write, false, place, pc);
  if (!write) {
    if (atomic) return;  // only plain reads race with atomics
    bool shares = access.read >= started && access.reader != me && !ordered(access.reader, access.read);
    access.reader = shares ? several_readers : me;
    access.read = now;
    return;
  }
  if (access.read >= started && access.reader != me) {
    bool apart = access.reader == several_readers ? access.read < self->block->floor : ordered(access.reader, access.read);
    if (!apart) race(access, write, true, place, pc);
  }
  access.written = now;
  access.writer = me;
  access.is_atomic = atomic;
  access.is_pending = false;
  access.read = 0;
}

static void check_shared_bounds(uint64_t place, uint64_t bytes, bool write, bool atomic, const void* pc) {
  uint64_t slot = place / shared_stride, offset = place % shared_stride;
  if (slot != self->block->slot && launch->cluster.count() == 1)
    fault(pc, 0, "%s: %s shared memory of another block", describe(*self), access_name(write, atomic));
  uint8_t owner = shared_owner[offset];
  if (owner && shared_owner[offset + bytes - 1] == owner) return;
  uint64_t inside = offset;
  while (inside && !shared_owner[inside]) --inside;
  fault(pc, 0, "%s: out of bounds: %s %llu bytes, %llu bytes beyond %s, the last", describe(*self),
        access_name(write, atomic), (unsigned long long)bytes, (unsigned long long)(offset - inside), describe_shared(inside));
}

static void check_shared_byte(uint64_t place, uint64_t offset, bool write, bool atomic, const void* pc) {
  Access& access = shared_shadow[place];
  if (!write && access.is_pending && access.written >= self->block->started)
    fault(pc, 0, "%s: read of shared memory that a cp.async still writes; wait for it first", describe(*self));
  if (!write && access.written < self->block->started)
    fault(pc, 0, "%s: read of shared memory that nobody has written: %s", describe(*self), describe_shared(offset));
  record(access, write, atomic, self->block->started, {nullptr, offset}, pc);
}

static void check_shared(uint64_t place, uint64_t bytes, bool write, bool atomic, const void* pc) {
  check_shared_bounds(place, bytes, write, atomic, pc);
  uint64_t slot = place / shared_stride, offset = place % shared_stride;
  if (slot != self->block->slot) return;
  Access before = shared_shadow[place];
  check_shared_byte(place, offset, write, atomic, pc);
  Access after = shared_shadow[place];
  for (uint64_t i = 1; i < bytes; ++i) {  // the bytes of an element have the same history, as a rule
    Access& access = shared_shadow[place + i];
    if (!memcmp(&access, &before, sizeof access))
      access = after;
    else
      check_shared_byte(place + i, offset + i, write, atomic, pc);
  }
}

static void check_argument(uint64_t place, uint64_t bytes, bool write, bool atomic, const void* pc) {
  uint64_t number = place / slot_stride;
  if (number >= slots.size())
    fault(pc, 0, "%s: %s an address far from every argument", describe(*self), access_name(write, atomic));
  Slot& slot = slots[number];
  char* address = argument_base + place;
  uint64_t offset = address - slot.data;
  if (offset > slot.bytes || slot.bytes - offset < bytes)
    fault(pc, 0, "%s: out of bounds: %s %llu bytes at byte %lld of argument %u, which has %llu", describe(*self),
          access_name(write, atomic), (unsigned long long)bytes, (long long)offset, slot.argument,
          (unsigned long long)slot.bytes);
  if (write && slot.read_only)
    fault(pc, 0, "%s: write to argument %u, which is constant", describe(*self), slot.argument);
  slot.written = slot.written || write;
  if (slot.read_only || slot.unordered) return;
  Stamp started = launch_started();
  for (uint64_t item = offset / slot.granule; item <= (offset + bytes - 1) / slot.granule; ++item)
    record(slot.shadow[item], write, atomic, started, {&slot, item * slot.granule}, pc);
}

static void check_elsewhere(const char* address, uint64_t bytes, bool write, const void* pc) {
  bool inside = address >= launch->module_begin && address + bytes <= launch->module_end;
  if (inside) return;
  fault(pc, 0, "%s: %s address %p, which is in no argument and not in shared memory", describe(*self),
        access_name(write, false), static_cast<const void*>(address));
}

static void preempt() {
  preempt_in = 1 + random_number() % 256;
  uint32_t line = self->line;
  wait(State::ready, self->waits_at, line);
}

void check(const void* pointer, uint64_t bytes, bool write, bool atomic, const void* pc) {
  if (!self || !launch->checked) return;
  const char* address = static_cast<const char*>(pointer);
  uint64_t on_stack = address - stack_base;
  if (on_stack < stack_total) return;
  if (preempt_in && !--preempt_in) preempt();
  if (reinterpret_cast<uintptr_t>(address) % std::min<uint64_t>(bytes & -bytes, 16))
    fault(pc, 0, "%s: %s %llu bytes at address %p, which is not aligned to them", describe(*self),
          access_name(write, atomic), (unsigned long long)bytes, pointer);
  uint64_t in_shared = address - shared_base, in_arguments = address - argument_base;
  if (in_shared < shared_total) return check_shared(in_shared, bytes, write, atomic, pc);
  if (in_arguments < slot_stride * slot_count) return check_argument(in_arguments, bytes, write, atomic, pc);
  check_elsewhere(address, bytes, write, pc);
}

// A volatile read may be what a loop waits for: it counts as a relaxed atomic.
void check_volatile(const void* pointer, uint64_t bytes, const void* pc) {
  uint64_t value = 0;
  bool global = slot_at(pointer);  // in shared memory it is a plain read
  check(pointer, bytes, false, global, pc);
  if (!self || !global) return;
  memcpy(&value, pointer, std::min<uint64_t>(bytes, 8));
  acquire(pointer, true);
  emu_poll(pointer, value, "volatile read", 0);
}

void check_shared_target(const void* pointer, uint64_t bytes, const void* pc) {
  uint64_t place = static_cast<const char*>(pointer) - shared_base;
  if (place >= shared_total) fault(pc, 0, "%s: cp.async to an address that is not in shared memory", describe(*self));
  if (place % bytes) fault(pc, 0, "%s: cp.async of %llu bytes to an unaligned address", describe(*self), (unsigned long long)bytes);
  check_shared_bounds(place, bytes, true, false, pc);
}

// A cp.async was issued: nobody may read the bytes before it is waited for.
void mark_pending(const void* pointer, uint64_t bytes) {
  uint64_t place = static_cast<const char*>(pointer) - shared_base;
  for (uint64_t i = 0; launch->checked && i < bytes; ++i) shared_shadow[place + i].is_pending = true;
}

}  // namespace emu

using emu::check;
#define PC __builtin_return_address(0)
#define ACCESS(bytes)                                                                                    \
  EXPORT void __tsan_read##bytes(void* p) { check(p, bytes, false, false, PC); }                     \
  EXPORT void __tsan_write##bytes(void* p) { check(p, bytes, true, false, PC); }                     \
  EXPORT void __tsan_unaligned_read##bytes(void* p) { check(p, bytes, false, false, PC); }           \
  EXPORT void __tsan_unaligned_write##bytes(void* p) { check(p, bytes, true, false, PC); }           \
  EXPORT void __tsan_volatile_read##bytes(void* p) { emu::check_volatile(p, bytes, PC); }            \
  EXPORT void __tsan_volatile_write##bytes(void* p) { check(p, bytes, true, emu::slot_at(p), PC); } \
  EXPORT void __tsan_unaligned_volatile_read##bytes(void* p) { emu::check_volatile(p, bytes, PC); }  \
  EXPORT void __tsan_unaligned_volatile_write##bytes(void* p) { check(p, bytes, true, emu::slot_at(p), PC); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
EXPORT void __tsan_read_range(void* p, long bytes) { if (bytes) check(p, bytes, false, false, PC); }
EXPORT void __tsan_write_range(void* p, long bytes) { if (bytes) check(p, bytes, true, false, PC); }
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
