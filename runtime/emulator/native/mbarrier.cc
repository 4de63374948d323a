// Barriers in memory: threads arrive, bulk copies count their bytes off, and a phase ends when both are complete.
//
// The bytes of a copy arrive as late as they may: when a thread waits for them and no other can go on, so that a thread that
// reads them too early finds what was there before. The adversarial order delivers some earlier.
#include <map>

#include "memory.h"

namespace emu {

struct Mbarrier {
  uint64_t agent;
  uint32_t expected, pending, phase;  // `phase`: how many have ended
  int64_t bytes;                      // expected and not yet copied
  uint64_t creator;
  Stamp created;
  ClockRef clock;  // what has happened before the phases that have ended
  ClockRef next;   // … and before the arrivals of this one
  std::vector<Transfer> transfers;
};

static std::map<uint64_t, Mbarrier> mbarriers;  // by place in shared memory
constexpr uint64_t mbarrier_mark = 0x6d62617272696572;
constexpr int64_t count_limit = (1 << 20) - 1;

void begin_mbarriers() { mbarriers.clear(); }

static uint64_t place_of(const void* address) { return static_cast<const char*>(address) - shared_base; }

static std::string name_of_mbarrier(uint64_t place) {
  std::string name = std::string("mbarrier at ") + describe_shared(place % shared_stride);
  Block* block = block_in(place / shared_stride);
  if (!block || launch->cluster.count() == 1) return name;
  return name + " of block (" + std::to_string(block->index.x) + ", " + std::to_string(block->index.y) + ", " +
         std::to_string(block->index.z) + ")";
}

static std::string state_of(const Mbarrier& barrier) {
  std::string text = std::to_string(barrier.expected - barrier.pending) + " of " + std::to_string(barrier.expected) + " arrivals";
  if (barrier.bytes > 0) text += ", " + std::to_string(barrier.bytes) + " bytes outstanding";
  if (barrier.bytes < 0) text += ", " + std::to_string(-barrier.bytes) + " bytes more than expected";
  return text;
}

std::string describe_mbarrier(const Thread& thread) {
  uint64_t place = thread.mbarrier - 1;
  auto found = mbarriers.find(place);
  std::string text = "waits for phase " + std::to_string(thread.awaited) + " of the " + name_of_mbarrier(place);
  if (found != mbarriers.end()) text += ": " + state_of(found->second);
  return text + " (" + thread.waits_at + ", " + line_text(thread.line, thread.place) + ")";
}

static Mbarrier& mbarrier_at(uint64_t place, const char* name, uint32_t line) {
  auto found = place < shared_total ? mbarriers.find(place) : mbarriers.end();
  if (found == mbarriers.end())
    fault(nullptr, line, "%s: %s on what is no mbarrier (%s); mbarrier.init comes first", describe(*self), name,
          place < shared_total ? describe_shared(place % shared_stride) : "an address outside of shared memory");
  check(shared_base + place, 8, false, true, nullptr);
  if (memcmp(shared_base + place, &mbarrier_mark, 8))
    fault(nullptr, line, "%s: the %s was overwritten by ordinary stores", describe(*self), name_of_mbarrier(place).c_str());
  return found->second;
}

static void end_phase(uint64_t place, Mbarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  barrier.clock = barrier.next;
  know(barrier.clock, barrier.agent);
  progress();
  for (Block* block : resident_blocks())
    for (Thread& thread : block->threads)
      if (thread.mbarrier == place + 1 && thread.state == State::polling) wake(thread);
}

static void land(uint64_t place, Mbarrier& barrier, size_t number) {
  Transfer transfer = std::move(barrier.transfers[number]);
  barrier.transfers.erase(barrier.transfers.begin() + long(number));
  for (const Piece& piece : transfer.pieces) {
    if (piece.begin || piece.end < piece.bytes) memset(piece.shared, transfer.fill, piece.bytes);
    if (piece.end > piece.begin) memcpy(piece.shared + piece.begin, piece.other + piece.begin, piece.end - piece.begin);
    arrived(piece.shared, piece.bytes);
    end_async_read(piece.other, piece.bytes, barrier.agent);
  }
  barrier.bytes -= transfer.bytes;
  progress();
  end_phase(place, barrier);
}

// Called now and then by the adversarial order.
void deliver_some() {
  for (auto& [place, barrier] : mbarriers)
    if (!barrier.transfers.empty() && random_number() % 16 == 0)
      land(place, barrier, random_number() % barrier.transfers.size());
}

uint64_t mbarrier_agent(uint64_t place, uint32_t line) {
  Mbarrier& barrier = mbarrier_at(place, "a bulk copy", line);
  if (!launch->checked) return barrier.agent;
  if (!shown_to_async(barrier.creator, barrier.created, Space::mbarrier) &&
      !shown_to_async(barrier.creator, barrier.created, Space::shared))
    fault(nullptr, line, "%s: the copy engine may not see the %s; put fence.mbarrier_init or fence.proxy.async after its "
          "mbarrier.init", describe(*self), name_of_mbarrier(place).c_str());
  return barrier.agent;
}

void fly(Transfer transfer) { mbarriers.at(transfer.mbarrier).transfers.push_back(std::move(transfer)); }

// The last thread of a block leaves: nothing may still write the block's shared memory.
void leave_mbarriers(const Block& block) {
  auto end = mbarriers.lower_bound((uint64_t(block.slot) + 1) * shared_stride);
  auto begin = mbarriers.lower_bound(uint64_t(block.slot) * shared_stride);
  for (auto at = begin; at != end; ++at)
    if (!at->second.transfers.empty())
      fault(nullptr, at->second.transfers[0].line, "%s: the block ends while a bulk copy to it is under way; wait for the %s",
            describe(*self), name_of_mbarrier(at->first).c_str());
  mbarriers.erase(begin, end);
}

static void count_bytes(Mbarrier& barrier, uint64_t place, int64_t bytes, uint32_t line) {
  barrier.bytes += bytes;
  if (barrier.bytes > count_limit || barrier.bytes < -count_limit)
    fault(nullptr, line, "%s: the %s counts %lld bytes; the limit is %lld", describe(*self), name_of_mbarrier(place).c_str(),
          (long long)barrier.bytes, (long long)count_limit);
}

static bool has_ended(const Mbarrier& barrier, uint64_t phase, bool by_parity) {
  return by_parity ? (barrier.phase & 1) != (phase & 1) : barrier.phase != phase;
}

static void deliver_all(uint64_t place) {
  auto found = mbarriers.find(place);
  if (found == mbarriers.end() || found->second.pending) return;
  Mbarrier& barrier = found->second;
  uint32_t phase = barrier.phase;
  while (!barrier.transfers.empty() && barrier.phase == phase) land(place, barrier, 0);
}

}  // namespace emu

