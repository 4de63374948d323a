// Memory of the GPUs: the host's, at addresses that are never used twice, with unmapped pages after each allocation.
#include <sys/mman.h>

#include <cstring>

#include "standin.h"

namespace standin {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMostFilled = size_t(64) << 20;  // measurements fill more than the host has
constexpr int kFresh = 0xFF;   // NaN in every float format
constexpr size_t kOffset = 256;  // what the manual promises, and no more

struct Pool {
  Device* device;
  size_t allocations = 0;
  bool is_default = false;
};

struct Allocation {
  size_t nbytes;
  Device* device;
  Pool* pool;           // nullptr for memory of cuMemAlloc
  bool is_there = true;  // false until the work that allocates it in stream order has run
  bool is_freed = false;
  std::set<uint64_t> uses;
};

std::map<CUdeviceptr, Allocation> allocations;
std::map<CUmemoryPool, std::unique_ptr<Pool>> pools;
std::map<size_t, std::vector<CUdeviceptr>> kept;  // mapped and free, by size; only where nothing is checked
uintptr_t next_address = 0x2000'0000'0000;

size_t mapped_bytes(size_t nbytes) { return (kOffset + nbytes + kPage - 1) / kPage * kPage; }

CUdeviceptr note(CUdeviceptr address, size_t nbytes, Device& device, Pool* pool) {
  device.used_bytes += nbytes;
  if (pool) ++pool->allocations;
  allocations[address] = {nbytes, &device, pool};
  return address;
}

CUdeviceptr allocate(Device& device, size_t nbytes, Pool* pool) {
  if (!nbytes) refuse(CUDA_ERROR_INVALID_VALUE, "0 bytes");
  if (device.used_bytes + nbytes > device.gpu->memory_bytes)
    refuse(CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes; %zu are in use", nbytes, device.used_bytes);
  size_t mapped = mapped_bytes(nbytes);
  std::vector<CUdeviceptr>& known = kept[mapped];
  if (!known.empty()) {
    CUdeviceptr address = known.back();
    known.pop_back();
    return note(address, nbytes, device, pool);
  }
  void* base = mmap(reinterpret_cast<void*>(next_address), mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (base == MAP_FAILED) refuse(CUDA_ERROR_OUT_OF_MEMORY, "the host has no %zu bytes", nbytes);
  next_address += mapped + kPage;
  CUdeviceptr address = reinterpret_cast<CUdeviceptr>(base) + kOffset;
  if (nbytes <= kMostFilled) memset(reinterpret_cast<void*>(address), kFresh, nbytes);
  return note(address, nbytes, device, pool);
}

void release(CUdeviceptr address) {
  Allocation& gone = allocations.at(address);
  gone.device->used_bytes -= gone.nbytes;
  if (gone.pool) --gone.pool->allocations;
  size_t mapped = mapped_bytes(gone.nbytes);
  if (kIdle) kept[mapped].push_back(address);
  else munmap(reinterpret_cast<void*>(address - kOffset), mapped);
  allocations.erase(address);
}

std::pair<const CUdeviceptr, Allocation>* find(CUdeviceptr address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  auto& found = *--after;
  return address < found.first + found.second.nbytes ? &found : nullptr;
}

Allocation& allocated(CUdeviceptr address) {
  auto found = allocations.find(address);
  if (found == allocations.end() || found->second.is_freed)
    refuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not the address of a live allocation", address);
  return found->second;
}

Pool& pool_of(CUmemoryPool handle) {
  auto found = pools.find(handle);
  if (found == pools.end()) refuse(CUDA_ERROR_INVALID_VALUE, "no live memory pool");
  return *found->second;
}

CUdeviceptr allocate_in_order(Pool& pool, size_t nbytes, CUstream stream) {
  if (pool.device != &device_of_stream(stream)) refuse(CUDA_ERROR_INVALID_VALUE, "a pool of another GPU");
  CUdeviceptr address = allocate(*pool.device, nbytes, &pool);
  allocations.at(address).is_there = false;
  note_use(address, queue(stream, "an allocation", [address] { allocations.at(address).is_there = true; }));
  return address;
}

// Host memory is pageable: it is read before the call returns.
void copy_to_device(CUdeviceptr target, const void* source, size_t nbytes, CUstream stream) {
  check_memory(device_of_stream(stream), target, nbytes, CUDA_ERROR_INVALID_VALUE, "the target");
  auto first = static_cast<const uint8_t*>(source);
  std::shared_ptr<std::vector<uint8_t>> staged = std::make_shared<std::vector<uint8_t>>(first, first + nbytes);
  Device& device = current_device();
  note_use(target, queue(stream, "a copy to the GPU", [=, &device] {
    check_memory(device, target, nbytes, CUDA_ERROR_ILLEGAL_ADDRESS, "the target");
    memcpy(reinterpret_cast<void*>(target), staged->data(), nbytes);
  }));
}

void copy_to_host(void* target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  Device& device = device_of_stream(stream);
  check_memory(device, source, nbytes, CUDA_ERROR_INVALID_VALUE, "the source");
  note_use(source, queue(stream, "a copy to the host", [=, &device] {
    check_memory(device, source, nbytes, CUDA_ERROR_ILLEGAL_ADDRESS, "the source");
    memcpy(target, reinterpret_cast<void*>(source), nbytes);
  }));
  finish_stream(stream);
}

void copy_on_device(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  Device& device = device_of_stream(stream);
  check_memory(device, target, nbytes, CUDA_ERROR_INVALID_VALUE, "the target");
  check_memory(device, source, nbytes, CUDA_ERROR_INVALID_VALUE, "the source");
  uint64_t work = queue(stream, "a copy on the GPU", [=, &device] {
    check_memory(device, target, nbytes, CUDA_ERROR_ILLEGAL_ADDRESS, "the target");
    check_memory(device, source, nbytes, CUDA_ERROR_ILLEGAL_ADDRESS, "the source");
    memmove(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), nbytes);
  });
  note_use(target, work), note_use(source, work);
}

// Runs what is queued to free the pool's memory.
void finish_releases(Pool& pool) {
  while (pool.allocations) {
    for (auto& [address, allocation] : allocations)
      if (allocation.pool == &pool) {
        finish_work(*allocation.uses.rbegin());
        break;
      }
  }
}

}  // namespace

void check_memory(Device& device, CUdeviceptr address, size_t nbytes, CUresult status, const char* what) {
  auto found = find(address);
  if (!found) refuse(status, "%s: %#llx lies in no live allocation", what, address);
  auto& [start, allocation] = *found;
  if (allocation.device != &device) refuse(status, "%s: %#llx is memory of GPU %d", what, address, allocation.device->ordinal);
  if (status != CUDA_ERROR_ILLEGAL_ADDRESS && allocation.is_freed)  // work that was queued before may still use it
    refuse(status, "%s: %#llx was freed in stream order", what, address);
  if (status == CUDA_ERROR_ILLEGAL_ADDRESS && !allocation.is_there)
    refuse(status, "%s: %#llx is used before the allocation that is queued in another stream", what, address);
  if (nbytes > start + allocation.nbytes - address)
    refuse(status, "%s: %zu bytes at %#llx go beyond the allocation's %zu", what, nbytes, address, allocation.nbytes);
}

size_t bytes_from(CUdeviceptr address) {
  auto found = find(address);
  return found ? found->first + found->second.nbytes - address : 0;
}

void note_use(CUdeviceptr address, uint64_t work) {
  auto found = find(address);
  if (!found || !found->second.pool) return;
  if (found->second.is_freed) refuse(CUDA_ERROR_ILLEGAL_ADDRESS, "%#llx was freed in stream order", address);
  std::set<uint64_t>& uses = found->second.uses;
  if (uses.size() > 64)
    for (auto use = uses.begin(); use != uses.end();) use = is_done(*use) ? uses.erase(use) : std::next(use);
  uses.insert(work);
}

void count_memory(std::map<std::string, int>& kinds) {
  kinds["allocations"] = kinds["pools"] = 0;
  for (auto& [address, allocation] : allocations) kinds["allocations"] += !allocation.is_freed;
  for (auto& [handle, pool] : pools) kinds["pools"] += !pool->is_default;
}

}  // namespace standin

