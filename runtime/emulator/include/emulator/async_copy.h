// Asynchronous copies from global to shared memory.
#pragma once

extern "C" {
void emu_copy_async(void* to, const void* from, uint32_t bytes, uint32_t from_bytes, const void* pc);
void emu_copy_commit();
void emu_copy_wait(uint32_t pending);
void emu_copy_wait_all();
}

EMU_UNCHECKED __attribute__((noinline)) inline void emu_cp_async(uint32_t shared, const void* global, uint32_t bytes, uint32_t from_bytes) {
  emu_copy_async(emu_from_shared(shared), global, bytes, from_bytes, EMU_PLACE);
}
