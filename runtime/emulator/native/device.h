// The state of the emulated device, shared by the files of this folder. Kernels see only `include/`.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "async.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
#define PLACE __builtin_return_address(0)

namespace emu {

struct Dim3 {
  uint32_t x, y, z;
  uint64_t count() const { return uint64_t(x) * y * z; }
};

enum class State : uint8_t { ready, barrier, collective, convergence, grid, cluster, warpgroup, polling, exited };
enum class Order : int { in_order, reversed, random, adversarial };

// What happens before a point of a thread's program: accesses of thread or block `key` with a smaller stamp.
struct Clock {
  std::vector<std::pair<uint64_t, Stamp>> known;  // sorted by key
  Stamp at(uint64_t key) const;
  void set(uint64_t key, Stamp stamp);
  void join(const Clock& other);
};
using ClockRef = std::shared_ptr<const Clock>;

struct Copy {  // one cp.async under way
  char* to;
  const char* from;
  uint32_t bytes, from_bytes;
};

struct SharedRun {  // accesses to neighbouring words of shared memory, one after the other
  const void* pc;
  bool write;
  uint64_t address, bytes;  // none if 0
};

struct Block;
struct Running;

struct Thread {
  void* stack_pointer;
  Block* block;
  uint16_t number;  // in its block
  State state;
  uint32_t line;         // of the synchronisation that it waits at or was at last
  const void* place;     // where the kernel called it; null if not known
  const char* waits_at;  // its name
  const void* site;      // of a convergence: where in the code
  uint32_t result;
  int barrier;
  const void* polled;
  uint64_t polled_value;
  uint32_t polls;
  Dim3 index;
  ClockRef own, fence, pending;  // since the last barrier of the whole block; see order.cc
  std::vector<Copy> copies;
  std::vector<uint32_t> groups;  // copies in each committed group
  uint32_t uncommitted;
  std::vector<Stamp> fences[3];  // by Space: when the thread showed its writes to the asynchronous proxy
  uint64_t mbarrier;             // its place in shared memory plus 1, while the thread polls it
  uint32_t awaited;              // the phase
  uint32_t cluster_awaited;      // the phase of the barrier of the cluster that it has arrived at, plus 1
  SharedRun run;  // see requests.cc
  std::unique_ptr<Stores> stores;
  std::unique_ptr<Mmas> mmas;
};

using Combine = void (*)(void** lanes, uint32_t mask);

struct Collective {
  uint32_t mask, arrived;
  Combine combine;
  uint32_t line;
  void* lanes[32];
};

struct Warp {
  std::vector<Collective> collectives;
};

struct Barrier {
  uint32_t arrived, expected, line;
  uint32_t sum;  // of __syncthreads_count
};

struct Mma;

struct Warpgroup {
  uint64_t agent, first;  // `first`: the number of the oldest wgmma that is kept
  std::vector<std::unique_ptr<Mma>> mmas;
  Warpgroup();
  ~Warpgroup();
  Warpgroup(Warpgroup&&);
};

// Threads that read the same bytes since they were last written, and when.
using Readers = std::vector<std::pair<uint64_t, Stamp>>;

struct Block {
  Running* running;  // its launch
  Dim3 index;
  uint64_t number;  // among the blocks of all launches of the run
  uint32_t slot, multiprocessor;
  uint32_t live;
  bool triggered;  // has called griddepcontrol.launch_dependents
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier barriers[16];
  Stamp started, floor;
  ClockRef known;
  std::vector<uint16_t> order;
  std::vector<Readers> readers;  // number `i` of these has the id `first_readers + i`
  uint32_t first_readers;
  std::vector<std::vector<AsyncRead>> async_reads;  // by 16 bytes of shared memory
  std::deque<Warpgroup> warpgroups;  // which stay where they are when another one begins
  uint32_t cluster_arrived, cluster_phase;
  bool cluster_relaxed;     // somebody has arrived at the cluster's barrier without releasing
  ClockRef cluster_fenced;  // what fences have released before the arrivals
};

struct Argument {
  char* data;
  uint64_t bytes;
  uint32_t item_bytes, kind;  // kind: bit 0 read-only, bit 1 written in any order
  const void* tensor_map;     // over the memory, if the parameter is one
};

struct Traffic {  // bytes of an argument; distinct: each byte counts once
  uint64_t read, written, distinct_read, distinct_written;
};

struct Launch {
  const char* name;
  void (*entry)(void**);
  Dim3 grid, block, cluster;
  uint64_t shared_bytes;
  const Argument* arguments;
  uint32_t argument_count;
  int cooperative, checked, order, thread_order;
  uint32_t resident;
  uint64_t seed;
  const char *module_begin, *module_end;
  Traffic* traffic;  // of each argument; null if it is not asked for
  int count_requests;
  int priority;             // of those that are ready the higher one's blocks start first
  uint32_t needs[4];        // what a block takes of each thing that `Limits` counts
  uint64_t started, ended;  // set by the run: polling rounds before the first block started, and the last ended
  uint64_t started_ns, ended_ns;
};

// `after` is ready when `before` has ended (full), when its blocks have called griddepcontrol.launch_dependents or ended
// (programmatic), or when they have started (launch_order).
enum class Tie : uint32_t { full, programmatic, launch_order };
struct Edge {
  uint32_t before, after;
  Tie tie;
};

// What each multiprocessor has; none if `multiprocessors` is 0, and then only the number of resident blocks is limited.
struct Limits {
  uint32_t multiprocessors, each[4];
};

struct Range {  // arguments of a launch that overlap, as one
  const char* home;
  uint64_t bytes;
  bool read_only, unordered;
  uint32_t argument;  // the first of them
};

struct SharedVariable {
  uint64_t offset, bytes;
  const char* name;
};

struct SharedLayout {
  std::vector<uint8_t> owner;  // which variable a byte of shared memory belongs to; 0: none
  std::vector<SharedVariable> variables;
  uint64_t top = 0, static_bytes = 0;
  uint64_t dynamic_start = 0;  // 0: not yet known
};

// A launch of the run.
struct Running {
  Launch* launch;
  uint32_t number;
  uint64_t first_block;             // the number of its block 0
  std::vector<uint64_t> to_start;   // its blocks by their numbers in the grid, the next one last
  std::vector<void*> pointers;      // of its parameters
  std::vector<Range> ranges;        // by address
  SharedLayout shared;
  Stamp grid_floor;                 // what its threads did earlier is ordered before all that they do now
  uint64_t unended, untriggered;    // blocks
  uint32_t waits_for;               // edges that hold it
  uint64_t ready;                   // polling rounds before it was
  std::vector<Edge> edges;          // from it
  std::vector<uint32_t> ties;       // launches that it may overlap
  std::vector<bool> before;         // by launch: whether it has ended before this one starts
  bool awaited;                     // a thread has waited for `ties` to end
  std::vector<std::vector<uint8_t>> touched;  // see traffic.cc
};

struct Fault {
  char text[4096];
  const void* pc;
  uint32_t line;
  int raised;
};

constexpr uint64_t shared_stride = 512 << 10;  // of one resident block
constexpr uint64_t shared_limit = 227 << 10, static_limit = 48 << 10;
constexpr uint64_t stack_bytes = 576 << 10;  // a GPU thread has 512 KiB of local memory; only touched pages are real

extern Thread* self;  // null while the scheduler runs
extern const Launch* launch;  // of the thread that runs
extern Running* running;
extern std::vector<std::unique_ptr<Running>> launches;
extern Fault fault_;
extern Stamp now;
extern char *shared_base, *stack_base;
extern uint64_t shared_total, stack_total;
extern uint64_t preempt_in;  // accesses until the next forced switch

// scheduler.cc
void wait(State state, const char* name, uint32_t line);
void wake(Thread& thread);
void progress();
[[noreturn]] void abandon();
uint64_t random_number();
extern uint64_t polling_rounds;
bool start_cluster(Running& one);  // the next one; false if there are no slots
std::vector<Block*> resident_blocks();
void select(Running& which);  // what `launch` and `running` say
Block* block_in(uint64_t slot);  // null when the slot is free

// launches.cc: which blocks start when
void begin_launches(Launch* requests, uint32_t count, const Edge* edges, uint32_t edge_count, const Limits& limits);
uint64_t resident_limit();  // of blocks
void start_blocks();
uint32_t occupy(const Running& one);  // the multiprocessor that the next block of a launch goes to
void block_ended(Block& block);
void trigger(Block& block);
std::vector<bool> ended_with(const Running& one);  // by launch: whether it has ended when this one has

template <class T>
void shuffle(std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random_number() % i]);
}

