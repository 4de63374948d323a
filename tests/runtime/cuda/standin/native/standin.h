// A strict stand-in for libcuda: what its parts share. One lock guards all of it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace standin {

// -- errors ------------------------------------------------------------------------------------------------------

// A call is refused with a status; the reason goes to stderr and to `standin_last_reason`.
struct Refused {
  CUresult status;
  std::string reason;
};

[[noreturn]] __attribute__((format(printf, 2, 3))) void refuse(CUresult status, const char* format, ...);

enum class Needs { nothing, init, context };

// Runs the body of an entry point under the lock, with what it needs checked; turns `Refused` into its status.
CUresult guarded(const char* name, Needs needs, const std::function<void()>& body);

std::recursive_mutex& lock();

// -- devices and contexts (device.cc) ----------------------------------------------------------------------------

struct Gpu {
  const char* name;
  const char* product;  // as the driver calls it
  int major, minor, multiprocessors;
  int shared_per_multiprocessor, shared_per_block_optin;
  int threads_per_multiprocessor, blocks_per_multiprocessor;
  size_t memory_bytes;
};

struct Device {
  const Gpu* gpu;
  int ordinal, retained = 0;
  size_t used_bytes = 0;
  CUresult broken = CUDA_SUCCESS;  // a fault of a kernel, which every later call returns
};

constexpr int kSharedPerBlock = 48 * 1024, kRegistersPerMultiprocessor = 65536;

std::vector<Device>& devices();
Device& device_at(CUdevice ordinal);
Device& current_device();  // of the thread's current context
CUcontext context_of(Device& device);
int pushed_contexts();

// -- green contexts (green.cc) -------------------------------------------------------------------------------------

// Only as the context of nodes and through streams: none is made current here.
struct Green;

Green& green_of(CUcontext context);
Device& device_of_green(const Green& green);
int multiprocessors_of(const Green& green);
int largest_cluster(const Green& green);  // of multiprocessors that certainly lie together
void count_greens(std::map<std::string, int>& kinds);

// -- memory (memory.cc) ------------------------------------------------------------------------------------------

// Refuses with `status` unless the bytes lie in one live allocation of the device.
void check_memory(Device& device, CUdeviceptr address, size_t nbytes, CUresult status, const char* what);
// Bytes from `address` to the end of its allocation, 0 outside of all.
size_t bytes_from(CUdeviceptr address);
// Notes that a piece of work reads or writes there: the memory may only be freed in stream order after it.
void note_use(CUdeviceptr address, uint64_t work);
void count_memory(std::map<std::string, int>& kinds);

// Queued work runs at once and graphs not at all, to measure what is around the driver's calls.
#ifdef STANDIN_IDLE
constexpr bool kIdle = true;
#else
constexpr bool kIdle = false;
#endif

// -- work in streams (work.cc) -----------------------------------------------------------------------------------

// Queues work into a stream, after what is there and after `also`. It runs when the host waits for it, no sooner: a
// wait that is missing shows. `name` is for messages.
uint64_t queue(CUstream stream, const std::string& name, std::function<void()> run,
               const std::vector<uint64_t>& also = {});
// Queues pieces of work in the place of one, ordered among themselves by `edges` (before, after) only. Returns their
// numbers, and at last that of their end.
std::vector<uint64_t> queue_many(CUstream stream, std::vector<std::pair<std::string, std::function<void()>>> work,
                                 const std::vector<std::pair<size_t, size_t>>& edges, const std::vector<uint64_t>& also);
// Lets the simulated time of the work that runs be so much longer.
void takes(double microseconds);
CUstream make_stream(Device& device, bool is_blocking, Green* green = nullptr);
Green* green_of_stream(CUstream stream);     // nullptr for the whole GPU
bool has_streams(const Green& green);
Device& device_of_stream(CUstream stream);  // refuses what is no live stream of the current context
void finish_stream(CUstream stream);
void finish_all();  // of the current context
void finish_work(uint64_t work);
bool is_done(uint64_t work);
bool is_ordered(uint64_t before, CUstream stream);  // whether all that is queued into the stream now runs after it
void count_work(std::map<std::string, int>& kinds);

// -- modules (cubin.cc, jit.cc, module.cc) -------------------------------------------------------------------------

struct Extent {
  uint32_t x, y, z;
  uint64_t count() const { return uint64_t(x) * y * z; }
};

struct Parameter {
  uint32_t offset, nbytes;
};

struct Kernel {
  std::string name;
  uint32_t registers = 0, static_shared_bytes = 0, max_threads = 1024;
  std::vector<Parameter> parameters;
  std::optional<Extent> required_cluster, required_block;
};

struct Cubin {
  int architecture = 0;  // 90 for sm_90 and sm_90a
  std::map<std::string, Kernel> kernels;
};

// Refuses what is no cubin.
Cubin read_cubin(const void* image);
// Machine code of PTX for a GPU; refuses what the assembler refuses.
std::string compile_ptx(const Gpu& gpu, const std::string& ptx);

struct Function {
  Kernel kernel;
  CUmodule module;
  Device* device;
  int max_dynamic_shared_bytes;
  bool is_library = false;  // a kernel of a library, bound to no context
  bool nonportable_cluster = false;
};

Function& function_of(CUfunction handle);
int resident_blocks(const Function& function, int threads, size_t dynamic_bytes);  // for each multiprocessor
void count_modules(std::map<std::string, int>& kinds);

// -- launches (launch.cc, graph.cc) ------------------------------------------------------------------------------

constexpr int kLeastPriority = 0, kGreatestPriority = -5;

struct Launch {
  CUfunction function = nullptr;
  Extent grid{1, 1, 1}, block{1, 1, 1}, cluster{1, 1, 1};
  uint32_t shared_bytes = 0;
  bool cooperative = false, has_priority = false;
  Green* green = nullptr;  // nullptr for the whole GPU
  std::vector<std::vector<uint8_t>> parameters;
};

// Reads the kernel's parameters from a table of pointers; refuses a table that cannot be read.
void read_parameters(Launch& launch, void** table);
void set_attribute(Launch& launch, CUlaunchAttributeID id, const CUlaunchAttributeValue& value);
void check_launch(const Launch& launch);  // all that the driver refuses, and some that it does not
void run_launch(const Launch& launch);    // within the queue's work
void note_uses(const Launch& launch, uint64_t work);
bool uses_module(CUmodule module);        // whether an executable graph launches a kernel of it
bool uses_green(const Green& green);      // whether a graph has a kernel that runs in it
void count_graphs(std::map<std::string, int>& kinds);

// -- tensor maps (tensor_map.cc) ---------------------------------------------------------------------------------

// Refuses 128 bytes that are no map encoded here, or one over memory that is not there.
void check_tensor_map(Device& device, const std::vector<uint8_t>& bytes, const std::string& where);

}  // namespace standin
