// Launches that run at the same time: one is ready when those that it waits for have ended, and ready ones are in a queue, by
// priority, then by when they were ready, then by number. The head of the queue starts as many blocks as there is room for;
// while blocks of it are left no other starts any. In a random order any that is ready starts the next block.
#include <time.h>

#include <algorithm>
#include <numeric>

#include "device.h"

namespace emu {

std::vector<std::unique_ptr<Running>> launches;
uint64_t polling_rounds;

static std::vector<Running*> queue;  // ready, with blocks to start
static Limits limits;
static std::vector<std::array<uint32_t, 4>> used;  // by multiprocessor
static uint64_t resident;

static uint64_t nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_nsec);
}

static bool is_random() { return launches[0]->launch->order >= int(Order::random); }

static std::vector<uint64_t> blocks_in_order(const Launch& one) {
  uint64_t total = one.grid.count(), group = one.cluster.count();
  std::vector<uint64_t> groups(total / group), found;
  std::iota(groups.begin(), groups.end(), 0);
  if (one.order != int(Order::reversed)) std::reverse(groups.begin(), groups.end());
  if (is_random()) shuffle(groups);
  const Dim3 &grid = one.grid, &size = one.cluster;
  for (uint64_t number : groups) {
    uint64_t across = grid.x / size.x, down = grid.y / size.y;
    uint64_t x = number % across * size.x, y = number / across % down * size.y, z = number / across / down * size.z;
    for (uint64_t i = group; i-- > 0;) {
      uint64_t bx = x + i % size.x, by = y + i / size.x % size.y, bz = z + i / size.x / size.y;
      found.push_back((bz * grid.y + by) * grid.x + bx);
    }
  }
  return found;
}

static bool goes_before(const Running* a, const Running* b) {
  if (a->launch->priority != b->launch->priority) return a->launch->priority > b->launch->priority;
  return a->ready != b->ready ? a->ready < b->ready : a->number < b->number;
}

static void make_ready(Running& one) {
  one.ready = polling_rounds;
  one.to_start = blocks_in_order(*one.launch);
  one.shared.owner.assign(shared_stride + 64, 0);
  queue.insert(std::upper_bound(queue.begin(), queue.end(), &one, goes_before), &one);
}

static void add(std::vector<bool>& known, const std::vector<bool>& more) {
  for (size_t i = 0; i < known.size(); ++i) known[i] = known[i] || more[i];
}

std::vector<bool> ended_with(const Running& one) {
  std::vector<bool> known = one.before;
  known[one.number] = true;
  for (uint32_t tied : one.ties)
    if (one.awaited) add(known, ended_with(*launches[tied]));
  return known;
}

// Something that edges of a kind wait for has come.
static void release(Running& one, Tie tie) {
  for (const Edge& edge : one.edges) {
    Running& reader = *launches[edge.after];
    if (edge.tie != tie) continue;
    if (tie == Tie::full) add(reader.before, ended_with(one));
    if (!--reader.waits_for) make_ready(reader);
  }
}

void trigger(Block& block) {
  if (block.triggered) return;
  block.triggered = true;
  progress();
  if (!--block.running->untriggered) release(*block.running, Tie::programmatic);
}

// Edges go from smaller numbers to larger ones.
static void add_edges(const Edge* edges, uint32_t edge_count) {
  if (launches.size() == 1) return;
  for (auto& one : launches) one->before.resize(launches.size());
  for (uint32_t i = 0; i < edge_count; ++i) {
    Running& reader = *launches[edges[i].after];
    launches[edges[i].before]->edges.push_back(edges[i]);
    ++reader.waits_for;
    if (edges[i].tie != Tie::full) reader.ties.push_back(edges[i].before);
  }
}

void begin_launches(Launch* requests, uint32_t count, const Edge* edges, uint32_t edge_count, const Limits& given) {
  limits = given;
  used.assign(limits.multiprocessors, {});
  queue.clear();
  launches.clear();
  polling_rounds = 0;
  uint64_t first = 0;
  for (uint32_t i = 0; i < count; ++i) {
    launches.push_back(std::make_unique<Running>());
    Running& one = *launches.back();
    one.launch = requests + i;
    one.number = i;
    one.first_block = first;
    one.unended = one.untriggered = requests[i].grid.count();
    first += one.unended;
  }
  select(*launches[0]);
  add_edges(edges, edge_count);
  for (auto& one : launches)
    if (!one->waits_for) make_ready(*one);
}

