"""Imports TensorFlow without its own log on the terminal, and without Keras 3.

TensorFlow writes to file descriptor 2 while it is imported, before its settings
take effect, and later through its C++ and Python loggers.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import signal
import sys
from collections.abc import Iterator
from importlib import metadata

# Device files of the drivers of NVIDIA's GPUs: Linux, WSL and Jetson.
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu*")


def select_keras_2() -> None:
  """Lets TensorFlow import Keras 2, which Estimator uses, and not Keras 3."""
  # TensorFlow imports one of the two. Keras 3 and its dependencies take a third
  # of the start of a command. TensorFlow 2.15 has Keras 2 alone, pre-releases
  # have the package keras-nightly.
  with contextlib.suppress(metadata.PackageNotFoundError):
    if metadata.version("keras").startswith("2."):
      return
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def hide_information(keras_2: bool = False) -> None:
  """Imports TensorFlow, unless it is; only warnings and errors are shown."""
  if "tensorflow" in sys.modules:
    return
  if keras_2:
    select_keras_2()
  # A library must not hide warnings from the process that uses it.
  if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1") != "0":
    with stderr_on_failure():
      _import()


def import_quietly() -> None:
  """Imports TensorFlow in a command: its log has errors only."""
  gc.disable()
  with stderr_on_failure():
    tf = _import()
  # No collection looks at the half million objects of TensorFlow again.
  gc.freeze()
  gc.enable()
  tf.get_logger().setLevel("ERROR")


def _import():
  """Imports TensorFlow; on a machine without a GPU driver, also lists GPUs."""
  # TensorFlow imports Keras for whoever uses it later, and SciPy and pandas for
  # Keras: a third of the time. None in `sys.modules` makes an import fail.
  later = {"tf_keras", "scipy", "pandas"} - sys.modules.keys()
  sys.modules.update(dict.fromkeys(later))
  try:
    import tensorflow as tf
  finally:
    for name in later:
      del sys.modules[name]

  # A build with CUDA logs an error, once, if it then finds no driver.
  if tf.test.is_built_with_cuda() and not any(map(glob.glob, _GPU_FILES)):
    tf.config.list_physical_devices("GPU")
  return tf


@contextlib.contextmanager
def stderr_on_failure() -> Iterator[None]:
  """Captures file descriptor 2; prints it only if the block fails."""
  if sys.stderr is None:  # it is closed
    yield
    return
  sys.stderr.flush()
  terminal = os.dup(2)
  source, sink = os.pipe()
  # A child process holds the captured output, so that it is printed even if
  # this process crashes, for example because an instruction set is missing.
  keeper = os.fork()
  if not keeper:
    os.close(sink)
    _print_at_end(source)
  os.close(source)
  os.dup2(sink, 2)
  os.close(sink)
  try:
    yield
    os.kill(keeper, signal.SIGKILL)
  finally:
    os.dup2(terminal, 2)  # ends the pipe
    os.close(terminal)
    os.waitpid(keeper, 0)


def _print_at_end(source: int) -> None:
  """Reads a pipe to its end, prints it and ends the process."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the command handles it
  kept = b""
  while part := os.read(source, 2**16):
    kept += part
  os.write(2, kept)
  os._exit(0)
