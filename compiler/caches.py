"""Caches that grow in place in the caller's memory: a step of a decoder does not copy what it keeps of earlier tokens.

A concat of the past with new rows, or what stores these where the data says, becomes an `append` to a buffer with room
for more, of which readers of the whole read the first rows. The input is no longer one of the graph: it lies in the
buffer. Its length and the buffer's capacity are the shape of an input without elements.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from tilestitch.codegen.program_types import SymbolNames, runtime_size, runtime_type
from tilestitch.compiler.ir import Graph, Node, TensorType, Value
from tilestitch.compiler.ir.claims import Claim
from tilestitch.compiler.ir.sizes import Size, Symbol, size_of
from tilestitch.compiler.ir.symbol_uses import determined_by, symbols_of_values
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.access.positions import are_narrow
from tilestitch.runtime.caches import GROWTH
from tilestitch.runtime.program import Cache
from tilestitch.runtime.symbols import NO_LIMIT
from tilestitch.runtime.types import TensorType as RuntimeType

from .errors import OptionError


def length_classes(graphs: Sequence[Graph], patterns: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return, for each input of these names, a number that is shared by inputs of equal length in all of the graphs:
    the specialisations of a model, which have the same inputs; and which output it is in all of them. Raises
    OptionError for an input that cannot be grown.
    """
    found, outputs = [], dict[str, list[int]]()
    for graph in graphs:
        for value in _chosen(graph, patterns):
            _store_in_place(graph, value)
        grown = {value: _growing(graph, value) for value in _chosen(graph, patterns)}
        found.append({value.name: value.tensor_type.shape[node.attrs["axis"]] for value, node in grown.items()})
        for value, node in grown.items():
            here = [place for place, output in enumerate(graph.outputs) if output is node.output]
            outputs[value.name] = [place for place in outputs.get(value.name, here) if place in here]
            if not outputs[value.name]:
                raise _no_output(value)
    classes: dict[tuple[Size | int, ...], int] = {}
    return {
        name: (classes.setdefault(tuple(of[name] for of in found), len(classes)), outputs[name][0]) for name in found[0]
    }


def with_caches(graph: Graph, output_names: Sequence[str], classes: Mapping[str, tuple[int, int]]) -> tuple[Cache, ...]:
    """Make the inputs of `length_classes` grow in place, changing the graph in place."""
    names, told = [v.name for v in graph.inputs], determined_by(graph.inputs)
    found, inputs = [], dict[int, Value]()
    for value in [v for v in graph.inputs if v.name in classes]:
        concat, (number, place) = _growing(graph, value), classes[value.name]
        axis = concat.attrs["axis"]
        if number not in inputs:
            inputs[number] = _sizes_input(graph, value, concat, len(inputs))
        sizes = inputs[number]
        found.append(
            Cache(
                value.name, output_names[place], names.index(value.name), _type(value), axis,
                runtime_size(concat.output.tensor_type.shape[axis] - value.tensor_type.shape[axis]), sizes.name,
            )
        )  # fmt: skip
        _append(graph, value, concat, sizes.tensor_type.sizes[1], place)
    needed = told & symbols_of_values(v for node in graph.nodes for v in node.outputs)
    needed |= symbols_of_values(node.output for node in graph.nodes if node.op == "append")
    lost = sorted(str(symbol) for symbol in needed - determined_by(graph.inputs))
    if lost:
        raise OptionError(f"donate: only the shapes of these caches tell {', '.join(lost)}; give sizes with --shape")
    return tuple(found)


def check_grown(graph: Graph, plan: StitchPlan, output_names: Sequence[str], caches: Sequence[Cache]) -> None:
    """Raise OptionError unless kernels store the new rows of all caches."""
    native = {name for group in plan.groups for name in group.nodes}
    outputs = dict(zip(output_names, graph.outputs, strict=True))
    for cache in caches:
        producer = outputs[cache.output].producer
        if producer is None or producer.op != "append" or producer.name not in native:
            raise OptionError(f"donate: no kernel stores the new rows of {cache.input}; leave it out")


def _chosen(graph: Graph, patterns: Sequence[str]) -> list[Value]:
    names = [v.name for v in graph.inputs]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError(f"donate: no input is named {pattern!r}; inputs are {', '.join(names)}")
    return [v for v in graph.inputs if any(fnmatchcase(v.name, pattern) for pattern in patterns)]


