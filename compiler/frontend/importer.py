"""Loading, checking and converting an ONNX model."""

from __future__ import annotations

import os
import stat
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import FunctionProto, ModelProto, NodeProto, ValueInfoProto

from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, Graph, Kind, TensorType, Type, Value, kind_of
from tilestitch.compiler.ir.claims import Claim, noting
from tilestitch.compiler.ir.sizes import Size, Symbol, is_empty_without, size_of, symbols_of
from tilestitch.compiler.ir.substitute import change_ranges
from tilestitch.compiler.ir.symbol_uses import idle_symbols, remove_dead
from tilestitch.compiler.ir.types import is_static_tensor

from .builder import Builder
from .checking import check_model, with_foreign_set
from .dispatch import convert_node, require_supported
from .errors import ConversionError, DeclarationWarning, ModelError, SizesClashError
from .found_sizes import ANY, required
from .functions import check_expanded_size
from .onnx_types import from_type_proto
from .ordering import in_order
from .scope import Choosing, FunctionKey, Module, Scope, canonical_domain
from .symbols import Range, Ranks, Symbols, names_in
from .walks import all_tensors, names_read, node_tensors, subgraphs

Shapes = Mapping[str, Sequence[int]]

MOST_ROUNDS = 32
"""Most conversions of a model whose operators reveal more and more about its open dimensions."""

MOST_TRIED = 8
"""Most sets of open dimensions that are tried as 1 until one satisfies all nodes."""

MOST_BYTES = 1 << 47
"""Most bytes of one tensor: the address space of a process."""


