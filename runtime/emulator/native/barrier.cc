// Barriers of a block, a cluster and the grid, and waiting for a value in memory.
#include "device.h"

namespace emu {

static void open(Block& block, int id, bool whole) {
  Barrier& barrier = block.barriers[id];
  std::vector<uint16_t> numbers;
  for (Thread& thread : block.threads)
    if (thread.state == State::barrier && thread.barrier == id) {
      numbers.push_back(thread.number);
      thread.result = 0;
      wake(thread);
    }
  barrier.arrived = 0;
  progress();
  if (!launch->checked) return;
  if (whole && launch->count_requests) finish_requests(block);
  if (whole) return order_block(block);
  numbers.push_back(self->number);
  std::sort(numbers.begin(), numbers.end());
  order_threads(block, numbers);
}

static void check_whole(const Block& block, const Barrier& barrier, uint32_t line) {
  if (!launch->checked) return;
  for (const Thread& thread : block.threads)
    if (thread.state == State::exited)
      fault(nullptr, line, "divergent barrier: %s waits at __syncthreads (line %u), but %s has exited", describe(*self),
            line, describe(thread));
  if (!barrier.arrived || barrier.line == line) return;
  for (const Thread& thread : block.threads)
    if (thread.state == State::barrier && thread.barrier == 0)
      fault(nullptr, line, "divergent barrier: %s waits at __syncthreads in line %u, but %s at the one in line %u",
            describe(*self), line, describe(thread), thread.line);
}

void leave_barriers(Thread& leaver) {
  Block& block = *leaver.block;
  Barrier& barrier = block.barriers[0];
  if (!barrier.arrived) return;
  for (const Thread& thread : block.threads)
    if (launch->checked && thread.state == State::barrier && thread.barrier == 0)
      fault(nullptr, thread.line, "divergent barrier: %s waits at __syncthreads (line %u), but %s has exited",
            describe(thread), thread.line, describe(leaver));
  if (barrier.arrived == block.live) {
    for (Thread& thread : block.threads)
      if (thread.state == State::barrier && thread.barrier == 0) wake(thread);
    barrier.arrived = 0;
  }
}

static void arrive(int id, uint32_t count, bool waits, const char* name, uint32_t line) {
  Block& block = *self->block;
  if (id < 0 || id > 15) fault(nullptr, line, "%s: %s names barrier %d; there are 0 to 15", describe(*self), name, id);
  Barrier& barrier = block.barriers[id];
  bool whole = count == 0;
  if (whole && id == 0) check_whole(block, barrier, line);
  uint32_t expected = whole ? block.live : count;
  if (!whole && (count % 32 || count > block.threads.size()))
    fault(nullptr, line, "%s: %s counts %u threads; it must be whole warps of the block's %zu threads", describe(*self),
          name, count, block.threads.size());
  if (barrier.arrived && barrier.expected != expected && !whole)
    fault(nullptr, line, "%s: %s expects %u threads at barrier %d, others %u", describe(*self), name, expected, id,
          barrier.expected);
  barrier.line = line;
  barrier.expected = expected;
  self->barrier = id;
  if (++barrier.arrived >= expected) return open(block, id, expected == block.threads.size());
  if (waits) wait(State::barrier, name, line);
}

}  // namespace emu

using namespace emu;

EXPORT void emu_barrier(int id, uint32_t count, const char* name, uint32_t line) { arrive(id, count, true, name, line); }
EXPORT void emu_barrier_arrive(int id, uint32_t count, uint32_t line) { arrive(id, count, false, "bar.arrive", line); }

// __syncthreads_count, _and and _or, and bar.red: waits twice, so that no thread adds to the sum while others still read it.
EXPORT int emu_barrier_count(int id, uint32_t count, int predicate, const char* name, uint32_t line) {
  if (id < 0 || id > 15) fault(nullptr, line, "%s: %s names barrier %d; there are 0 to 15", describe(*self), name, id);
  Barrier& barrier = self->block->barriers[id];
  if (!barrier.arrived) barrier.sum = 0;
  barrier.sum += predicate != 0;
  arrive(id, count, true, name, line);
  int sum = int(barrier.sum);
  arrive(id, count, true, name, line);
  return sum;
}

