// cp.async: a copy happens when its thread waits for it, so that a missing wait shows.
#include "memory.h"

namespace emu {

static void copy(const Copy& item) {
  arrived(item.to, item.bytes);
  for (uint32_t at = 0; at < item.bytes; at += 4) check(item.to + at, 4, true, false, nullptr);
  memcpy(item.to, item.from, item.from_bytes);
  memset(item.to + item.from_bytes, 0, item.bytes - item.from_bytes);
}

static void finish(size_t count) {
  for (size_t i = 0; i < count; ++i) copy(self->copies[i]);
  self->copies.erase(self->copies.begin(), self->copies.begin() + count);
}

}  // namespace emu

using namespace emu;

EXPORT void emu_copy_async(void* to, const void* from, uint32_t bytes, uint32_t from_bytes, const void* pc) {
  if (from_bytes > bytes) from_bytes = bytes;
  if (launch->checked) {
    check_shared_target(to, bytes, pc);
    if (from_bytes) check(from, from_bytes, false, false, pc);
    mark_pending(to, bytes);
  }
  self->copies.push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes, from_bytes});
  ++self->uncommitted;
}

EXPORT void emu_copy_commit() {
  self->groups.push_back(self->uncommitted);
  self->uncommitted = 0;
}

EXPORT void emu_copy_wait(uint32_t pending) {
  auto& groups = self->groups;
  while (groups.size() > pending) {
    finish(groups.front());
    groups.erase(groups.begin());
  }
}

EXPORT void emu_copy_wait_all() {
  emu_copy_commit();
  emu_copy_wait(0);
}

// Checks an access that a matrix instruction makes for its thread.
EXPORT void emu_check_read(const void* address, uint32_t bytes, const void* pc) { check(address, bytes, false, false, pc); }
EXPORT void emu_check_write(const void* address, uint32_t bytes, const void* pc) { check(address, bytes, true, false, pc); }
