"""What PyTorch Inductor makes of the benchmark models: its own kernels, counted in the code that it generates.

    python -m benchmarks.inductor [--models NAME ...]

Neither a GPU nor PyTorch built for one is used: the exported program is lowered for an NVIDIA H200 with tensors that
have no data, as `torch.compile` would with its default options, and the calls in the generated program are counted.
What takes tuning on the device (which GEMM is fastest) is left at the default, ATen's. Triton must be installed, since
Inductor generates code for it: `pip install triton`.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx

from tilestitch.compiler.cli.output import table

from . import models

MODELS = ("resnet50", "mobilenetv2", "bert_base", "gpt2_small", "vit_b16", "crnn", "dien")
GPU = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=141 << 30, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block_optin=232_448, L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip
"""What Inductor asks `torch.cuda` of an H200."""
CALLS = {
    "triton": r"\btriton_\w+\.run\(",
    "gemm": r"\bextern_kernels\.(?:mm|addmm|bmm|baddbmm|_mm_plus_mm|bias_addmm)\(",
    "convolution": r"\bextern_kernels\.convolution\(",
    "attention": r"\btorch\.ops\.aten\._(?:scaled_dot_product|flash|efficient)_attention\w*\.default\("
    r"|\btorch\.ops\.aten\._scaled_dot_product_\w+_attention\.default\(",
}
"""By kind, what a launch looks like in a generated program."""
ANY_CALL = re.compile(r"\b(?:triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.\w+\.[\w.]+|\w+\.copy_)\(")
ALLOCATIONS = ("torch.ops.inductor._reinterpret_tensor", "torch.ops.inductor._alloc_from_pool")
HEADER = ("model", "launches", "Triton", "GEMM", "convolution", "attention", "other")


class InductorError(RuntimeError):
    """Inductor is not there, or generated what cannot be counted."""


@dataclass(frozen=True)
class Counts:
    """Launches of one inference by kind. `other`: copies, and ATen's own kernels of operators that Inductor leaves."""

    triton: int
    gemm: int
    convolution: int
    attention: int
    other: int

    @property
    def launches(self) -> int:
        """Calls that launch a kernel; a library may launch more than one for a call (split-K, a change of layout)."""
        return self.triton + self.gemm + self.convolution + self.attention + self.other

    @property
    def memory_bound(self) -> int:
        """All in which nothing is multiplied by a matrix."""
        return self.triton + self.other


def count(program: str) -> Counts:
    """The launches in a generated program. Raises InductorError if there are none."""
    body = program.partition("def call(")[2]
    calls = [m.group() for m in ANY_CALL.finditer(body) if not m.group().startswith(ALLOCATIONS)]
    kinds = Counter(next((kind for kind, form in CALLS.items() if re.match(form, call)), "other") for call in calls)
    if not calls:
        raise InductorError("no launch is in what Inductor generated; has this version another form of programs?")
    return Counts(*(kinds[kind] for kind in (*CALLS, "other")))


def generated(name: str) -> str:
    """The program that Inductor generates for the benchmark model `name`. Raises InductorError without Triton."""
    try:
        version("triton")
    except PackageNotFoundError as error:
        raise InductorError("Inductor needs Triton to generate code; pip install triton, and run it again") from error
    torch.manual_seed(models.SEED)
    module, inputs = models.ALL[name].build().eval(), models.ALL[name].inputs()
    exported = export(module, list(inputs.values()))
    return lower(exported.graph_module, arguments(exported, list(inputs.values())))


def export(module: torch.nn.Module, inputs: list[Tensor]) -> Any:
    """The exported program, recurrent layers unrolled: ATen's own would overwrite operands, or ask oneDNN for them."""
    aten = torch.ops.aten
    unrolled = torch._decomp.get_decompositions([aten.lstm.input, aten.gru.input])
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return torch.export.export(module, tuple(inputs)).run_decompositions(unrolled)


def arguments(exported: Any, inputs: list[Tensor]) -> list[Tensor]:
    """What the exported graph takes: parameters, buffers and constants, then `inputs`."""
    known = {**exported.state_dict, **exported.constants}
    rest = iter(inputs)
    return [known[s.target] if s.target in known else next(rest) for s in exported.graph_signature.input_specs]


