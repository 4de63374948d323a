"""From a graph and its plan to kernels, object code and the artifact. The only folder that speaks to TVM."""
