// Graphs of kernels and memsets.
#include <algorithm>

#include "standin.h"

namespace standin {
namespace {

struct Graph;

struct Node {
  Graph* graph;
  bool is_kernel;
  Launch launch;
  CUDA_MEMSET_NODE_PARAMS memset{};
  bool enabled = true;
};

struct Edge {
  Node *before, *after;
};

struct Graph {
  Device* device;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Edge> edges;
};

struct Executable {
  Device* device;
  std::vector<Node> nodes;
  std::map<Node*, size_t> numbers;
  std::vector<std::pair<size_t, size_t>> edges;
  uint64_t last = 0;  // runs of one executable graph take turns
};

std::map<CUgraph, std::unique_ptr<Graph>> graphs;
std::map<CUgraphExec, std::unique_ptr<Executable>> executables;

Graph& graph_of(CUgraph handle) {
  auto found = graphs.find(handle);
  if (found == graphs.end()) refuse(CUDA_ERROR_INVALID_VALUE, "no live graph");
  return *found->second;
}

Executable& executable_of(CUgraphExec handle) {
  auto found = executables.find(handle);
  if (found == executables.end()) refuse(CUDA_ERROR_INVALID_VALUE, "no live executable graph");
  return *found->second;
}

Node& node_of(CUgraphNode handle) {
  for (auto& [key, graph] : graphs)
    for (auto& node : graph->nodes)
      if (reinterpret_cast<CUgraphNode>(node.get()) == handle) return *node;
  refuse(CUDA_ERROR_INVALID_VALUE, "no node of a live graph");
}

Launch launch_of(const CUDA_KERNEL_NODE_PARAMS& given) {
  if (given.extra) refuse(CUDA_ERROR_INVALID_VALUE, "extra is not taken here");
  if (given.func && (given.kern || given.ctx)) refuse(CUDA_ERROR_INVALID_VALUE, "with func, the driver ignores kern and ctx");
  Launch launch;
  launch.function = given.func ? given.func : reinterpret_cast<CUfunction>(given.kern);
  if (function_of(launch.function).is_library == (given.func != nullptr))
    refuse(CUDA_ERROR_INVALID_HANDLE, "func must be a function, and kern a library's kernel");
  if (given.ctx && given.ctx != context_of(current_device())) launch.green = &green_of(given.ctx);
  if (launch.green && &device_of_green(*launch.green) != &current_device()) refuse(CUDA_ERROR_INVALID_CONTEXT, "a context of another GPU");
  launch.grid = {given.gridDimX, given.gridDimY, given.gridDimZ};
  launch.block = {given.blockDimX, given.blockDimY, given.blockDimZ};
  launch.shared_bytes = given.sharedMemBytes;
  read_parameters(launch, given.kernelParams);
  return launch;
}

CUgraphNode add_node(Graph& graph, Node node, const CUgraphNode* before, size_t count) {
  graph.nodes.push_back(std::make_unique<Node>(std::move(node)));
  Node* made = graph.nodes.back().get();
  for (size_t number = 0; number < count; ++number) graph.edges.push_back({&node_of(before[number]), made});
  return reinterpret_cast<CUgraphNode>(made);
}

// A programmatic edge ties two kernels; ports other than the default one are programmatic edges'.
void check_edge(const CUgraphEdgeData& data, const Node& before, const Node& after) {
  bool programmatic = data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  if (!programmatic && data.type != CU_GRAPH_DEPENDENCY_TYPE_DEFAULT) refuse(CUDA_ERROR_INVALID_VALUE, "edge type %d", data.type);
  if (programmatic && !(before.is_kernel && after.is_kernel)) refuse(CUDA_ERROR_INVALID_VALUE, "a programmatic edge of no kernel");
  bool fits = programmatic ? data.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC ||
                                 data.from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER
                           : data.from_port == CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
  if (!fits || data.to_port) refuse(CUDA_ERROR_INVALID_VALUE, "ports %d and %d of an edge of type %d", data.from_port, data.to_port, data.type);
  if (std::any_of(std::begin(data.reserved), std::end(data.reserved), [](char byte) { return byte != 0; }))
    refuse(CUDA_ERROR_INVALID_VALUE, "reserved bytes of an edge are not 0");
}

void check_acyclic(const Executable& made) {
  std::vector<size_t> missing(made.nodes.size(), 0), ready;
  for (auto [before, after] : made.edges) ++missing[after];
  for (size_t number = 0; number < missing.size(); ++number)
    if (!missing[number]) ready.push_back(number);
  size_t reached = 0;
  for (; !ready.empty(); ++reached) {
    size_t number = ready.back();
    ready.pop_back();
    for (auto [before, after] : made.edges)
      if (before == number && --missing[after] == 0) ready.push_back(after);
  }
  if (reached < missing.size()) refuse(CUDA_ERROR_INVALID_VALUE, "the graph's edges go round in a circle");
}

void run_memset(const Node& node, Device& device) {
  const CUDA_MEMSET_NODE_PARAMS& given = node.memset;
  size_t nbytes = given.width * given.elementSize;
  check_memory(device, given.dst, nbytes, CUDA_ERROR_ILLEGAL_ADDRESS, "a memset");
  auto target = reinterpret_cast<uint8_t*>(given.dst);
  for (size_t number = 0; number < nbytes; ++number)
    target[number] = uint8_t(given.value >> 8 * (number % given.elementSize));
}

}  // namespace

bool uses_module(CUmodule module) {
  for (auto& [handle, made] : executables)
    for (const Node& node : made->nodes)
      if (node.is_kernel && function_of(node.launch.function).module == module) return true;
  return false;
}

bool uses_green(const Green& green) {
  for (auto& [handle, graph] : graphs)
    for (auto& node : graph->nodes)
      if (node->launch.green == &green) return true;
  for (auto& [handle, made] : executables)
    for (const Node& node : made->nodes)
      if (node.launch.green == &green) return true;
  return false;
}

void count_graphs(std::map<std::string, int>& kinds) {
  kinds["graphs"] = int(graphs.size());
  kinds["executable graphs"] = int(executables.size());
}

}  // namespace standin

