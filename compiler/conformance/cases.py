"""The test cases that ship inside the onnx package."""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.loader as loader
from onnx import ModelProto, TensorProto, TypeProto, numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")

# Their expected outputs are one draw of a random generator.
NON_DETERMINISTIC = re.compile(r"bernoulli|training_dropout")

# A tensor, a list (sequence) or None (empty optional).
TestValue = Any
DataSet = tuple[Sequence[TestValue], Sequence[TestValue]]


@dataclass(frozen=True)
class Case:
    """One test. Its model is `built` (with `built_data`), or lies in `folder` or `file`."""

    name: str
    kind: str
    rtol: float
    atol: float
    built: ModelProto | None = None
    built_data: tuple[DataSet, ...] = ()
    folder: Path | None = None
    file: Path | None = None

    @cached_property
    def model(self) -> ModelProto:
        if self.built is not None:
            return self.built
        path = self.folder / "model.onnx" if self.folder is not None else self.file
        assert path is not None
        return onnx.load(path)

    def data_sets(self) -> Iterator[DataSet]:
        """Yield the pairs of inputs and expected outputs, in the model's order."""
        if self.folder is not None:
            for folder in sorted(self.folder.glob("test_data_set_*")):
                yield self._load(folder, "input"), self._load(folder, "output")
        elif self.file is not None:
            expected = [self.file.with_name(f"{self.file.stem}_output_0.pb")]
            yield _ramps(self.model), [_parse(path.read_bytes(), None) for path in expected]
        else:
            for inputs, outputs in self.built_data:
                yield [_as_array(x) for x in inputs], [_as_array(x) for x in outputs]

    def _load(self, folder: Path, role: str) -> list[TestValue]:
        infos = self.model.graph.input if role == "input" else self.model.graph.output
        paths = (folder / f"{role}_{index}.pb" for index in range(len(infos)))
        return [_parse(path.read_bytes(), info.type) for path, info in zip(paths, infos) if path.exists()]

    @property
    def operators(self) -> str:
        """The distinct operators of a small model, `A+B`; empty for a large one."""
        names = sorted({node.op_type for node in self.model.graph.node})
        return "+".join(names) if len(names) <= 4 else ""

    @property
    def element_types(self) -> tuple[int, ...]:
        """The numbers of `TensorProto.DataType` of inputs and outputs, 0 for other values than tensors."""
        values = (*self.model.graph.input, *self.model.graph.output)
        return tuple(sorted({value.type.tensor_type.elem_type for value in values}))

    def domains(self) -> set[str]:
        return {node.domain for node in self.model.graph.node}


def load_cases(kinds: Sequence[str] = KINDS) -> list[Case]:
    """Return all deterministic cases of KINDS, without those of preview operators, sorted by kind and name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = [case for kind in kinds for case in sorted(_of_kind(kind), key=lambda case: case.name)]
    return [case for case in found if not NON_DETERMINISTIC.search(case.name) and not _is_preview(case)]


def _is_preview(case: Case) -> bool:
    return case.kind != "light" and any(domain.startswith("ai.onnx.preview") for domain in case.domains())


def _of_kind(kind: str) -> Iterator[Case]:
    if kind == "light":
        yield from _light()
        return
    for test in loader.load_model_tests(kind=kind):
        folder = Path(test.model_dir) if test.model_dir is not None else None
        data = tuple(test.data_sets or ())
        yield Case(test.name, kind, test.rtol, test.atol, built=test.model, built_data=data, folder=folder)


def _light() -> Iterator[Case]:
    """Yield the Model Zoo graphs: loose files, whose inputs are generated here and whose outputs are shipped."""
    for test in loader.load_model_tests(kind="real"):
        file = Path(loader.DATA_DIR) / "light" / f"light_{test.model_name}.onnx"
        yield Case(test.name, "light", test.rtol, test.atol, file=file)


def _ramps(model: ModelProto) -> list[np.ndarray]:
    """Return the inputs from which the shipped outputs were computed: numbers rising evenly from 0 to 1."""
    initialised = {tensor.name for tensor in model.graph.initializer}
    ramps = []
    for info in model.graph.input:
        if info.name in initialised:
            continue
        shape = tuple(dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim)
        count = int(np.prod(shape))
        ramps.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    return ramps


def _parse(content: bytes, declared: TypeProto | None) -> TestValue:
    if declared is not None and declared.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if declared is not None and declared.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(TensorProto.FromString(content))


def _as_array(value: TestValue) -> TestValue:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
