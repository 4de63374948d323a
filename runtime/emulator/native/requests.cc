// Counts how the threads of a warp access memory together, where a launch asks for it: in sectors of global memory, and in
// wavefronts of shared memory.
//
// One instruction of a warp is one request. Fibres run thread by thread, so a thread's n-th access at a place in the code,
// since the last barrier of the whole block, belongs to the request of the n-th accesses of the warp's other threads there.
//
// CUDA's compiler joins a thread's accesses to neighbouring words of shared memory, whose alignment it knows, and so it is
// counted; pointers to global memory are aligned to an element for all that it knows.
#include <map>
#include <tuple>
#include <unordered_map>

#include "memory.h"

namespace emu {

constexpr uint32_t sector_bytes = 32, banks = 32, bank_bytes = 4;

namespace {

struct Request {
  uint32_t lanes;  // that have come
  uint32_t bytes;  // of the widest access
  uint64_t address[32];
};

struct Site {  // of an access in the code
  const void* pc;
  bool write, shared;
  bool operator<(const Site& other) const {
    return std::tie(pc, write, shared) < std::tie(other.pc, other.write, other.shared);
  }
};

struct Pending {  // what a warp has under way at a place
  std::deque<Request> requests;
  uint64_t first = 0;      // the number of the oldest one
  uint64_t done[32] = {};  // how often each lane has come
};

// `RequestRecord` of requests.py.
struct Counted {
  const void* pc;
  uint64_t requests, bytes, transactions, least;
  uint32_t write, shared;
};

using Warps = std::map<std::pair<uint32_t, Site>, Pending>;  // of a block

}  // namespace

static std::unordered_map<uint64_t, Warps> under_way;  // by number of the block
static std::vector<std::map<Site, Counted>> counted;  // by number of the launch
static std::vector<Counted> told;

static uint64_t distinct(std::vector<uint64_t>& items) {
  std::sort(items.begin(), items.end());
  return uint64_t(std::unique(items.begin(), items.end()) - items.begin());
}

static uint64_t units(const Request& request, uint32_t first, uint32_t count, uint32_t size, std::vector<uint64_t>& found) {
  found.clear();
  for (uint32_t lane = first; lane < first + count; ++lane)
    if (request.lanes >> lane & 1)
      for (uint64_t unit = request.address[lane] / size; unit <= (request.address[lane] + request.bytes - 1) / size; ++unit)
        found.push_back(unit);
  return distinct(found);
}

// A warp's accesses of 8 bytes are served by halves, those of 16 by quarters: a bank gives one word at a time.
static uint64_t wavefronts(const Request& request, uint64_t& phases) {
  uint32_t lanes = request.bytes <= 4 ? 32 : request.bytes <= 8 ? 16 : 8;
  uint64_t all = 0;
  std::vector<uint64_t> words;
  for (uint32_t first = 0; first < 32; first += lanes) {
    uint64_t number = units(request, first, lanes, bank_bytes, words), most = 0;
    uint32_t load[banks] = {};
    for (uint64_t i = 0; i < number; ++i) most = std::max<uint64_t>(most, ++load[words[i] % banks]);
    all += most;
    phases += most > 0;
  }
  return all;
}

static void count(std::map<Site, Counted>& sites, const Site& site, const Request& request) {
  Counted& all = sites.emplace(site, Counted{site.pc, 0, 0, 0, 0, site.write, site.shared}).first->second;
  std::vector<uint64_t> found;
  uint64_t bytes = units(request, 0, 32, 1, found), phases = 0;
  ++all.requests;
  all.bytes += bytes;
  all.transactions += site.shared ? wavefronts(request, phases) : units(request, 0, 32, sector_bytes, found);
  all.least += site.shared ? phases : (bytes + sector_bytes - 1) / sector_bytes;
}

static uint32_t lanes_of(const Block& block, uint32_t warp) {
  size_t there = block.threads.size() - 32 * warp;
  return there >= 32 ? 0xffffffffu : (1u << there) - 1;
}

void begin_requests() {
  under_way.clear();
  counted.assign(launches.size(), {});
}

static void add(const Thread& thread, const Site& site, uint64_t address, uint64_t bytes) {
  uint32_t warp = thread.number / 32, lane = thread.number % 32;
  Block& block = *thread.block;
  Pending& pending = under_way[block.number][{warp, site}];
  uint64_t number = pending.done[lane]++ - pending.first;
  while (pending.requests.size() <= number) pending.requests.push_back({});
  Request& request = pending.requests[number];
  request.lanes |= 1u << lane;
  request.bytes = std::max(request.bytes, uint32_t(bytes));
  request.address[lane] = address;
  for (; !pending.requests.empty() && pending.requests.front().lanes == lanes_of(block, warp); ++pending.first) {
    count(counted[block.running->number], site, pending.requests.front());
    pending.requests.pop_front();
  }
}

// A run of words becomes accesses as wide as alignment and the instructions of a GPU allow.
static void end_run(Thread& thread) {
  SharedRun& run = thread.run;
  while (run.bytes) {
    uint64_t width = 16;
    while (width > run.bytes || run.address % width) width /= 2;
    add(thread, {run.pc, run.write, true}, run.address, width);
    run.address += width;
    run.bytes -= width;
  }
}

void count_request(const void* pc, bool write, bool shared, uint64_t address, uint64_t bytes) {
  if (!shared) return add(*self, {pc, write, false}, address, bytes);
  SharedRun& run = self->run;
  if (!run.bytes || run.write != write || run.address + run.bytes != address) {
    end_run(*self);
    run = {pc, write, address, 0};
  }
  run.bytes += bytes;
  if ((run.address + run.bytes) % 16 == 0) end_run(*self);
}

void finish_requests(Block& block) {
  for (Thread& thread : block.threads) end_run(thread);
  auto found = under_way.find(block.number);
  if (found == under_way.end()) return;
  for (auto& [key, pending] : found->second)
    for (const Request& request : pending.requests)
      if (request.lanes) count(counted[block.running->number], key.second, request);
  under_way.erase(found);
}

}  // namespace emu

using namespace emu;

// What was counted of a launch of the last run: so many records from `records` on.
EXPORT uint64_t emu_requests(uint32_t number, const void** records) {
  told.clear();
  for (auto& [site, one] : counted[number]) told.push_back(one);
  *records = told.data();
  return told.size();
}
