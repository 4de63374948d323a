// Green contexts: a GPU's multiprocessors as resources, split, put together, and given to contexts.
#include <algorithm>
#include <cstring>

#include "standin.h"

namespace standin {

struct Green {
  Device* device;
  std::vector<uint32_t> multiprocessors;
  bool is_converted = false;
  char context = 0;  // its address is the CUcontext
};

namespace {

// What a resource keeps in its hidden bytes. The whole GPU is split 0.
struct Hidden {
  uint32_t magic, split, first, count;
  int device;
  bool is_rest;
};
static_assert(sizeof(Hidden) <= sizeof(CUdevResource::_internal_padding), "the hidden bytes of a resource");

constexpr uint32_t kMagic = 0x5E50CE;
uint32_t splits = 0;
std::map<CUdevResourceDesc, std::unique_ptr<Green>> descriptions;  // they last as long as the process
std::map<CUgreenCtx, std::unique_ptr<Green>> greens;

// By the guide at the head of the manual's section, for each compute capability.
uint32_t least(const Gpu& gpu) { return gpu.major >= 9 ? 8 : 4; }
uint32_t step(const Gpu& gpu) { return gpu.major >= 9 ? 8 : 2; }

CUdevResource make(const Hidden& hidden) {
  const Gpu& gpu = *device_at(hidden.device).gpu;
  CUdevResource made{};
  made.type = hidden.count ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID;
  made.sm.smCount = hidden.count;
  made.sm.minSmPartitionSize = least(gpu), made.sm.smCoscheduledAlignment = step(gpu);
  memcpy(made._internal_padding, &hidden, sizeof hidden);
  return made;
}

Hidden read(const CUdevResource* resource) {
  Hidden hidden{};
  if (resource) memcpy(&hidden, resource->_internal_padding, sizeof hidden);
  if (!resource || resource->type != CU_DEV_RESOURCE_TYPE_SM) refuse(CUDA_ERROR_INVALID_RESOURCE_TYPE, "no resource of multiprocessors");
  if (hidden.magic != kMagic || resource->sm.smCount != hidden.count)
    refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "a resource that was changed, or not made by the driver");
  return hidden;
}

Green& green_at(CUgreenCtx handle) {
  auto found = greens.find(handle);
  if (found == greens.end()) refuse(CUDA_ERROR_INVALID_CONTEXT, "no live green context");
  return *found->second;
}

void check_apart(const Green& wanted) {
  for (auto& [handle, other] : greens)
    for (uint32_t number : wanted.multiprocessors)
      if (other->device == wanted.device && std::count(other->multiprocessors.begin(), other->multiprocessors.end(), number))
        refuse(CUDA_ERROR_INVALID_VALUE, "multiprocessor %u is another green context's; the driver would let both have it", number);
}

}  // namespace

Green& green_of(CUcontext context) {
  for (auto& [handle, green] : greens)
    if (green->is_converted && reinterpret_cast<CUcontext>(&green->context) == context) return *green;
  refuse(CUDA_ERROR_INVALID_CONTEXT, "no context of a live green context");
}

Device& device_of_green(const Green& green) { return *green.device; }
int multiprocessors_of(const Green& green) { return int(green.multiprocessors.size()); }
int largest_cluster(const Green& green) { return int(step(*green.device->gpu)); }

void count_greens(std::map<std::string, int>& kinds) { kinds["green contexts"] = int(greens.size()); }

}  // namespace standin

