"""Object code of TVM's LLVM modules."""

from __future__ import annotations

import os
from typing import Any


def object_bytes(module: Any) -> bytes:
    """Return the relocatable object compiled from `module`.

    LLVM writes it to memory: on a full disk it would end the process.
    """
    descriptor = os.memfd_create("tilestitch-object", os.MFD_CLOEXEC)
    with open(descriptor, "rb") as file:
        module.write_to_file(f"/proc/self/fd/{descriptor}", "o")
        return file.read()