def lower(module: fx.GraphModule, tensors: list[Tensor]) -> str:
    """What Inductor generates for `module`, called with `tensors`, on the GPU."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode

    _use_fused_attention(module)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    traced = _traced(module, _without_data(tensors, mode, "cpu"), mode)
    traced = joint_graph_passes(traced) or traced  # folds constants, which takes a device that exists
    _move(traced)
    data = _without_data(tensors, mode, "cuda")
    with _pretended_gpu(), torch.no_grad():
        traced = _traced(traced, data, mode)
        with mode, V.set_fake_mode(mode):
            view_to_reshape(traced)
            post_grad_passes(traced, is_inference=True)
            lowering = GraphLowering(traced, example_inputs=data, shape_env=None, is_inference=True)
            with V.set_graph_handler(lowering), DebugContext():
                lowering.run(*data)
                code = lowering.codegen()[0]
    return str(getattr(code, "value", code))


def _traced(module: Callable[..., Any], tensors: list[Tensor], mode: Any) -> fx.GraphModule:
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with mode, torch.no_grad():
        return make_fx(lambda *given: module(*given), decomposition_table=select_decomp_table())(*tensors)


def _without_data(tensors: list[Tensor], mode: Any, device: str) -> list[Tensor]:
    place = torch.device(device, 0) if device != "cpu" else torch.device(device)
    with mode:
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=place) for t in tensors]


def _move(module: fx.GraphModule) -> None:
    """Tensors that the graph makes, and constants that it holds, lie on the GPU."""
    for node in module.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    module.recompile()


def _use_fused_attention(module: fx.GraphModule) -> None:
    """What ATen dispatches float32 attention to on a GPU, which cannot be asked here."""
    aten = torch.ops.aten
    for node in list(module.graph.nodes):
        if node.target is aten.scaled_dot_product_attention.default:
            node.target = _efficient_attention
        elif node.target is aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()


def _efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    aten = torch.ops.aten
    if mask is not None and mask.dtype == torch.bool:
        mask = aten.mul.Scalar(aten._to_copy.default(aten.logical_not.default(mask), dtype=query.dtype), -3.4e38)
    if mask is not None:
        mask = mask.expand(*query.shape[:-1], key.shape[-2])
    attend = aten._scaled_dot_product_efficient_attention.default
    return attend(query, key, value, mask, False, dropout, is_causal, scale=scale)[0]


@contextlib.contextmanager
def _pretended_gpu() -> Iterator[None]:
    """Inductor finds an H200 where it asks for one. Nothing is run on it."""
    from torch._inductor.runtime.hints import DeviceProperties

    properties = DeviceProperties(
        type="cuda", index=0, multi_processor_count=GPU.multi_processor_count, cc=90, major=GPU.major,
        regs_per_multiprocessor=GPU.regs_per_multiprocessor, warp_size=GPU.warp_size,
        max_threads_per_multi_processor=GPU.max_threads_per_multi_processor,
    )  # fmt: skip
    interface = "torch._dynamo.device_interface.CudaInterface"
    answers = {
        "torch._inductor.runtime.hints.DeviceProperties.create": lambda device: properties,
        "torch.cuda.get_device_properties": lambda *_: GPU,
        "torch.cuda.get_device_capability": lambda *_: (GPU.major, GPU.minor),
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda._lazy_init": lambda: None,
        "torch.utils._triton.triton_backend": lambda: SimpleNamespace(hash=lambda: "h200"),
        f"{interface}.get_compute_capability": staticmethod(lambda *_: 90),
        f"{interface}.Worker.get_device_properties": staticmethod(lambda *_: GPU),
    }
    with contextlib.ExitStack() as stack:
        for target, answer in answers.items():
            stack.enter_context(mock.patch(target, answer))
        yield


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "triton", "transformers")}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inductor", description="Count Inductor's launches.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.models:
        found = count(generated(name))
        rows.append((name, found.launches, found.triton, found.gemm, found.convolution, found.attention, found.other))
        print("  ".join(map(str, rows[-1])), file=sys.stderr)
    print(table(rows, HEADER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
