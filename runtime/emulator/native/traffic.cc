// Counts what the threads of a launch move between them and its arguments, where the launch asks for it.
#include "memory.h"

namespace emu {

// Running::touched: a byte for each byte of each argument: bit 0 read, bit 1 written.
void begin_traffic() {
  for (auto& one : launches)
    for (uint32_t i = 0; one->launch->traffic && i < one->launch->argument_count; ++i) {
      one->launch->traffic[i] = {};
      one->touched.emplace_back(one->launch->arguments[i].bytes);
    }
}

// An access that lies within the memory of an argument; the first argument, if several share it.
void count_traffic(const char* home, uint64_t bytes, bool write) {
  for (uint32_t i = 0; launch->traffic && i < launch->argument_count; ++i) {
    uint64_t offset = home - launch->arguments[i].data;
    if (offset >= launch->arguments[i].bytes) continue;
    Traffic& traffic = launch->traffic[i];
    std::vector<uint8_t>& touched = running->touched[i];
    (write ? traffic.written : traffic.read) += bytes;
    for (uint64_t at = offset; at < std::min(offset + bytes, launch->arguments[i].bytes); ++at) {
      uint8_t bit = write ? 2 : 1;
      (write ? traffic.distinct_written : traffic.distinct_read) += !(touched[at] & bit);
      touched[at] |= bit;
    }
    return;
  }
}

}  // namespace emu
