"""From what the queue measured to the constants of the cost model: what each is, and what was measured.

    python -m benchmarks.device.refit benchmarks/results/h100 [--device h100]

Changes no code: it prints the table and writes `constants.json` beside the results. Then it says how far predictions
are from times, and what the planned tile of each GEMM costs against the best one.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.device.gemm_facts import TILE_FACTS
from benchmarks.device.journal import calls, lines_of
from benchmarks.device.render import Row, aligned, cell, rows_by_part
from tilestitch.cost_model import constants as cost_constants
from tilestitch.cost_model.devices import Device, DeviceError, find_device

FILE = "constants.json"
LARGE_FLOPS = 5e10
"""Of GEMMs that show a tile's rate, not its launch."""

LIBRARY_DTYPES = {"tfloat32": "tf32", "float8": "float8_e4m3fn"}
"""What A1 calls data types of the device table."""

Results = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class Constant:
    """A constant of the cost model. now: its value, None for none. measured: None where rows are missing."""

    name: str
    place: str
    source: str
    now: Callable[[Device], float | None]
    measured: Callable[[Results, Device], float | None]


def constants() -> tuple[Constant, ...]:
    """All that the queue can tell."""
    module = "cost_model/constants.py"
    rates = f"{module}, GPU_RATES"
    return (
        Constant("GPU_LAUNCH_US", module, "A2, graph of 100 with full edges, 132 blocks",
                 _attribute("GPU_LAUNCH_US"), _launch_us),
        Constant("GPU_GRID_BARRIER_US", module, "A3, grid barrier of 132 blocks of 256 threads",
                 _attribute("GPU_GRID_BARRIER_US"), _grid_barrier_us),
        Constant("GPU_HAND_OVER_US", module, "A3, semaphore between two blocks",
                 _attribute("GPU_HAND_OVER_US"), _hand_over_us),
        Constant("bandwidth_share", rates, "A1, copy of 4096 MiB", _rate("bandwidth_share"), _bandwidth_share),
        Constant("arithmetic_share", rates, "A1, GEMMs of 8192, median of types",
                 _rate("arithmetic_share"), _arithmetic_share),
        Constant("l2_bytes_per_cycle", rates, "A1, read of 16 MiB", _rate("l2_bytes_per_cycle"), _l2_rate),
    )  # fmt: skip


def _attribute(name: str) -> Callable[[Device], float | None]:
    return lambda device: getattr(cost_constants, name, None)


def _rate(name: str) -> Callable[[Device], float | None]:
    return lambda device: getattr(cost_constants.rates_of(device), name, None)


# -- what rows say -----------------------------------------------------------------------------------------------------


def value(rows: Iterable[Row], field: str, **key: Any) -> float | None:
    """The field of the row with this key; None where it was not measured."""
    for row in rows:
        if all(row.get(name) == wanted for name, wanted in key.items()) and row.get(field) is not None:
            return float(row[field])
    return None


def _launch_us(results: Results, device: Device) -> float | None:
    return value(results.get("A2", ()), "us_per_node", what="graph of 100, full edges", grid=132)


def _grid_barrier_us(results: Results, device: Device) -> float | None:
    return _thousandth(value(results.get("A3", ()), "ns_per_round", what="grid barrier", grid=132, block=256))


def _hand_over_us(results: Results, device: Device) -> float | None:
    return _thousandth(value(results.get("A3", ()), "ns_per_hand_over", what="semaphore between two blocks"))


def _thousandth(number: float | None) -> float | None:
    return None if number is None else number / 1000


def _bandwidth_share(results: Results, device: Device) -> float | None:
    rate = value(results.get("A1", ()), "GB_per_s", what="copy", MiB=4096)
    return None if rate is None else rate * 1e9 / device.dram_bytes_per_second


def _arithmetic_share(results: Results, device: Device) -> float | None:
    shares = []
    for dtype, peak in device.peak_flops.items():
        rate = value(results.get("A1", ()), "TFLOP_per_s", what=f"gemm {LIBRARY_DTYPES.get(dtype, dtype)}", n=8192)
        shares += [] if rate is None else [rate * 1e12 / peak]
    return statistics.median(shares) if shares else None


def _l2_rate(results: Results, device: Device) -> float | None:
    rate = value(results.get("A1", ()), "GB_per_s", what="read", MiB=16)
    return None if rate is None else rate * 1e9 / (device.sm_count * device.clock_hz)


# -- tiles -------------------------------------------------------------------------------------------------------------


def gemm_rows(results: Results) -> list[Row]:
    """Those that were measured."""
    return [row for part in ("B3", "B5") for row in results.get(part, ()) if "device_us" in row]


def tile_of(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in TILE_FACTS)


def tile_speeds(results: Results, device: Device) -> dict[tuple[Any, ...], float]:
    """The best share of the nominal rate that each tile reaches on a large GEMM."""
    peak, found = device.peak_flops["float16"], dict[tuple[Any, ...], float]()
    for row in gemm_rows(results):
        if row["kernel"] == "gemm_wgmma" and row["TFLOP_per_s"] * row["device_us"] * 1e6 >= LARGE_FLOPS:
            share = row["TFLOP_per_s"] * 1e12 / peak
            found[tile_of(row)] = max(share, found.get(tile_of(row), 0.0))
    return found


