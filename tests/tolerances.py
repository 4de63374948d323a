"""How far results may be from a reference, by dtype, as a part of its largest magnitude. Integers have to be equal.

The tighter one is, the closer is what the reference does: the same steps in numpy, the same sums in another order,
another implementation of an operator, a whole model.
"""

from __future__ import annotations

from collections.abc import Mapping

KERNELS: Mapping[str, float] = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
"""One kernel of a CPU, against numpy."""

DEVICE_KERNELS: Mapping[str, float] = {"float64": 1e-12, "float32": 4e-6, "float16": 4e-3, "bfloat16": 3e-2}
"""One kernel of a GPU, whose functions are approximated, or one that rescales sums as it goes, against numpy."""

SUMS: Mapping[str, float] = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""A GEMM or convolution, whose sums are in another order, against numpy."""

OPERATORS: Mapping[str, float] = {"float64": 1e-6, "float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
"""An ONNX operator, against ONNX's reference or ONNX Runtime."""

MODELS: Mapping[str, float] = {"float32": 2e-5, "float16": 1e-2}
"""A model or a part of one, against another implementation, or at another precision than the kernels'."""

RANDOM_MODELS: Mapping[str, float] = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2}
"""A model that makes rounding errors larger, as random ones do."""
