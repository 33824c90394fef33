"""Runs Python with an emulated GPU, on a machine without one.

    python tests/emulated_gpu.py -m pytest -m slow tests/gpu_placement_test.py
    python tests/emulated_gpu.py run_classifier.py --do_train ...

TensorFlow then finds a GPU, places operations on it, allocates its memory and
launches its kernels, as on a machine with one. Kernels compute nothing, so all
numbers are wrong and GPU times mean nothing. What is real: placement, copies
between host and GPU, the memory of TensorFlow's allocator, and the number of
kernel launches.

Environment variables: EMULATED_GPUS is the number of GPUs, 1 by default;
EMULATED_COMPUTE_CAPABILITY the major version, 9 by default; with
EMULATED_GPU_LOG=PATH a process lists copies and kernels in PATH.PROCESS.

Needs gcc, and the package `tensorflow`, since `tensorflow-cpu` has no kernels
for GPUs.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

# The libraries that TensorFlow opens: all are the emulated one.
_LIBRARIES = (
  "libcuda.so.1",
  "libcudart.so.12",
  "libcublas.so.12",
  "libcublasLt.so.12",
  "libcudnn.so.8",
  "libcudnn.so.9",
  "libcufft.so.11",
  "libcupti.so.12",
  "libcusolver.so.11",
  "libcusparse.so.12",
  "libnccl.so.2",
  "libnvidia-ml.so.1",
)
_PREFIXES = ("__cuda", "cu", "nccl", "nvml")


def build(folder: str) -> None:
  """Compiles the emulated libraries for the installed TensorFlow."""
  source = pathlib.Path(__file__).with_suffix(".c")
  emulated = os.path.join(folder, "emulated.o")
  library = os.path.join(folder, _LIBRARIES[0])
  compiler = ["gcc", "-w", "-O1", "-fPIC"]
  subprocess.run([*compiler, "-c", source, "-o", emulated], check=True)
  others = sorted(_called_by_tensorflow() - _functions(emulated))
  rest = "".join(f"int {name}(void) {{ return 0; }}\n" for name in others)
  subprocess.run(
    [*compiler, "-shared", "-o", library, emulated, "-x", "c", "-"],
    input=rest,
    text=True,
    check=True,
  )
  for name in _LIBRARIES[1:]:
    os.symlink(_LIBRARIES[0], os.path.join(folder, name))


def _called_by_tensorflow() -> set[str]:
  """Names of the functions of CUDA's libraries that TensorFlow may call."""
  (package,) = importlib.util.find_spec("tensorflow").submodule_search_locations
  library = os.path.join(package, "libtensorflow_framework.so.2")
  found = {n for n in _functions(library, "-D") if n.startswith(_PREFIXES)}
  if "cuInit" not in found:
    sys.exit(
      f"{package}: this TensorFlow has no kernels for GPUs. Install the package"
      " `tensorflow`"
    )
  return found


def _functions(library: str, *options: str) -> set[str]:
  """Names of the functions that a library defines."""
  listed = subprocess.run(
    ["nm", "--defined-only", *options, library],
    capture_output=True,
    text=True,
    check=True,
  )
  fields = (line.split() for line in listed.stdout.splitlines())
  # Names have a version from TensorFlow 2.22 on: cuInit@@tensorflow.
  return {name.split("@")[0] for _, kind, name in fields if kind in "TW"}


def main() -> int:
  """Runs Python with the arguments of this script; returns its status."""
  with tempfile.TemporaryDirectory() as folder:
    build(folder)
    environment = {
      **os.environ,
      "LD_LIBRARY_PATH": folder,
      # TensorFlow would ask for all memory at once.
      "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    command = [sys.executable, *sys.argv[1:]]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
  sys.exit(main())
