"""Compiles GEMMs and convolutions of half floats for Hopper with every tile that there is, to be measured.

Which tile is best for which shape is what planning only guesses (`speed` of the tiles). An entry lists the kernels of
a shape: launches as in a program, whose values are numbered as in `VALUES`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.device.cards import CARDS
from tilestitch.codegen.cuda.abi import CountersArg, CudaLaunch, TemporaryArg, TensorMapArg, ValueArg
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul
from tilestitch.codegen.cuda.gemm.conv import conv_geometry, indexed_conv
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.gemm.mma import emit_mma
from tilestitch.codegen.cuda.gemm.tma import cut_to_patches
from tilestitch.codegen.cuda.gemm.wgmma import emit_wgmma
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.codegen.cuda.target import CudaTarget, parse_cuda_target
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.codegen.kernel_cache import KernelCache, default_folder
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import find_device
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import MmaTile, WgmmaTile
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda.gemm import (
    choose_among,
    persistent_blocks,
    suits,
    tiled_schedules,
    wgmma_schedules,
)
from tilestitch.passes.schedule.cuda.gemm_tiles import WGMMA_TILES
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.runtime import program as rt
from tilestitch.runtime.members import cubin_member

TARGET = "cuda:h200"
VALUES = ("a", "b", "y", "bias", "sums", "counters")


@dataclass(frozen=True)
class Shape:
    """result [batch, m, n] = a [batch, m, k] * b; b is [batch, n, k] if trans_b, else [batch, k, n].

    epilogue: a bias for each column, and GELU.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    trans_b: bool = False
    dtype: str = "float16"
    epilogue: bool = False


@dataclass(frozen=True)
class Convolution:
    """Channels-last images [images, size, size, channels] and filters [kernel, kernel, channels, filters]; the padding
    keeps the size where the stride is 1.
    """

    name: str
    images: int
    size: int
    channels: int
    filters: int
    kernel: int = 3
    stride: int = 1
    dtype: str = "float16"
    epilogue: bool = False


SHAPES: tuple[Shape | Convolution, ...] = (
    *(Shape(f"square {size}", size, size, size) for size in (1024, 2048, 4096, 8192)),
    Shape("square 4096, weights [n, k]", 4096, 4096, 4096, trans_b=True),
    Shape("square 4096, bfloat16", 4096, 4096, 4096, dtype="bfloat16"),
    Shape("BERT-base up, 32 x 128 tokens", 4096, 3072, 768, epilogue=True),
    Shape("BERT-base down, 32 x 128 tokens", 4096, 768, 3072),
    *(Shape(f"GPT-3 up, 1 of 8, {tokens} tokens", tokens, 6144, 12288, epilogue=True) for tokens in (16, 128, 1024)),
    *(Shape(f"GPT-3 down, 1 of 8, {tokens} tokens", tokens, 12288, 6144) for tokens in (16, 128, 1024)),
    *(Shape(f"LLaMA 65B up, 1 of 8, {tokens} tokens", tokens, 2752, 8192) for tokens in (128, 1024)),
    Shape("tall k", 256, 256, 65536),
    Shape("attention scores", 512, 512, 64, batch=96, trans_b=True),
    *(
        Convolution(f"ResNet-50, {size} x {size} pixels, {images} images", images, size, channels, channels)
        for images in (1, 32)
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))
    ),
    Convolution("ResNet-50, 1 x 1, 32 images", 32, 14, 256, 1024, kernel=1),
    Convolution("ResNet-50, 3 x 3 with stride 2, 32 images", 32, 28, 256, 256, stride=2),
    Convolution("GoogLeNet, 96 channels, 32 images", 32, 28, 96, 128),
)  # fmt: skip


def _gelu(graph: Graph, x: Value) -> Value:
    def number(value: float) -> Value:
        return graph.constant(np.array(value, np.dtype(x.dtype)))

    bent = graph.emit("add", graph.emit("erf", graph.emit("mul", x, number(0.5**0.5))), number(1.0))
    return graph.emit("mul", graph.emit("mul", x, number(0.5)), bent)


def group_of(shape: Shape | Convolution, target: CudaTarget) -> Anchored:
    """The GEMM and its epilogue as one group."""
    graph = Graph()
    made = _conv(graph, shape) if isinstance(shape, Convolution) else _matmul(graph, shape)
    inputs = list(graph.inputs)
    if shape.epilogue:
        inputs.append(graph.add_input("bias", TensorType(shape.dtype, (made.shape[-1],))))
        made = _gelu(graph, graph.emit("add", made, inputs[-1]))
    graph.outputs = [made]
    roles = roles_of(tuple(graph.nodes), (made,), "g")
    assert isinstance(roles, Roles), roles
    return Anchored(tuple(graph.nodes), roles, tuple(inputs), (made,), target)


def _matmul(graph: Graph, shape: Shape) -> Value:
    lead = (shape.batch,) if shape.batch > 1 else ()
    a = graph.add_input("a", TensorType(shape.dtype, (*lead, shape.m, shape.k)))
    right = (shape.n, shape.k) if shape.trans_b else (shape.k, shape.n)
    b = graph.add_input("b", TensorType(shape.dtype, (*lead, *right)))
    return graph.emit("matmul", a, b, trans_b=shape.trans_b)


