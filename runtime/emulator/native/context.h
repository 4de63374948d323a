// Fibres: see context.cc.
#pragma once

// Leaves the current stack, storing where it was in `*from`, and goes on at `to`.
extern "C" void emu_switch(void** from, void* to);
// The stack pointer of a fibre that begins in `entry`, which never returns; `top` is 16-byte aligned.
void* emu_prepare(char* top, void (*entry)());
