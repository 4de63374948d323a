// Launches of kernels: what the driver refuses, and what would go wrong on the GPU.
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "standin.h"

namespace standin {
namespace {

constexpr double kWaveMicroseconds = 10.0;

constexpr size_t kTensorMapBytes = sizeof(CUtensorMap);
constexpr uint64_t kPortableCluster = 8, kLargestCluster = 16;
constexpr CUdeviceptr kPointerAlignment = 16;  // of the widest access: kernels may make such with every pointer

// A parameter as it is handed out to be executed: for a pointer the bytes from there to the end of its allocation.
struct Passed {
  const void* bytes;
  uint64_t nbytes, reachable_bytes;
};

// Executes a kernel; extents are those of the grid, the block and the cluster. Returns 0 unless the kernel fails.
using Execute = int (*)(const char* name, const uint32_t* extents, uint32_t shared_bytes, int cooperative, int count,
                        const Passed* parameters);
Execute execute = nullptr;
std::set<int> widths;  // multiprocessors that launches had which have run

void execute_launch(const Launch& launch, const Function& function, const Extent& cluster) {
  std::vector<Passed> passed;
  for (const std::vector<uint8_t>& bytes : launch.parameters) {
    CUdeviceptr address = 0;
    if (bytes.size() == sizeof address) memcpy(&address, bytes.data(), sizeof address);
    passed.push_back({bytes.data(), bytes.size(), bytes_from(address)});
  }
  const uint32_t extents[] = {launch.grid.x,  launch.grid.y, launch.grid.z, launch.block.x, launch.block.y,
                              launch.block.z, cluster.x,     cluster.y,     cluster.z};
  const char* name = function.kernel.name.c_str();
  if (execute(name, extents, launch.shared_bytes, launch.cooperative, int(passed.size()), passed.data()))
    refuse(CUDA_ERROR_LAUNCH_FAILED, "%s failed on the emulated device", name);
}

// Reads memory of this process that may not be there.
bool try_read(void* target, const void* source, size_t nbytes) {
  iovec local{target, nbytes}, remote{const_cast<void*>(source), nbytes};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == ssize_t(nbytes)) return true;
  if (errno != EPERM && errno != ENOSYS) return false;
  memcpy(target, source, nbytes);  // where the call is forbidden
  return true;
}

void check_extents(const Launch& launch, const Function& function) {
  const Extent &grid = launch.grid, &block = launch.block;
  const char* name = function.kernel.name.c_str();
  if (!grid.count() || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: a grid of %u x %u x %u blocks", name, grid.x, grid.y, grid.z);
  if (!block.count() || block.x > 1024 || block.y > 1024 || block.z > 64 || block.count() > function.kernel.max_threads)
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: a block of %u x %u x %u threads; compiled for %u", name, block.x, block.y,
           block.z, function.kernel.max_threads);
  if (auto wanted = function.kernel.required_block)
    if (memcmp(&*wanted, &block, sizeof block)) refuse(CUDA_ERROR_INVALID_VALUE, "%s: compiled for another block", name);
}

Extent cluster_of(const Launch& launch, const Function& function) {
  const Extent& given = launch.cluster;
  if (auto wanted = function.kernel.required_cluster) {
    if (given.count() != 1 && memcmp(&*wanted, &given, sizeof given))
      refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: compiled for another cluster", function.kernel.name.c_str());
    return *wanted;
  }
  return given;
}

void check_cluster(const Launch& launch, const Function& function, const Extent& cluster) {
  const char* name = function.kernel.name.c_str();
  uint64_t most = function.nonportable_cluster ? kLargestCluster : kPortableCluster;
  if (!cluster.count() || cluster.count() > most || (cluster.count() > 1 && function.device->gpu->major < 9))
    refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: a cluster of %lu blocks, of %lu", name, cluster.count(), most);
  if (launch.grid.x % cluster.x || launch.grid.y % cluster.y || launch.grid.z % cluster.z)
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: the cluster does not divide the grid", name);
  if (launch.green && cluster.count() > uint64_t(largest_cluster(*launch.green)))
    refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: clusters of %lu may not fit the green context", name, cluster.count());
  // How many clusters are resident depends on how the GPU's multiprocessors lie together, which no manual says.
  if (launch.cooperative && cluster.count() > 1)
    refuse(CUDA_ERROR_NOT_SUPPORTED, "%s: cooperative launches of clusters are not checked here", name);
}

void check_resources(const Launch& launch, const Function& function) {
  const char* name = function.kernel.name.c_str();
  if (int(launch.shared_bytes) > function.max_dynamic_shared_bytes)
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: %u bytes of dynamic shared memory, of %d (%u are static)", name,
           launch.shared_bytes, function.max_dynamic_shared_bytes, function.kernel.static_shared_bytes);
  int each = resident_blocks(function, int(launch.block.count()), launch.shared_bytes);
  if (each < 1) refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "%s: a multiprocessor holds no block", name);
  int multiprocessors = launch.green ? multiprocessors_of(*launch.green) : function.device->gpu->multiprocessors;
  uint64_t most = uint64_t(each) * multiprocessors;
  if (launch.cooperative && launch.grid.count() > most)
    refuse(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "%s: %lu blocks, %d multiprocessors hold %lu", name,
           launch.grid.count(), multiprocessors, most);
}

}  // namespace

