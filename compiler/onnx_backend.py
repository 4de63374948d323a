"""ONNX's backend interface: `prepare`, `run_model`, `run_node`, `supports_device`, `is_compatible`.

    import tilestitch.compiler.onnx_backend as backend
    outputs = backend.prepare(model).run([x])

Models are compiled in memory, and run with one thread unless `num_threads` says otherwise. Devices are `CPU`, and
`EMULATOR`: GPU kernels on the emulated device.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from tilestitch.compiler.driver import compile_model
from tilestitch.runtime import load

__all__ = ["TilestitchBackend", "TilestitchRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

_DEVICES = ("CPU", "EMULATOR")


class TilestitchRep(BackendRep):
    """A compiled model. `model` is the loaded artifact."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.output_names = tuple(spec.name for spec in model.outputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model and return its outputs in order.

        INPUTS: a mapping by name, or values in the order of the model's inputs (a single array for one).
        """
        if kwargs:
            raise TypeError(f"run takes no {', '.join(kwargs)}")
        outputs = self.model.run(self._by_name(inputs))
        return tuple(outputs[name] for name in self.output_names)

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        names = [spec.name for spec in self.model.inputs]
        values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) > len(names):
            raise ValueError(f"{len(values)} inputs were given; the model takes {len(names)}: {', '.join(names)}")
        return dict(zip(names, values))


class TilestitchBackend(Backend):
    """The interface as ONNX's test runner expects it: a class with class methods."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether MODEL can be compiled, by compiling it."""
        try:
            cls.prepare(model, device, **kwargs)
        except Exception as error:
            if getattr(error, "exit_code", None) != 2:
                raise
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TilestitchRep:
        """Compile MODEL. KWARGS are those of `compile_model`, and `num_threads` (1) for its runs."""
        if not cls.supports_device(device):
            raise ValueError(f"device {device} is not supported; there are {' and '.join(_DEVICES)}")
        threads = kwargs.pop("num_threads", 1)
        name = device.split(":")[0].lower()
        compiled = compile_model(model, name, keep_source=name == "emulator", **kwargs)
        return TilestitchRep(load(compiled.to_bytes(), device=name, num_threads=threads))

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Compile and run NODE alone. OUTPUTS_INFO (dtype and shape of each output) helps where types cannot be
        inferred; `opset_version` among KWARGS defaults to the newest.
        """
        import numpy as np

        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        values = [np.asarray(value) for value in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        names = [name for name in node.input if name]
        if len(names) != len(values):
            raise ValueError(f"node {node.op_type} has {len(names)} inputs, but {len(values)} were given")
        given = [_info(name, value.dtype, value.shape) for name, value in zip(names, values)]
        returned = [name for name in node.output if name]
        if outputs_info is not None:
            made = [_info(name, np.dtype(dtype), shape) for name, (dtype, shape) in zip(returned, outputs_info)]
        else:
            made = _inferred(node, given, returned, opset)
        graph = helper.make_graph([node], "node", given, made)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        outputs = cls.prepare(model, device, **kwargs).run(dict(zip(names, values)))
        named: tuple[Any, ...] = namedtupledict("Outputs", returned)(*outputs)
        return named

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] in _DEVICES


def _info(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
    element = TensorProto.STRING if dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, element, shape)


def _inferred(
    node: NodeProto, given: Sequence[onnx.ValueInfoProto], returned: Sequence[str], opset: int
) -> list[onnx.ValueInfoProto]:
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    types = onnx.shape_inference.infer_node_outputs(
        schema, node, {info.name: info.type for info in given}, opset_imports=[helper.make_opsetid(node.domain, opset)]
    )
    missing = [name for name in returned if name not in types]
    if missing:
        raise ValueError(f"the types of {', '.join(missing)} cannot be inferred; give outputs_info")
    return [helper.make_value_info(name, types[name]) for name in returned]


is_compatible = TilestitchBackend.is_compatible
prepare = TilestitchBackend.prepare
run_model = TilestitchBackend.run_model
run_node = TilestitchBackend.run_node
supports_device = TilestitchBackend.supports_device
