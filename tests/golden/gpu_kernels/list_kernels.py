"""Lists the GPU kernels that a TensorFlow wheel contains, as JSON.

The wheel `tensorflow` (not `tensorflow-cpu`) registers its CUDA kernels when it
is loaded, also on a machine without a GPU. `tests/gpu_kernels_test.py` compares
the training graphs with the lists in this folder. A new release needs a new
one; it is made by hand, in an environment of its own:

    python -m venv /tmp/wheel
    /tmp/wheel/bin/pip install tensorflow==2.21.*
    /tmp/wheel/bin/python tests/golden/gpu_kernels/list_kernels.py \\
        tests/golden/gpu_kernels

No public name of TensorFlow lists kernels: this script uses an internal one,
which the project's own code must not.
"""

from __future__ import annotations

import itertools
import json
import os
import sys

import tensorflow as tf
from tensorflow.python.framework import kernels


def main(folder: str) -> None:
  """Writes the list of the installed TensorFlow into a folder."""
  build = tf.sysconfig.get_build_info()
  if not build["is_cuda_build"]:
    sys.exit("This wheel has no CUDA kernels. Install `tensorflow`")
  by_op = {}
  for kernel in kernels.get_all_registered_kernels().kernel:
    # A kernel with a label is used only by graphs that name the label.
    if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label:
      by_op.setdefault(kernel.op, []).append(kernel)
  head = {
    "tensorflow": tf.__version__,
    # TensorFlow 2.22 does not report these.
    "cuda": build.get("cuda_version"),
    "cudnn": build.get("cudnn_version"),
    "compute_capabilities": build.get("cuda_compute_capabilities"),
  }
  lines = [f"{json.dumps(name)}: {json.dumps(v)}" for name, v in head.items()]
  listed = [
    f"{json.dumps(op)}: {json.dumps(rows(by_op[op]))}" for op in sorted(by_op)
  ]
  lines.append('"kernels": {\n' + ",\n".join(listed) + "}")
  release = ".".join(tf.__version__.split(".")[:2])
  with open(os.path.join(folder, f"tensorflow-{release}.json"), "w") as file:
    file.write("{" + ",\n".join(lines) + "}\n")


def rows(registered: list) -> list[dict[str, str]]:
  """Kernels of an operation, those for GPUs before those for any device.

  Returns:
    For each set of kernels the types of each attribute, separated by spaces,
    any of which go together; and `host`, the inputs and outputs in host memory.
  """
  exact = {}
  for kernel in sorted(registered, key=lambda k: k.device_type != "GPU"):
    types = {
      constraint.name: (types_of(constraint),)
      for constraint in kernel.constraint
      if constraint.allowed_values.list.type
    }
    host = " ".join(sorted(kernel.host_memory_arg))
    exact.setdefault(tuple(sorted(types.items())), host)
  found = []
  for host in dict.fromkeys(exact.values()):
    boxes = [dict(types) for types, h in exact.items() if h == host]
    keys = sorted({name for box in boxes for name in box})
    for name in keys:
      boxes = merged(boxes, name)
    for box in boxes:
      row = {name: " ".join(sorted(types)) for name, types in box.items()}
      found.append({**row, **({"host": host} if host else {})})
  return found


def types_of(constraint) -> str:
  """The types of a constraint, mostly one."""
  names = (tf.as_dtype(t).name for t in constraint.allowed_values.list.type)
  return " ".join(sorted(names))


def merged(boxes: list[dict], name: str) -> list[dict]:
  """Joins boxes that differ in one attribute only."""
  groups = {}
  for box in boxes:
    others = tuple(sorted((n, t) for n, t in box.items() if n != name))
    groups.setdefault((others, name in box), []).append(box.get(name, ()))
  return [
    {
      **dict(others),
      **({name: tuple(sorted({*itertools.chain(*types)}))} if has_name else {}),
    }
    for (others, has_name), types in groups.items()
  ]


if __name__ == "__main__":
  main(sys.argv[1])
