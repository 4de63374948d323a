// MMAs of a warpgroup (wgmma): 128 threads issue each together, and it runs when one of them waits for it. Until then
// its accumulators hold poison, and no thread may touch them or overwrite the operands in shared memory.
#include "../include/emulator/wgmma_request.h"
#include "../include/emulator/tensor_map.h"
#include "memory.h"

namespace emu {

struct Mma {
  emu_wgmma_request request;
  uint32_t line, issued;
  Accumulator* sums[128];
  uint32_t a_registers[128][4];
  std::vector<const char*> a, b;   // where the operands lie: rows of 32 bytes as two times 16, or element by element
  std::vector<const char*> units;  // the 16-byte units of shared memory that they cover, each once
};

Warpgroup::Warpgroup() : agent(new_agent("wgmma")), first(0) {}
Warpgroup::~Warpgroup() = default;
Warpgroup::Warpgroup(Warpgroup&&) = default;

constexpr uint32_t register_poison = 0x7fd1ab10;  // a NaN
constexpr uint64_t row_bytes = 32;

// The bytes of shared memory that one operand is read from, K after K of row after row, `unit` bytes at a time. The layouts
// are those of CUTLASS's mma_traits_sm90_gmma.hpp, which gives them for a matrix of 16-byte vectors.
struct Operand {
  uint64_t start, leading, stride;
  int swizzle;  // the power of two of 16 bytes that a row of the swizzle spans
  bool transposed;
  int item_bytes;

