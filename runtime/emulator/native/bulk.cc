// Bulk copies and reductions between global and shared memory: plain ones, and boxes of tensors.
#include "../include/emulator/tensor_map.h"
#include "memory.h"

namespace emu {

static void need_alignment(const void* address, uint64_t alignment, const char* what, uint32_t line) {
  if (reinterpret_cast<uintptr_t>(address) % alignment)
    fault(nullptr, line, "%s: %s at an address that is not a multiple of %llu", describe(*self), what,
          (unsigned long long)alignment);
}

static void need_shared(const void* address, const char* what, uint32_t line) {
  if (uint64_t(static_cast<const char*>(address) - shared_base) >= shared_total)
    fault(nullptr, line, "%s: %s at an address outside of shared memory", describe(*self), what);
}

static std::vector<Piece> plain_pieces(char* shared, char* other, uint32_t bytes, uint32_t line) {
  need_alignment(shared, 16, "a bulk copy", line);
  need_alignment(other, 16, "a bulk copy", line);
  if (bytes % 16) fault(nullptr, line, "%s: a bulk copy of %u bytes; it must be a multiple of 16", describe(*self), bytes);
  return {{shared, other, bytes, 0, bytes}};
}

static uint32_t tile_rows(const CUtensorMap& map, int dimension) {
  uint32_t step = map.element_strides[dimension];
  return (map.box[dimension] + step - 1) / step;
}

static uint32_t tile_bytes(const CUtensorMap& map) {
  uint32_t bytes = map.box[0] * map.item_bytes;
  for (int i = 1; i < map.rank; ++i) bytes *= tile_rows(map, i);
  return bytes;
}

static void check_map(const CUtensorMap& map, int rank, const char* shared, uint32_t line) {
  if (map.mark != emu_tensor_map_mark)
    fault(nullptr, line, "%s: what the address points to is no tensor map", describe(*self));
  if (map.rank != rank) fault(nullptr, line, "%s: %d coordinates for a tensor map of rank %d", describe(*self), rank, map.rank);
  if (!shared) return;
  need_shared(shared, "a tensor copy", line);
  uint64_t alignment = map.swizzle ? 128u << map.swizzle : 128;  // the bytes after which the swizzle repeats itself
  if ((shared - shared_base) % alignment)
    fault(nullptr, line, "%s: a tensor copy at %s; with a swizzle of %d bytes it must be a multiple of %llu", describe(*self),
          describe_shared((shared - shared_base) % shared_stride), map.swizzle ? 16 << map.swizzle : 0,
          (unsigned long long)alignment);
  if (map.swizzle && map.box[0] * map.item_bytes != 16 << map.swizzle)
    fault(nullptr, line, "%s: a row of the box has %d bytes, the swizzle %d; the emulator stands in for rows that fill it",
          describe(*self), map.box[0] * map.item_bytes, 16 << map.swizzle);
}

// One row of a box, 16 bytes at a time. `row` is null if the row lies outside of the tensor.
static void row_pieces(const CUtensorMap& map, int64_t x, char* row, uint64_t shared, std::vector<Piece>& pieces) {
  int64_t size = map.item_bytes, first = x * size, last = int64_t(map.dims[0]) * size;
  for (int64_t at = 0; at < map.box[0] * size; at += 16, shared += 16) {
    int64_t begin = std::clamp<int64_t>(-(first + at), 0, 16), end = std::clamp<int64_t>(last - (first + at), 0, 16);
    if (!row || begin > end) begin = end = 0;
    char* to = shared_base + emu_swizzle(shared, map.swizzle);
    pieces.push_back({to, row + (first + at), 16, uint32_t(begin), uint32_t(end)});
  }
}

static std::vector<Piece> box_pieces(const CUtensorMap& map, const int* start, char* shared) {
  std::vector<Piece> pieces;
  uint64_t to = shared - shared_base, row_bytes = map.box[0] * map.item_bytes;
  uint32_t at[5] = {};
  for (int dimension = 0; dimension < map.rank; to += row_bytes) {
    char* row = map.address;
    for (int i = 1; i < map.rank; ++i) {
      int64_t place = int64_t(start[i]) + int64_t(at[i]) * map.element_strides[i];
      bool inside = place >= 0 && uint64_t(place) < map.dims[i];
      row = row && inside ? row + place * int64_t(map.strides[i - 1]) : nullptr;
    }
    row_pieces(map, start[0], row, to, pieces);
    for (dimension = 1; dimension < map.rank && ++at[dimension] == tile_rows(map, dimension); ++dimension) at[dimension] = 0;
  }
  return pieces;
}

static void check_others(const std::vector<Piece>& pieces, bool write, bool atomic, uint64_t agent, uint32_t line) {
  for (const Piece& piece : pieces)
    if (piece.end > piece.begin) check_async(piece.other + piece.begin, piece.end - piece.begin, write, atomic, agent, line);
}

// Starts a copy to shared memory; with a mask, to the same place in several blocks of the cluster.
static void load(char* to, std::vector<Piece> pieces, uint32_t bytes, uint64_t mbarrier, uint32_t mask, int fill, uint32_t line) {
  uint64_t group = launch->cluster.count(), first = self->block->slot / group * group;
  bool is_read = false;
  if (uint64_t(to - shared_base) / shared_stride != mbarrier / shared_stride)
    fault(nullptr, line, "%s: a bulk copy to shared memory of one block that an mbarrier of another counts", describe(*self));
  for (uint64_t rank = 0; rank < group; ++rank) {
    int64_t shift = 0;
    if (mask >> rank & 1) {
      shift = int64_t((first + rank) * shared_stride) - (to - shared_base) / int64_t(shared_stride) * int64_t(shared_stride);
    } else if (mask || rank) {
      continue;
    }
    uint64_t place = mask ? mbarrier % shared_stride + (first + rank) * shared_stride : mbarrier;
    uint64_t agent = mbarrier_agent(place, line);
    if (!is_read) check_others(pieces, false, false, agent, line);
    is_read = true;
    check_async(to + shift, bytes, true, false, agent, line);
    Transfer transfer = {pieces, place, bytes, line, fill, nullptr, {}};
    for (Piece& piece : transfer.pieces) {
      piece.shared += shift;
      begin_async_read(piece.other, piece.bytes, agent);
    }
    fly(std::move(transfer));
  }
  if (mask >> group) fault(nullptr, line, "%s: a copy to the blocks 0x%x of a cluster of %llu", describe(*self), mask, (unsigned long long)group);
}

static void store(std::vector<Piece> pieces, const char* from, uint32_t bytes, Reduce reduce, uint32_t line) {
  if (!self->stores) {
    self->stores = std::make_unique<Stores>();
    self->stores->reader = new_agent(std::string("the bulk store of ") + describe(*self));
    self->stores->writer = new_agent(std::string("the bulk store of ") + describe(*self));
  }
  Stores& stores = *self->stores;
  check_async(from, bytes, false, false, stores.reader, line);
  check_others(pieces, true, reduce, stores.writer, line);
  begin_async_read(from, bytes, stores.reader);
  stores.transfers.push_back({std::move(pieces), uint64_t(from - shared_base), bytes, line, 0, reduce, {}});
  ++stores.uncommitted;
}

static void read_source(Stores& stores, Transfer& transfer) {
  for (const Piece& piece : transfer.pieces)
    transfer.staged.insert(transfer.staged.end(), piece.shared, piece.shared + piece.bytes);
  end_async_read(shared_base + transfer.mbarrier, transfer.bytes, stores.reader);
}

static void write_target(const Transfer& transfer) {
  const char* from = transfer.staged.data();
  for (const Piece& piece : transfer.pieces) {
    if (transfer.reduce)
      transfer.reduce(piece.other + piece.begin, from + piece.begin, piece.end - piece.begin);
    else if (piece.end > piece.begin)
      memcpy(piece.other + piece.begin, from + piece.begin, piece.end - piece.begin);
    from += piece.bytes;
  }
}

static void finish_reads(Stores& stores, size_t count) {
  for (; stores.read < count; ++stores.read) read_source(stores, stores.transfers[stores.read]);
  know(stores.reader);
}

static void finish_writes(Stores& stores, size_t count) {
  finish_reads(stores, count);
  for (size_t i = 0; i < count; ++i) write_target(stores.transfers[i]);
  stores.transfers.erase(stores.transfers.begin(), stores.transfers.begin() + long(count));
  stores.read -= count;
  know(stores.writer);
}

void leave_stores(Thread& thread) {
  if (!thread.stores) return;
  Stores& stores = *thread.stores;
  if (stores.read < stores.transfers.size())
    fault(nullptr, stores.transfers[stores.read].line, "%s exits while %s reads shared memory; end with "
          "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0", describe(thread), describe_agent(stores.reader).c_str());
  finish_writes(stores, stores.transfers.size());
}

}  // namespace emu