@dataclass(frozen=True)
class ImportedModel:
    """A model as a graph of primitives.

    `input_names` and `output_names` are the model's own; values of `graph` bear the same names where that is possible
    (an output that is also an input, or appears twice, cannot), so match by position. `opsets` maps domain to version.
    `joined`: open dimensions that are assumed equal to others, or to a number, although they might be 1. `known`:
    the sizes of other open dimensions, in symbols of the graph. `emptied`: sizes of open dimensions that are excluded
    because a tensor in the model would be empty, or is assumed longer than 1 in a broadcast. `few`: dimensions that are
    computed differently up to this size. `met`: those of `joined` that sizes which only a run can tell are assumed to
    equal.
    """

    graph: Graph
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    opsets: Mapping[str, int]
    metadata: Mapping[str, str]
    joined: tuple[str, ...] = ()
    known: Mapping[str, Size] = field(default_factory=dict)
    emptied: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    few: Mapping[str, int] = field(default_factory=dict)
    met: frozenset[str] = frozenset()

    def empty_with(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the other open dimensions that are 0 where these are."""
        zeros = tuple(names)
        return tuple(name for name, size in self.known.items() if is_empty_without(size, *zeros))


def import_model(
    model: str | os.PathLike[str] | ModelProto,
    shapes: Shapes | None = None,
    *,
    ranges: Mapping[str, Range] | None = None,
    expose: Sequence[str] = (),
    folder: Path | None = None,
) -> ImportedModel:
    """Convert an ONNX model (a path, or a ModelProto with external tensors in `folder`) to primitives.

    `shapes`: static sizes of inputs by name; a named dimension set by one input is set in all others. Dimensions that
    stay open become symbols with the `ranges` given by the dimensions' names, or `DEFAULT_RANGE`; if `ranges` is None,
    they are names of sizes that only a run can tell. `expose`: ONNX values of the main graph to add to the outputs.

    Raises ModelError for bad files, models and shapes, UnsupportedOperatorsError, which names all operators that are
    missing, and ConversionError for a node that cannot be expressed.
    """
    return convert_checked(checked_model(model, folder), shapes, ranges=ranges, expose=expose)


@dataclass(frozen=True)
class CheckedModel:
    """An ONNX model that was read and checked, to be converted for several sets of sizes."""

    proto: ModelProto
    module: Module
    opsets: Mapping[str, int]


def checked_model(
    model: str | os.PathLike[str] | ModelProto, folder: Path | None = None, *, choosing: Choosing | None = None,
    donated: Sequence[str] = (),
) -> CheckedModel:  # fmt: skip
    """Read and check a model; arguments and errors as for `import_model`. `choosing`, `donated`: as of `Module`."""
    proto, path = (model, None) if isinstance(model, ModelProto) else (load_model(Path(model)), Path(model))
    _check_complete(proto, "the ModelProto given")
    _check_text(proto.graph.node)
    for function in proto.functions:
        _check_text(function.node)
    given, proto = proto, with_foreign_set(in_order(proto))
    functions = _local_functions(proto)
    _check_versions(proto)
    check_expanded_size(proto, functions)
    require_supported(proto, functions)
    check_model(proto, path if proto is given else None)
    _check_output_names(proto)
    opsets = {canonical_domain(o.domain): o.version for o in proto.opset_import}
    folder = path.parent if path else folder
    module = Module(convert_node, functions, folder, names_read(proto), choosing=choosing, donated=donated)
    return CheckedModel(proto, module, opsets)


def convert_checked(
    model: CheckedModel,
    shapes: Shapes | None = None,
    *,
    ranges: Mapping[str, Range] | None = None,
    expose: Sequence[str] = (),
    whole: bool = False,
) -> ImportedModel:
    """Convert a checked model; arguments and errors as for `import_model`. `whole`: the ranges keep the sizes at which
    a tensor in the model is empty.
    """
    scope, symbols, ones = _fitting(model, dict(shapes or {}), ranges, whole)
    proto, opsets, graph = model.proto, model.opsets, scope.graph
    _check_outputs(proto, graph.outputs)
    graph.outputs = [*graph.outputs, *(_exposed(scope, name) for name in expose)]
    output_names = (*(o.name for o in proto.graph.output), *expose)
    _name_outputs(graph, output_names)
    _require_least(graph)
    remove_dead(graph)
    _check_sizes(graph)
    input_names, metadata = tuple(v.name for v in graph.inputs), _metadata(proto)
    if symbols is None:
        return ImportedModel(graph, input_names, output_names, opsets, metadata)
    emptied = {name: range_ for name, range_ in symbols.emptied.items() if name in symbols.by_name}
    return ImportedModel(
        graph,
        input_names,
        output_names,
        opsets,
        metadata,
        joined=tuple(dict.fromkeys((*symbols.joins(), *symbols.sums, *ones))),
        known=symbols.known_of_inputs,
        emptied=emptied,
        few=symbols.few,
        met=frozenset(symbols.met),
    )


def _fitting(
    model: CheckedModel, shapes: dict[str, Sequence[int]], ranges: Mapping[str, Range] | None, whole: bool
) -> tuple[Scope, Symbols | None, tuple[str, ...]]:
    """Convert the main graph. Where sizes that are assumed equal, as they meet in a broadcast, do not fit another node,
    one of them is 1 instead. Where a node needs a rank that depends on sizes, these are claimed to differ or to be
    equal. Also returns the names of those that may be 1.
    """
    if ranges is None:
        return _converted(model, shapes, None), None, ()
    refused: ConversionError | None = None
    tries: list[tuple[frozenset[str], Ranks]] = [(frozenset(), "any")]
    for ones, ranks in islice(tries, MOST_TRIED):
        symbols = Symbols(ranges, whole=whole, known=dict.fromkeys(ones, 1), ranks=ranks)
        try:
            scope = _converted(model, shapes, symbols)
        except SizesClashError as error:
            refused = refused or error
            more = ((ones | {name}, ranks) for name in reversed(symbols.joins()) if symbols.may_be_1(name))
            tries.extend(each for each in more if each not in tries)
        except ConversionError as error:  # a node may need a rank that depends on sizes
            if ranks == "any" and not symbols.unranked:
                raise
            refused = refused or error
            if ranks == "any":
                tries += [(ones, "claimed"), (ones, "claimed otherwise")]
        else:
            return scope, symbols, tuple(dict.fromkeys(chain(*(names for names, _ in tries))))
    assert refused is not None
    raise refused


def _converted(model: CheckedModel, shapes: dict[str, Sequence[int]], symbols: Symbols | None) -> Scope:
    """Convert the main graph, with its outputs. Its operators' claims on open dimensions are applied from the start:
    where new ones appear, the model is converted anew.
    """
    proto = model.proto
    for _ in range(MOST_ROUNDS):
        claims: dict[Claim, None] = {}
        graph = Graph(proto.graph.name or "main")
        module = replace(model.module, main=graph, counters={}, named=set(), shapes=shapes)
        scope = Scope(module, graph, model.opsets)
        with noting(claims.setdefault), nullcontext() if symbols is None else symbols.in_force():
            _add_inputs(scope, proto, shapes, symbols)
            if symbols is not None:
                symbols.check_ranges()
            scope.graph.outputs = scope.body(proto.graph)
        if symbols is None or not (symbols.learned(claims) or symbols.without_empty(_sizes_of_results(scope.graph))):
            break
    if symbols is not None:
        used = symbols_of(_sizes_in(scope.graph))
        scope.graph.symbols = tuple(s for s in symbols.by_name.values() if s in used)
        scope.graph.claims = tuple(claims)
        change_ranges(scope.graph, {s.name: _or_empty(s) for s in symbols.by_name.values() if s.low == 0})
    return scope


def _require_least(graph: Graph) -> None:
    """Let runs find sizes that are taken to be at least 1, where nothing else needs to know them."""
    for symbol, maker in idle_symbols(graph).items():
        if symbol.low and not symbol.or_empty:
            b = Builder(graph, maker.origins)
            required(b, b.size(size_of(symbol)), [ANY])


def _sizes_in(graph: Graph) -> Iterator[Any]:
    """Return the dimensions of all values, except in nested graphs."""
    values = (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))
    return (d for v in values if isinstance(v.type, TensorType) for d in v.type.shape)


def _sizes_of_results(graph: Graph) -> Iterator[Any]:
    """Return the dimensions of values that are certainly stored, and of results of matmuls, convolutions and
    reductions, whose kernels need elements; in branches and loops too, which have kernels of their own.
    """
    work = (v for node in graph.nodes if kind_of(node.op) in (Kind.CONTRACTION, Kind.REDUCTION) for v in node.outputs)
    yield from (d for v in (*graph.outputs, *work) if isinstance(v.type, TensorType) for d in v.type.shape)
    for body in graph.subgraphs():
        yield from _sizes_of_results(body)


def _or_empty(symbol: Symbol) -> Symbol:
    return replace(symbol, low=1, or_empty=True)


def load_model(path: Path, *, external_data: bool = False) -> ModelProto:
    """Return the model in a file; with `external_data`, including its tensors in other files. Raises ModelError."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # some are endless
            raise ModelError(f"{path} is a device; give the path of an ONNX file")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; give the path of an ONNX file") from error
    proto = parse_model(data, str(path))
    if external_data:
        try:
            onnx.load_external_data_for_model(proto, str(path.parent))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(
                f"{path}: its external data cannot be read ({error}); put the files next to the model"
            ) from error
    return proto


def parse_model(data: bytes, where: str) -> ModelProto:
    """Return the model in the bytes of an ONNX file. Raises ModelError that names `where` they are from."""
    if not data:
        raise ModelError(f"{where} is empty; export the model again")
    try:
        proto = ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{where} is not an ONNX model, or is truncated ({error}); export or download it again"
        ) from error
    _check_complete(proto, where)
    return proto


