"""Bodies of ONNX functions: the model's own, and those by which the standard defines operators; and how large a model
becomes by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, helper

from tilestitch.compiler.ir import Value

from .errors import ModelError, NotStatic
from .onnx_types import to_type_proto
from .scope import FunctionKey, Scope, canonical_domain, function_key
from .walks import subgraphs

if TYPE_CHECKING:
    from .context import Context

MAX_DEPTH = 64
"""Calls nested deeper than this count as recursion, which ONNX forbids."""
MOST_NODES = 250_000
"""Most nodes of a model with its functions expanded. Functions that call others twice grow exponentially."""


@lru_cache(maxsize=4096)
def schema_of(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    """Return the schema in force, or None if the onnx package knows none."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def has_schema_function(op_type: str, opset: int, domain: str) -> bool:
    schema = schema_of(op_type, opset, domain)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def plain_schema_function(op_type: str, opset: int, domain: str) -> FunctionProto | None:
    """Return the body that needs no operand types, or None."""
    schema = schema_of(op_type, opset, domain)
    if schema is None or not schema.has_function:
        return None
    version = _version_in_force(schema.function_opset_versions, opset)
    return FunctionProto.FromString(schema.get_function_with_opset_version(version))


def schema_function(node: NodeProto, opset: int, inputs: Sequence[Value | None]) -> FunctionProto | None:
    """Return the body that the standard gives for this node and these operand types, or None if it gives none."""
    domain = canonical_domain(node.domain)
    body = plain_schema_function(node.op_type, opset, domain)
    schema = schema_of(node.op_type, opset, domain)
    if body is not None or schema is None or not schema.has_context_dependent_function:
        return body
    version = _version_in_force(schema.context_dependent_function_opset_versions, opset)
    types = [(TypeProto() if v is None else to_type_proto(v.type)).SerializeToString() for v in inputs]
    try:
        data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    except RuntimeError as error:
        raise NotStatic(f"ONNX gives no body of {node.op_type} for these operand types ({error})") from error
    return FunctionProto.FromString(data) if data else None


def _version_in_force(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def inline_function(
    scope: Scope,
    function: FunctionProto,
    node: NodeProto,
    name: str,
    inputs: Sequence[Value | None],
    defaults: Mapping[str, AttributeProto],
) -> list[Value | None]:
    """Convert the body of `function` in place of `node`; returns its outputs. `defaults` fill missing attributes."""
    if len(scope.path) > MAX_DEPTH:
        raise ModelError(
            f"node {name!r}: calls of ONNX functions nest deeper than {MAX_DEPTH}; "
            f"{function.name} seems to be recursive, which ONNX forbids"
        )
    attributes = {a.name: a for a in function.attribute_proto} | dict(defaults) | {a.name: a for a in node.attribute}
    opsets = {canonical_domain(o.domain): o.version for o in function.opset_import}
    body = Scope(scope.module, scope.graph, opsets, path=(*scope.path, name), origins=scope.origins or (name,))
    if len(inputs) > len(function.input):
        raise ModelError(
            f"node {name!r} passes {len(inputs)} operands to {function.name}, which takes {len(function.input)}"
        )
    for i, formal in enumerate(function.input):
        body.bind(formal, inputs[i] if i < len(inputs) else None)
    body.convert_nodes(_resolved(n, attributes) for n in function.node)
    wanted = [i < len(node.output) and bool(node.output[i]) for i in range(len(function.output))]
    return [body.lookup(output) if named else None for output, named in zip(function.output, wanted, strict=True)]


def standard_operator(
    ctx: Context, op_type: str, opset: int, inputs: Sequence[Value | None], num_outputs: int, **attrs: Any
) -> list[Value | None]:
    """Convert in place an operator that ONNX defines by a function, with these operands; returns its outputs."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"y{index}" for index in range(num_outputs)], name=ctx.name, **attrs)
    body = schema_function(node, opset, inputs)
    if body is None:
        raise NotStatic(f"ONNX gives no body of {op_type} for these operand types")
    return inline_function(ctx.scope, body, node, ctx.name, inputs, attribute_defaults(node, opset))


def attribute_defaults(node: NodeProto, opset: int) -> dict[str, AttributeProto]:
    """Return the default values in the schema of `node` for its attributes."""
    schema = schema_of(node.op_type, opset, canonical_domain(node.domain))
    if schema is None:
        return {}
    return {
        n: a.default_value for n, a in schema.attributes.items() if a.default_value.type != AttributeProto.UNDEFINED
    }


def _resolved(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Return `node` with references to the function's attributes replaced by the call's values; absent ones are
    omitted.
    """
    if not _refers(node):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
            _resolve_graphs(copy.attribute[-1], attributes)
        elif attribute.ref_attr_name in attributes:
            copy.attribute.append(attributes[attribute.ref_attr_name])
            copy.attribute[-1].name = attribute.name
    return copy


def _refers(node: NodeProto) -> bool:
    return any(a.ref_attr_name or a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)


def _resolve_graphs(attribute: AttributeProto, attributes: Mapping[str, AttributeProto]) -> None:
    graphs: list[GraphProto] = [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)
    for graph in graphs:
        resolved = [_resolved(n, attributes) for n in graph.node]
        del graph.node[:]
        graph.node.extend(resolved)


def check_expanded_size(model: ModelProto, functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Raise ModelError if the model, with its functions expanded, has more than MOST_NODES nodes or is infinite."""
    sizes = _Sizes(functions)
    size = sizes.of_nodes(model.graph.node)
    if size <= MOST_NODES:
        return
    largest = max(sizes.known, key=lambda key: sizes.known[key], default=None)
    name = f", of which one call of function {largest[1]} has {sizes.known[largest]:,}" if largest else ""
    raise ModelError(
        f"the model has {size:,} nodes once its functions are expanded{name}; at most {MOST_NODES:,} are compiled: "
        "let functions call each other less often, or compile parts of the model apart"
    )


class _Sizes:
    def __init__(self, functions: Mapping[FunctionKey, FunctionProto]) -> None:
        self.functions = functions
        self.known: dict[FunctionKey, int] = {}

    def of_nodes(self, nodes: Iterable[NodeProto], callers: tuple[FunctionKey, ...] = ()) -> int:
        return sum(self._of_node(node, callers) for node in nodes)

    def _of_node(self, node: NodeProto, callers: tuple[FunctionKey, ...]) -> int:
        key = function_key(node)
        inner = sum(self.of_nodes(graph.node, callers) for graph in subgraphs(node))
        return inner + (self._of_function(key, node, callers) if key in self.functions else 1)

    def _of_function(self, key: FunctionKey, node: NodeProto, callers: tuple[FunctionKey, ...]) -> int:
        if key in callers:
            raise ModelError(
                f"node {node.name!r}: function {key[1]} calls itself, perhaps through others, which ONNX forbids; "
                "write the recursion out, or as a Loop"
            )
        if len(callers) >= MAX_DEPTH:
            raise ModelError(
                f"node {node.name!r}: calls of ONNX functions nest deeper than {MAX_DEPTH}; expand some with "
                "onnx.inliner.inline_local_functions"
            )
        if key not in self.known:
            self.known[key] = self.of_nodes(self.functions[key].node, (*callers, key))
        return self.known[key]
