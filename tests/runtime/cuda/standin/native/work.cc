// Streams and events. Work runs when the host waits for it and no sooner, in a random order of what nothing orders: a
// wait, an event or an edge that is missing shows.
#include <cstdio>
#include <random>

#include "standin.h"

namespace standin {
namespace {

struct Work {
  std::string name;
  std::function<void()> run;
  std::vector<uint64_t> after;
  Device* device;
};

struct Stream {
  Device* device;
  bool is_blocking;  // ordered with the legacy default stream
  Green* green = nullptr;
  uint64_t last = 0;
  std::vector<uint64_t> waits;
};

struct Event {
  Device* device;
  bool has_time;
  uint64_t work = 0;
};

constexpr size_t kMostPending = 100000;
constexpr double kWorkMicroseconds = 2.0;

std::map<uint64_t, Work> pending;
std::vector<double> ends{0.0};  // simulated microseconds at which each piece ended, by number
double longer = 0.0;                 // than `kWorkMicroseconds`, of the piece that runs
std::map<CUstream, std::unique_ptr<Stream>> streams;
std::map<CUevent, std::unique_ptr<Event>> events;
std::map<Device*, Stream> legacy;
std::mt19937 chance(1);

Stream& legacy_of(Device* device) { return legacy.emplace(device, Stream{device, true}).first->second; }

Stream& stream_of(CUstream handle) {
  Device& device = current_device();
  if (!handle || handle == CU_STREAM_LEGACY) return legacy_of(&device);
  auto found = streams.find(handle);
  if (found == streams.end()) refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no live stream", (void*)handle);
  if (found->second->device != &device)
    refuse(CUDA_ERROR_INVALID_HANDLE, "the stream is GPU %d's, the current context GPU %d's",
           found->second->device->ordinal, device.ordinal);
  return *found->second;
}

Event& event_of(CUevent handle) {
  auto found = events.find(handle);
  if (found == events.end()) refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no live event", (void*)handle);
  return *found->second;
}

// What new work in a stream comes after.
std::vector<uint64_t> before_next(Stream& stream) {
  std::vector<uint64_t> found = stream.waits;
  found.push_back(stream.last);
  Stream& common = legacy_of(stream.device);
  if (&stream == &common) {
    for (auto& [handle, other] : streams)
      if (other->device == stream.device && other->is_blocking) found.push_back(other->last);
  } else if (stream.is_blocking) {
    found.push_back(common.last);
  }
  return found;
}

uint64_t add(Work work) {
  uint64_t number = ends.size();
  ends.push_back(0.0);
  pending.emplace(number, std::move(work));
  return number;
}

void note_last(Stream& stream, uint64_t work) {
  stream.last = work;
  stream.waits.clear();
}

void run_one(uint64_t number) {
  auto found = pending.find(number);
  Work work = std::move(found->second);
  pending.erase(found);
  double start = 0.0;
  for (uint64_t before : work.after) start = std::max(start, ends[before]);
  longer = 0.0;
  ends[number] = start + kWorkMicroseconds;
  if (work.device->broken != CUDA_SUCCESS) return;
  try {
    work.run();
    ends[number] += longer;
  } catch (const Refused& refused) {
    work.device->broken = refused.status;
    fprintf(stderr, "CUDA stand-in: %s: %s\n", work.name.c_str(), refused.reason.c_str());
  }
}

void finish(const std::vector<uint64_t>& wanted) {
  std::map<uint64_t, size_t> missing;  // work to do, and how many pieces it still waits for
  std::map<uint64_t, std::vector<uint64_t>> next;
  std::vector<uint64_t> open = wanted, ready;
  while (!open.empty()) {
    uint64_t number = open.back();
    open.pop_back();
    auto found = pending.find(number);
    if (found == pending.end() || missing.count(number)) continue;
    std::set<uint64_t> before;
    for (uint64_t other : found->second.after)
      if (pending.count(other)) before.insert(other);
    missing[number] = before.size();
    for (uint64_t other : before) next[other].push_back(number);
    open.insert(open.end(), before.begin(), before.end());
    if (before.empty()) ready.push_back(number);
  }
  while (!ready.empty()) {
    std::swap(ready[chance() % ready.size()], ready.back());
    uint64_t number = ready.back();
    ready.pop_back();
    run_one(number);
    for (uint64_t after : next[number])
      if (--missing[after] == 0) ready.push_back(after);
  }
}

void check_health(Device& device) {
  if (device.broken != CUDA_SUCCESS) refuse(device.broken, "a kernel failed");
}

}  // namespace

void takes(double microseconds) { longer += microseconds; }

uint64_t queue(CUstream handle, const std::string& name, std::function<void()> run, const std::vector<uint64_t>& also) {
  if (kIdle) return run(), 0;
  Stream& stream = stream_of(handle);
  std::vector<uint64_t> after = before_next(stream);
  after.insert(after.end(), also.begin(), also.end());
  uint64_t number = add({name, std::move(run), std::move(after), stream.device});
  note_last(stream, number);
  if (pending.size() > kMostPending) finish({number});
  return number;
}

std::vector<uint64_t> queue_many(CUstream handle, std::vector<std::pair<std::string, std::function<void()>>> work,
                                 const std::vector<std::pair<size_t, size_t>>& edges, const std::vector<uint64_t>& also) {
  Stream& stream = stream_of(handle);
  std::vector<uint64_t> before = before_next(stream), numbers;
  before.insert(before.end(), also.begin(), also.end());
  for (auto& [name, run] : work) {
    numbers.push_back(add({name, std::move(run), before, stream.device}));
  }
  for (auto [first, second] : edges) pending.at(numbers[second]).after.push_back(numbers[first]);
  std::vector<uint64_t> all = numbers;
  all.insert(all.end(), before.begin(), before.end());
  note_last(stream, add({"the end of a graph", [] {}, std::move(all), stream.device}));
  numbers.push_back(stream.last);
  return numbers;
}

CUstream make_stream(Device& device, bool is_blocking, Green* green) {
  auto made = std::make_unique<Stream>(Stream{&device, is_blocking, green});
  auto handle = reinterpret_cast<CUstream>(made.get());
  streams[handle] = std::move(made);
  return handle;
}

Green* green_of_stream(CUstream stream) { return stream_of(stream).green; }

bool has_streams(const Green& green) {
  for (auto& [handle, stream] : streams)
    if (stream->green == &green) return true;
  return false;
}

Device& device_of_stream(CUstream stream) { return *stream_of(stream).device; }

void finish_stream(CUstream handle) {
  Stream& stream = stream_of(handle);
  std::vector<uint64_t> wanted = stream.waits;
  wanted.push_back(stream.last);
  if (!handle || handle == CU_STREAM_LEGACY) wanted = before_next(stream);
  finish(wanted);
  check_health(*stream.device);
}

void finish_all() {
  Device& device = current_device();
  std::vector<uint64_t> wanted;
  for (auto& [number, work] : pending)
    if (work.device == &device) wanted.push_back(number);
  finish(wanted);
  check_health(device);
}

void finish_work(uint64_t work) { finish({work}); }

bool is_done(uint64_t work) { return !pending.count(work); }

bool is_ordered(uint64_t before, CUstream stream) {
  std::vector<uint64_t> open = before_next(stream_of(stream));
  std::set<uint64_t> seen;
  while (!open.empty()) {
    uint64_t number = open.back();
    open.pop_back();
    if (number == before) return true;
    auto found = pending.find(number);
    if (found == pending.end() || number < before || !seen.insert(number).second) continue;
    open.insert(open.end(), found->second.after.begin(), found->second.after.end());
  }
  return is_done(before);
}

void count_work(std::map<std::string, int>& kinds) {
  kinds["streams"] = int(streams.size());
  kinds["events"] = int(events.size());
}

}  // namespace standin

