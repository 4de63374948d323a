// Runs the blocks of launches: a fibre for each thread. Which blocks start when: launches.cc.
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <numeric>

#include "context.h"
#include "device.h"

namespace emu {

Thread* self;
const Launch* launch;
Running* running;
Stamp now = 1;
char* stack_base;
uint64_t stack_total;
uint64_t preempt_in;

static void* host_stack;
static uint64_t random_state;
static uint64_t progress_made;
static std::vector<std::unique_ptr<Block>> blocks;  // by slot; null when the slot is free
static uint64_t most_threads;                       // of a block
static sigjmp_buf crashed;
static bool has_ready;

constexpr uint64_t idle_rounds = 4096;  // of polling without any change before a state counts as a deadlock

uint64_t random_number() {  // splitmix64
  uint64_t z = random_state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

void select(Running& which) {
  running = &which;
  launch = which.launch;
}

std::vector<Block*> resident_blocks() {
  std::vector<Block*> found;
  for (auto& block : blocks)
    if (block) found.push_back(block.get());
  return found;
}

Block* block_in(uint64_t slot) { return slot < blocks.size() ? blocks[slot].get() : nullptr; }

static void to_scheduler() {
  Thread* thread = self;
  self = nullptr;
  emu_switch(&thread->stack_pointer, host_stack);
}

void wait(State state, const char* name, uint32_t line) {
  self->state = state;
  self->waits_at = name;
  if (self->line != line) enter(line, nullptr);
  to_scheduler();
}

void wake(Thread& thread) {
  thread.state = State::ready;
  has_ready = true;
}

void progress() { ++progress_made; }

void abandon() {
  to_scheduler();
  __builtin_unreachable();
}

static void run_thread() {
  launch->entry(running->pointers.data());
  leave_mmas(*self);
  leave_stores(*self);
  if (self->block->live == 1) leave_mbarriers(*self->block);
  self->state = State::exited;
  --self->block->live;
  progress();
  leave_warp(*self);
  leave_barriers(*self);
  check_cluster();
  abandon();
}

static void start(Running& one, uint64_t number, uint32_t slot, uint32_t multiprocessor) {
  select(one);
  const Dim3& grid = launch->grid;
  const Dim3& shape = launch->block;
  auto block = std::make_unique<Block>();
  block->index = {uint32_t(number % grid.x), uint32_t(number / grid.x % grid.y), uint32_t(number / grid.x / grid.y)};
  block->running = &one;
  block->number = one.first_block + number;
  block->slot = slot;
  block->multiprocessor = multiprocessor;
  uint32_t count = uint32_t(shape.count());
  block->live = count;
  block->threads.resize(count);
  block->warps.resize((count + 31) / 32);
  block->started = block->floor = ++now;
  forget_readers(*block);
  block->order.resize(count);
  std::iota(block->order.begin(), block->order.end(), 0);
  if (launch->thread_order == int(Order::reversed)) std::reverse(block->order.begin(), block->order.end());
  if (launch->thread_order >= int(Order::random)) shuffle(block->order);
  char* top = stack_base + uint64_t(slot) * most_threads * stack_bytes;
  for (uint32_t i = 0; i < count; ++i) {
    Thread& thread = block->threads[i];
    thread.block = block.get();
    thread.number = uint16_t(i);
    thread.index = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
    top += stack_bytes;
    thread.stack_pointer = emu_prepare(top - 64 * (i % 32), run_thread);  // staggered: not all on one cache set
  }
  blocks[slot] = std::move(block);
}

// The first of so many free slots in a row that a cluster may have; none: as many as there are slots.
static uint32_t free_slots(uint32_t group) {
  for (uint32_t slot = 0; slot + group <= blocks.size(); slot += group) {
    bool is_free = true;
    for (uint32_t i = 0; i < group; ++i) is_free = is_free && !blocks[slot + i];
    if (is_free) return slot;
  }
  return uint32_t(blocks.size());
}

bool start_cluster(Running& one) {
  uint32_t group = uint32_t(one.launch->cluster.count()), slot = free_slots(group);
  if (slot == blocks.size()) return false;
  for (uint32_t i = 0; i < group; ++i) {
    start(one, one.to_start.back(), slot + i, occupy(one));
    one.to_start.pop_back();
  }
  return true;
}

static bool resume(Thread& thread) {
  self = &thread;
  select(*thread.block->running);
  emu_switch(&host_stack, thread.stack_pointer);
  return !fault_.raised;
}

static bool run_state(State state) {
  std::vector<Block*> order = resident_blocks();
  bool adversarial = launch->order == int(Order::adversarial);
  if (adversarial) shuffle(order), deliver_some();
  for (Block* block : order) {
    size_t count = block->order.size(), first = adversarial ? random_number() % count : 0;
    for (size_t i = 0; i < count; ++i) {
      Thread& thread = block->threads[block->order[(first + i) % count]];
      if (thread.state == state && !resume(thread)) return false;
      if (adversarial && random_number() % 64 == 0) break;
    }
    if (!block->live) {
      block_ended(*block);
      blocks[block->slot].reset();
    }
  }
  return true;
}

static bool any(State state) {
  for (auto& block : blocks)
    for (size_t i = 0; block && i < block->threads.size(); ++i)
      if (block->threads[i].state == state) return true;
  return false;
}

static void run_blocks() {
  uint64_t seen = 0, idle = 0;
  while (start_blocks(), !resident_blocks().empty()) {
    if (any(State::ready)) {
      if (!run_state(State::ready)) return;
      continue;
    }
    if (converge()) continue;
    if (!any(State::polling)) return report_deadlock();
    if (progress_made != seen) seen = progress_made, idle = 0;
    if (++idle > idle_rounds) return report_deadlock();
    ++polling_rounds;
    if (!run_state(State::polling)) return;
  }
}

static bool reserve_stacks(uint64_t count) {
  uint64_t needed = count * stack_bytes;
  if (needed <= stack_total) return true;
  if (stack_base) munmap(stack_base, stack_total);
  void* found = mmap(nullptr, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  stack_base = found == MAP_FAILED ? nullptr : static_cast<char*>(found);
  stack_total = stack_base ? needed : 0;
  return stack_base;
}

static void on_crash(int signal, siginfo_t* info, void*) {
  if (self && !fault_.raised) {
    const char* what = signal == SIGFPE ? "divides an integer by zero" : "accesses an address that is not there";
    snprintf(fault_.text, sizeof fault_.text, "%s %s (%p)", describe(*self), what, info->si_addr);
    if (signal == SIGFPE) fault_.pc = static_cast<char*>(info->si_addr) + 1;
  }
  fault_.raised = 1;
  siglongjmp(crashed, 1);
}

static void run_guarded() {
  static char alternate[64 << 10];
  stack_t stack = {}, old_stack;
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  struct sigaction action = {}, old[3];
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  const int signals[3] = {SIGSEGV, SIGBUS, SIGFPE};
  sigaltstack(&stack, &old_stack);
  for (int i = 0; i < 3; ++i) sigaction(signals[i], &action, &old[i]);
  if (!sigsetjmp(crashed, 1)) run_blocks();
  for (int i = 0; i < 3; ++i) sigaction(signals[i], &old[i], nullptr);
  sigaltstack(&old_stack, nullptr);
  self = nullptr;
}

}  // namespace emu

using namespace emu;

// Runs launches to their ends, each after those that edges say. Returns null, or the fault as text; `pc`, `line` and
// `number` of the launch say where, if known.
EXPORT const char* emu_run(Launch* requests, uint32_t count, const Edge* edges, uint32_t edge_count, const Limits* limits,
                           const void** pc, uint32_t* line, uint32_t* number) {
  fault_ = {};
  random_state = requests->seed;
  progress_made = 0;
  preempt_in = requests->order == int(Order::adversarial) ? 1 + random_number() % 64 : 0;
  begin_launches(requests, count, edges, edge_count, *limits);
  uint64_t resident = resident_limit();
  most_threads = 0;
  for (uint32_t i = 0; i < count; ++i) most_threads = std::max<uint64_t>(most_threads, requests[i].block.count());
  bool placed = reserve_stacks(resident * most_threads) && place_arguments() && begin_shared(resident);
  if (!placed) return "there is no memory for the emulated device; lower EmulatorOptions.resident_blocks or free some";
  blocks.clear();
  blocks.resize(resident);
  begin_order();
  begin_across();
  begin_mbarriers();
  begin_traffic();
  begin_requests();
  run_guarded();
  blocks.clear();
  take_back_arguments();
  *pc = fault_.pc;
  *line = fault_.line;
  *number = running->number;
  launches.clear();
  return fault_.raised ? fault_.text : nullptr;
}

#define INDEX(name, expression)                                     \
  EXPORT uint32_t name##_x() { return (expression).x; }         \
  EXPORT uint32_t name##_y() { return (expression).y; }         \
  EXPORT uint32_t name##_z() { return (expression).z; }
INDEX(emu_thread, self->index)
INDEX(emu_block, self->block->index)
INDEX(emu_block_size, launch->block)
INDEX(emu_grid_size, launch->grid)
INDEX(emu_cluster_size, launch->cluster)
