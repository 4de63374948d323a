// The emulator has all of this in emulator.h, which is included already.
#pragma once
