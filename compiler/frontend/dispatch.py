"""Dispatch of a node to the way in which it is converted.

In order: a function of the model; the operator's own converter; its run-time form in `converters.dynamic`, when the
converter needs a value that is known only at run time; the function body by which ONNX defines the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import FunctionProto, ModelProto, NodeProto

from tilestitch.compiler.ir import Graph, IRError, Value
from tilestitch.compiler.ir.claims import because
from tilestitch.compiler.ir.errors import UndecidedError

from .context import Context, Converted, Converter, Versioned, check_limits
from .converters import CONVERTERS
from .converters.dynamic import DYNAMIC
from .errors import ConversionError, InvalidNodeError, NotStatic, SizesClashError, UnsupportedOperatorsError
from .functions import attribute_defaults, has_schema_function, inline_function, plain_schema_function, schema_function
from .scope import FunctionKey, Scope, canonical_domain, function_key
from .symbols import symbols_in_force
from .walks import subgraphs


def find_converter(table: Mapping[str, Sequence[Versioned]], op_type: str, opset: int) -> Converter | None:
    """Return the newest converter that is right for `opset`."""
    fitting = [(since, convert) for since, convert in table.get(op_type, ()) if since <= opset]
    return max(fitting, key=lambda entry: entry[0])[1] if fitting else None


def convert_node(scope: Scope, node: NodeProto, name: str) -> None:
    """Convert one node in `scope` and bind its outputs.

    Raises ConversionError, naming the node, if it cannot be expressed: InvalidNodeError if it violates ONNX's
    definition, SizesClashError if assumptions on open dimensions may be the cause.
    """
    inputs = [scope.lookup(i) if i else None for i in node.input]
    try:
        with because(f"ONNX node {name} ({node.op_type})"):
            outputs = _outputs(scope, node, name, inputs)
    except NotStatic as error:
        raise ConversionError(
            f"node {name!r} ({node.op_type}): {error}. If the size of an input is missing, "
            "give it with --shape NAME=…; otherwise make the operand a constant in the model"
        ) from error
    except (IRError, ValueError, IndexError, TypeError, KeyError, ArithmeticError) as error:
        # Converters rely on the ranks and counts that ONNX prescribes; a node that violates them ends up here.
        raise _misfit(f"node {name!r} ({node.op_type})", scope.module.shapes, error) from error
    except MemoryError as error:
        raise ConversionError(
            f"node {name!r} ({node.op_type}): there is no memory to compute its result when compiling ({error}); "
            "correct the sizes that its operands ask for"
        ) from error
    for index, output in enumerate(node.output):
        if output:
            value = outputs[index] if index < len(outputs) else None
            scope.bind(output, value)


def _misfit(node: str, shapes: Mapping[str, Sequence[int]], error: Exception) -> ConversionError:
    symbols = symbols_in_force()
    sizes = "" if symbols is None else symbols.in_words()
    if not sizes and shapes:
        given = ", ".join(f"{name} of {list(shape)}" for name, shape in shapes.items())
        return InvalidNodeError(
            f"{node}: its operands or attributes do not fit ONNX's definition ({error}) where these shapes are given: "
            f"{given}; give others if the model is for others, else correct the node"
        )
    if not sizes:
        return InvalidNodeError(
            f"{node}: its operands or attributes do not fit ONNX's definition ({error}); "
            "correct the node, or export the model again"
        )
    return SizesClashError(
        f"{node}: its operands do not fit each other ({error}) where {sizes}, which other nodes or the ranges ask for; "
        "give other sizes with --dim NAME=LOW..HIGH or --shape, or correct the model"
    )


def _outputs(scope: Scope, node: NodeProto, name: str, inputs: list[Value | None]) -> Sequence[Value | None]:
    function = scope.module.functions.get(function_key(node))
    if function is not None:
        return inline_function(scope, function, node, name, inputs, {})
    opset = scope.opset(node.domain)
    if opset is None:
        raise ConversionError(
            f"node {name!r} ({node.op_type}): the model imports no operator set of domain {node.domain!r}"
        )
    candidates = _candidates(node, opset)
    reason: NotStatic | None = None
    for convert in candidates:
        mark = len(scope.graph)
        try:
            context = Context(scope, node, name, inputs, opset)
            check_limits(context)
            return _as_list(convert(context))
        except (NotStatic, UndecidedError) as error:
            # The first reason is the one that a user can act on.
            reason = reason or NotStatic(str(error))
            _undo(scope.graph, mark)
    body = schema_function(node, opset, inputs)
    if body is not None:
        return inline_function(scope, body, node, name, inputs, attribute_defaults(node, opset))
    if reason is not None:
        raise reason
    raise UnsupportedOperatorsError({operator_name(node, opset): [name]})


def _candidates(node: NodeProto, opset: int) -> list[Converter]:
    domain = canonical_domain(node.domain)
    static = find_converter(CONVERTERS.get(domain, {}), node.op_type, opset)
    dynamic = find_converter(DYNAMIC, node.op_type, opset) if domain == "" else None
    return [c for c in (static, dynamic) if c is not None]


def _as_list(converted: Converted) -> Sequence[Value | None]:
    return [converted] if isinstance(converted, Value) else converted


def _undo(graph: Graph, mark: int) -> None:
    for node in reversed(graph.nodes[mark:]):
        graph.remove(node)


# -- what is missing ---------------------------------------------------------------------------------------------


def operator_name(node: NodeProto, opset: int | None) -> str:
    """`domain.Op (opset N)`, as error messages name operators."""
    domain = canonical_domain(node.domain)
    version = "none imported" if opset is None else str(opset)
    later = [since for since, _ in CONVERTERS.get(domain, {}).get(node.op_type, ()) if since > (opset or since)]
    version += f", defined from {min(later)} on: let the model import that" if later else ""
    return f"{domain or 'ai.onnx'}.{node.op_type} (opset {version})"


def require_supported(model: ModelProto, functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Raise one UnsupportedOperatorsError that names every node of the model that cannot be converted."""
    missing: dict[str, list[str]] = {}
    opsets = {canonical_domain(o.domain): o.version for o in model.opset_import}
    _Scan(functions, missing).nodes(model.graph.node, opsets, ())
    if missing:
        raise UnsupportedOperatorsError(missing)