def _check_complete(proto: ModelProto, where: str) -> None:
    """Raise ModelError for an empty message, which protobuf also reads from arbitrary files without known fields."""
    if not proto.graph.output or not proto.opset_import:
        raise ModelError(
            f"{where} is not an ONNX model: it holds no graph with outputs or names no operator set; export it again"
        )


def external_files(path: Path) -> list[Path]:
    """Return the files beside a model that hold its tensors, whether they exist or not. Raises ModelError."""
    proto = load_model(path)
    nodes = [node for function in proto.functions for node in function.node]
    tensors = (*all_tensors(proto.graph), *(tensor for node in nodes for tensor in node_tensors(node)))
    places = [entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"]
    return [path.parent / place for place in dict.fromkeys(places) if place and "\0" not in place]


def _check_text(nodes: Iterable[NodeProto]) -> None:
    """Raise ModelError for names that are not UTF-8, as in damaged files: protobuf returns them as bytes."""
    for node in nodes:
        if not all(isinstance(t, str) for t in (node.name, node.op_type, node.domain, *node.input, *node.output)):
            raise ModelError(
                f"the names of node {node.name!r} are not UTF-8 text; the file is damaged, export it again"
            )
        for inner in subgraphs(node):
            _check_text(inner.node)


def _check_versions(proto: ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        if canonical_domain(entry.domain) == "" and entry.version > newest:
            raise ModelError(
                f"the model uses operator set {entry.version}, but onnx {onnx.__version__} knows sets up to {newest}; "
                "upgrade the onnx package or export the model for an older set"
            )
    entries = [*proto.opset_import, *(o for function in proto.functions for o in function.opset_import)]
    for entry in entries:
        if not 1 <= entry.version < 1 << 31:
            raise ModelError(f"operator set version {entry.version} of domain {entry.domain!r} is out of range")


def _local_functions(proto: ModelProto) -> dict[FunctionKey, FunctionProto]:
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in proto.functions:
        key = (canonical_domain(function.domain), function.name, getattr(function, "overload", ""))
        if key in functions:
            raise ModelError(f"the model defines function {function.domain}.{function.name} twice; remove one")
        functions[key] = function
    return functions


def _metadata(proto: ModelProto) -> dict[str, str]:
    fields = {"producer_name": proto.producer_name, "producer_version": proto.producer_version, "domain": proto.domain}
    fields["ir_version"] = str(proto.ir_version)
    fields |= {f"metadata.{p.key}": p.value for p in proto.metadata_props}
    return {k: v for k, v in fields.items() if v}


# -- inputs --------------------------------------------------------------------------------------------------------


def _add_inputs(scope: Scope, proto: ModelProto, shapes: dict[str, Sequence[int]], symbols: Symbols | None) -> None:
    constants = {t.name for t in proto.graph.initializer}
    formal = [i for i in proto.graph.input if i.name not in constants]
    unknown = [name for name in shapes if name not in {i.name for i in formal}]
    if unknown:
        raise ModelError(
            f"shapes are given for {', '.join(unknown)}; give them for inputs of the model: "
            f"{', '.join(i.name for i in formal)}"
        )
    types = [_input_type(i, shapes.get(i.name)) for i in formal]
    sizes = _symbol_sizes(formal, shapes)
    if symbols is not None:
        symbols.names = names_in(types)
    for info, type_ in zip(formal, types, strict=True):
        static = _substituted(type_, sizes)
        known = static if symbols is None else symbols.typed(static, info.name)
        scope.bind(info.name, scope.graph.add_input(info.name, known))


def _declared(info: ValueInfoProto) -> Type:
    if not info.type.WhichOneof("value"):
        raise ModelError(f"input {info.name!r} has no type; export the model again")
    return from_type_proto(info.type)


def _input_type(info: ValueInfoProto, shape: Sequence[int] | None) -> Type:
    declared = _declared(info)
    if shape is None:
        return declared
    if any(d < 0 for d in shape):
        raise ModelError(
            f"the shape {tuple(shape)} given for input {info.name!r} has a negative size; give sizes of 0 or more"
        )
    if isinstance(declared, AnyRankTensor):
        return TensorType(declared.dtype, tuple(shape))
    if not isinstance(declared, TensorType):
        raise ModelError(f"a shape is given for input {info.name!r}, but its type is {declared}; leave it out")
    fits = len(shape) == declared.rank and all(
        isinstance(d, str) or d == s for d, s in zip(declared.shape, shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"the shape {tuple(shape)} given for input {info.name!r} does not fit its declared type {declared}; "
            "give a shape of this rank, with its fixed sizes"
        )
    return declared.with_shape(tuple(shape))


def _symbol_sizes(formal: Sequence[ValueInfoProto], shapes: Shapes) -> dict[str, int]:
    """Return the sizes of named dimensions that the given shapes imply."""
    sizes: dict[str, int] = {}
    for info in formal:
        declared = _declared(info)
        if info.name not in shapes or not isinstance(declared, TensorType):
            continue
        for dim, size in zip(declared.shape, shapes[info.name], strict=True):
            if isinstance(dim, int) or dim == UNKNOWN:
                continue
            if sizes.setdefault(dim, size) != size:
                raise ModelError(
                    f"the given shapes make dimension {dim!r} both {sizes[dim]} and {size} (input {info.name!r})"
                )
    return sizes


def _substituted(type_: Type, sizes: Mapping[str, int]) -> Type:
    if not isinstance(type_, TensorType):
        return type_
    return type_.with_shape(tuple(sizes.get(d, d) if isinstance(d, str) else d for d in type_.shape))


# -- outputs -------------------------------------------------------------------------------------------------------


def _check_output_names(proto: ModelProto) -> None:
    """Raise ModelError for two outputs of one name: results are returned by name."""
    names = Counter(o.name for o in proto.graph.output)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ModelError(f"the model has several outputs named {', '.join(twice)}; remove all but one of each")


def _check_outputs(proto: ModelProto, outputs: Sequence[Value]) -> None:
    """Check declared outputs: raises ModelError for another kind or dtype, and warns about rank and sizes, since
    converters of other libraries declare vectors and compute columns.
    """
    for info, value in zip(proto.graph.output, outputs, strict=True):
        if not info.type.WhichOneof("value"):
            continue
        declared = from_type_proto(info.type)
        if (
            type(declared) is not type(value.type)
            and not isinstance(declared, AnyRankTensor)
            and not isinstance(value.type, AnyRankTensor)
        ):
            raise _contradiction(info.name, declared, value)
        if getattr(declared, "dtype", None) != getattr(value.type, "dtype", None):
            raise _contradiction(info.name, declared, value)
        if isinstance(declared, TensorType) and isinstance(value.type, TensorType):
            problem = _other_shape(declared, value.type)
            if problem:
                warnings.warn(
                    f"output {info.name!r} is declared as {declared}, but what the model computes has {problem}, and "
                    "is given as it is; correct the declaration or export again",
                    DeclarationWarning,
                    stacklevel=3,
                )


def _other_shape(declared: TensorType, computed: TensorType) -> str:
    """Return how a shape certainly differs from its declaration; empty for sizes that only a run can tell, and where
    open ones are 0: a -1 of a Reshape is 0 then, too.
    """
    if declared.rank != computed.rank:
        return f"{computed.rank} dimensions"
    if any(isinstance(a, str) and b == 0 for a, b in zip(declared.shape, computed.shape, strict=True)):
        return ""
    for axis, (a, b) in enumerate(zip(declared.shape, computed.shape, strict=True)):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            return f"size {b} in dimension {axis}"
    return ""


def _check_sizes(graph: Graph) -> None:
    """Raise ModelError for a tensor beyond the address space: the kernels' 64-bit indices would overflow."""
    for value in (*graph.inputs, *(output for node in graph.nodes for output in node.outputs)):
        if is_static_tensor(value.type) and value.tensor_type.nbytes > MOST_BYTES:
            raise ModelError(
                f"value {value.name!r} is {value.type}, {value.tensor_type.nbytes:.1e} bytes: more than a process can "
                "address; correct the shapes of the model, or those given with --shape"
            )


def _contradiction(name: str, declared: Type, value: Value) -> ModelError:
    return ModelError(
        f"output {name!r} is declared as {declared}, but the model computes {value.type}; "
        "correct the declaration or export again"
    )


def _exposed(scope: Scope, name: str) -> Value:
    value = scope.lookup(name)
    if value is None:
        raise ModelError(f"value {name!r} is to be exposed, but it is an omitted optional")
    return value


def _name_outputs(graph: Graph, names: Sequence[str]) -> None:
    """Rename output values with generated names to the model's names where these are free."""
    inputs, wanted = set(graph.inputs), set(names)
    taken = {v.name for n in graph.nodes for v in n.outputs} | {v.name for v in inputs}
    for value, name in zip(graph.outputs, names, strict=True):
        if value not in inputs and value.name not in wanted and name not in taken:
            value.name = name
            taken.add(name)
