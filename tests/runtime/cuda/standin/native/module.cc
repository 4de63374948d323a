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

std::map<CUmodule, std::unique_ptr<Module>> modules, libraries;
std::set<Function*> functions;

Module& module_of(CUmodule handle) {
  auto found = modules.find(handle);
  if (found == modules.end()) refuse(CUDA_ERROR_INVALID_HANDLE, "no live module");
  return *found->second;
}

Module& library_of(CUlibrary handle) {
  auto found = libraries.find(reinterpret_cast<CUmodule>(handle));
  if (found == libraries.end()) refuse(CUDA_ERROR_INVALID_HANDLE, "no live library");
  return *found->second;
}

// Text that begins as PTX does, with a comment or its version; the driver reads to the byte 0 at its end.
bool is_ptx(const char* image) { return !strncmp(image, "//", 2) || !strncmp(image, ".version", 8); }

int round_up(int value, int step) { return (value + step - 1) / step * step; }

std::unique_ptr<Module> load(const void* image) {
  Device& device = current_device();
  auto text = static_cast<const char*>(image);
  std::string compiled = is_ptx(text) ? compile_ptx(*device.gpu, text) : "";
  auto made = std::make_unique<Module>(Module{&device, read_cubin(compiled.empty() ? image : compiled.data()), {}});
  int major = made->cubin.architecture / 10, minor = made->cubin.architecture % 10;
  if (major != device.gpu->major || minor > device.gpu->minor)
    refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "machine code of sm_%d%d on an %s", major, minor, device.gpu->name);
  return made;
}

Function* find(Module& owner, const char* name, CUmodule handle, bool is_library) {
  auto found = owner.cubin.kernels.find(name);
  if (found == owner.cubin.kernels.end()) refuse(CUDA_ERROR_NOT_FOUND, "no kernel %s", name);
  auto& made = owner.functions[name];
  if (!made) {
    int left = std::max(0, kSharedPerBlock - int(found->second.static_shared_bytes));
    made = std::make_unique<Function>(Function{found->second, handle, owner.device, left, is_library});
    functions.insert(made.get());
  }
  return made.get();
}

int attribute(const Function& function, CUfunction_attribute name) {
  switch (name) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return int(function.kernel.max_threads);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: return int(function.kernel.static_shared_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return int(function.kernel.registers);
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return function.max_dynamic_shared_bytes;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: return function.nonportable_cluster;
    default: refuse(CUDA_ERROR_INVALID_VALUE, "attribute %d", int(name));
  }
}

void set_attribute(Function& function, CUfunction_attribute name, int value) {
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
}

// The attributes of a kernel of a library are those on a GPU; of a function, those in its context.
Function& of_kind(CUfunction handle, bool is_library) {
  Function& found = function_of(handle);
  if (found.is_library != is_library)
    refuse(CUDA_ERROR_INVALID_HANDLE, is_library ? "a module's function is no kernel" : "a library's kernel is no function");
  return found;
}

Function& kernel_on(CUkernel handle, CUdevice device) {
  Function& found = of_kind(reinterpret_cast<CUfunction>(handle), true);
  if (found.device != &device_at(device)) refuse(CUDA_ERROR_NOT_SUPPORTED, "a library on two GPUs is not checked here");
  return found;
}

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

void count_modules(std::map<std::string, int>& kinds) {
  kinds["modules"] = int(modules.size());
  kinds["libraries"] = int(libraries.size());
}

}  // namespace standin

using namespace standin;

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return guarded(__func__, Needs::context, [&] {
    std::unique_ptr<Module> made = load(image);
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
    *function = reinterpret_cast<CUfunction>(find(module_of(module), name, module, false));
  });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned options,
                           CUlibraryOption*, void**, unsigned library_options) {
  return guarded(__func__, Needs::context, [&] {
    if (options || library_options) refuse(CUDA_ERROR_INVALID_VALUE, "options are not taken here");
    std::unique_ptr<Module> made = load(image);
    *library = reinterpret_cast<CUlibrary>(made.get());
    libraries[reinterpret_cast<CUmodule>(*library)] = std::move(made);
  });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return guarded(__func__, Needs::context, [&] {
    Module& gone = library_of(library);
    auto handle = reinterpret_cast<CUmodule>(library);
    if (uses_module(handle)) refuse(CUDA_ERROR_INVALID_HANDLE, "a graph launches kernels of the library");
    for (auto& [name, function] : gone.functions) functions.erase(function.get());
    libraries.erase(handle);
  });
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return guarded(__func__, Needs::context, [&] {
    if (library_of(library).device != &current_device()) refuse(CUDA_ERROR_NOT_SUPPORTED, "a library on two GPUs is not checked here");
    *module = reinterpret_cast<CUmodule>(library);
  });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return guarded(__func__, Needs::init, [&] {
    *kernel = reinterpret_cast<CUkernel>(find(library_of(library), name, reinterpret_cast<CUmodule>(library), true));
  });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute name, CUkernel kernel, CUdevice device) {
  return guarded(__func__, Needs::init, [&] { *value = attribute(kernel_on(kernel, device), name); });
}

CUresult cuKernelSetAttribute(CUfunction_attribute name, int value, CUkernel kernel, CUdevice device) {
  return guarded(__func__, Needs::init, [&] { set_attribute(kernel_on(kernel, device), name, value); });
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute name, CUfunction handle) {
  return guarded(__func__, Needs::context, [&] { *value = attribute(of_kind(handle, false), name); });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute name, int value) {
  return guarded(__func__, Needs::context, [&] { set_attribute(of_kind(handle, false), name, value); });
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