uint64_t resident_limit() {
  uint64_t most = 1, total = 0, step = 1;
  for (auto& one : launches) {
    uint64_t blocks = one->launch->grid.count(), group = one->launch->cluster.count();
    total += (blocks + group - 1) / group * group;
    step = std::max(step, group);
    most = std::max({most, uint64_t(one->launch->resident), one->launch->cooperative ? blocks : 1});
  }
  resident = std::min(most, total);
  return resident = (resident + step - 1) / step * step;
}

static bool fits(const Running& one, uint32_t multiprocessor, uint64_t blocks) {
  for (int kind = 0; kind < 4; ++kind)
    if (used[multiprocessor][kind] + blocks * one.launch->needs[kind] > limits.each[kind]) return false;
  return true;
}

// Whether there is room for so many blocks. A launch that the device could never hold is let in when it is empty.
static bool is_room(const Running& one, uint64_t blocks) {
  uint64_t there = resident_blocks().size(), held = 0;
  if (there + blocks > resident) return false;
  if (!limits.multiprocessors || !there) return true;
  for (uint32_t i = 0; i < limits.multiprocessors; ++i)
    for (uint64_t more = 1; held < blocks && fits(one, i, more); ++more) ++held;
  return held >= blocks;
}

// The emptiest one, by what the block takes most of.
uint32_t occupy(const Running& one) {
  if (!limits.multiprocessors) return 0;
  uint32_t best = 0;
  double least = -1;
  for (uint32_t i = 0; i < limits.multiprocessors; ++i) {
    double fullest = fits(one, i, 1) ? 0 : 2;
    for (int kind = 0; kind < 4; ++kind)
      if (limits.each[kind]) fullest = std::max(fullest, double(used[i][kind] + one.launch->needs[kind]) / limits.each[kind]);
    if (least < 0 || fullest < least) least = fullest, best = i;
  }
  for (int kind = 0; kind < 4; ++kind) used[best][kind] += one.launch->needs[kind];
  return best;
}

void start_blocks() {
  while (!queue.empty()) {
    size_t place = is_random() && launches.size() > 1 ? random_number() % queue.size() : 0;
    Running& one = *queue[place];
    bool is_first = !one.launch->started_ns;
    uint64_t together = one.launch->cooperative && is_first ? one.to_start.size() : one.launch->cluster.count();
    if (!is_room(one, together)) {
      if (!is_random() || !resident_blocks().empty()) return;
      continue;
    }
    if (is_first) one.launch->started = polling_rounds, one.launch->started_ns = nanoseconds();
    for (uint64_t i = 0; i < together; i += one.launch->cluster.count())
      if (!start_cluster(one)) return;  // the free slots lie apart; a cluster waits for more
    if (!one.to_start.empty()) continue;
    queue.erase(queue.begin() + long(place));
    release(one, Tie::launch_order);
  }
}

void block_ended(Block& block) {
  Running& one = *block.running;
  if (one.launch->checked) keep_fences(block);
  if (one.launch->count_requests) finish_requests(block);
  trigger(block);
  for (int kind = 0; kind < 4 && limits.multiprocessors; ++kind) used[block.multiprocessor][kind] -= one.launch->needs[kind];
  if (--one.unended) return;
  one.launch->ended = polling_rounds;
  one.launch->ended_ns = nanoseconds();
  one.shared.owner = {};
  release(one, Tie::full);
}

}  // namespace emu

using namespace emu;

EXPORT void emu_trigger() { trigger(*self->block); }

// Whether the launches have ended that griddepcontrol.wait waits for; then the thread comes after them.
EXPORT int emu_dependencies_over() {
  for (uint32_t tied : running->ties)
    if (launches[tied]->unended) return false;
  if (running->ties.empty()) return true;
  running->awaited = true;
  for (uint32_t tied : running->ties) know_launches(ended_with(*launches[tied]));
  return true;
}
