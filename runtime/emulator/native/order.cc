// Happens-before: barriers order a block, acquires see what was released, and fences turn relaxed atomics into both.
//
// Memory is sequentially consistent here, so that a missing release never shows in the results. It shows in these clocks.
#include <algorithm>
#include <unordered_map>

#include "memory.h"

namespace emu {

static std::unordered_map<const void*, ClockRef> released;  // by the address of the synchronising atomic

// When the threads of blocks that have ended put fences for the asynchronous proxy, by the numbers of the blocks.
static std::unordered_map<uint64_t, std::vector<std::vector<Stamp>>> ended_fences;

static uint64_t block_key(uint64_t number) { return number << 11 | 1024; }
static uint64_t thread_key(uint64_t id) { return (id >> 10) << 11 | (id & 1023); }

Stamp Clock::at(uint64_t key) const {
  auto found = std::lower_bound(known.begin(), known.end(), std::make_pair(key, Stamp(0)));
  return found != known.end() && found->first == key ? found->second : 0;
}

void Clock::set(uint64_t key, Stamp stamp) {
  auto found = std::lower_bound(known.begin(), known.end(), std::make_pair(key, Stamp(0)));
  if (found != known.end() && found->first == key)
    found->second = std::max(found->second, stamp);
  else
    known.insert(found, {key, stamp});
}

void Clock::join(const Clock& other) {
  std::vector<std::pair<uint64_t, Stamp>> merged;
  merged.reserve(known.size() + other.known.size());
  auto a = known.begin();
  for (const auto& item : other.known) {
    while (a != known.end() && a->first < item.first) merged.push_back(*a++);
    if (a != known.end() && a->first == item.first)
      merged.push_back({item.first, std::max(item.second, a++->second)});
    else
      merged.push_back(item);
  }
  merged.insert(merged.end(), a, known.end());
  known.swap(merged);
}

ClockRef joined(const ClockRef& a, const ClockRef& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto both = std::make_shared<Clock>(*a);
  both->join(*b);
  return both;
}

bool ordered(uint64_t earlier, Stamp stamp) {
  uint64_t number = earlier >> 10;
  const Block& block = *self->block;
  if (stamp < run_started() || earlier == thread_id(*self)) return true;
  if (earlier == several_readers) return launches.size() == 1 && stamp < running->grid_floor;
  const Running& other = launch_of(earlier);
  if (&other == running ? stamp < running->grid_floor : follows(other)) return true;
  if (number == block.number && stamp < block.floor) return true;
  uint64_t by_block = block_key(number), by_thread = thread_key(earlier);
  for (const Clock* clock : {self->own.get(), block.known.get()})
    if (clock && (stamp < clock->at(by_block) || stamp < clock->at(by_thread))) return true;
  return false;
}

void order_block(Block& block) {
  const Clock* last = nullptr;
  for (Thread& thread : block.threads)
    if (thread.own && thread.own.get() != last) last = thread.own.get(), block.known = joined(block.known, thread.own);
  for (Thread& thread : block.threads) thread.own.reset();
  block.floor = ++now;
  forget_readers(block);
}

void order_threads(Block& block, const std::vector<uint16_t>& numbers) {
  if (!launch->checked) return;
  auto all = std::make_shared<Clock>();
  const Clock* last = nullptr;
  Stamp stamp = ++now;
  for (uint16_t number : numbers) {
    const Thread& thread = block.threads[number];
    if (thread.own && thread.own.get() != last) last = thread.own.get(), all->join(*thread.own);
  }
  Clock accesses;
  for (uint16_t number : numbers) accesses.set(thread_key(block.number << 10 | number), stamp);
  all->join(accesses);
  for (uint16_t number : numbers) block.threads[number].own = all;
}

void order_grid() {
  for (Block* block : resident_blocks())
    if (block->running == running) block->floor = now + 1;
  running->grid_floor = ++now;
}

void order_cluster(const std::vector<Block*>& members) {
  auto all = std::make_shared<Clock>();
  for (Block* block : members) {
    if (block->known) all->join(*block->known);
    all->set(block_key(block->number), block->floor);
  }
  for (Block* block : members) block->known = all;
}

static Stamp started;
struct Agent {
  std::string what;
  uint32_t line;  // that set it to work last
  const void* place;
  Running* launch;
};
static std::vector<Agent> agents;

void begin_order() {
  released.clear();
  agents.clear();
  ended_fences.clear();
  started = ++now;
  for (auto& one : launches) one->grid_floor = started;
}

Stamp run_started() { return started; }

Running& launch_of(uint64_t thread) {
  if (thread >= first_agent) return *agents[thread - first_agent].launch;
  auto after = std::upper_bound(launches.begin() + 1, launches.end(), thread >> 10,
                                [](uint64_t block, auto& one) { return block < one->first_block; });
  return **(after - 1);
}

void know_launches(const std::vector<bool>& which) {
  if (!launch->checked) return;
  auto all = std::make_shared<Clock>();
  Stamp stamp = ++now;
  for (auto& one : launches)
    for (uint64_t i = 0; which[one->number] && i < one->launch->grid.count(); ++i)
      all->known.push_back({block_key(one->first_block + i), stamp});
  for (uint64_t i = 0; i < agents.size(); ++i)
    if (which[agents[i].launch->number]) all->known.push_back({thread_key(first_agent + i), stamp});
  std::sort(all->known.begin(), all->known.end());
  self->own = joined(self->own, all);
}

bool follows(const Running& other) { return !running->before.empty() && running->before[other.number]; }

// All that has happened before this point of the current thread.
ClockRef snapshot() {
  const Block& block = *self->block;
  auto clock = std::make_shared<Clock>();
  if (block.known) clock->join(*block.known);
  if (self->own) clock->join(*self->own);
  clock->set(block_key(block.number), block.floor);
  clock->set(thread_key(thread_id(*self)), ++now);
  return clock;
}

void release(const void* address, bool fenced_only) {
  if (!launch->checked || (fenced_only && !self->fence)) return;
  ClockRef& there = released[address];
  there = joined(there, fenced_only ? self->fence : snapshot());
}

void acquire(const void* address, bool needs_fence) {
  if (!launch->checked || released.empty()) return;
  auto found = released.find(address);
  if (found == released.end()) return;
  ClockRef& into = needs_fence ? self->pending : self->own;
  into = joined(into, found->second);
}

void fence() {
  if (!launch->checked) return;
  self->own = joined(self->own, self->pending);
  self->fence = snapshot();
}

uint64_t new_agent(const std::string& what) {
  agents.push_back({what, 0, nullptr, running});
  return first_agent + agents.size() - 1;
}

void acts(uint64_t agent, uint32_t line) {
  agents[agent - first_agent].line = line;
  agents[agent - first_agent].place = self->place;
}

const std::string& describe_agent(uint64_t agent) {
  static std::string text;
  const auto& [what, line, place, launch] = agents[agent - first_agent];
  return text = what + " (" + line_text(line, place) + ")";
}

void know(ClockRef& clock, uint64_t agent) {
  if (!launch->checked) return;
  Clock done;
  done.set(thread_key(agent), ++now);
  clock = joined(clock, std::make_shared<Clock>(done));
}

void know(uint64_t agent) { know(self->own, agent); }

void fence_async(Space space) { self->fences[int(space)].push_back(++now); }

void keep_fences(const Block& block) {
  std::vector<std::vector<Stamp>> all;
  bool any = false;
  for (const Thread& thread : block.threads) {
    all.push_back(thread.fences[int(Space::global)]);
    any = any || !all.back().empty();
  }
  if (any) ended_fences[block.number & (first_agent - 1) >> 10] = std::move(all);
}

static bool fenced(const std::vector<Stamp>& fences, uint64_t writer, Stamp written) {
  auto first = std::upper_bound(fences.begin(), fences.end(), written);
  return first != fences.end() && ordered(writer, *first);
}

// Whether what a thread wrote at a time is for the asynchronous proxy to see: the thread has put a fence after it, and the
// current thread comes after that fence. The end of a launch shows all that it wrote, that of a block does not.
bool shown_to_async(uint64_t writer, Stamp written, Space space) {
  if (writer >= first_agent) return true;
  for (Block* block : resident_blocks())
    if ((block->number & (first_agent - 1) >> 10) == writer >> 10)
      return fenced(block->threads[writer & 1023].fences[int(space)], writer, written);
  if (space != Space::global) return true;
  const Running& other = launch_of(writer);
  if (&other != running && (follows(other) || (running->awaited && !other.unended))) return true;
  auto found = ended_fences.find(writer >> 10);
  return found != ended_fences.end() && fenced(found->second[writer & 1023], writer, written);
}

}  // namespace emu

// __threadfence and its kind. Within a block a fence orders nothing that the checks of shared memory would need.
EXPORT void emu_fence() { emu::fence(); }
