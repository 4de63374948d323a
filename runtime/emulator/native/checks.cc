// Checks every access of a kernel to memory. The kernels are compiled with the instrumentation of the thread sanitizer,
// which calls the functions at the end of this file; the sanitizer's own library is not used.
#include <sys/mman.h>

#include <algorithm>

#include "memory.h"

namespace emu {

static Access* shared_shadow;
static uint64_t shadow_bytes;

// The id of the next set of readers of a slot's shared memory; see Block::readers.
static uint32_t& next_readers(uint32_t slot) {
  static std::vector<uint32_t> next;
  if (next.size() <= slot) next.resize(slot + 1, 1);
  return next[slot];
}

void forget_readers(Block& block) {
  block.readers.clear();
  block.first_readers = next_readers(block.slot);
}

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

// What a history belongs to, for messages: an argument, or shared memory of a block.
struct Place {
  const Range* range;
  uint64_t offset;
  Block* owner;
};

// What accesses: the thread itself, or an agent on its behalf. What is ordered before it is what the thread knows.
struct Actor {
  uint64_t id;
  bool is_agent;
};

static std::string name_of(uint64_t id) { return id >= first_agent ? describe_agent(id) : describe(id); }

[[noreturn]] static void race_of_launches(Actor actor, bool write, const Running& other, bool by_reader, const char* what,
                                          const void* pc) {
  fault(pc, 0, "%s%s: %s %s races with a %s kernel %s, which may run at the same time; an edge between the launches is missing",
        describe(*self), actor.is_agent ? (", " + describe_agent(actor.id)).c_str() : "", write ? "write to" : "read of", what,
        by_reader ? "read by" : "write by", other.launch->name);
}

[[noreturn]] static void race(Actor actor, bool write, uint64_t other, bool by_reader, const Place& place, const void* pc) {
  char what[192];
  if (place.range)
    snprintf(what, sizeof what, "byte %llu of argument %u", (unsigned long long)place.offset, place.range->argument);
  else
    snprintf(what, sizeof what, "%s", describe_shared(place.offset));
  const char* remedy = place.range ? "order the blocks: release after the write, acquire before the read"
                                  : "a __syncthreads() is missing between them";
  if (other >= first_agent) remedy = "wait for the mbarrier or the group that says it is done";
  const Running* theirs = other == several_readers ? running : &launch_of(other);
  if (theirs != running) race_of_launches(actor, write, *theirs, by_reader, what, pc);
  fault(pc, 0, "%s%s: %s %s races with a %s %s; %s", describe(*self), actor.is_agent ? (", " + describe_agent(actor.id)).c_str() : "",
        write ? "write to" : "read of", what, by_reader ? "read by" : "write by",
        other == several_readers ? "several threads" : name_of(other).c_str(), remedy);
}

static void check_writer(const Access& access, bool write, bool atomic, Stamp started, Actor actor, const Place& place, const void* pc) {
  if (access.written < started || (access.writer == actor.id && !actor.is_agent) || (atomic && access.is_atomic)) return;
  if (!ordered(access.writer, access.written)) race(actor, write, access.writer, false, place, pc);
}

static void record_write(Access& access, bool atomic, Actor actor) {
  access.written = now;
  access.writer = actor.id;
  access.is_atomic = atomic;
  access.is_pending = false;
  access.read = 0;
  access.reader = 0;
}

// Checks the history of one granule of an argument and records the access. Of its readers only one is remembered.
static inline void record(Access& access, bool write, bool atomic, Stamp started, Actor actor, const Place& place, const void* pc) {
  check_writer(access, write, atomic, started, actor, place, pc);
  if (!write) {
    if (atomic) return;  // only plain reads race with atomics
    bool shares = access.read >= started && access.reader != actor.id && !ordered(access.reader, access.read);
    access.reader = shares ? several_readers : actor.id;
    access.read = now;
    return;
  }
  if (access.read >= started && (access.reader != actor.id || actor.is_agent)) {
    bool apart = access.reader == several_readers ? access.read < self->block->floor : ordered(access.reader, access.read);
    if (!apart) race(actor, write, access.reader, true, place, pc);
  }
  record_write(access, atomic, actor);
}

// The threads that have read a byte of shared memory since the block's last barrier, if there are several.
static Readers* several(Block& owner, const Access& access) {
  if (access.reader != several_readers || access.read < owner.first_readers) return nullptr;
  return &owner.readers[access.read - owner.first_readers];
}

static void record_read(Block& owner, Access& access, uint64_t reader) {
  if (Readers* readers = several(owner, access)) {
    auto place = std::lower_bound(readers->begin(), readers->end(), std::make_pair(reader, Stamp(0)));
    if (place != readers->end() && place->first == reader)
      place->second = now;
    else
      readers->insert(place, {reader, now});
    return;
  }
  bool shares = access.reader != several_readers && access.read >= owner.started && access.reader != reader &&
                !ordered(access.reader, access.read);
  if (!shares) {
    access.reader = reader;
    access.read = now;
    return;
  }
  auto both = std::minmax({std::make_pair(uint64_t(access.reader), access.read), std::make_pair(reader, now)});
  owner.readers.push_back({both.first, both.second});
  access.reader = several_readers;
  access.read = next_readers(owner.slot)++;
}

static void check_readers(Block& owner, const Access& access, Actor actor, const Place& place, const void* pc) {
  if (Readers* readers = several(owner, access)) {
    for (auto [reader, stamp] : *readers)
      if ((reader != actor.id || actor.is_agent) && !ordered(reader, stamp)) race(actor, true, reader, true, place, pc);
    return;
  }
  if (access.reader == several_readers || access.read < owner.started || (access.reader == actor.id && !actor.is_agent)) return;
  if (!ordered(access.reader, access.read)) race(actor, true, access.reader, true, place, pc);
}

static void check_shared_bounds(uint64_t place, uint64_t bytes, bool write, bool atomic, const void* pc) {
  uint64_t slot = place / shared_stride, offset = place % shared_stride;
  uint64_t group = launch->cluster.count();
  if (slot / group != self->block->slot / group)
    fault(pc, 0, "%s: %s shared memory of another block", describe(*self), access_name(write, atomic));
  const uint8_t* owners = running->shared.owner.data();
  uint8_t owner = owners[offset];
  if (owner && owners[offset + bytes - 1] == owner) return;
  uint64_t inside = offset;
  while (inside && !owners[inside]) --inside;
  fault(pc, 0, "%s: out of bounds: %s %llu bytes, %llu bytes beyond %s, the last", describe(*self),
        access_name(write, atomic), (unsigned long long)bytes, (unsigned long long)(offset - inside), describe_shared(inside));
}

// Faults that no order of threads excuses: bytes that an asynchronous copy or a wgmma still uses, or that were never written.
static void check_state(const Access& access, bool write, const Place& place, const void* pc) {
  bool is_ours = access.written >= place.owner->started;
  if (access.is_pending && is_ours && (!write || access.writer >= first_agent)) {
    if (access.writer < first_agent)
      fault(pc, 0, "%s: read of shared memory that a cp.async still writes; wait for it first", describe(*self));
    fault(pc, 0, "%s: %s %s, which %s still writes; wait for its mbarrier first", describe(*self), access_name(write, false),
          describe_shared(place.offset), describe_agent(access.writer).c_str());
  }
  if (write || is_ours) return;
  fault(pc, 0, "%s: read of shared memory that was never written: %s", describe(*self), describe_shared(place.offset));
}

static void check_shared_byte(uint64_t at, bool write, bool atomic, Actor actor, const Place& place, const void* pc) {
  Access& access = shared_shadow[at];
  Block& owner = *place.owner;
  check_state(access, write, place, pc);
  check_writer(access, write, atomic, owner.started, actor, place, pc);
  bool was_written = access.written >= owner.started;
  if (actor.is_agent && was_written && !shown_to_async(access.writer, access.written, Space::shared))
    fault(pc, 0, "%s: %s %s %s, which %s wrote with no fence.proxy.async after; put one between the write and the barrier",
          describe(*self), describe_agent(actor.id).c_str(), write ? "overwrites" : "reads", describe_shared(place.offset),
          name_of(access.writer).c_str());
  if (!write && !atomic && !actor.is_agent) record_read(owner, access, actor.id);
  if (!write) return;
  check_readers(owner, access, actor, place, pc);
  record_write(access, atomic, actor);
  access.is_pending = actor.is_agent;
}

static std::vector<AsyncRead>& async_reads(Block& owner, uint64_t offset) {
  if (owner.async_reads.empty()) owner.async_reads.resize(shared_stride / 16);
  return owner.async_reads[offset / 16];
}

// Writes to what the copy engine or the tensor cores read, or have read.
static void check_async_reads(uint64_t bytes, Actor actor, const Place& place, const void* pc) {
  if (place.owner->async_reads.empty()) return;
  for (uint64_t at = place.offset / 16; at <= (place.offset + bytes - 1) / 16; ++at)
    for (const AsyncRead& read : place.owner->async_reads[at]) {
      if (read.pending)
        fault(pc, 0, "%s: write to %s, which %s still reads; wait for it first", describe(*self), describe_shared(place.offset),
              describe_agent(read.agent).c_str());
      if (!ordered(read.agent, read.stamp)) race(actor, true, read.agent, true, place, pc);
    }
}

static void check_shared(uint64_t at, uint64_t bytes, bool write, bool atomic, Actor actor, const void* pc) {
  check_shared_bounds(at, bytes, write, atomic, pc);
  uint64_t offset = at % shared_stride;
  Place place = {nullptr, offset, block_in(at / shared_stride)};
  if (!place.owner) fault(pc, 0, "%s: %s shared memory of a block that has exited", describe(*self), access_name(write, atomic));
  if (write) check_async_reads(bytes, actor, place, pc);
  Access before = shared_shadow[at];
  check_shared_byte(at, write, atomic, actor, place, pc);
  Access after = shared_shadow[at];
  for (uint64_t i = 1; i < bytes; ++i) {  // the bytes of an element have the same history, as a rule
    Access& access = shared_shadow[at + i];
    place.offset = offset + i;
    if (!memcmp(&access, &before, sizeof access))
      access = after;
    else
      check_shared_byte(at + i, write, atomic, actor, place, pc);
  }
}

// What a launch may access at an address: the arguments there, or those nearest.
static const Range& range_of(uint64_t slot, const char* home) {
  const std::vector<Range>& ranges = running->ranges;
  if (launches.size() == 1) return ranges[slot];
  auto after = std::upper_bound(ranges.begin(), ranges.end(), home, [](const char* at, const Range& one) { return at < one.home; });
  return after == ranges.begin() ? ranges.front() : *(after - 1);
}

// Writes to what launches read that nothing orders before this one.
static void check_launches(uint32_t& set, const Access& access, bool write, bool atomic, Stamp started, Actor actor,
                           const Place& place, const void* pc) {
  if (!write) {
    if (!atomic) across_read(set);
    return;
  }
  const Running* reader = across_write(set);
  if (!reader || (access.reader != several_readers && access.read >= started && ordered(access.reader, access.read))) return;
  char what[64];
  snprintf(what, sizeof what, "byte %llu of argument %u", (unsigned long long)place.offset, place.range->argument);
  race_of_launches(actor, write, *reader, true, what, pc);
}

static void check_argument(uint64_t place, uint64_t bytes, bool write, bool atomic, Actor actor, const void* pc) {
  uint64_t number = place / slot_stride;
  if (number >= slots.size())
    fault(pc, 0, "%s: %s an address far from every argument", describe(*self), access_name(write, atomic));
  Slot& slot = slots[number];
  const char* home = slot.home + (argument_base + place - slot.data);
  const Range& range = range_of(number, home);
  uint64_t offset = home - range.home;
  if (offset > range.bytes || range.bytes - offset < bytes)
    fault(pc, 0, "%s: out of bounds: %s %llu bytes at byte %lld of argument %u, which has %llu", describe(*self),
          access_name(write, atomic), (unsigned long long)bytes, (long long)offset, range.argument,
          (unsigned long long)range.bytes);
  if (write && range.read_only)
    fault(pc, 0, "%s: write to argument %u, which is constant", describe(*self), range.argument);
  slot.written = slot.written || write;
  if (launch->traffic) count_traffic(home, bytes, write);
  if (launch->count_requests && pc && !actor.is_agent)
    count_request(pc, write, false, uint64_t(range.argument) << 40 | offset, bytes);
  if (range.read_only || range.unordered) return;
  Stamp started = run_started();
  uint64_t in_slot = home - slot.home;
  for (uint64_t item = in_slot / slot.granule; item <= (in_slot + bytes - 1) / slot.granule; ++item) {
    Access& access = slot.shadow[item];
    uint64_t at = slot.home + item * slot.granule - range.home;
    if (!slot.readers.empty()) check_launches(slot.readers[item], access, write, atomic, started, actor, {&range, at, nullptr}, pc);
    record(access, write, atomic, started, actor, {&range, at, nullptr}, pc);
    if (!write && actor.is_agent && access.written >= started && !shown_to_async(access.writer, access.written, Space::global))
      fault(pc, 0, "%s: %s reads byte %llu of argument %u, which %s wrote with no fence.proxy.async after", describe(*self),
            describe_agent(actor.id).c_str(), (unsigned long long)at, range.argument,
            name_of(access.writer).c_str());
  }
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
  if (on_stack < stack_total) {
    if (self->mmas) check_register(address, bytes, pc);
    return;
  }
  if (preempt_in && !--preempt_in) preempt();
  if (reinterpret_cast<uintptr_t>(address) % std::min<uint64_t>(bytes & -bytes, 16))
    fault(pc, 0, "%s: %s %llu bytes at address %p, which is not aligned to them", describe(*self),
          access_name(write, atomic), (unsigned long long)bytes, pointer);
  uint64_t in_shared = address - shared_base, in_arguments = address - argument_base;
  Actor me = {thread_id(*self), false};
  if (in_shared < shared_total) {
    if (launch->count_requests && pc) count_request(pc, write, true, in_shared, bytes);
    return check_shared(in_shared, bytes, write, atomic, me, pc);
  }
  if (in_arguments < slot_stride * slot_count) return check_argument(in_arguments, bytes, write, atomic, me, pc);
  check_elsewhere(address, bytes, write, pc);
}

// An access that an agent makes for the current thread, checked when it is issued.
void check_async(const void* pointer, uint64_t bytes, bool write, bool atomic, uint64_t agent, uint32_t line) {
  if (!launch->checked || !bytes) return;
  acts(agent, line);
  const char* address = static_cast<const char*>(pointer);
  uint64_t in_shared = address - shared_base, in_arguments = address - argument_base;
  if (in_shared < shared_total) return check_shared(in_shared, bytes, write, atomic, {agent, true}, nullptr);
  if (in_arguments < slot_stride * slot_count) return check_argument(in_arguments, bytes, write, atomic, {agent, true}, nullptr);
  check_elsewhere(address, bytes, write, nullptr);
}

void arrived(const void* address, uint64_t bytes) {
  uint64_t place = static_cast<const char*>(address) - shared_base;
  if (!launch->checked || place >= shared_total) return;
  for (uint64_t i = 0; i < bytes; ++i) shared_shadow[place + i].is_pending = false;
}

void begin_async_read(const void* address, uint64_t bytes, uint64_t agent) {
  uint64_t place = static_cast<const char*>(address) - shared_base;
  if (!launch->checked || place >= shared_total) return;
  Block& owner = *block_in(place / shared_stride);
  for (uint64_t offset = place % shared_stride / 16 * 16; offset < place % shared_stride + bytes; offset += 16) {
    auto& reads = async_reads(owner, offset);
    auto found = std::find_if(reads.begin(), reads.end(), [=](const AsyncRead& read) { return read.agent == agent; });
    if (found == reads.end()) found = reads.insert(reads.end(), {agent, now, 0});
    ++found->pending;
    found->stamp = now;
  }
}

void end_async_read(const void* address, uint64_t bytes, uint64_t agent) {
  uint64_t place = static_cast<const char*>(address) - shared_base;
  if (!launch->checked || place >= shared_total || !block_in(place / shared_stride)) return;
  Block& owner = *block_in(place / shared_stride);
  for (uint64_t offset = place % shared_stride / 16 * 16; offset < place % shared_stride + bytes; offset += 16)
    for (AsyncRead& read : async_reads(owner, offset))
      if (read.agent == agent) --read.pending, read.stamp = now;
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
  if (launch->count_requests) count_request(pc, true, true, place, bytes);
}

// A cp.async was issued: no thread may read the bytes before it is waited for.
void mark_pending(const void* pointer, uint64_t bytes) {
  uint64_t place = static_cast<const char*>(pointer) - shared_base;
  for (uint64_t i = 0; launch->checked && i < bytes; ++i) shared_shadow[place + i].is_pending = true;
}

}  // namespace emu

