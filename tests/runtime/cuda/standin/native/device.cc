// Devices, contexts, and the frame of every entry point.
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "standin.h"

#ifndef STANDIN_GPUS
#define STANDIN_GPUS "H200"
#endif

namespace standin {
namespace {

// From the CUDA programming guide's table of compute capabilities and the data sheets.
const Gpu kGpus[] = {
    {"A100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 164 * 1024, 163 * 1024, 2048, 32, size_t(80) << 30},
    {"L40S", "NVIDIA L40S", 8, 9, 142, 100 * 1024, 99 * 1024, 1536, 24, size_t(48) << 30},
    {"H100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 228 * 1024, 227 * 1024, 2048, 32, size_t(78) << 30},
    {"H200", "NVIDIA H200", 9, 0, 132, 228 * 1024, 227 * 1024, 2048, 32, size_t(141) << 30},
    {"B200", "NVIDIA B200", 10, 0, 148, 228 * 1024, 227 * 1024, 2048, 32, size_t(180) << 30},
};

std::vector<Device> make_devices(const std::string& names) {
  std::vector<Device> found;
  for (size_t start = 0; start < names.size();) {
    size_t end = std::min(names.find(',', start), names.size());
    for (const Gpu& gpu : kGpus)
      if (names.substr(start, end - start) == gpu.name) found.push_back({&gpu, int(found.size())});
    start = end + 1;
  }
  return found;
}

pid_t initialised = 0;  // the process that called cuInit
int driver_version = 13000;
int pushed = 0;
std::string reason;

thread_local std::vector<CUcontext> stack;

Device* device_of(CUcontext context) {
  for (Device& device : devices())
    if (reinterpret_cast<CUcontext>(&device) == context && device.retained) return &device;
  return nullptr;
}

void check_ready(Needs needs) {
  if (initialised && getpid() != initialised) refuse(CUDA_ERROR_NOT_INITIALIZED, "forked from a process that uses the GPU");
  if (needs != Needs::nothing && !initialised) refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called");
  if (needs != Needs::context) return;
  Device& device = current_device();
  if (device.broken != CUDA_SUCCESS) refuse(device.broken, "a kernel failed before; the context is of no use any more");
}

}  // namespace

std::recursive_mutex& lock() {
  static std::recursive_mutex mutex;
  return mutex;
}

void refuse(CUresult status, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Refused{status, text};
}

CUresult guarded(const char* name, Needs needs, const std::function<void()>& body) {
  std::lock_guard<std::recursive_mutex> guard(lock());
  try {
    check_ready(needs);
    body();
    return CUDA_SUCCESS;
  } catch (const Refused& refused) {
    std::string last = std::exchange(reason, std::string(name) + ": " + refused.reason);
    bool is_answer = refused.status == CUDA_ERROR_NOT_FOUND;  // to a question, no fault
    if (!is_answer && reason != last) fprintf(stderr, "CUDA stand-in: %s\n", reason.c_str());
    return refused.status;
  }
}

std::vector<Device>& devices() {
  static std::vector<Device> all = make_devices(STANDIN_GPUS);
  return all;
}

Device& device_at(CUdevice ordinal) {
  if (ordinal < 0 || size_t(ordinal) >= devices().size()) refuse(CUDA_ERROR_INVALID_DEVICE, "no GPU %d", ordinal);
  return devices()[ordinal];
}

Device& current_device() {
  Device* device = stack.empty() ? nullptr : device_of(stack.back());
  if (!device) refuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
  return *device;
}

CUcontext context_of(Device& device) { return reinterpret_cast<CUcontext>(&device); }

int pushed_contexts() { return pushed; }

namespace {

int attribute(const Gpu& gpu, CUdevice_attribute name) {
  switch (name) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return gpu.major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return gpu.minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return gpu.multiprocessors;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return kSharedPerBlock;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return gpu.shared_per_block_optin;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return gpu.shared_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return gpu.threads_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return gpu.blocks_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return kRegistersPerMultiprocessor;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: return 1;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return gpu.major >= 9;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 50 << 20;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: return 0;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: return CU_COMPUTEMODE_DEFAULT;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1980000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 3201000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 6144;
    default: refuse(CUDA_ERROR_INVALID_VALUE, "device attribute %d is not known here; add it to device.cc", int(name));
  }
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

const char* standin_leaks();
void standin_driver_version(int version) { driver_version = version; }

const char* standin_last_reason() { return reason.c_str(); }

static void report_leaks() {
  std::string leaks = standin_leaks();
  if (!leaks.empty()) fprintf(stderr, "CUDA stand-in: not given back at the end of the process: %s\n", leaks.c_str());
}

CUresult cuInit(unsigned int flags) {
  return guarded(__func__, Needs::nothing, [&] {
    if (flags) refuse(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    if (devices().empty()) refuse(CUDA_ERROR_NO_DEVICE, "there is no GPU");
    if (!initialised) atexit(report_leaks);
    initialised = getpid();
  });
}

CUresult cuDriverGetVersion(int* version) {
  return guarded(__func__, Needs::nothing, [&] { *version = driver_version; });
}

CUresult cuDeviceGetCount(int* count) {
  return guarded(__func__, Needs::init, [&] { *count = int(devices().size()); });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return guarded(__func__, Needs::init, [&] { *device = device_at(ordinal).ordinal; });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return guarded(__func__, Needs::init, [&] { snprintf(name, length, "%s", device_at(device).gpu->product); });
}

CUresult cuDeviceTotalMem(size_t* nbytes, CUdevice device) {
  return guarded(__func__, Needs::init, [&] { *nbytes = device_at(device).gpu->memory_bytes; });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice device) {
  return guarded(__func__, Needs::init, [&] { *value = attribute(*device_at(device).gpu, name); });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  return guarded(__func__, Needs::init, [&] {
    Device& device = device_at(ordinal);
    ++device.retained;
    *context = context_of(device);
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return guarded(__func__, Needs::init, [&] {
    Device& device = device_at(ordinal);
    if (!device.retained) refuse(CUDA_ERROR_INVALID_CONTEXT, "the primary context was released before");
    --device.retained;
  });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return guarded(__func__, Needs::init, [&] {
    if (!device_of(context)) refuse(CUDA_ERROR_INVALID_CONTEXT, "no live context");
    stack.push_back(context);
    ++pushed;
  });
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  return guarded(__func__, Needs::init, [&] {
    if (stack.empty()) refuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
    if (context) *context = stack.back();
    stack.pop_back();
    --pushed;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return guarded(__func__, Needs::init, [&] { *context = stack.empty() ? nullptr : stack.back(); });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return guarded(__func__, Needs::init, [&] {
    if (context && !device_of(context)) refuse(CUDA_ERROR_INVALID_CONTEXT, "no live context");
    pushed -= !stack.empty();
    if (!stack.empty()) stack.pop_back();
    if (context) stack.push_back(context);
    pushed += context != nullptr;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return guarded(__func__, Needs::context, [&] { *device = current_device().ordinal; });
}

CUresult cuCtxSynchronize() {
  return guarded(__func__, Needs::context, [&] { finish_all(); });
}

}  // extern "C"
