// What atomics and synchronising accesses do to the checks. The accesses themselves are plain: one thread runs at a time.
#include "memory.h"

using namespace emu;

// `order`: bit 0 releases, bit 1 acquires; relaxed accesses do either only together with a fence.
EXPORT void emu_atomic(const void* address, uint32_t bytes, int order, int writes, const void* pc) {
  check(address, bytes, writes, true, pc);
  acquire(address, !(order & 2));
  if (writes) release(address, !(order & 1));
}

EXPORT void emu_wrote() { progress(); }

EXPORT void emu_fault(const char* text, uint32_t line) { fault(nullptr, line, "%s: %s", describe(*self), text); }