using emu::check;
#define ACCESS(bytes)                                                                                    \
  EXPORT void __tsan_read##bytes(void* p) { check(p, bytes, false, false, PLACE); }                     \
  EXPORT void __tsan_write##bytes(void* p) { check(p, bytes, true, false, PLACE); }                     \
  EXPORT void __tsan_unaligned_read##bytes(void* p) { check(p, bytes, false, false, PLACE); }           \
  EXPORT void __tsan_unaligned_write##bytes(void* p) { check(p, bytes, true, false, PLACE); }           \
  EXPORT void __tsan_volatile_read##bytes(void* p) { emu::check_volatile(p, bytes, PLACE); }            \
  EXPORT void __tsan_volatile_write##bytes(void* p) { check(p, bytes, true, emu::slot_at(p), PLACE); } \
  EXPORT void __tsan_unaligned_volatile_read##bytes(void* p) { emu::check_volatile(p, bytes, PLACE); }  \
  EXPORT void __tsan_unaligned_volatile_write##bytes(void* p) { check(p, bytes, true, emu::slot_at(p), PLACE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
EXPORT void __tsan_read_range(void* p, long bytes) { if (bytes) check(p, bytes, false, false, PLACE); }
EXPORT void __tsan_write_range(void* p, long bytes) { if (bytes) check(p, bytes, true, false, PLACE); }
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}

// Atomics and synchronising accesses, which are plain themselves: one thread runs at a time. `order`: bit 0 releases,
// bit 1 acquires; relaxed accesses do either only together with a fence.
EXPORT void emu_atomic(const void* address, uint32_t bytes, int order, int writes, const void* pc) {
  check(address, bytes, writes, true, pc);
  emu::acquire(address, !(order & 2));
  if (writes) emu::release(address, !(order & 1));
}
EXPORT void emu_wrote() { emu::progress(); }
EXPORT void emu_fault(const char* text, uint32_t line) {
  emu::fault(nullptr, line, "%s: %s", emu::describe(*emu::self), text);
}