using namespace standin;

extern "C" {

CUresult cuMemAlloc(CUdeviceptr* address, size_t nbytes) {
  return guarded(__func__, Needs::context, [&] { *address = allocate(current_device(), nbytes, nullptr); });
}

CUresult cuMemFree(CUdeviceptr address) {
  return guarded(__func__, Needs::context, [&] {
    if (!address) return;
    Allocation& gone = allocated(address);
    if (gone.device != &current_device()) refuse(CUDA_ERROR_INVALID_VALUE, "memory of another GPU");
    for (uint64_t use : gone.uses)  // of memory from pools, whose work it does not wait for
      if (!is_done(use)) refuse(CUDA_ERROR_INVALID_VALUE, "work on the memory is under way");
    finish_all();
    release(address);
  });
}

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return guarded(__func__, Needs::context, [&] {
    Device& device = current_device();
    *total_bytes = device.gpu->memory_bytes, *free_bytes = *total_bytes - device.used_bytes;
  });
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr address) {
  return guarded(__func__, Needs::init, [&] {
    auto found = find(address);
    if (!found) refuse(CUDA_ERROR_INVALID_VALUE, "%#llx lies in no live allocation", address);
    if (name != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) refuse(CUDA_ERROR_NOT_SUPPORTED, "attribute %d", int(name));
    *static_cast<int*>(value) = found->second.device->ordinal;
  });
}

CUresult cuMemcpyHtoD(CUdeviceptr target, const void* source, size_t nbytes) {
  // It returns when the source, which is pageable, has been read; by then the target need not have been written.
  return guarded(__func__, Needs::context, [&] {
    finish_stream(nullptr);
    copy_to_device(target, source, nbytes, nullptr);
  });
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, size_t nbytes, CUstream stream) {
  return guarded(__func__, Needs::context, [&] { copy_to_device(target, source, nbytes, stream); });
}