using namespace standin;

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  return guarded(__func__, Needs::context, [&] {
    if (flags) refuse(CUDA_ERROR_INVALID_VALUE, "flags %u", flags);
    auto made = std::make_unique<Graph>(Graph{&current_device(), {}, {}});
    *graph = reinterpret_cast<CUgraph>(made.get());
    graphs[*graph] = std::move(made);
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return guarded(__func__, Needs::context, [&] {
    graph_of(graph);
    graphs.erase(graph);
  });
}

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS* given) {
  return guarded(__func__, Needs::context, [&] {
    Graph& owner = graph_of(graph);
    *node = add_node(owner, {&owner, true, launch_of(*given)}, before, count);
  });
}

CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* given, CUcontext context) {
  return guarded(__func__, Needs::context, [&] {
    Graph& owner = graph_of(graph);
    if (context != context_of(current_device())) refuse(CUDA_ERROR_INVALID_CONTEXT, "not the current context");
    if (given->elementSize != 1 && given->elementSize != 2 && given->elementSize != 4)
      refuse(CUDA_ERROR_INVALID_VALUE, "elements of %u bytes", given->elementSize);
    if (given->height != 1 || !given->width) refuse(CUDA_ERROR_INVALID_VALUE, "a memset of %zu x %zu", given->width, given->height);
    if (given->dst % given->elementSize) refuse(CUDA_ERROR_INVALID_VALUE, "the address is no multiple of the element's size");
    check_memory(current_device(), given->dst, given->width * given->elementSize, CUDA_ERROR_INVALID_VALUE, "the target");
    *node = add_node(owner, {&owner, false, {}, *given}, before, count);
  });
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* before, const CUgraphNode* after,
                                const CUgraphEdgeData* data, size_t count) {
  return guarded(__func__, Needs::context, [&] {
    Graph& owner = graph_of(graph);
    for (size_t number = 0; number < count; ++number) {
      Node &first = node_of(before[number]), &second = node_of(after[number]);
      if (first.graph != &owner || second.graph != &owner || &first == &second) refuse(CUDA_ERROR_INVALID_VALUE, "an edge within no graph");
      if (data) check_edge(data[number], first, second);
      for (const Edge& edge : owner.edges)
        if (edge.before == &first && edge.after == &second) refuse(CUDA_ERROR_INVALID_VALUE, "an edge that is there already");
      owner.edges.push_back({&first, &second});
    }
  });
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id, const CUkernelNodeAttrValue* value) {
  return guarded(__func__, Needs::context, [&] {
    Node& changed = node_of(node);
    if (!changed.is_kernel) refuse(CUDA_ERROR_INVALID_VALUE, "no kernel");
    set_attribute(changed.launch, id, *value);
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  return guarded(__func__, Needs::context, [&] {
    if (flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)
      refuse(CUDA_ERROR_INVALID_VALUE, "flags %llu", flags);
    Graph& owner = graph_of(graph);
    // The driver takes priorities without the flag, and has no use for them.
    for (auto& node : owner.nodes)
      if (node->is_kernel && node->launch.has_priority && !flags)
        refuse(CUDA_ERROR_INVALID_VALUE, "a node has a priority, which the graph is not asked to use");
    auto made = std::make_unique<Executable>(Executable{owner.device, {}, {}, {}});
    for (auto& node : owner.nodes) {
      if (node->is_kernel) check_launch(node->launch);
      made->numbers[node.get()] = made->nodes.size();
      made->nodes.push_back(*node);
    }
    for (const Edge& edge : owner.edges) made->edges.push_back({made->numbers.at(edge.before), made->numbers.at(edge.after)});
    check_acyclic(*made);
    *executable = reinterpret_cast<CUgraphExec>(made.get());
    executables[*executable] = std::move(made);
  });
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* given) {
  return guarded(__func__, Needs::context, [&] {
    Executable& changed = executable_of(executable);
    auto found = changed.numbers.find(&node_of(node));
    if (found == changed.numbers.end()) refuse(CUDA_ERROR_INVALID_VALUE, "no node of the graph that was instantiated");
    Launch& launch = changed.nodes[found->second].launch;
    Launch fresh = launch_of(*given);
    fresh.cooperative = launch.cooperative, fresh.cluster = launch.cluster;
    check_launch(fresh);
    if (fresh.green != launch.green) refuse(CUDA_ERROR_INVALID_VALUE, "a node keeps its context");
    if (changed.device != function_of(fresh.function).device) refuse(CUDA_ERROR_INVALID_VALUE, "a node keeps its context, but the kernel is of another GPU");
    launch = std::move(fresh);
  });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec executable, CUgraphNode node, unsigned enabled) {
  return guarded(__func__, Needs::context, [&] {
    Executable& changed = executable_of(executable);
    auto found = changed.numbers.find(&node_of(node));
    if (found == changed.numbers.end()) refuse(CUDA_ERROR_INVALID_VALUE, "no node of the graph that was instantiated");
    changed.nodes[found->second].enabled = enabled != 0;
  });
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  return guarded(__func__, Needs::context, [&] {
    Executable& launched = executable_of(executable);
    if (launched.device != &device_of_stream(stream)) refuse(CUDA_ERROR_INVALID_VALUE, "a graph of another GPU");
    if (kIdle) return;
    std::vector<std::pair<std::string, std::function<void()>>> work;
    for (const Node& node : launched.nodes) {
      if (!node.enabled) {
        work.push_back({"a disabled node", [] {}});
      } else if (node.is_kernel) {
        work.push_back({function_of(node.launch.function).kernel.name, [launch = node.launch] { run_launch(launch); }});
      } else {
        work.push_back({"a memset", [node, device = launched.device] { run_memset(node, *device); }});
      }
    }
    std::vector<uint64_t> numbers = queue_many(stream, std::move(work), launched.edges, {launched.last});
    for (size_t number = 0; number < launched.nodes.size(); ++number) {
      const Node& node = launched.nodes[number];
      if (!node.enabled) continue;
      if (node.is_kernel) note_uses(node.launch, numbers[number]);
      else note_use(node.memset.dst, numbers[number]);
    }
    launched.last = numbers.back();
  });
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return guarded(__func__, Needs::context, [&] {
    executable_of(executable);
    executables.erase(executable);
  });
}

}  // extern "C"