def _conv(graph: Graph, shape: Convolution) -> Value:
    a = graph.add_input("a", TensorType(shape.dtype, (shape.images, shape.size, shape.size, shape.channels)))
    filters = (shape.kernel, shape.kernel, shape.channels, shape.filters)
    b = graph.add_input("b", TensorType(shape.dtype, filters))
    pad, one = (shape.kernel // 2,) * 2, (1, 1)
    return graph.emit(
        "conv", a, b, strides=(shape.stride,) * 2, before=pad, after=pad, dilations=one, groups=1, layout="NXC"
    )


def gemm_of(group: Anchored) -> IndexedGemm:
    if group.anchor.op == "matmul":
        return indexed_matmul(group)
    return indexed_conv(group, conv_geometry(group.anchor))


def candidates(group: Anchored) -> Iterator[tuple[dict[str, Any], tuple[CudaLaunch, ...]]]:
    """Every kernel worth measuring, and what it is."""
    gemm, model = gemm_of(group), AnalyticalModel()
    device = group.target.device
    plans = {card: planned_on(gemm, card) for card in CARDS}
    for tile in WGMMA_TILES:
        own = cut_to_patches(gemm, tile.bm)
        if not suits(tile, own) or (tile.bm > 64 and tile.bm >= 2 * gemm.m):
            continue
        for parts in sorted({1, *(plan.split_k for plan in plans.values() if plan.tile == tile)}):
            cards = [card for card, plan in plans.items() if (plan.tile, plan.split_k) == (tile, parts)]
            partition = cut(own, (tile.bm, tile.bn, tile.bk), parts)
            blocks = persistent_blocks(tile, partition, device)
            yield _named(tile, parts, cards), emit_wgmma(group, own, tile, partition, blocks)
    mma = choose_among(gemm, tiled_schedules(gemm, Gpu.of(group.target.planned_for)), device, model)
    assert isinstance(mma.tile, MmaTile)
    partition = cut(gemm, (mma.tile.bm, mma.tile.bn, mma.tile.bk), mma.split_k)
    yield {"kernel": "gemm_mma", "planned": []}, emit_mma(group, gemm, mma.tile, partition)


def planned_on(gemm: IndexedGemm, card: str) -> GemmSchedule:
    """What the compiler takes of the kernels with wgmma where this card is the target."""
    device = find_device(card)
    return choose_among(gemm, wgmma_schedules(gemm, device), device, AnalyticalModel())


def _named(tile: WgmmaTile, parts: int, planned: list[str]) -> dict[str, Any]:
    """planned: the cards for which this kernel is what the compiler takes."""
    facts = {name: value for name, value in asdict(tile).items() if name != "bk"}
    return {"kernel": "gemm_wgmma", **facts, "parts": parts, "planned": planned}


def device_launch(launch: CudaLaunch, symbol: str, output: str) -> rt.DeviceLaunch:
    """The launch as a program has it, with `VALUES` for values."""

    def argument(arg: Any) -> rt.Arg:
        match arg:
            case TensorMapArg(over, tensor_map, offset_bytes):
                return rt.Arg(argument(over).value, offset_bytes, tensor_map)
            case ValueArg(name):
                return rt.Arg(VALUES.index("y" if name == output else name))
            case TemporaryArg(name):
                return rt.Arg(VALUES.index(name))
            case CountersArg():
                return rt.Arg(VALUES.index("counters"))
        raise AssertionError(arg)

    args = tuple(argument(arg) for arg in launch.args)
    return rt.DeviceLaunch(
        symbol, launch.grid, launch.block, launch.shared_bytes, args, cooperative=launch.cooperative,
        cluster=launch.cluster, elastic=launch.elastic,
    )  # fmt: skip


def bundle(shape: Shape | Convolution, folder: Path) -> dict[str, Any]:
    """Compile all candidates for a shape to `gemm/SYMBOL.cubin`."""
    target = parse_cuda_target(TARGET)
    group = group_of(shape, target)
    (output,) = group.outputs
    found = list(candidates(group))
    # Symbols are made of the text: equal kernels are compiled once.
    options = BuildOptions(len(os.sched_getaffinity(0)), KernelCache(default_folder()))
    built = compile_kernels([launch for _, launches in found for launch in launches], target, options, lambda *_: None)
    numbers = {symbol: number for number, symbol in enumerate(built.sources)}
    symbols = iter(built.symbols)
    (folder / "gemm").mkdir(exist_ok=True)
    rows = []
    for facts, launches in found:
        own = [device_launch(launch, next(symbols), output.name) for launch in launches]
        images = [built.members[cubin_member(target.architectures[0], numbers[launch.symbol])] for launch in own]
        for launch, image in zip(own, images, strict=True):
            (folder / "gemm" / f"{launch.symbol}.cubin").write_bytes(image)
        room = {
            name: max([arg.nbytes for launch in launches for arg in launch.args if isinstance(arg, kind)], default=0)
            for name, kind in (("sums_bytes", TemporaryArg), ("counters_bytes", CountersArg))
        }
        described = [launch.to_json() for launch in own]
        identity = hashlib.sha256(repr(described).encode() + b"".join(images)).hexdigest()[:16]
        rows.append({**facts, "launches": described, **room, "digest": identity})
    return {"shape": asdict(shape), "operation": type(shape).__name__.lower(), "kernels": rows}