  uint64_t offset(uint64_t row, uint64_t byte) const {
    uint64_t span = 16ull << swizzle;
    if (!transposed) return row % 8 * span + row / 8 * stride + (swizzle ? byte : byte / 16 * leading + byte % 16);
    uint64_t k = byte / uint64_t(item_bytes), along = row * uint64_t(item_bytes);
    uint64_t rows = k % 8 * span, inner = along % span, outer = along / span;
    return rows + inner + (swizzle ? outer * leading + k / 8 * stride : outer * stride + k / 8 * leading);
  }
  const char* at(uint64_t row, uint64_t byte, char* base) const { return base + emu_swizzle(start + offset(row, byte), swizzle); }
};

static Operand decode(uint64_t descriptor, int transposed, int item_bytes, uint32_t line) {
  static constexpr int swizzles[4] = {0, 3, 2, 1};
  Operand operand = {(descriptor & 0x3fff) << 4, (descriptor >> 16 & 0x3fff) << 4, (descriptor >> 32 & 0x3fff) << 4,
                     swizzles[descriptor >> 62], transposed != 0, item_bytes};
  if (descriptor >> 49 & 7)
    fault(nullptr, line, "%s: a matrix descriptor with a base offset, which the emulator does not stand in for; align the "
          "matrix to %d bytes", describe(*self), 128 << operand.swizzle);
  uint64_t repeat = operand.swizzle ? 128ull << operand.swizzle : 16;
  if (operand.start % repeat >= (operand.swizzle ? 16ull << operand.swizzle : 16))
    fault(nullptr, line, "%s: a matrix descriptor starts at byte %llu of shared memory; with a swizzle of %d bytes the matrix "
          "must be aligned to %llu", describe(*self), (unsigned long long)operand.start, 16 << operand.swizzle,
          (unsigned long long)repeat);
  return operand;
}

static std::vector<const char*> places(const Operand& operand, int rows) {
  char* base = shared_base + self->block->slot * shared_stride;
  uint64_t unit = operand.transposed ? uint64_t(operand.item_bytes) : 16;
  std::vector<const char*> found;
  for (int row = 0; row < rows; ++row)
    for (uint64_t byte = 0; byte < row_bytes; byte += unit) found.push_back(operand.at(uint64_t(row), byte, base));
  return found;
}

static std::vector<uint8_t> gather(const std::vector<const char*>& from, int rows) {
  size_t unit = row_bytes * size_t(rows) / from.size();
  std::vector<uint8_t> bytes;
  for (const char* place : from) bytes.insert(bytes.end(), place, place + unit);
  return bytes;
}

static void find_units(Mma& mma) {
  if (!launch->checked) return;
  for (const auto* operand : {&mma.a, &mma.b})
    for (const char* place : *operand) mma.units.push_back(place - uint64_t(place - shared_base) % 16);
  std::sort(mma.units.begin(), mma.units.end());
  mma.units.erase(std::unique(mma.units.begin(), mma.units.end()), mma.units.end());
}

static Warpgroup& warpgroup_of(uint32_t line) {
  Block& block = *self->block;
  size_t number = self->number / 128;
  if ((number + 1) * 128 > block.threads.size())
    fault(nullptr, line, "%s: wgmma needs a warpgroup of 128 threads; the block has %zu", describe(*self), block.threads.size());
  while (block.warpgroups.size() <= number) block.warpgroups.emplace_back();
  return block.warpgroups[number];
}

static Mma& begin_mma(Warpgroup& group, const emu_wgmma_request& request, uint32_t line) {
  auto mma = std::make_unique<Mma>();
  mma->request = request;
  mma->line = line;
  if (!request.a_registers) mma->a = places(decode(request.a, request.a_transposed, request.item_bytes, line), 64);
  mma->b = places(decode(request.b, request.b_transposed, request.item_bytes, line), request.columns);
  find_units(*mma);
  for (const char* unit : mma->units) {
    check_async(unit, 16, false, false, group.agent, line);
    begin_async_read(unit, 16, group.agent);
  }
  group.mmas.push_back(std::move(mma));
  return *group.mmas.back();
}

static void join_mma(Warpgroup& group, const Mma& mma, const emu_wgmma_request& request, uint32_t line) {
  const emu_wgmma_request& other = mma.request;
  bool same = mma.line == line && other.b == request.b && other.columns == request.columns && other.flags == request.flags &&
              !other.a_registers == !request.a_registers && (request.a_registers || other.a == request.a);
  if (!same)
    fault(nullptr, line, "%s: its wgmma differs from that of other threads of the warpgroup (line %u): shape, descriptors, "
          "scale and line must be the same", describe(*self), mma.line);
  if (self->number % 32 == 0)  // each warp must have waited for the operands
    for (const char* unit : mma.units) check_async(unit, 16, false, false, group.agent, line);
}

static void watch(Mmas& mine) {
  mine.watched.clear();
  std::vector<const char*> all;
  for (const auto& sums : mine.accumulators)
    for (uint32_t* place : sums->registers) all.push_back(reinterpret_cast<const char*>(place));
  std::sort(all.begin(), all.end());
  for (const char* place : all) {
    if (!mine.watched.empty() && mine.watched.back().second == place)
      mine.watched.back().second += 4;
    else
      mine.watched.push_back({place, place + 4});
  }
}

// The accumulators are known by the addresses of the variables that stand for the registers.
static Accumulator* claim(Mmas& mine, const emu_wgmma_request& request, uint32_t line) {
  std::vector<uint32_t*> registers(request.sums, request.sums + request.sum_count);
  for (auto& sums : mine.accumulators) {
    if (sums->registers == registers && sums->last != 0) return sums.get();
    for (uint32_t* place : registers)
      if (sums->last && std::find(sums->registers.begin(), sums->registers.end(), place) != sums->registers.end())
        fault(nullptr, line, "%s: a wgmma adds to some registers of another in flight and not to all; wait for it first",
              describe(*self));
  }
  auto free = std::find_if(mine.accumulators.begin(), mine.accumulators.end(),
                           [&](const auto& sums) { return !sums->last && sums->registers == registers; });
  if (free == mine.accumulators.end()) {
    mine.accumulators.push_back(std::make_unique<Accumulator>());
    free = mine.accumulators.end() - 1;
  }
  Accumulator& sums = **free;
  sums.registers = registers;
  sums.values.clear();
  for (uint32_t* place : registers) {
    sums.values.push_back(*place);
    *place = register_poison;
  }
  watch(mine);
  return &sums;
}

// An access to a variable: one that stands for an accumulator must not be in flight.
void check_register(const char* address, uint64_t bytes, const void* pc) {
  Mmas& mine = *self->mmas;
  auto after = std::upper_bound(mine.watched.begin(), mine.watched.end(), std::make_pair(address + bytes - 1, (const char*)~0ull));
  if (after == mine.watched.begin() || (--after)->second <= address) return;
  for (const auto& sums : mine.accumulators)
    for (uint32_t* place : sums->registers) {
      const char* begin = reinterpret_cast<const char*>(place);
      if (sums->last && begin < address + bytes && begin + 4 > address)
        fault(pc, 0, "%s: touches an accumulator of a wgmma in flight; wgmma.wait_group comes first", describe(*self));
    }
  mine.fenced = false;
}

// The registers of A: element `i` of register `r` of thread (g, t) lies in row g + 8 (r % 2), column e t + 4 e (r / 2) + i.
static std::vector<uint8_t> from_registers(const Mma& mma) {
  std::vector<uint8_t> bytes(64 * row_bytes);
  for (size_t thread = 0; thread < 128; ++thread)
    for (size_t r = 0; r < 4; ++r) {
      size_t row = thread / 32 * 16 + thread % 32 / 4 + 8 * (r % 2), column = thread % 4 * 4 + r / 2 * 16;
      memcpy(&bytes[row * row_bytes + column], &mma.a_registers[thread][r], 4);
    }
  return bytes;
}

static void run(Warpgroup& group, Mma& mma) {
  const emu_wgmma_request& request = mma.request;
  std::vector<uint8_t> a = request.a_registers ? from_registers(mma) : gather(mma.a, 64);
  std::vector<uint8_t> b = gather(mma.b, request.columns);
  uint32_t* sums[128];
  for (int i = 0; i < 128; ++i) sums[i] = mma.sums[i]->values.data();
  request.multiply(a.data(), b.data(), sums, request.columns, request.flags);
  for (const char* unit : mma.units) end_async_read(unit, 16, group.agent);
}

// Hands the sums of finished MMAs back.
static void deliver(Mmas& mine, uint64_t done) {
  for (auto& sums : mine.accumulators) {
    if (!sums->last || sums->last > done) continue;
    for (size_t i = 0; i < sums->registers.size(); ++i) {
      if (*sums->registers[i] != register_poison)
        fault(nullptr, self->line, "%s: accumulator %zu of a wgmma was written, or its variable ended, while the wgmma was in "
              "flight", describe(*self), i);
      *sums->registers[i] = sums->values[i];
    }
    sums->last = 0;
  }
}

std::string describe_mmas(const Thread& thread) {
  const Warpgroup& group = thread.block->warpgroups[thread.number / 128];
  uint32_t issued = 128;
  for (const auto& mma : group.mmas) issued = std::min(issued, mma->issued);
  return "waits at " + std::string(thread.waits_at) + " (" + line_text(thread.line, thread.place) + "), where " +
         std::to_string(issued) + " of 128 threads have issued the wgmma";
}

void leave_mmas(Thread& thread) {
  if (!thread.mmas) return;
  for (const auto& sums : thread.mmas->accumulators)
    if (sums->last) fault(nullptr, thread.line, "%s exits while a wgmma is in flight; wait for it", describe(thread));
}

static Mmas& mmas_of_self() {
  if (!self->mmas) self->mmas = std::make_unique<Mmas>();
  return *self->mmas;
}

}  // namespace emu

