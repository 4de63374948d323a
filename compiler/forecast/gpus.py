"""The GPUs of forecasts: rows of the device table, or data sheets in JSON files."""

from dataclasses import dataclass, replace
from pathlib import Path

from tilestitch.cost_model.devices import Device, DeviceError, find_device, representative, share_of
from tilestitch.cost_model.library.sheet import DataSheet, read_sheet, sheet_of_device


@dataclass(frozen=True)
class Gpu:
    """A GPU as plans know it, and its data sheet."""

    device: Device
    sheet: DataSheet
    planned_for: str
    """The device of the table for which our code is planned: itself, or the representative of its compute
    capability.
    """
    is_share: bool = False
    """Whether `device` has some of the GPU's multiprocessors only."""

    @property
    def name(self) -> str:
        return self.sheet.gpu


def find_gpu(text: str) -> Gpu:
    """Return the GPU of this name, or in this JSON file; `h200/32` is 32 of its multiprocessors. Raises DeviceError and
    MeasurementError.
    """
    if text.endswith(".json"):
        sheet = read_sheet(Path(text))
        usual = representative(round(sheet.compute_capability * 10))
        return Gpu(_device_of(sheet, usual), sheet, usual.name)
    name, slash, count = text.partition("/")
    device = find_device(name)
    if not slash:
        return Gpu(device, sheet_of_device(device), device.name)
    if not (count.isascii() and count.isdecimal()):
        raise DeviceError(f"{count!r} is no number of multiprocessors; write {name}/32 for 32 of {device.name}'s")
    share = share_of(device, int(count))
    return Gpu(
        share, replace(sheet_of_device(share), gpu=f"{device.name}/{share.sm_count}"), device.name, is_share=True
    )


def _device_of(sheet: DataSheet, usual: Device) -> Device:
    """Return a device with the figures of the sheet, and for the rest those of the representative of its architecture:
    limits of an SM, and rates of other data types relative to float32.
    """
    scale = sheet.fp32_gflops * 1e9 / usual.peak_flops["float32"]
    return replace(
        usual,
        name=sheet.gpu,
        aliases=(),
        sm_count=int(sheet.sm_count),
        l2_bytes=int(sheet.l2_mb * 1e6),
        dram_bytes_per_second=int(sheet.dram_bandwidth_gb_s * 1e9),
        memory_bytes=int(sheet.dram_gb * 1e9),
        clock_hz=int(sheet.boost_clock_mhz * 1e6),
        peak_flops={dtype: int(rate * scale) for dtype, rate in usual.peak_flops.items()},
        tdp_w=sheet.tdp_w,
        process_nm=sheet.process_nm,
        source=f"data sheet given; the rest from {usual.name}",
    )