using namespace emu;

EXPORT void emu_mbarrier_init(const void* address, uint32_t count, uint32_t line) {
  enter(line, PLACE);
  uint64_t place = place_of(address);
  if (place >= shared_total || place % 8)
    fault(nullptr, line, "%s: mbarrier.init needs 8 bytes of shared memory, aligned to 8", describe(*self));
  if (!count || count > count_limit)
    fault(nullptr, line, "%s: mbarrier.init with %u arrivals; it takes 1 to %lld", describe(*self), count, (long long)count_limit);
  if (mbarriers.count(place))
    fault(nullptr, line, "%s: the %s is initialised already; mbarrier.inval comes first", describe(*self),
          name_of_mbarrier(place).c_str());
  check(shared_base + place, 8, true, false, nullptr);
  memcpy(shared_base + place, &mbarrier_mark, 8);
  Mbarrier& barrier = mbarriers[place];
  barrier.agent = new_agent("a bulk copy for the " + name_of_mbarrier(place));
  barrier.expected = barrier.pending = count;
  barrier.creator = thread_id(*self);
  barrier.created = now;
}

EXPORT void emu_mbarrier_inval(const void* address, uint32_t line) {
  enter(line, PLACE);
  uint64_t place = place_of(address);
  if (!mbarrier_at(place, "mbarrier.inval", line).transfers.empty())
    fault(nullptr, line, "%s: mbarrier.inval while a bulk copy is under way", describe(*self));
  check(shared_base + place, 8, true, false, nullptr);
  mbarriers.erase(place);
}

EXPORT void emu_mbarrier_expect(const void* address, uint32_t bytes, uint32_t line) {
  enter(line, PLACE);
  uint64_t place = place_of(address);
  count_bytes(mbarrier_at(place, "expect_tx", line), place, bytes, line);
}

EXPORT void emu_mbarrier_complete(const void* address, uint32_t bytes, uint32_t line) {
  enter(line, PLACE);
  uint64_t place = place_of(address);
  Mbarrier& barrier = mbarrier_at(place, "mbarrier.complete_tx", line);
  count_bytes(barrier, place, -int64_t(bytes), line);
  end_phase(place, barrier);
}

// `flags`: bit 0 releases, bit 1 also lowers the count of later phases (drop), bit 2 may not end the phase, bit 3 comes in
// addition to the arrivals expected. Returns the state, which names the phase that the arrival belongs to.
EXPORT uint64_t emu_mbarrier_arrive(const void* address, uint32_t count, int flags, uint32_t line) {
  enter(line, PLACE);
  uint64_t place = place_of(address);
  Mbarrier& barrier = mbarrier_at(place, "mbarrier.arrive", line);
  if (flags & 8) barrier.pending += count;
  if (count > barrier.pending || !count)
    fault(nullptr, line, "%s: %u arrivals at the %s, where %u of %u are missing", describe(*self), count,
          name_of_mbarrier(place).c_str(), barrier.pending, barrier.expected);
  uint64_t state = uint64_t(barrier.phase) << 32 | barrier.pending;
  if (flags & 1 && launch->checked) barrier.next = joined(barrier.next, snapshot());
  if (flags & 2) barrier.expected -= count;
  barrier.pending -= count;
  if (flags & 4 && !barrier.pending)
    fault(nullptr, line, "%s: mbarrier.arrive.noComplete ends phase %u of the %s", describe(*self), barrier.phase,
          name_of_mbarrier(place).c_str());
  progress();
  end_phase(place, barrier);
  return state;
}

// Whether the phase has ended that a state or, if `by_parity`, a parity names. If not, others get their turn; then the
// answer is no, as when a time limit has passed, so that a kernel that does not ask again shows.
EXPORT int emu_mbarrier_test(const void* address, uint64_t phase, int by_parity, int acquires, const char* name, uint32_t line) {
  enter(line, PLACE);
  uint64_t place = place_of(address);
  if (!by_parity) phase >>= 32;
  Mbarrier& barrier = mbarrier_at(place, name, line);
  if (has_ended(barrier, phase, by_parity)) {
    if (acquires && launch->checked) self->own = joined(self->own, barrier.clock);
    return 1;
  }
  uint32_t current = barrier.phase;
  self->polled = nullptr;
  self->mbarrier = place + 1;
  self->awaited = current;
  wait(State::polling, name, line);
  if (self->state == State::polling) deliver_all(place);  // no other thread can go on
  self->state = State::ready;
  self->mbarrier = 0;
  return 0;
}
