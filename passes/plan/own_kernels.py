"""Kernels of plug-ins as plain data: CUDA text, C text, or TIR. Code generation turns them into launches."""

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

Dim3: TypeAlias = tuple[int, int, int]

KERNEL_NAME = "TILESTITCH_KERNEL"
"""Placeholder for the function name in a kernel's text; it is replaced by a unique name."""

MOST_THREADS = 1024
MOST_BLOCK: Dim3 = (1024, 1024, 64)
MOST_BLOCKS: Dim3 = (2**31 - 1, 65535, 65535)
MOST_SHARED_BYTES = 227 << 10
"""Most dynamic shared memory per block of any current GPU."""
MOST_TASKS = 2**31 - 1
MOST_BYTES = 1 << 40
"""Most bytes of temporaries and of scratch memory."""


@dataclass(frozen=True)
class Temporary:
    """`nbytes` of memory that persist from one kernel of a group to the next; `name` is unique within the group."""

    name: str
    nbytes: int

    def __post_init__(self) -> None:
        _check_bytes(f"temporary {self.name!r}: nbytes", self.nbytes, MOST_BYTES, least=1)


Argument: TypeAlias = str | Temporary
"""A pointer argument of a kernel: an input, constant or output of the group by name, or a temporary."""


@dataclass(frozen=True)
class KernelTarget:
    """The machine that a kernel is for.

    kind: cpu or cuda. architectures: of the machine code, such as `sm_90a` or `x86_64`. features: of a CPU, in LLVM's
    spelling. threads: for which the plan is made, on a CPU. device: the name of the GPU that is planned for.
    multiprocessors: of the smallest GPU that must run the code.
    """

    kind: str
    architectures: tuple[str, ...]
    features: tuple[str, ...] = ()
    threads: int = 1
    device: str = ""
    multiprocessors: int = 0


@dataclass(frozen=True)
class CudaKernel:
    """`text` with one function `extern "C" __global__ void TILESTITCH_KERNEL(...)`, which takes a pointer for each of
    `args`. `shared_bytes`: dynamic shared memory of a block; `cooperative`: all blocks must be resident together.
    """

    text: str
    grid: Dim3
    block: Dim3
    args: tuple[Argument, ...]
    shared_bytes: int = 0
    cooperative: bool = False

    def __post_init__(self) -> None:
        _check_text(self.text, 'extern "C" __global__ void')
        _check_bytes("shared_bytes", self.shared_bytes, MOST_SHARED_BYTES)
        _check_extents(self.grid, self.block)
        _check_args(self.args)


@dataclass(frozen=True)
class CKernel:
    """C11 `text` with one function `void TILESTITCH_KERNEL(T0 *a0, ..., int64_t task)`, which takes a pointer for each
    of `args`; it is called once for each task, 0 to `tasks` - 1, by any thread and in any order. With `scratch_bytes`,
    a last parameter `void *scratch` points to that much memory of the calling thread.
    """

    text: str
    args: tuple[Argument, ...]
    tasks: int = 1
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        _check_text(self.text, "void")
        _check_bytes("scratch_bytes", self.scratch_bytes, MOST_BYTES)
        _check_tasks(self.tasks)
        _check_args(self.args)


@dataclass(frozen=True)
class TirKernel:
    """`func`: a `tvm.tirx.PrimFunc` that takes a buffer for each of `args`. For a CPU it also takes an int64 `task`,
    like the function of a `CKernel`; for CUDA it launches the threads of `grid` and `block` itself.
    """

    func: Any
    args: tuple[Argument, ...]
    tasks: int = 1
    grid: Dim3 = (1, 1, 1)
    block: Dim3 = (1, 1, 1)

    def __post_init__(self) -> None:
        _check_tasks(self.tasks)
        _check_extents(self.grid, self.block)
        _check_args(self.args)


OwnKernel: TypeAlias = CudaKernel | CKernel | TirKernel

KINDS = {"cpu": (CKernel, TirKernel), "cuda": (CudaKernel, TirKernel)}
"""The kernels that a target accepts, by `KernelTarget.kind`."""


def _is_count(number: object) -> bool:
    return type(number) is int and number > 0


def _check_text(text: str, declared: str) -> None:
    if not isinstance(text, str) or KERNEL_NAME not in text:
        raise ValueError(f"the text defines no function {KERNEL_NAME}; write `{declared} {KERNEL_NAME}(...)`")


def _check_tasks(tasks: int) -> None:
    if not _is_count(tasks) or tasks > MOST_TASKS:
        raise ValueError(f"tasks is {tasks!r}; give an int from 1 to {MOST_TASKS}")


def _check_bytes(label: str, nbytes: int, most: int, least: int = 0) -> None:
    if type(nbytes) is not int or not least <= nbytes <= most:
        raise ValueError(f"{label} is {nbytes!r}; give an int from {least} to {most}")


def _check_args(args: tuple[Argument, ...]) -> None:
    odd = [a for a in args if not isinstance(a, str | Temporary)]
    if not isinstance(args, tuple) or odd:
        raise ValueError(f"args is {args!r}; give a tuple of names of values and of Temporary objects")


def _check_extents(grid: Dim3, block: Dim3) -> None:
    for label, extents in (("grid", grid), ("block", block)):
        if not isinstance(extents, tuple) or len(extents) != 3 or not all(map(_is_count, extents)):
            raise ValueError(f"{label} is {extents!r}; give a tuple of three ints of at least 1")
    for label, extents, most in (("block", block, MOST_BLOCK), ("grid", grid, MOST_BLOCKS)):
        if any(size > limit for size, limit in zip(extents, most, strict=True)):
            raise ValueError(f"{label} is {extents}; a GPU takes at most {most}")
    if prod(block) > MOST_THREADS:
        raise ValueError(f"block is {block}, {prod(block)} threads; a block has at most {MOST_THREADS}")