def planned_against_best(results: Results) -> list[Row]:
    """For every shape with a planned and other kernels: what the plan costs more than the best of them."""
    shapes: dict[str, list[Row]] = {}
    for row in gemm_rows(results):
        shapes.setdefault(row["shape"], []).append(row)
    libraries = {row["shape"]: row.get("device_us") for row in results.get("B4", ())}
    found: list[Row] = []
    for shape, rows in shapes.items():
        planned = next((row for row in rows if row["planned"]), None)
        best = min(rows, key=lambda row: row["device_us"])
        if planned is not None:
            found.append({
                "shape": shape, "planned_us": planned["device_us"], "best_us": best["device_us"],
                "library_us": libraries.get(shape), "planned": _tile_name(planned), "best": _tile_name(best),
            })  # fmt: skip
    return found


def _tile_name(row: Row) -> str:
    return " ".join(str(row[name]) for name in ("kernel", *TILE_FACTS, "parts") if name in row)


# -- predictions -------------------------------------------------------------------------------------------------------


def prediction_errors(results: Results) -> list[Row]:
    """Of operators and models: the predicted time over the measured one."""
    rows = [row for part in ("D1", "M1") for row in results.get(part, ()) if row.get("predicted_us")]
    return [
        {
            "what": row.get("operator", row.get("model")), "shape": row.get("shape"), "dtype": row["dtype"],
            "predicted_us": row["predicted_us"], "device_us": row["device_us"],
            "predicted_over_measured": row["predicted_us"] / row["device_us"],
        }
        for row in rows
    ]  # fmt: skip


def typical_factor(ratios: Sequence[float]) -> float:
    """The geometric mean of how far ratios are from 1, in either direction."""
    return math.exp(statistics.fmean(abs(math.log(ratio)) for ratio in ratios))


# -- the report --------------------------------------------------------------------------------------------------------


def proposal(results: Results, device: Device) -> list[dict[str, Any]]:
    """A row for every constant."""
    rows = []
    for constant in constants():
        now, measured = constant.now(device), constant.measured(results, device)
        change = None if now is None or measured is None else measured / now
        rows.append({
            "constant": constant.name, "now": now, "measured": measured, "factor": change, "place": constant.place,
            "source": constant.source,
        })  # fmt: skip
    rows += [
        {"constant": f"speed of {' '.join(map(str, tile))}", "now": _tile_speed(tile), "measured": share,
         "factor": None, "place": "passes/schedule/cuda/gemm_tiles.py", "source": "B3 and B5, large GEMMs"}
        for tile, share in sorted(tile_speeds(results, device).items(), key=lambda item: -item[1])
    ]  # fmt: skip
    return rows


def measured_device(gpus: Iterable[Mapping[str, Any]]) -> Device:
    """The one that all calls ran on. Raises DeviceError where they name none, several, or one that the table lacks."""
    names = dict.fromkeys(str(gpu["name"]) for gpu in gpus if gpu.get("name"))
    devices = list(dict.fromkeys(find_device(name).name for name in names))
    if len(devices) != 1:
        raise DeviceError(f"the calls name {' and '.join(names) or 'no GPU'}; say with --device which was measured")
    return find_device(devices[0])


def device_facts(gpu: Mapping[str, Any], device: Device) -> list[dict[str, Any]]:
    """What the driver says of the GPU that the device table says otherwise."""
    found = []
    for name, fact in (("sm_count", "multiprocessors"), ("l2_bytes", "l2_bytes")):
        now, told = getattr(device, name), gpu.get(fact)
        if told is not None and told != now:
            found.append({"constant": name, "now": now, "measured": told, "factor": told / now,
                          "place": "cost_model/devices.json", "source": "the driver"})  # fmt: skip
    return found


def _tile_speed(wanted: tuple[Any, ...]) -> float | None:
    from tilestitch.passes.schedule.cuda.gemm_tiles import WGMMA_TILES, speed_of

    return next((speed_of(t) for t in WGMMA_TILES if tuple(getattr(t, name) for name in TILE_FACTS) == wanted), None)


def _table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{title}: not measured yet"
    header = list(rows[0])
    return f"{title}\n" + aligned(header, [[cell(row[name]) for name in header] for row in rows])


def report(results: Results, proposed: Sequence[Row]) -> str:
    errors = prediction_errors(results)
    parts = [
        _table("constants", proposed),
        _table("planned tiles and the best ones", planned_against_best(results)),
        _table("predictions", errors),
    ]
    if errors:
        factor = typical_factor([row["predicted_over_measured"] for row in errors])
        parts.append(f"predictions are off by a factor of {factor:.2f} on average")
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.refit", description=__doc__)
    parser.add_argument("results", type=Path, help="the folder that run_queue wrote")
    parser.add_argument(
        "--device", help="the GPU that was measured, as in cost_model/devices.json (default: which the results name)"
    )
    options = parser.parse_args(arguments)
    results = rows_by_part(options.results)
    if not results:
        print(f"{options.results} has no results; run python -m benchmarks.device.run_queue first", file=sys.stderr)
        return 1
    gpus = [call["gpu"] for call in calls(lines_of(options.results)) if "problem" not in call["gpu"]]
    try:
        device = find_device(options.device) if options.device else measured_device(gpus)
    except DeviceError as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return error.exit_code
    proposed = proposal(results, device) + (device_facts(gpus[-1], device) if gpus else [])
    (options.results / FILE).write_text(json.dumps(proposed, indent=1) + "\n")
    print(report(results, proposed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
