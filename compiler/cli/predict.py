"""Predicts the latency of a model on GPUs; none of them needs to be installed.

  tilestitch predict model.onnx --device h100
  tilestitch predict model.onnx --device h100,l4,a100 --runtime pytorch --sweep batch=1,2,4,8

--device takes names of known GPUs, or JSON files with the figures of a data sheet. --runtime tilestitch predicts the
plan that `compile` would make, pytorch predicts eager execution, and compiled predicts the kernels of torch.compile.
A measurement lies in the interval with a probability of 80 %, as estimated from other GPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import Shape, add_json, parse_shape, positive, shape_sets
from tilestitch.compiler.cli.compile import PRECISIONS
from tilestitch.compiler.cli.output import Progress, give, say, table
from tilestitch.compiler.cli.paths import existing, writable

if TYPE_CHECKING:
    from tilestitch.compiler.forecast.forecast import Forecast

SUMMARY = "predict a model's latency on GPUs that need not be installed"
KERNELS_SHOWN = 12
RUNTIMES = ("tilestitch", "pytorch", "compiled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="the model")
    parser.add_argument(
        "--device", required=True, metavar="GPU[,GPU…]", help="GPUs by name, such as h100, or by JSON file"
    )
    parser.add_argument(
        "--runtime", choices=RUNTIMES, default="tilestitch", help="what runs the model (default: tilestitch)"
    )
    parser.add_argument(
        "--shape", action="append", type=parse_shape, default=[], metavar="NAME=1x128", help="shape of an input"
    )
    parser.add_argument(
        "--sweep", type=parse_sweep, metavar="DIM=1,2,4", help="predict for each of these sizes of a named dimension"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="as for compile (default: fp32)")
    parser.add_argument("--all", action="store_true", help="show all kernels, not only those that take longest")
    parser.add_argument("--report", metavar="PAGE.html", help="write a page with a plot and timelines of the launches")
    add_json(parser)


def parse_sweep(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse `batch=1,2,4`, as an argparse type."""
    name, _, sizes = text.partition("=")
    try:
        found = tuple(positive(size) for size in sizes.split(","))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form batch=1,2,4") from None
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form batch=1,2,4")
    return name, found


def run(options: argparse.Namespace) -> int:
    from tilestitch.compiler.forecast.forecast import forecast
    from tilestitch.compiler.forecast.gpus import find_gpu
    from tilestitch.compiler.forecast.page import Case, page
    from tilestitch.compiler.frontend import import_model
    from tilestitch.runtime.archive import atomic_file

    source = existing(options.model)
    report = None if options.report is None else writable(options.report, [options.model])
    gpus = [find_gpu(name if not name.endswith(".json") else str(existing(name))) for name in _names(options.device)]
    found: list[tuple[int | None, Forecast]] = []
    with Progress() as progress:
        cases = list(_cases(options))
        for number, (size, shapes) in enumerate(cases):
            for gpu in gpus:
                progress("forecast", number, len(cases))
                # Imported anew: passes change the graph.
                graph = import_model(source, shapes=shapes).graph
                found.append((size, forecast(graph, gpu, options.runtime, options.precision)))
    swept = options.sweep[0] if options.sweep else None
    if report is not None:
        text = page(options.model, swept, [Case(size, one) for size, one in found])
        with atomic_file(report) as file:
            file.write(text.encode(errors="backslashreplace"))
    if options.json:
        give({"model": options.model, "sweep": swept, "forecasts": [_json(swept, *one) for one in found]})
    elif len(found) == 1:
        say(_one(found[0][1], options.all))
    else:
        say(_many(swept, found))
    return errors.OK


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise errors.UsageError(
            f"--device {text!r}: the name of a GPU is missing; give names such as h100, or JSON files, and a comma "
            "between two"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise errors.UsageError(f"--device {text!r}: {', '.join(twice)} is named twice; name each GPU once")
    return names


def _cases(options: argparse.Namespace) -> Iterator[tuple[int | None, Mapping[str, Shape]]]:
    """Yield the shapes to forecast, each with the swept size."""
    sets = shape_sets(options.shape) or ({},)
    if len(sets) > 1:
        raise errors.UsageError("--shape names an input twice; forecasts are for one set of shapes, see --sweep")
    if options.sweep is None:
        yield None, sets[0]
        return
    name, sizes = options.sweep
    inputs = _open_inputs(options.model)
    if not any(name in dims for dims in inputs.values()):
        known = ", ".join(sorted({d for dims in inputs.values() for d in dims if isinstance(d, str) and d})) or "none"
        raise errors.UsageError(f"no input has a dimension {name}; its open dimensions: {known}")
    for size in sizes:
        shapes = dict(sets[0])
        for key, dims in inputs.items():
            if name not in dims:
                continue
            given = sets[0].get(key, dims)
            if len(given) != len(dims):
                raise errors.UsageError(f"--shape {key} has {len(given)} dimensions, the model's input has {len(dims)}")
            shapes[key] = _sized(key, [size if dim == name else other for dim, other in zip(dims, given)])
        yield size, shapes


def _sized(name: str, dims: Sequence[Any]) -> Shape:
    left = [str(dim) for dim in dims if not isinstance(dim, int)]
    if left:
        raise errors.UsageError(f"input {name} has open dimensions besides: {', '.join(left)}; give its --shape, too")
    return tuple(dims)


def _open_inputs(model: str) -> dict[str, list[int | str]]:
    """Return the dimensions of inputs, with the names of open ones."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return {
        value.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim
        ]
        for value in graph.input
        if value.name not in weights
    }


# -- output ------------------------------------------------------------------------------------------------------------


def _json(swept: str | None, size: int | None, found: Forecast) -> dict[str, Any]:
    return {**({swept: size} if swept else {}), **found.to_json()}


def _one(found: Forecast, everything: bool) -> str:
    shown = sorted(found.kernels, key=lambda kernel: -kernel.us)
    shown = list(found.kernels) if everything else shown[:KERNELS_SHOWN]
    rows = [(k.name, k.us, k.low_us, k.high_us, k.bound or "-", _nodes(k.nodes)) for k in shown]
    title = "kernels in order" if everything else f"the {len(shown)} that take longest of {len(found.kernels)} kernels"
    return "\n".join([
        f"{found.gpu.name}, {found.runtime}: {found.total_us / 1e3:.3f} ms ({_interval(found)})",
        f"memory: {_memory(found)}",
        f"{title}:",
        table(rows, ("kernel", "µs", "from", "to", "bound by", "ONNX nodes")),
    ])  # fmt: skip


def _many(swept: str | None, found: Sequence[tuple[int | None, Forecast]]) -> str:
    rows = [
        (*((size,) if swept else ()), one.gpu.name, one.total_us / 1e3, one.low_us / 1e3, one.high_us / 1e3,
         *((size / one.total_us * 1e6,) if swept and size else ()), len(one.kernels), _memory(one))
        for size, one in found
    ]  # fmt: skip
    rate = (f"{swept}/s",) if swept else ()
    head = (*((swept,) if swept else ()), "GPU", "ms", "from", "to", *rate, "kernels", "memory")
    return table(rows, head)


def _interval(found: Forecast) -> str:
    return f"{found.low_us / 1e3:.3f} to {found.high_us / 1e3:.3f}"


def _memory(found: Forecast) -> str:
    needed = (found.weights_bytes + found.values_bytes) / 1e9
    return f"{needed:.3g} GB" + ("" if found.fits else f", and the GPU has {found.gpu.device.memory_bytes / 1e9:.0f}")


def _nodes(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