using namespace standin;

extern "C" {

void standin_seed(unsigned seed) { chance.seed(seed); }

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return guarded(__func__, Needs::context, [&] {
    if (flags > CU_STREAM_NON_BLOCKING) refuse(CUDA_ERROR_INVALID_VALUE, "flags %u", flags);
    *stream = make_stream(current_device(), flags == CU_STREAM_DEFAULT);
  });
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

CUresult cuStreamDestroy(CUstream stream) {
  return guarded(__func__, Needs::context, [&] {
    if (!stream || stream == CU_STREAM_LEGACY) refuse(CUDA_ERROR_INVALID_VALUE, "the default stream");
    Stream& gone = stream_of(stream);  // its work goes on without it
    if (gone.is_blocking) {
      std::vector<uint64_t>& waits = legacy_of(gone.device).waits;
      waits.insert(waits.end(), gone.waits.begin(), gone.waits.end());
      waits.push_back(gone.last);
    }
    streams.erase(stream);
  });
}

CUresult cuStreamSynchronize(CUstream stream) {
  return guarded(__func__, Needs::context, [&] { finish_stream(stream); });
}

CUresult cuStreamQuery(CUstream stream) {
  CUresult answer = CUDA_SUCCESS;
  CUresult status = guarded(__func__, Needs::context, [&] {
    for (uint64_t work : before_next(stream_of(stream)))
      if (!is_done(work)) answer = CUDA_ERROR_NOT_READY;
    finish_stream(stream);  // the next look finds it done
  });
  return status == CUDA_SUCCESS ? answer : status;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return guarded(__func__, Needs::context, [&] {
    if (flags) refuse(CUDA_ERROR_INVALID_VALUE, "flags %u", flags);
    stream_of(stream).waits.push_back(event_of(event).work);
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return guarded(__func__, Needs::context, [&] { *least = kLeastPriority, *greatest = kGreatestPriority; });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return guarded(__func__, Needs::context, [&] {
    if (flags & ~unsigned(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) refuse(CUDA_ERROR_INVALID_VALUE, "flags %u", flags);
    auto made = std::make_unique<Event>(Event{&current_device(), !(flags & CU_EVENT_DISABLE_TIMING)});
    *event = reinterpret_cast<CUevent>(made.get());
    events[*event] = std::move(made);
  });
}

CUresult cuEventDestroy(CUevent event) {
  return guarded(__func__, Needs::context, [&] {
    event_of(event);
    events.erase(event);
  });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return guarded(__func__, Needs::context, [&] {
    Event& recorded = event_of(event);
    if (recorded.device != &device_of_stream(stream)) refuse(CUDA_ERROR_INVALID_HANDLE, "an event of another GPU");
    recorded.work = queue(stream, "an event", [] {});
  });
}

CUresult cuEventSynchronize(CUevent event) {
  return guarded(__func__, Needs::context, [&] {
    Event& recorded = event_of(event);
    finish({recorded.work});
    check_health(*recorded.device);
  });
}

CUresult cuEventQuery(CUevent event) {
  CUresult answer = CUDA_SUCCESS;
  CUresult status = guarded(__func__, Needs::context, [&] {
    uint64_t work = event_of(event).work;
    if (!is_done(work)) answer = CUDA_ERROR_NOT_READY;
    finish({work});
  });
  return status == CUDA_SUCCESS ? answer : status;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return guarded(__func__, Needs::context, [&] {
    Event &first = event_of(start), &second = event_of(end);
    for (Event* event : {&first, &second}) {
      if (!event->has_time) refuse(CUDA_ERROR_INVALID_HANDLE, "an event that was made without times");
      if (!event->work) refuse(CUDA_ERROR_INVALID_HANDLE, "an event that was never recorded");
      if (!is_done(event->work)) refuse(CUDA_ERROR_NOT_READY, "an event that was not waited for");
    }
    *milliseconds = float((ends[second.work] - ends[first.work]) / 1000);
  });
}

}  // extern "C"