EXPORT void emu_grid_barrier(uint32_t line) {
  if (!launch->cooperative)
    fault(nullptr, line, "%s: synchronises the grid in a launch that is not cooperative", describe(*self));
  uint64_t waiting = 1;
  std::vector<Block*> grid = resident_blocks();
  grid.erase(std::remove_if(grid.begin(), grid.end(), [](Block* block) { return block->running != running; }), grid.end());
  for (Block* block : grid)
    for (Thread& thread : block->threads) {
      waiting += thread.state == State::grid;
      if (launch->checked && thread.state == State::exited)
        fault(nullptr, line, "divergent barrier: %s waits for the grid, but %s has exited", describe(*self), describe(thread));
    }
  if (waiting < launch->grid.count() * launch->block.count()) return wait(State::grid, "grid sync", line);
  for (Block* block : grid) {
    for (Thread& thread : block->threads)
      if (thread.state == State::grid) wake(thread);
    order_block(*block);
  }
  order_grid();
  progress();
}

// All threads of all blocks of the cluster; without clusters, of the block.
static std::vector<Block*> cluster_members() {
  uint32_t group = uint32_t(launch->cluster.count());
  std::vector<Block*> members;
  for (Block* block : resident_blocks())
    if (block->running == running && block->slot / group == self->block->slot / group) members.push_back(block);
  return members;
}

// The threads that have waited at the barrier go on. What others did between arriving and waiting counts as before it. If
// somebody arrived relaxed, only what fences released is ordered.
static void open_cluster(const std::vector<Block*>& members) {
  ClockRef fenced;
  bool is_relaxed = false;
  for (Block* block : members) is_relaxed = is_relaxed || block->cluster_relaxed, fenced = joined(fenced, block->cluster_fenced);
  for (Block* block : members) {
    if (!is_relaxed) order_block(*block);
    for (Thread& thread : block->threads) {
      if (is_relaxed) thread.own = joined(thread.own, fenced);
      if (thread.state == State::cluster) wake(thread);
    }
    block->cluster_arrived = 0;
    block->cluster_relaxed = false;
    block->cluster_fenced.reset();
    ++block->cluster_phase;
  }
  if (!is_relaxed) order_cluster(members);
  progress();
}

// Opens the barrier when all threads that have not exited have arrived.
void emu::check_cluster() {
  std::vector<Block*> members = cluster_members();
  uint64_t arrived = 0, live = 0;
  for (Block* block : members) arrived += block->cluster_arrived, live += block->live;
  if (arrived && arrived == live) open_cluster(members);
}

EXPORT void emu_cluster_arrive(int releases, uint32_t line) {
  enter(line, PLACE);
  if (self->cluster_awaited)
    fault(nullptr, line, "%s: barrier.cluster.arrive twice with no barrier.cluster.wait between", describe(*self));
  self->cluster_awaited = self->block->cluster_phase + 1;
  ++self->block->cluster_arrived;
  self->block->cluster_relaxed = self->block->cluster_relaxed || !releases;
  self->block->cluster_fenced = joined(self->block->cluster_fenced, self->fence);
  check_cluster();
}

EXPORT void emu_cluster_wait(uint32_t line) {
  enter(line, PLACE);
  if (!self->cluster_awaited)
    fault(nullptr, line, "%s: barrier.cluster.wait with no barrier.cluster.arrive before", describe(*self));
  if (self->cluster_awaited == self->block->cluster_phase + 1) wait(State::cluster, "barrier.cluster", line);
  self->cluster_awaited = 0;
}

// A load that a loop may repeat until the value changes. The second time in a row that the same thread sees the same
// value at the same address, others get their turn.
EXPORT void emu_poll(const void* address, uint64_t value, const char* name, uint32_t line) {
  Thread& me = *self;
  if (me.polled != address || me.polled_value != value) {
    if (me.polled == address) progress();
    me.polled = address;
    me.polled_value = value;
    me.polls = 0;
    return;
  }
  if (++me.polls < 2) return;
  wait(State::polling, name, line);
  me.state = State::ready;
}

// __nanosleep: others get their turn.
EXPORT void emu_pause(const char* name, uint32_t line) {
  self->polled = nullptr;
  wait(State::polling, name, line);
  self->state = State::ready;
}