class _Scan:
    """Walker over graphs and function bodies that collects operators without a conversion."""

    def __init__(self, functions: Mapping[FunctionKey, FunctionProto], missing: dict[str, list[str]]) -> None:
        self.functions = functions
        self.missing = missing
        self.visited: set[FunctionKey] = set()

    def nodes(self, nodes: Iterable[NodeProto], opsets: Mapping[str, int], path: tuple[str, ...]) -> None:
        for index, node in enumerate(nodes):
            here = (*path, node.name or f"{node.op_type}_{index}")
            for graph in subgraphs(node):
                self.nodes(graph.node, opsets, here)
            self._node(node, opsets, here)

    def _node(self, node: NodeProto, opsets: Mapping[str, int], path: tuple[str, ...]) -> None:
        key = function_key(node)
        if key in self.functions:
            self._function(key, self.functions[key], path)
            return
        opset = opsets.get(canonical_domain(node.domain))
        if opset is not None and _candidates(node, opset):
            return
        if opset is not None and has_schema_function(node.op_type, opset, canonical_domain(node.domain)):
            body = plain_schema_function(node.op_type, opset, canonical_domain(node.domain))
            if body is not None:
                self._function((f"schema {opset} {key[0]}", key[1], ""), body, path)
            return
        self.missing.setdefault(operator_name(node, opset), []).append("/".join(path))

    def _function(self, key: FunctionKey, function: FunctionProto, path: tuple[str, ...]) -> None:
        if key in self.visited:
            return
        self.visited.add(key)
        self.nodes(function.node, {canonical_domain(o.domain): o.version for o in function.opset_import}, path)
