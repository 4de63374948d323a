"""Folders of measurements that a known law made, in the format of real ones."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.library.sheet import FIELDS, DataSheet

SHEETS = (
    DataSheet("OLD", 6.0, 56, 1303, 9340, 732, 16, 4, 250, 16),
    DataSheet("MID", 7.0, 80, 1380, 14029, 900, 32, 6, 250, 12),
    DataSheet("NEW", 8.0, 108, 1410, 19492, 1555, 40, 40, 400, 7),
)
GAP_US = 20.0


def write_devices(folder: Path, sheets: Sequence[DataSheet] = SHEETS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "devices.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows([getattr(sheet, name) for name in FIELDS] for sheet in sheets)


def write_rows(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "kernels" / f"{name}.csv.gz", "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_kernels(folder: Path, sheets: Sequence[DataSheet] = SHEETS, count: int = 150) -> None:
    """Element-wise kernels, and linear layers with tiles of 128 x 64, by roofs of the data sheets."""
    random = np.random.default_rng(7)
    elementwise, linear = [], []
    for sheet in sheets:
        for _ in range(count):
            rows, width = (int(2 ** random.uniform(4, 13)) for _ in range(2))
            op = str(random.choice(["add", "relu", "tanh"]))
            us = GAP_US + 4e-3 * (3 if op == "add" else 2) * rows * width / sheet.dram_bandwidth_gb_s
            elementwise.append({"op": op, "gpu": sheet.gpu, "latency_ms": us / 1e3, "B": rows, "H": width})
        for _ in range(count):
            m, n, k = (int(2 ** random.uniform(7, 12)) for _ in range(3))
            grid = (-(-k // 128), -(-m // 64))
            rounds = -(-grid[0] * grid[1] // int(sheet.sm_count))
            us = GAP_US + rounds * sheet.sm_count * 2 * 128 * 64 * 1.1 * n / (sheet.fp32_gflops * 1e3)
            linear.append({
                "op": "linear", "gpu": sheet.gpu, "latency_ms": us / 1e3, "kernel": "a_sgemm_128x64_tn",
                "grid_x": grid[0], "grid_y": grid[1], "grid_z": 1, "B": 1, "M": m, "N": n, "K": k,
            })  # fmt: skip
    write_rows(folder, "elementwise", elementwise)
    write_rows(folder, "linear", linear)


def write_graph(folder: Path, name: str, nodes: Sequence[Mapping[str, Any]]) -> Path:
    (folder / "models" / "opgraph").mkdir(parents=True, exist_ok=True)
    path = folder / "models" / "opgraph" / f"{name}.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(node) + "\n" for node in nodes)
    return path


def node(name: str, op: str, *forward: Any, backward: Sequence[Any] = ()) -> dict[str, Any]:
    return {"name": name, "op": op, "forward": list(forward), "backward": list(backward), "accumulate": []}