void read_parameters(Launch& launch, void** table) {
  const Kernel& kernel = function_of(launch.function).kernel;
  launch.parameters.clear();
  for (size_t number = 0; number < kernel.parameters.size(); ++number) {
    const void* address = nullptr;
    std::vector<uint8_t> bytes(kernel.parameters[number].nbytes);
    if (!table || !try_read(&address, table + number, sizeof address) || !try_read(bytes.data(), address, bytes.size()))
      refuse(CUDA_ERROR_INVALID_VALUE, "%s has %zu parameters; number %zu cannot be read", kernel.name.c_str(),
             kernel.parameters.size(), number);
    launch.parameters.push_back(std::move(bytes));
  }
}

void set_attribute(Launch& launch, CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      if (value.cooperative != 0 && value.cooperative != 1) refuse(CUDA_ERROR_INVALID_VALUE, "cooperative is %d", value.cooperative);
      launch.cooperative = value.cooperative;
      return;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      launch.cluster = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
      return;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      if (value.priority > kLeastPriority || value.priority < kGreatestPriority)
        refuse(CUDA_ERROR_INVALID_VALUE, "priority %d is not between %d and %d", value.priority, kGreatestPriority, kLeastPriority);
      launch.has_priority = true;
      return;
    default: refuse(CUDA_ERROR_NOT_SUPPORTED, "launch attribute %d is not checked here", int(id));
  }
}

void check_launch(const Launch& launch) {
  const Function& function = function_of(launch.function);
  if (function.device != &current_device()) refuse(CUDA_ERROR_INVALID_CONTEXT, "a kernel of another GPU");
  if (launch.green && !function.is_library)
    refuse(CUDA_ERROR_INVALID_CONTEXT, "%s is a function of the primary context, launched in a green one", function.kernel.name.c_str());
  check_extents(launch, function);
  Extent cluster = cluster_of(launch, function);
  check_cluster(launch, function, cluster);
  check_resources(launch, function);
}

// How often the GPU is full of blocks: what a schedule changes of the simulated time of a kernel.
uint64_t waves_of(const Launch& launch, const Function& function) {
  int multiprocessors = launch.green ? multiprocessors_of(*launch.green) : function.device->gpu->multiprocessors;
  int each = std::max(1, resident_blocks(function, int(launch.block.count()), launch.shared_bytes));
  uint64_t most = uint64_t(each) * multiprocessors;
  return (launch.grid.count() + most - 1) / most;
}

void run_launch(const Launch& launch) {
  Function& function = function_of(launch.function);
  widths.insert(launch.green ? multiprocessors_of(*launch.green) : function.device->gpu->multiprocessors);
  for (size_t number = 0; number < launch.parameters.size(); ++number) {
    const std::vector<uint8_t>& bytes = launch.parameters[number];
    std::string where = function.kernel.name + ", parameter " + std::to_string(number);
    if (bytes.size() == kTensorMapBytes) {
      check_tensor_map(*function.device, bytes, where);
    } else if (bytes.size() == sizeof(CUdeviceptr)) {
      CUdeviceptr address;
      memcpy(&address, bytes.data(), sizeof address);
      check_memory(*function.device, address, 1, CUDA_ERROR_ILLEGAL_ADDRESS, where.c_str());
      if (address % kPointerAlignment) refuse(CUDA_ERROR_MISALIGNED_ADDRESS, "%s: %#llx is no multiple of 16", where.c_str(), address);
    }
  }
  takes(kWaveMicroseconds * waves_of(launch, function));
  if (execute) execute_launch(launch, function, cluster_of(launch, function));
}

void note_uses(const Launch& launch, uint64_t work) {
  for (const std::vector<uint8_t>& bytes : launch.parameters)
    if (bytes.size() == sizeof(CUdeviceptr) || bytes.size() == kTensorMapBytes) {
      CUdeviceptr address;  // of a tensor map it is the second word
      memcpy(&address, bytes.data() + (bytes.size() == kTensorMapBytes ? 8 : 0), sizeof address);
      note_use(address, work);
    }
}

}  // namespace standin

using namespace standin;

extern "C" {

void standin_execute(Execute function) { execute = function; }

// "32 132": how many multiprocessors kernels ran on since the last call.
const char* standin_widths() {
  static std::string text;
  text.clear();
  std::lock_guard<std::recursive_mutex> guard(lock());
  for (int width : widths) text += (text.empty() ? "" : " ") + std::to_string(width);
  widths.clear();
  return text.c_str();
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  return guarded(__func__, Needs::context, [&] {
    if (extra) refuse(CUDA_ERROR_INVALID_VALUE, "extra is not taken here");
    Launch launch;
    launch.function = function;
    launch.green = green_of_stream(config->hStream);
    launch.grid = {config->gridDimX, config->gridDimY, config->gridDimZ};
    launch.block = {config->blockDimX, config->blockDimY, config->blockDimZ};
    launch.shared_bytes = config->sharedMemBytes;
    for (unsigned number = 0; number < config->numAttrs; ++number)
      set_attribute(launch, config->attrs[number].id, config->attrs[number].value);
    read_parameters(launch, parameters);
    check_launch(launch);
    note_uses(launch, queue(config->hStream, function_of(function).kernel.name, [launch] { run_launch(launch); }));
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared_bytes, CUstream stream, void** parameters, void** extra) {
  CUlaunchConfig config{gx, gy, gz, bx, by, bz, shared_bytes, stream, nullptr, 0};
  return cuLaunchKernelEx(&config, function, parameters, extra);
}

}  // extern "C"