CUresult cuMemcpyDtoH(void* target, CUdeviceptr source, size_t nbytes) {
  return guarded(__func__, Needs::context, [&] { copy_to_host(target, source, nbytes, nullptr); });
}

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  return guarded(__func__, Needs::context, [&] { copy_to_host(target, source, nbytes, stream); });
}

CUresult cuMemcpyDtoD(CUdeviceptr target, CUdeviceptr source, size_t nbytes) {
  return guarded(__func__, Needs::context, [&] { copy_on_device(target, source, nbytes, nullptr); });
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  return guarded(__func__, Needs::context, [&] { copy_on_device(target, source, nbytes, stream); });
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* wanted, CUstream stream) {
  return guarded(__func__, Needs::context, [&] {
    const CUDA_MEMCPY2D& copy = *wanted;
    if (copy.srcXInBytes || copy.srcY || copy.dstXInBytes || copy.dstY) refuse(CUDA_ERROR_NOT_SUPPORTED, "an offset");
    if (copy.WidthInBytes > copy.srcPitch || copy.WidthInBytes > copy.dstPitch)
      refuse(CUDA_ERROR_INVALID_VALUE, "rows of %zu bytes, pitches %zu and %zu", copy.WidthInBytes, copy.srcPitch, copy.dstPitch);
    bool from_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
    if (from_host && to_host) refuse(CUDA_ERROR_NOT_SUPPORTED, "a copy on the host");
    for (size_t row = 0; row < copy.Height; ++row) {
      size_t source = row * copy.srcPitch, target = row * copy.dstPitch;
      auto* here = static_cast<const char*>(copy.srcHost) + source;
      if (from_host) copy_to_device(copy.dstDevice + target, here, copy.WidthInBytes, stream);
      else if (to_host) copy_to_host(static_cast<char*>(copy.dstHost) + target, copy.srcDevice + source, copy.WidthInBytes, stream);
      else copy_on_device(copy.dstDevice + target, copy.srcDevice + source, copy.WidthInBytes, stream);
    }
  });
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
  return guarded(__func__, Needs::context, [&] {
    Device& device = device_of_stream(stream);
    if (!count) return;
    check_memory(device, target, count, CUDA_ERROR_INVALID_VALUE, "the target");
    note_use(target, queue(stream, "a memset", [=, &device] {
      check_memory(device, target, count, CUDA_ERROR_ILLEGAL_ADDRESS, "the target");
      if (count <= kMostFilled) memset(reinterpret_cast<void*>(target), value, count);
    }));
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* wanted) {
  return guarded(__func__, Needs::init, [&] {
    if (wanted->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) refuse(CUDA_ERROR_INVALID_VALUE, "allocType must be PINNED");
    if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE) refuse(CUDA_ERROR_INVALID_VALUE, "location must be a device");
    auto made = std::make_unique<Pool>(Pool{&device_at(wanted->location.id)});
    *pool = reinterpret_cast<CUmemoryPool>(made.get());
    pools[*pool] = std::move(made);
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return guarded(__func__, Needs::init, [&] {
    Pool& pool = pool_of(handle);
    if (pool.is_default) refuse(CUDA_ERROR_INVALID_VALUE, "a GPU's default pool");
    for (auto& [address, allocation] : allocations)
      if (allocation.pool == &pool && !allocation.is_freed) refuse(CUDA_ERROR_INVALID_VALUE, "%#llx of the pool is not freed", address);
    finish_releases(pool);
    pools.erase(handle);
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute name, void* value) {
  return guarded(__func__, Needs::init, [&] {
    pool_of(pool);
    if (name != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD || !value) refuse(CUDA_ERROR_INVALID_VALUE, "attribute %d", int(name));
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  return guarded(__func__, Needs::init, [&] { pool_of(pool); });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return guarded(__func__, Needs::init, [&] {
    static std::map<int, CUmemoryPool> defaults;
    CUmemoryPool& known = defaults[device];
    if (!known) {
      auto made = std::make_unique<Pool>(Pool{&device_at(device), 0, true});
      known = reinterpret_cast<CUmemoryPool>(made.get());
      pools[known] = std::move(made);
    }
    *pool = known;
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t nbytes, CUmemoryPool pool, CUstream stream) {
  return guarded(__func__, Needs::context, [&] { *address = allocate_in_order(pool_of(pool), nbytes, stream); });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return guarded(__func__, Needs::context, [&] {
    Allocation& gone = allocated(address);
    if (gone.device != &device_of_stream(stream)) refuse(CUDA_ERROR_INVALID_VALUE, "memory of another GPU");
    if (!gone.pool) refuse(CUDA_ERROR_INVALID_VALUE, "memory of cuMemAlloc");
    for (uint64_t use : gone.uses)
      if (!is_ordered(use, stream))
        refuse(CUDA_ERROR_INVALID_VALUE, "work on %#llx in another stream may still be under way", address);
    gone.is_freed = true;
    gone.uses.insert(queue(stream, "a release of memory", [address] { release(address); }));
  });
}

}  // extern "C"