using namespace standin;

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* resource, CUdevResourceType type) {
  return guarded(__func__, Needs::init, [&] {
    Device& device = device_at(ordinal);
    if (type != CU_DEV_RESOURCE_TYPE_SM) refuse(CUDA_ERROR_INVALID_RESOURCE_TYPE, "resource type %d", int(type));
    *resource = make({kMagic, 0, 0, uint32_t(device.gpu->multiprocessors), device.ordinal, false});
  });
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups, const CUdevResource* input,
                                     CUdevResource* remaining, unsigned flags, unsigned least_count) {
  return guarded(__func__, Needs::init, [&] {
    Hidden whole = read(input);
    if (whole.split) refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "what a split made is not split again without a context");
    if (flags) refuse(CUDA_ERROR_INVALID_VALUE, "flags %u are not known here", flags);
    if (!groups || least_count > whole.count) refuse(CUDA_ERROR_INVALID_VALUE, "groups of %u of %u", least_count, whole.count);
    const Gpu& gpu = *device_at(whole.device).gpu;
    uint32_t each = std::max(least(gpu), (least_count + step(gpu) - 1) / step(gpu) * step(gpu)), most = whole.count / each;
    if (!result) return void(*groups = most);
    if (!*groups) refuse(CUDA_ERROR_INVALID_VALUE, "an array of no groups");
    *groups = std::min(*groups, most);
    uint32_t split = ++splits;
    for (uint32_t number = 0; number < *groups; ++number)
      result[number] = make({kMagic, split, number * each, each, whole.device, false});
    uint32_t used = *groups * each;
    if (remaining) *remaining = make({kMagic, split, used, whole.count - used, whole.device, true});
  });
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
  return guarded(__func__, Needs::init, [&] {
    if (!count || !resources) refuse(CUDA_ERROR_INVALID_VALUE, "no resources");
    Hidden first = read(resources);
    auto made = std::make_unique<Green>(Green{&device_at(first.device), {}});
    for (unsigned number = 0; number < count; ++number) {
      Hidden one = read(resources + number);
      if (one.device != first.device || one.split != first.split || one.is_rest != first.is_rest)
        refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "resource %u is of another GPU or split, or its remainder", number);
      for (uint32_t place = one.first; place < one.first + one.count; ++place) {
        if (std::count(made->multiprocessors.begin(), made->multiprocessors.end(), place))
          refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "resource %u is given twice", number);
        made->multiprocessors.push_back(place);
      }
    }
    *description = reinterpret_cast<CUdevResourceDesc>(made.get());
    descriptions[*description] = std::move(made);
  });
}

CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc description, CUdevice ordinal, unsigned flags) {
  return guarded(__func__, Needs::init, [&] {
    auto found = descriptions.find(description);
    if (found == descriptions.end()) refuse(CUDA_ERROR_INVALID_VALUE, "no description");
    if (flags != CU_GREEN_CTX_DEFAULT_STREAM) refuse(CUDA_ERROR_INVALID_VALUE, "flags %u; CUDA 13.0 requires DEFAULT_STREAM", flags);
    if (found->second->device != &device_at(ordinal)) refuse(CUDA_ERROR_INVALID_DEVICE, "resources of another GPU");
    check_apart(*found->second);
    auto made = std::make_unique<Green>(*found->second);
    ++made->device->retained;
    *context = reinterpret_cast<CUgreenCtx>(made.get());
    greens[*context] = std::move(made);
  });
}

CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  return guarded(__func__, Needs::init, [&] {
    Green& gone = green_at(context);
    if (has_streams(gone)) refuse(CUDA_ERROR_INVALID_VALUE, "a stream of it was not destroyed, and would leak");
    if (uses_green(gone)) refuse(CUDA_ERROR_INVALID_VALUE, "a graph has kernels that run in it");
    --gone.device->retained;
    greens.erase(context);
  });
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  return guarded(__func__, Needs::init, [&] {
    Green& green = green_at(handle);
    green.is_converted = true;
    *context = reinterpret_cast<CUcontext>(&green.context);
  });
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx context, unsigned flags, int) {
  return guarded(__func__, Needs::init, [&] {
    Green& green = green_at(context);
    if (flags != CU_STREAM_NON_BLOCKING) refuse(CUDA_ERROR_INVALID_VALUE, "flags %u; NON_BLOCKING must be given", flags);
    *stream = make_stream(*green.device, false, &green);
  });
}

}  // extern "C"
