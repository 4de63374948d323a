// What the asynchronous units of a multiprocessor have under way: bulk copies, and matrix multiply-adds.
//
// A unit acts for an *agent*, which has an id beside those of threads: one agent for the copies that an mbarrier counts,
// two for the stores of a thread, one for the wgmma of a warpgroup. A thread that has waited for an agent knows what it did.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace emu {

using Stamp = uint32_t;  // logical time: grows with every synchronisation, never with a plain access
constexpr uint64_t first_agent = 1u << 30;  // ids below are those of threads

enum class Space : uint8_t { shared, global, mbarrier };

// Reads by agents of 16 bytes of shared memory; `pending` of them have not happened yet.
struct AsyncRead {
  uint64_t agent;
  Stamp stamp;
  uint32_t pending;
};

// 16 bytes or more that lie together on both sides of a bulk copy. The bytes from `begin` to `end` are in the tensor.
struct Piece {
  char* shared;
  char* other;
  uint32_t bytes, begin, end;
};

using Reduce = void (*)(void* to, const void* from, uint32_t bytes);

struct Transfer {
  std::vector<Piece> pieces;
  uint64_t mbarrier;  // of a load: its place in shared memory; of a store: the place of the source
  uint32_t bytes, line;
  int fill;  // of bytes outside of the tensor
  Reduce reduce;
  std::vector<char> staged;  // what a store has read
};

// The bulk stores of a thread.
struct Stores {
  uint64_t reader, writer;  // agents
  std::vector<Transfer> transfers;
  std::vector<size_t> groups;  // transfers of each committed group, the oldest first
  size_t uncommitted = 0, read = 0;  // `read` transfers have read their source
};

// Registers that a wgmma in flight adds to. They hold poison until they are waited for.
struct Accumulator {
  std::vector<uint32_t*> registers;
  std::vector<uint32_t> values;
  uint64_t last;  // the number of the latest wgmma
};

// What a thread has issued to the tensor cores of its warpgroup.
struct Mmas {
  uint64_t issued = 0;
  bool fenced = false;
  std::vector<uint64_t> groups;  // the number of wgmma issued when each was committed, the oldest first
  std::vector<std::unique_ptr<Accumulator>> accumulators;
  std::vector<std::pair<const char*, const char*>> watched;  // registers in flight or just waited for
};

}  // namespace emu