using namespace emu;

EXPORT void emu_wgmma_fence() { mmas_of_self().fenced = true; }

EXPORT void emu_wgmma_issue(const emu_wgmma_request* request, uint32_t line, const void* place) {
  enter(line, place);
  Mmas& mine = mmas_of_self();
  if (!mine.fenced)
    fault(nullptr, line, "%s: wgmma.mma_async with no wgmma.fence since its registers were touched", describe(*self));
  Warpgroup& group = warpgroup_of(line);
  size_t number = size_t(mine.issued++ - group.first);
  bool is_first = number == group.mmas.size();
  Mma& mma = is_first ? begin_mma(group, *request, line) : *group.mmas[number];
  if (!is_first) join_mma(group, mma, *request, line);
  size_t lane = self->number % 128;
  if (request->a_registers) memcpy(mma.a_registers[lane], request->a_registers, 16);
  mma.sums[lane] = claim(mine, *request, line);
  mma.sums[lane]->last = mine.issued;
  if (++mma.issued < 128) return;
  progress();
  for (size_t i = 0; i < 128; ++i) {
    Thread& thread = self->block->threads[self->number / 128 * 128 + i];
    if (thread.state == State::warpgroup) wake(thread);
  }
}

EXPORT void emu_wgmma_commit() {
  Mmas& mine = mmas_of_self();
  mine.groups.push_back(mine.issued);
}

EXPORT void emu_wgmma_wait(uint32_t pending, uint32_t line) {
  enter(line, PLACE);
  Mmas& mine = mmas_of_self();
  if (mine.groups.size() <= pending) return;
  size_t finished = mine.groups.size() - pending;
  uint64_t done = mine.groups[finished - 1];
  mine.groups.erase(mine.groups.begin(), mine.groups.begin() + long(finished));
  Warpgroup& group = warpgroup_of(line);
  while (group.first < done) {
    if (group.mmas[0]->issued < 128) {
      wait(State::warpgroup, "wgmma.wait_group", line);
      continue;
    }
    auto mma = std::move(group.mmas[0]);
    group.mmas.erase(group.mmas.begin());
    ++group.first;
    run(group, *mma);
  }
  know(group.agent);
  deliver(mine, done);
}