using namespace emu;

EXPORT void emu_bulk_load(void* to, const void* from, uint32_t bytes, const void* mbarrier, uint32_t mask, uint32_t line) {
  enter(line, PLACE);
  need_shared(to, "a bulk copy", line);
  char* target = static_cast<char*>(to);
  auto pieces = plain_pieces(target, static_cast<char*>(const_cast<void*>(from)), bytes, line);
  load(target, std::move(pieces), bytes, uint64_t(static_cast<const char*>(mbarrier) - shared_base), mask, 0, line);
}

EXPORT void emu_bulk_store(void* to, const void* from, uint32_t bytes, Reduce reduce, uint32_t line) {
  enter(line, PLACE);
  need_shared(from, "a bulk store", line);
  char* source = static_cast<char*>(const_cast<void*>(from));
  store(plain_pieces(source, static_cast<char*>(to), bytes, line), source, bytes, reduce, line);
}

EXPORT void emu_tensor_load(void* to, const CUtensorMap* map, const int* start, int rank, const void* mbarrier, uint32_t mask,
                            uint32_t line, const void* place) {
  enter(line, place);
  char* target = static_cast<char*>(to);
  check_map(*map, rank, target, line);
  uint64_t barrier = uint64_t(static_cast<const char*>(mbarrier) - shared_base);
  load(target, box_pieces(*map, start, target), tile_bytes(*map), barrier, mask, map->fill, line);
}