def _store_in_place(graph: Graph, value: Value) -> None:
    """Make an append of the scatter that stores rows in a value, between transpositions that bring their axis to the
    front and back: PyTorch exports caches of fixed length so.
    """
    nodes = _chain(graph, value, ("transpose", "scatter_nd", "transpose"))
    if not nodes or nodes[0].output is not nodes[1].inputs[0]:
        return
    perm, scatter, back = nodes[0].attrs["perm"], nodes[1], nodes[2].attrs["perm"]
    _, indices, updates = scatter.inputs
    is_of_rows = indices.tensor_type.rank == 2 and indices.shape[1] == 1 and scatter.attrs["reduction"] == "none"
    if not is_of_rows or not perm[0] or [perm[axis] for axis in back] != sorted(perm):
        return
    emit = partial(graph.emit, origins=scatter.origins, insert_before=scatter)
    axis, room, old = perm[0], value.tensor_type.shape[perm[0]], nodes[2].output
    places, rows = emit("reshape", indices, shape=(1, indices.shape[0])), emit("transpose", updates, perm=back)
    whole = emit("append", rows, places, cache=value.name, axis=axis, capacity=room, until=room, clears=False)
    old.name, whole.name = whole.name, old.name
    graph.replace_uses(old, whole)
    for node in reversed(nodes):
        graph.remove(node)


def _chain(graph: Graph, value: Value, ops: Sequence[str]) -> list[Node]:
    """Return nodes of these operators, each the only reader of the one before, or else nothing."""
    found: list[Node] = []
    for op in ops:
        users = [user for user, _ in value.uses]
        if len(users) != 1 or users[0].op != op or graph.is_output(value):
            return []
        found, value = [*found, users[0]], users[0].output
    return found


def _growing(graph: Graph, value: Value) -> Node:
    """Return the only node that reads the value: a concat that appends to it, or an append that stores rows in it; the
    result is an output.
    """
    users = [user for user, _ in value.uses]
    users += [node for node in graph.nodes if node.op == "append" and node.attrs["cache"] == value.name]
    if len(users) != 1 or users[0].op not in ("concat", "append") or graph.is_output(value):
        told = ", ".join(dict.fromkeys(user.op for user in users)) or "nothing"
        raise OptionError(
            f"donate: input {value.name} is read by {told}; a cache is read by one Concat, GroupQueryAttention, "
            "TensorScatter or ScatterND alone, as docs/dynamic_shapes.md has it"
        )
    (concat,) = users
    if concat.op != "append" and (len(concat.inputs) != 2 or concat.inputs[0] is not value):
        raise _no_output(value)
    return concat


def _no_output(value: Value) -> OptionError:
    return OptionError(
        f"donate: what grows input {value.name} is no output of the model that has its new rows last; leave it out"
    )


def _sizes_input(graph: Graph, value: Value, concat: Node, number: int) -> Value:
    """Return the input that tells the length and the capacity of a cache; the capacity has no range. If all buffers
    that the runtime makes are small enough, GPU kernels index in 32 bits nevertheless, and runs check that.
    """
    is_checked = are_narrow([GROWTH * concat.output.tensor_type.num_elements])
    capacity = Symbol(
        graph.fresh_name("capacity" if not number else f"capacity_{number}"), 1, NO_LIMIT, given=not is_checked
    )
    graph.symbols = (*graph.symbols, capacity)
    length = value.tensor_type.shape[concat.attrs["axis"]]
    return graph.add_input(f"sizes_of_{capacity.name}", TensorType("bool", (length, size_of(capacity), 0)))


def _append(graph: Graph, value: Value, concat: Node, capacity: Size, place: int) -> None:
    axis, whole = concat.attrs["axis"], concat.output
    operands, attrs = concat.inputs[1:], {"at": value.tensor_type.shape[axis]}
    if concat.op == "append":
        operands, attrs = concat.inputs, {key: concat.attrs[key] for key in ("until", "clears")}
    graph.claims = (
        *graph.claims,
        Claim(capacity - whole.tensor_type.shape[axis], exact=False, reason=f"input {value.name}: room for its rows"),
    )
    emit, rank = partial(graph.emit, origins=concat.origins, insert_before=concat), whole.tensor_type.rank
    buffer = emit("append", *operands, cache=value.name, axis=axis, capacity=capacity, **attrs)
    rows = emit("slice", buffer, starts=(0,) * rank, steps=(1,) * rank, sizes=whole.tensor_type.shape)
    graph.outputs = [buffer if number == place else output for number, output in enumerate(graph.outputs)]
    graph.replace_uses(whole, rows)
    whole.name, buffer.name = buffer.name, whole.name
    graph.remove(concat)
    graph.inputs.remove(value)


def _type(value: Value) -> RuntimeType:
    type_ = runtime_type(value.type, SymbolNames())
    assert isinstance(type_, RuntimeType)
    return type_
