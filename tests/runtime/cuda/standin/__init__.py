"""A strict stand-in for NVIDIA's driver: `libcuda.so.1` in C++, which the real cuda-bindings load.

    python -m tests.runtime.cuda.standin -- python -m benchmarks.device.run_queue --out /tmp/dry
    python -m tests.runtime.cuda.standin --gpus A100,A100 -- tilestitch run m.tsm --device cuda:1

Any command runs with it, and its children too: the folder of the library is put first in LD_LIBRARY_PATH. Needs g++ and
the header cuda.h (package nvidia-cuda-runtime), which gives every function and structure its real type.

* Memory is the host's, at addresses that no host memory has and that are never used again; freed memory is unmapped.
* Work in streams runs when the host waits for it, no sooner, and in a random order of what streams, events and edges
  leave open: a wait that is missing shows. Times are simulated, 2 us for each piece of work.
* Kernels do nothing, unless `execution` has the emulated device execute them from their CUDA text, in any order that
  edges allow; but all that they need is checked: extents, clusters, registers, shared memory with the cubin's
  static bytes, residency of cooperative launches, parameters that the cubin declares, pointers in live allocations,
  tensor maps that were encoded here.
* A call that is refused returns the driver's status, and the reason goes to stderr. A fault of a kernel breaks the
  context, as on a GPU.

`child.run` has a function run with it in a forked child of a test.
"""
