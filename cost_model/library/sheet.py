"""Data sheets of GPUs: the only input about a GPU for predictions of library kernels."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.laws import compute, memory


@dataclass(frozen=True)
class DataSheet:
    """One GPU. process_nm: the foundry's name of its process, as a number."""

    gpu: str
    compute_capability: float
    sm_count: float
    boost_clock_mhz: float
    fp32_gflops: float
    dram_bandwidth_gb_s: float
    dram_gb: float
    l2_mb: float
    tdp_w: float
    process_nm: float

    @property
    def generation(self) -> int:
        """The GPU generation that libraries distinguish: up to Pascal, Volta and Turing, from Ampere on."""
        return 0 if self.compute_capability < 7 else 1 if self.compute_capability < 8 else 2


FIELDS = tuple(field.name for field in dataclasses.fields(DataSheet))


@dataclass(frozen=True)
class Chips:
    """The figures of data sheets as arrays, with one entry per row of a table of kernels (or one for all of them)."""

    sm_count: np.ndarray
    clock_mhz: np.ndarray
    flops_per_us: np.ndarray
    issued_per_us: np.ndarray
    dram_bytes_per_us: np.ndarray
    dram_gb_s: np.ndarray
    l2_bytes: np.ndarray
    near_l2_bytes: np.ndarray
    tdp_w: np.ndarray
    process_nm: np.ndarray
    capability: np.ndarray
    lanes: np.ndarray
    threads_per_sm: np.ndarray

    def take(self, rows: np.ndarray) -> Chips:
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Chips(*(value if len(value) == 1 else value[rows] for value in values))


def chips(sheets: Sequence[DataSheet], index: np.ndarray | None = None) -> Chips:
    """Return the figures of `sheets`; with `index`, those of sheets[i] for each i of it."""
    at = np.zeros(1, int) if index is None else index
    column = {name: np.array([getattr(s, name) for s in sheets], float)[at] for name in FIELDS if name != "gpu"}
    capability, gflops = column["compute_capability"], column["fp32_gflops"]
    sm_count, clock_mhz = column["sm_count"], column["boost_clock_mhz"]
    return Chips(
        sm_count,
        clock_mhz,
        compute.flops_per_us(gflops),
        compute.issued_per_us(capability, gflops, sm_count, clock_mhz),
        memory.dram_bytes_per_us(column["dram_bandwidth_gb_s"], capability),
        column["dram_bandwidth_gb_s"],
        column["l2_mb"] * 1e6,
        memory.near_l2_bytes(column["l2_mb"] * 1e6, capability),
        column["tdp_w"],
        column["process_nm"],
        capability,
        compute.lanes_per_sm(gflops, sm_count, clock_mhz),
        compute.threads_per_sm(capability),
    )


def sheet_of_device(device: Device) -> DataSheet:
    """Return the data sheet of a GPU from the table of devices."""
    return DataSheet(
        device.name,
        device.capability / 10,
        device.sm_count,
        device.clock_hz / 1e6,
        device.peak_flops["float32"] / 1e9,
        device.dram_bytes_per_second / 1e9,
        device.memory_bytes / 1e9,
        device.l2_bytes / 1e6,
        device.tdp_w,
        device.process_nm,
    )


def read_sheet(path: Path) -> DataSheet:
    """Return the GPU of a JSON file, an object with the columns of devices.csv as keys."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        keys = ", ".join(FIELDS)
        raise MeasurementError(f"{path} is not JSON ({error}); give an object with the keys {keys}") from error
    return sheet_of(found, str(path))


def sheet_of(found: Any, where: str) -> DataSheet:
    """Return a data sheet from texts or numbers. Raises MeasurementError for fields that are missing or not positive
    numbers.
    """
    missing = [name for name in FIELDS if name not in found] if isinstance(found, Mapping) else list(FIELDS)
    if missing:
        raise MeasurementError(f"{where}: a GPU lacks {', '.join(missing)}; give each of {', '.join(FIELDS)}")
    numbers = {name: _positive(found[name], f"{where}: {name} of {found['gpu']}") for name in FIELDS if name != "gpu"}
    return DataSheet(str(found["gpu"]), **numbers)


def _positive(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number > 0):
        raise MeasurementError(f"{what} is {value!r}; give a positive number")
    return number
