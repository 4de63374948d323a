// Warps: operations that the lanes of a mask carry out together, and groups of lanes that have come together again.
#include "device.h"

namespace emu {

static Thread& lane_thread(Block& block, uint32_t warp, uint32_t lane) { return block.threads[warp * 32 + lane]; }

static uint32_t live_lanes(Block& block, uint32_t warp) {
  uint32_t mask = 0;
  for (uint32_t lane = 0; lane < 32 && warp * 32 + lane < block.threads.size(); ++lane)
    if (lane_thread(block, warp, lane).state != State::exited) mask |= 1u << lane;
  return mask;
}

static bool complete(Block& block, uint32_t warp, Collective& op) {
  uint32_t needed = op.mask & live_lanes(block, warp);
  if ((op.arrived & needed) != needed) return false;
  if (op.combine) op.combine(op.lanes, op.arrived);
  std::vector<uint16_t> numbers;
  for (uint32_t lane = 0; lane < 32; ++lane)
    if (op.arrived >> lane & 1) {
      Thread& thread = lane_thread(block, warp, lane);
      if (thread.state == State::collective) wake(thread);
      if (!op.combine) numbers.push_back(thread.number);
    }
  if (numbers.size() > 1) order_threads(block, numbers);  // __syncwarp orders memory; shuffles and votes do not
  op.arrived = 0;
  progress();
  return true;
}

static Collective& find(Warp& warp, uint32_t mask, Combine combine, uint32_t bit) {
  Collective* unused = nullptr;
  for (Collective& op : warp.collectives) {
    if (op.arrived && op.mask == mask && op.combine == combine && !(op.arrived & bit)) return op;
    if (!op.arrived) unused = &op;
  }
  if (!unused) {
    warp.collectives.push_back({});
    unused = &warp.collectives.back();
  }
  unused->mask = mask;
  unused->combine = combine;
  return *unused;
}

void leave_warp(Thread& thread) {
  Block& block = *thread.block;
  for (Collective& op : block.warps[thread.number / 32].collectives)
    if (op.arrived) complete(block, thread.number / 32, op);
}

// Lanes that wait in __activemask are handed the mask of those that wait at the same place. Called when no thread of the
// device can go on: all that were to come have come.
bool converge() {
  bool found = false;
  for (Block* block : resident_blocks())
    for (uint32_t warp = 0; warp < block->warps.size(); ++warp) {
      const void* site = nullptr;
      uint32_t mask = 0, count = uint32_t(std::min<size_t>(32, block->threads.size() - warp * 32));
      for (uint32_t lane = 0; lane < count; ++lane) {
        Thread& thread = lane_thread(*block, warp, lane);
        if (thread.state != State::convergence) continue;
        if (!site) site = thread.site;
        if (thread.site == site) mask |= 1u << lane;
      }
      for (uint32_t lane = 0; lane < count && mask; ++lane)
        if (mask >> lane & 1) {
          lane_thread(*block, warp, lane).result = mask;
          wake(lane_thread(*block, warp, lane));
        }
      found = found || mask;
    }
  return found;
}

}  // namespace emu

using namespace emu;

// Waits until all lanes of `mask` that have not exited are here, then runs `combine` once on the lanes' arguments; null
// where a lane has none. A null `combine` is __syncwarp.
EXPORT void emu_collective(uint32_t mask, Combine combine, void* argument, const char* name, uint32_t line) {
  Block& block = *self->block;
  uint32_t number = self->number / 32, lane = self->number % 32, bit = 1u << lane;
  if (!(mask & bit))
    fault(nullptr, line, "%s: %s with the mask 0x%08x, which leaves out the thread's own lane %u", describe(*self), name,
          mask, lane);
  Collective& op = find(block.warps[number], mask, combine, bit);
  if (!op.arrived) memset(op.lanes, 0, sizeof op.lanes);
  op.arrived |= bit;
  op.lanes[lane] = argument;
  if (!complete(block, number, op)) wait(State::collective, name, line);
}

EXPORT uint32_t emu_active_mask(uint32_t line) {
  self->site = __builtin_return_address(0);
  wait(State::convergence, "__activemask", line);
  return self->result;
}

EXPORT uint32_t emu_lane() { return self->number % 32; }
EXPORT uint32_t emu_linear_thread() { return self->number; }
