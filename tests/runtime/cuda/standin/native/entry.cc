// The entry points by name, as cuda-bindings ask for them; the names of errors; and what tests look at.
#include <cstdio>
#include <cstring>

#include "standin.h"

namespace standin {
namespace {

struct Entry {
  const char* name;
  void* address;
};

// The macros of cuda.h turn a name into that of its newest version.
#define ENTRY(name) {#name, reinterpret_cast<void*>(name)}

const Entry kEntries[] = {
    ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetName),
    ENTRY(cuDeviceTotalMem), ENTRY(cuDeviceGetAttribute), ENTRY(cuDevicePrimaryCtxRetain),
    ENTRY(cuDevicePrimaryCtxRelease), ENTRY(cuCtxPushCurrent), ENTRY(cuCtxPopCurrent), ENTRY(cuCtxGetCurrent),
    ENTRY(cuCtxSetCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuCtxSynchronize), ENTRY(cuCtxGetStreamPriorityRange),
    ENTRY(cuStreamCreate), ENTRY(cuStreamCreateWithPriority), ENTRY(cuStreamDestroy), ENTRY(cuStreamSynchronize),
    ENTRY(cuStreamQuery), ENTRY(cuStreamWaitEvent), ENTRY(cuEventCreate), ENTRY(cuEventDestroy), ENTRY(cuEventRecord),
    ENTRY(cuEventSynchronize), ENTRY(cuEventQuery), ENTRY(cuEventElapsedTime), ENTRY(cuMemAlloc), ENTRY(cuMemFree),
    ENTRY(cuMemGetInfo), ENTRY(cuPointerGetAttribute), ENTRY(cuMemcpyHtoD), ENTRY(cuMemcpyHtoDAsync),
    ENTRY(cuMemcpyDtoH), ENTRY(cuMemcpyDtoHAsync), ENTRY(cuMemcpyDtoD), ENTRY(cuMemcpyDtoDAsync), ENTRY(cuMemcpy2DAsync),
    ENTRY(cuMemsetD8Async), ENTRY(cuMemPoolCreate), ENTRY(cuMemPoolDestroy), ENTRY(cuMemPoolSetAttribute),
    ENTRY(cuMemPoolTrimTo), ENTRY(cuDeviceGetDefaultMemPool), ENTRY(cuMemAllocFromPoolAsync), ENTRY(cuMemFreeAsync),
    ENTRY(cuModuleLoadData), ENTRY(cuModuleUnload), ENTRY(cuModuleGetFunction), ENTRY(cuFuncGetAttribute),
    ENTRY(cuFuncSetAttribute), ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor), ENTRY(cuLaunchKernel),
    ENTRY(cuLaunchKernelEx), ENTRY(cuGraphCreate), ENTRY(cuGraphDestroy), ENTRY(cuGraphAddKernelNode),
    ENTRY(cuGraphAddMemsetNode), ENTRY(cuGraphAddDependencies), ENTRY(cuGraphKernelNodeSetAttribute),
    ENTRY(cuGraphInstantiateWithFlags), ENTRY(cuGraphExecKernelNodeSetParams), ENTRY(cuGraphNodeSetEnabled),
    ENTRY(cuGraphLaunch),
    ENTRY(cuLibraryLoadData), ENTRY(cuLibraryUnload), ENTRY(cuLibraryGetModule), ENTRY(cuLibraryGetKernel),
    ENTRY(cuKernelGetAttribute), ENTRY(cuKernelSetAttribute), ENTRY(cuDeviceGetDevResource),
    ENTRY(cuDevSmResourceSplitByCount), ENTRY(cuDevResourceGenerateDesc), ENTRY(cuGreenCtxCreate),
    ENTRY(cuGreenCtxDestroy), ENTRY(cuCtxFromGreenCtx), ENTRY(cuGreenCtxStreamCreate), ENTRY(cuGraphExecDestroy), ENTRY(cuTensorMapEncodeTiled), ENTRY(cuGetProcAddress), ENTRY(cuGetErrorName),
    ENTRY(cuGetErrorString),
};

std::map<std::string, int> live() {
  std::map<std::string, int> kinds;
  count_memory(kinds), count_work(kinds), count_modules(kinds), count_graphs(kinds), count_greens(kinds);
  for (Device& device : devices()) kinds["retained contexts"] += device.retained;
  kinds["contexts left current"] = pushed_contexts();
  return kinds;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

// "3 streams, 1 modules": what is there and was not given back; empty when all was.
const char* standin_leaks() {
  static std::string text;
  text.clear();
  std::lock_guard<std::recursive_mutex> guard(lock());
  for (auto& [kind, count] : live())
    if (count) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + kind;
  return text.c_str();
}

CUresult cuGetProcAddress(const char* name, void** address, int, cuuint64_t,
                          CUdriverProcAddressQueryResult* result) {
  *address = nullptr;
  for (const Entry& entry : kEntries)
    if (!strcmp(entry.name, name)) *address = entry.address;
  if (result) *result = *address ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// NVRTC looks for tables that no manual names, and does without.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  static thread_local char text[32];
  snprintf(text, sizeof text, "CUDA error %d", int(error));
  *name = text;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

}  // extern "C"
