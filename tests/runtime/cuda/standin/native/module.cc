// Modules, the attributes of functions, and how many blocks a multiprocessor holds.
#include <algorithm>
#include <cstring>

#include "standin.h"

namespace standin {
namespace {

struct Module {
  Device* device;
  Cubin cubin;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

std::map<CUmodule, std::unique_ptr<Module>> modules;
std::set<Function*> functions;

Module& module_of(CUmodule handle) {
  auto found = modules.find(handle);
  if (found == modules.end()) refuse(CUDA_ERROR_INVALID_HANDLE, "no live module");
  return *found->second;
}

// Text that begins as PTX does, with a comment or its version; the driver reads to the byte 0 at its end.
bool is_ptx(const char* image) { return !strncmp(image, "//", 2) || !strncmp(image, ".version", 8); }

int round_up(int value, int step) { return (value + step - 1) / step * step; }

}  // namespace

Function& function_of(CUfunction handle) {
  auto found = functions.find(reinterpret_cast<Function*>(handle));
  if (found == functions.end()) refuse(CUDA_ERROR_INVALID_HANDLE, "no function of a live module");
  return **found;
}

// By the CUDA programming guide: registers are given to warps in steps of 256, within a quarter of the multiprocessor;
// shared memory to blocks in steps of 128 bytes, 1 KiB of which is the system's.
int resident_blocks(const Function& function, int threads, size_t dynamic_bytes) {
  const Gpu& gpu = *function.device->gpu;
  int warps = round_up(threads, 32) / 32;
  int per_warp = std::max(256, round_up(int(function.kernel.registers) * 32, 256));
  int by_registers = kRegistersPerMultiprocessor / 4 / per_warp * 4 / warps;
  int by_threads = gpu.threads_per_multiprocessor / 32 / warps;
  size_t reserved = gpu.major >= 8 ? 1024 : 0;
  int shared = round_up(int(function.kernel.static_shared_bytes + dynamic_bytes + reserved), 128);
  int by_shared = shared ? gpu.shared_per_multiprocessor / shared : gpu.blocks_per_multiprocessor;
  return std::min({by_registers, by_threads, by_shared, gpu.blocks_per_multiprocessor});
}

void count_modules(std::map<std::string, int>& kinds) { kinds["modules"] = int(modules.size()); }

}  // namespace standin

using namespace standin;

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return guarded(__func__, Needs::context, [&] {
    Device& device = current_device();
    auto text = static_cast<const char*>(image);
    std::string compiled = is_ptx(text) ? compile_ptx(*device.gpu, text) : "";
    auto made = std::make_unique<Module>(Module{&device, read_cubin(compiled.empty() ? image : compiled.data()), {}});
    int major = made->cubin.architecture / 10, minor = made->cubin.architecture % 10;
    if (major != device.gpu->major || minor > device.gpu->minor)
      refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "machine code of sm_%d%d on an %s", major, minor, device.gpu->name);
    *module = reinterpret_cast<CUmodule>(made.get());
    modules[*module] = std::move(made);
  });
}

CUresult cuModuleUnload(CUmodule module) {
  return guarded(__func__, Needs::context, [&] {
    Module& gone = module_of(module);
    if (gone.device != &current_device()) refuse(CUDA_ERROR_INVALID_HANDLE, "a module of another GPU");
    if (uses_module(module)) refuse(CUDA_ERROR_INVALID_HANDLE, "a graph launches kernels of the module");
    for (auto& [name, function] : gone.functions) functions.erase(function.get());
    modules.erase(module);
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return guarded(__func__, Needs::context, [&] {
    Module& owner = module_of(module);
    auto found = owner.cubin.kernels.find(name);
    if (found == owner.cubin.kernels.end()) refuse(CUDA_ERROR_NOT_FOUND, "no kernel %s", name);
    auto& made = owner.functions[name];
    if (!made) {
      int left = std::max(0, kSharedPerBlock - int(found->second.static_shared_bytes));
      made = std::make_unique<Function>(Function{found->second, module, owner.device, left});
      functions.insert(made.get());
    }
    *function = reinterpret_cast<CUfunction>(made.get());
  });
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute name, CUfunction handle) {
  return guarded(__func__, Needs::context, [&] {
    Function& function = function_of(handle);
    switch (name) {
      case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = int(function.kernel.max_threads); return;
      case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = int(function.kernel.static_shared_bytes); return;
      case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = int(function.kernel.registers); return;
      case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function.max_dynamic_shared_bytes; return;
      case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = function.nonportable_cluster; return;
      default: refuse(CUDA_ERROR_INVALID_VALUE, "attribute %d", int(name));
    }
  });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute name, int value) {
  return guarded(__func__, Needs::context, [&] {
    Function& function = function_of(handle);
    int fixed = int(function.kernel.static_shared_bytes), most = function.device->gpu->shared_per_block_optin;
    switch (name) {
      case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value + fixed > most)
          refuse(CUDA_ERROR_INVALID_VALUE, "%d dynamic and %d static bytes of %d", value, fixed, most);
        function.max_dynamic_shared_bytes = value;
        return;
      case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        if (function.device->gpu->major < 9) refuse(CUDA_ERROR_NOT_SUPPORTED, "the GPU has no clusters");
        function.nonportable_cluster = value != 0;
        return;
      case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:  // a hint, in percent
        if (value < CU_SHAREDMEM_CARVEOUT_DEFAULT || value > CU_SHAREDMEM_CARVEOUT_MAX_SHARED)
          refuse(CUDA_ERROR_INVALID_VALUE, "a carveout of %d percent", value);
        return;
      default: refuse(CUDA_ERROR_INVALID_VALUE, "attribute %d", int(name));
    }
  });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction handle, int threads, size_t dynamic_bytes) {
  return guarded(__func__, Needs::context, [&] {
    Function& function = function_of(handle);
    if (threads < 1) refuse(CUDA_ERROR_INVALID_VALUE, "%d threads", threads);
    bool fits = threads <= int(function.kernel.max_threads) && int(dynamic_bytes) <= function.max_dynamic_shared_bytes;
    *count = fits ? resident_blocks(function, threads, dynamic_bytes) : 0;
  });
}

}  // extern "C"
