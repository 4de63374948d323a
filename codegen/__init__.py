"""From a graph and its plan to kernels, object code and the artifact. The only folder that speaks to TVM."""

from .without_torch import import_tvm

import_tvm()
