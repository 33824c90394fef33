"""Lists the operations of a TensorFlow wheel that have no GPU kernel.

The wheel `tensorflow` (not `tensorflow-cpu`) registers its CUDA kernels when it
is loaded, also on a machine without a GPU. `gpu_placement_test.py` compares
the training graphs with the list. To renew it:

    python -m venv /tmp/wheel
    /tmp/wheel/bin/pip install tensorflow
    /tmp/wheel/bin/python tests/golden/list_gpu_kernels.py \\
        > tests/golden/without_gpu_kernel.txt

A line is an operation, and the floating-point types that it lacks, if those are
not all. Operations of datasets are left out: they are those of input pipelines.

No public name of TensorFlow lists kernels: this script uses an internal one,
which the project's own code must not.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

import tensorflow as tf
from tensorflow.python.framework import kernels

_TYPES = {tf.float32, tf.float16, tf.bfloat16}
_OF_INPUT = re.compile("Dataset|Iterator")


def main() -> None:
  """Prints the list for the installed TensorFlow."""
  if not tf.sysconfig.get_build_info()["is_cuda_build"]:
    sys.exit("This wheel has no CUDA kernels. Install `tensorflow`")
  on_cpu, on_gpu = (types_by_operation({n, "DEFAULT"}) for n in ("CPU", "GPU"))
  for name, types in sorted(on_cpu.items()):
    if _OF_INPUT.search(name):
      continue
    if name not in on_gpu:
      print(name)
    elif missing := sorted(t.name for t in types - on_gpu[name]):
      print(name, *missing)


def types_by_operation(devices: set[str]) -> dict[str, set[tf.DType]]:
  """The floating-point types of the kernels of each operation."""
  found = defaultdict(set)
  for kernel in kernels.get_all_registered_kernels().kernel:
    # A kernel with a label is used only by graphs that name the label.
    if kernel.device_type in devices and not kernel.label:
      lists = [c.allowed_values.list.type for c in kernel.constraint]
      types = {tf.as_dtype(enum) for some in lists for enum in some}
      # Without any, the kernel takes all types.
      found[kernel.op] |= (types & _TYPES) if types else _TYPES
  return found


if __name__ == "__main__":
  main()
