// What a cubin says of its kernels. A cubin is an ELF file; the attributes are in sections `.nv.info.KERNEL`, which
// `cuobjdump -elf` prints with the names used here.
#include <elf.h>

#include <cstring>

#include "standin.h"

namespace standin {
namespace {

enum : uint8_t {  // EIATTR_*
  kMaxThreads = 0x05,
  kRequiredBlock = 0x10,
  kParameter = 0x17,
  kRegisters = 0x2f,
  kRequiredCluster = 0x3d,
};

constexpr uint32_t kReservedShared = 1024;  // which the sections of sm_90 and later count

struct Elf {
  const uint8_t* base;
  const Elf64_Ehdr& header;

  const Elf64_Shdr& section(size_t number) const {
    return *reinterpret_cast<const Elf64_Shdr*>(base + header.e_shoff + number * header.e_shentsize);
  }
  const char* text(size_t table, size_t offset) const {
    return reinterpret_cast<const char*>(base + section(table).sh_offset + offset);
  }
  std::string name(const Elf64_Shdr& found) const { return text(header.e_shstrndx, found.sh_name); }
  const Elf64_Shdr* find(const std::string& wanted) const {
    for (size_t number = 1; number < header.e_shnum; ++number)
      if (name(section(number)) == wanted) return &section(number);
    return nullptr;
  }
  std::string symbol(uint32_t number) const {
    const Elf64_Shdr& table = *find(".symtab");
    auto symbols = reinterpret_cast<const Elf64_Sym*>(base + table.sh_offset);
    return text(table.sh_link, symbols[number].st_name);
  }
};

// Calls `read` with the identity, the bytes and their number of each attribute of a section.
void each_attribute(const Elf& elf, const Elf64_Shdr& section,
                    const std::function<void(uint8_t, const uint8_t*, size_t)>& read) {
  const uint8_t *at = elf.base + section.sh_offset, *end = at + section.sh_size;
  while (at + 4 <= end) {
    constexpr uint8_t kSized = 4;
    uint16_t nbytes = at[2] | at[3] << 8;
    bool sized = at[0] == kSized;
    read(at[1], sized ? at + 4 : at + 2, sized ? nbytes : 2);
    at += sized ? 4 + nbytes : 4;
  }
}

uint32_t word(const uint8_t* at, size_t number) {
  uint32_t value;
  memcpy(&value, at + 4 * number, 4);
  return value;
}

Extent extent(const uint8_t* at) { return {word(at, 0), word(at, 1), word(at, 2)}; }

void read_parameter(Kernel& kernel, const uint8_t* at) {
  size_t ordinal = word(at, 1) & 0xffff;
  if (kernel.parameters.size() <= ordinal) kernel.parameters.resize(ordinal + 1);
  kernel.parameters[ordinal] = {word(at, 1) >> 16, word(at, 2) >> 18};
}

void read_kernel(const Elf& elf, const Elf64_Shdr& info, Kernel& kernel) {
  each_attribute(elf, info, [&](uint8_t identity, const uint8_t* at, size_t) {
    if (identity == kMaxThreads) kernel.max_threads = uint32_t(extent(at).count());
    if (identity == kRequiredBlock) kernel.required_block = extent(at);
    if (identity == kParameter) read_parameter(kernel, at);
    if (identity == kRequiredCluster) kernel.required_cluster = extent(at);
  });
}

}  // namespace

Cubin read_cubin(const void* image) {
  auto base = static_cast<const uint8_t*>(image);
  if (memcmp(base, ELFMAG, SELFMAG) != 0) refuse(CUDA_ERROR_INVALID_IMAGE, "no cubin");
  const Elf elf{base, *reinterpret_cast<const Elf64_Ehdr*>(base)};
  constexpr uint16_t kCuda = 190;
  if (elf.header.e_machine != kCuda) refuse(CUDA_ERROR_INVALID_IMAGE, "an ELF file of machine %u", elf.header.e_machine);
  Cubin cubin;
  cubin.architecture = elf.header.e_flags >> 8 & 0xff;
  const std::string prefix = ".nv.info.";
  for (size_t number = 1; number < elf.header.e_shnum; ++number) {
    std::string section = elf.name(elf.section(number));
    if (section.compare(0, prefix.size(), prefix) != 0) continue;
    Kernel kernel;
    kernel.name = section.substr(prefix.size());
    read_kernel(elf, elf.section(number), kernel);
    if (auto shared = elf.find(".nv.shared." + kernel.name)) {
      kernel.static_shared_bytes = uint32_t(shared->sh_size);
      if (cubin.architecture >= 90) kernel.static_shared_bytes -= std::min(kernel.static_shared_bytes, kReservedShared);
    }
    cubin.kernels[kernel.name] = kernel;
  }
  if (auto info = elf.find(".nv.info"))
    each_attribute(elf, *info, [&](uint8_t identity, const uint8_t* at, size_t) {
      if (identity != kRegisters) return;
      auto found = cubin.kernels.find(elf.symbol(word(at, 0)));
      if (found != cubin.kernels.end()) found->second.registers = word(at, 1);
    });
  return cubin;
}

}  // namespace standin