// faults.cc
[[noreturn]] void fault(const void* pc, uint32_t line, const char* format, ...) __attribute__((format(printf, 3, 4)));
std::string line_text(uint32_t line, const void* place);  // "line 5@0x7f…"; kernels.py looks up the address
void enter(uint32_t line, const void* place);  // the current thread is at a synchronisation; place: a return address
const char* describe(const Thread& thread);  // "block (1, 0, 0), thread (5, 0, 0)"
const char* describe(uint64_t id);  // an id that `thread_id` gives
void report_deadlock();

// memory.cc: where arguments and shared variables lie
bool place_arguments();
void take_back_arguments();
bool begin_shared(uint64_t slots);
void* from_shared(uint32_t address);
// checks.cc
void check(const void* address, uint64_t bytes, bool write, bool atomic, const void* pc);
void check_volatile(const void* address, uint64_t bytes, const void* pc);
void check_shared_target(const void* address, uint64_t bytes, const void* pc);  // bounds only
void mark_pending(const void* address, uint64_t bytes);
void begin_checks();
void forget_readers(Block& block);  // they are ordered before all that follows
void check_async(const void* address, uint64_t bytes, bool write, bool atomic, uint64_t agent, uint32_t line);
void arrived(const void* address, uint64_t bytes);  // what a bulk copy writes
void begin_async_read(const void* address, uint64_t bytes, uint64_t agent);  // of shared memory; nothing else is marked
void end_async_read(const void* address, uint64_t bytes, uint64_t agent);
void check_register(const char* address, uint64_t bytes, const void* pc);

