"""From a graph and its plan to kernels, object code and the artifact. The only folder that uses TVM."""

from .without_torch import import_tvm

import_tvm()