EXPORT void emu_tensor_store(const CUtensorMap* map, const int* start, int rank, const void* from, Reduce reduce, uint32_t line,
                             const void* place) {
  enter(line, place);
  char* source = static_cast<char*>(const_cast<void*>(from));
  check_map(*map, rank, source, line);
  store(box_pieces(*map, start, source), source, tile_bytes(*map), reduce, line);
}

EXPORT void emu_tensor_prefetch(const CUtensorMap* map, int rank, uint32_t line) {
  enter(line, PLACE);
  check_map(*map, rank, nullptr, line);
}

EXPORT void emu_bulk_commit() {
  if (!self->stores) return;
  self->stores->groups.push_back(self->stores->uncommitted);
  self->stores->uncommitted = 0;
}

// Waits until all but the latest `pending` groups have read their source or, if not `reads_only`, written their target.
EXPORT void emu_bulk_wait(uint32_t pending, int reads_only) {
  if (!self->stores || self->stores->groups.size() <= pending) return;
  Stores& stores = *self->stores;
  size_t count = 0, groups = stores.groups.size() - pending;
  for (size_t i = 0; i < groups; ++i) count += stores.groups[i];
  if (reads_only) return finish_reads(stores, std::max(stores.read, count));
  finish_writes(stores, count);
  stores.groups.erase(stores.groups.begin(), stores.groups.begin() + long(groups));
}

EXPORT void emu_fence_async(int spaces) {
  for (int space = 0; space < 3; ++space)
    if (spaces >> space & 1) fence_async(Space(space));
}
