// Stands in for CUDA when kernels are compiled for the emulated device. Included before the text of every kernel.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define EMU_UNCHECKED __attribute__((no_sanitize("thread")))
#define EMU_PLACE __builtin_return_address(0)

#include "emulator/types.h"
#include "emulator/half.h"
#include "emulator/float8.h"
#include "emulator/functions.h"
#include "emulator/runtime.h"

#define EMU_LINE uint32_t line = __builtin_LINE()  // the line of the caller

#include "emulator/warp.h"
#include "emulator/barrier.h"
#include "emulator/atomics.h"
#include "emulator/async_copy.h"
#include "emulator/proxy.h"
#include "emulator/matrix.h"
#include "emulator/wgmma.h"
#include "emulator/collectives.h"
#include "emulator/ptx.h"