// traffic.cc
void begin_traffic();
void count_traffic(const char* home, uint64_t bytes, bool write);

// requests.cc
void begin_requests();
void count_request(const void* pc, bool write, bool shared, uint64_t address, uint64_t bytes);  // of the current thread
void finish_requests(Block& block);  // all its threads have come to a barrier, or ended

// order.cc: which accesses happen before which
inline uint64_t thread_id(const Thread& thread) { return (thread.block->number << 10 | thread.number) & (first_agent - 1); }
bool ordered(uint64_t earlier_thread, Stamp stamp);
void order_block(Block& block);
void order_threads(Block& block, const std::vector<uint16_t>& numbers);
void order_grid();
void order_cluster(const std::vector<Block*>& members);
Stamp run_started();
void begin_order();
Running& launch_of(uint64_t thread);
void know_launches(const std::vector<bool>& which);  // the current thread comes after all that they did
bool follows(const Running& other);  // whether `other` has ended before the current launch started
uint64_t new_agent(const std::string& what);
void acts(uint64_t agent, uint32_t line);
const std::string& describe_agent(uint64_t agent);
void know(uint64_t agent);  // the current thread has waited for all that the agent did
void know(ClockRef& clock, uint64_t agent);
ClockRef snapshot();
ClockRef joined(const ClockRef& a, const ClockRef& b);
void fence_async(Space space);
bool shown_to_async(uint64_t writer, Stamp written, Space space);
void keep_fences(const Block& block);
void release(const void* address, bool fenced_only);
void acquire(const void* address, bool needs_fence);
void fence();

// barrier.cc
EXPORT void emu_poll(const void* address, uint64_t value, const char* name, uint32_t line);
// warp.cc
void leave_warp(Thread& thread);
bool converge();
// barrier.cc
void leave_barriers(Thread& thread);
void check_cluster();
// mbarrier.cc
void begin_mbarriers();
void leave_mbarriers(const Block& block);
std::string describe_mbarrier(const Thread& thread);
void fly(Transfer transfer);  // a copy that an mbarrier counts
uint64_t mbarrier_agent(uint64_t place, uint32_t line);
void deliver_some();
// bulk.cc, wgmma.cc
void leave_stores(Thread& thread);
void leave_mmas(Thread& thread);
std::string describe_mmas(const Thread& thread);

}  // namespace emu
