"""One GPU divided into equal partitions: for models that are served side by side, and for measuring side by side."""

from __future__ import annotations

from tilestitch.runtime.device import DeviceName
from tilestitch.runtime.errors import DeviceError

from .backend import open_device
from .partition import Partition, divisible


class Partitions(tuple[Partition, ...]):
    """Equal partitions, which no other has multiprocessors of. As a context manager it closes them at the end."""

    __slots__ = ()

    def close(self) -> None:
        """Give all multiprocessors back. Raises `DeviceError` while a model is loaded on one."""
        for partition in self:
            partition.close()

    def __enter__(self) -> Partitions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def divide(parts: int, device: str = "cuda") -> Partitions:
    """Divide a GPU into `parts` partitions, as large as equal ones can be. A model is loaded on one by
    `load(..., device=device, multiprocessors=partition)`.

    They share memory, its bandwidth and the L2 cache; multiprocessors that are left over stay idle. Raises
    `DeviceError` for more parts than the GPU allows, and where other partitions have multiprocessors that are needed.
    """
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise DeviceError(f"parts is {parts!r}; give a whole number of at least 1")
    name = DeviceName.parse(device)
    if name.kind != "cuda":
        raise DeviceError(f"only GPUs are divided, not the device {device!r}; give cuda or cuda:N")
    gpu = open_device(name.ordinal)
    units = divisible(gpu)
    if parts > len(units.resources):
        raise DeviceError(
            f"{gpu} can be divided into {len(units.resources)} partitions of {units.size} multiprocessors at most, and "
            f"{parts} were asked for; ask for fewer"
        )
    made: list[Partition] = []
    try:
        for _ in range(parts):
            made.append(Partition(gpu, len(units.resources) // parts * units.size))
    except BaseException:
        Partitions(made).close()
        raise
    return Partitions(made)
