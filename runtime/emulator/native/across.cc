// Which launches of a run have read memory since it was written: sets, kept once each, so that a number names one.
#include <map>

#include "memory.h"

namespace emu {

static std::vector<std::vector<bool>> sets;              // by number; the first is empty
static std::map<std::vector<bool>, uint32_t> number_of;  // a set's

static uint32_t number(const std::vector<bool>& set) {
  auto [found, is_new] = number_of.try_emplace(set, uint32_t(sets.size()));
  if (is_new) sets.push_back(set);
  return found->second;
}

void begin_across() {
  sets.clear();
  number_of.clear();
  number(std::vector<bool>(launches.size()));
}

void across_read(uint32_t& set) {
  if (sets[set][running->number]) return;
  std::vector<bool> larger = sets[set];
  larger[running->number] = true;
  set = number(larger);
}

const Running* across_write(uint32_t& set) {
  if (!set) return nullptr;
  const std::vector<bool>& readers = sets[set];
  set = 0;
  for (auto& one : launches)
    if (readers[one->number] && one.get() != running && !follows(*one)) return one.get();
  return nullptr;
}

}  // namespace emu
