// Says what went wrong, and where.
#include <cstdarg>
#include <cstdio>
#include <map>
#include <string>

#include "device.h"

namespace emu {

Fault fault_;

static const char* format_place(const Dim3& block, const Dim3& thread) {
  static char texts[4][128];
  static int next;
  char* text = texts[next++ % 4];
  snprintf(text, sizeof texts[0], "block (%u, %u, %u), thread (%u, %u, %u)", block.x, block.y, block.z, thread.x, thread.y,
           thread.z);
  return text;
}

const char* describe(const Thread& thread) { return format_place(thread.block->index, thread.index); }

const char* describe(uint64_t id) {
  const Running& owner = launch_of(id);
  const Dim3 &grid = owner.launch->grid, &size = owner.launch->block;
  uint64_t block = (id >> 10) - owner.first_block, thread = id & 1023;
  return format_place({uint32_t(block % grid.x), uint32_t(block / grid.x % grid.y), uint32_t(block / grid.x / grid.y)},
                      {uint32_t(thread % size.x), uint32_t(thread / size.x % size.y), uint32_t(thread / size.x / size.y)});
}

std::string line_text(uint32_t line, const void* place) {
  char text[64];
  snprintf(text, sizeof text, place ? "line %u@%p" : "line %u", line, place);
  return text;
}

void enter(uint32_t line, const void* place) {
  self->line = line;
  self->place = place;
}

void fault(const void* pc, uint32_t line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fault_.text, sizeof fault_.text, format, arguments);
  va_end(arguments);
  bool is_there = !pc && (!line || line == self->line);  // at the synchronisation that it entered last
  fault_.pc = is_there ? self->place : pc;
  fault_.line = is_there ? self->line : line;
  fault_.raised = 1;
  abandon();
}

static std::string waits_for(const Thread& thread) {
  char text[256];
  if (thread.mbarrier && thread.state == State::polling) return describe_mbarrier(thread);
  if (thread.state == State::warpgroup) return describe_mmas(thread);
  if (thread.state == State::polling)
    snprintf(text, sizeof text, "reads the value %llu again and again (%s, line %u)",
             static_cast<unsigned long long>(thread.polled_value), thread.waits_at, thread.line);
  else if (thread.state == State::barrier && thread.barrier)
    snprintf(text, sizeof text, "waits at barrier %d (%s, line %u), where %u of %u have arrived", thread.barrier,
             thread.waits_at, thread.line, thread.block->barriers[thread.barrier].arrived,
             thread.block->barriers[thread.barrier].expected);
  else
    snprintf(text, sizeof text, "waits at %s (line %u)", thread.waits_at, thread.line);
  return text;
}

void report_deadlock() {
  std::map<std::string, std::pair<unsigned, std::string>> groups;  // what is waited for: how many, and the first
  uint32_t line = 0;
  const void* place = nullptr;
  for (Block* block : resident_blocks()) {
    select(*block->running);
    for (const Thread& thread : block->threads) {
      if (thread.state == State::exited) continue;
      auto& group = groups[waits_for(thread)];
      if (!group.first++) group.second = describe(thread), line = thread.line, place = thread.place;
    }
  }
  std::string text = "deadlock: no thread can go on.";
  for (const auto& [what, waiting] : groups)
    text += " " + waiting.second + (waiting.first > 1 ? " and " + std::to_string(waiting.first - 1) + " more: " : ": ") + what + ".";
  size_t resident = resident_blocks().size(), total = 0;
  for (auto& one : launches) total += one->launch->grid.count();
  text += " " + std::to_string(resident) + " of " + std::to_string(total) + " blocks are resident.";
  snprintf(fault_.text, sizeof fault_.text, "%s", text.c_str());
  fault_.line = line;
  fault_.pc = place;
  fault_.raised = 1;
}

}  // namespace emu
