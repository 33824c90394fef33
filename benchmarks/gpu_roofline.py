"""Estimates how long a step takes on a GPU, and which operations take it.

    python -m benchmarks.emulated_gpu -- -m benchmarks.gpu_roofline \
        --batch_size=256 --seq_length=128

runs a step on an emulated GPU, or on a real one, and takes the operations and
their shapes from TensorFlow. Each takes the longer one of two times: that of
reading its inputs and writing its outputs at the GPU's memory bandwidth, and
that of its products at the rate of large products; and the time between two
kernels. XLA's clusters count as one operation. So this is an estimate, which
compares two ways to compute the same, not a measurement.
"""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from absl import flags

from benchmarks import gpu_speed, side_by_side, training_step

FLAGS = flags.FLAGS

# Operations that start no kernel.
_FREE = re.compile(
  r"Const|ExpandDims|IdentityN?|NoOp|PreventGradient|ReadVariableOp|Reshape"
  r"|Shape|Squeeze|StopGradient|VarHandleOp|_(Arg|Retval|(Host)?(Recv|Send))"
)
# Those that read only the rows which they return.
_GATHERS = {"GatherV2", "ResourceGather"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


class Work(NamedTuple):
  """An operation of a step on the GPU.

  Attributes:
    name: its type; "XLA" for a cluster.
    num_bytes: size of its inputs and outputs.
    flops: floating-point operations of its products.
    dtype: dtype of its first input.
  """

  name: str
  num_bytes: int
  flops: int
  dtype: str


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_run_flags(passes=1)
  side_by_side.define_precision_flags()
  training_step.define_model_flags()
  for module in (side_by_side, training_step):
    flags.adopt_module_key_flags(module)
  FLAGS.set_default("precision", "bfloat16")
  flags.DEFINE_bool("is_training", True, "Training, or prediction.")
  flags.DEFINE_float("memory_tb", 3.35, "Memory bandwidth, TB/s (H100: 3.35).")
  flags.DEFINE_float("tflops", 650, "Products in 16 bits, TFLOP/s.")
  flags.DEFINE_float("tf32_tflops", 350, "Products in float32, TFLOP/s.")
  flags.DEFINE_float("kernel_us", 1.5, "Time between two kernels, in 1e-6 s.")


def main(_: list[str]) -> None:
  """Prints the estimate, and the types of operations that take most time."""
  works, peak_bytes = trace(SimpleNamespace(**FLAGS.flag_values_dict()))
  by_name = collections.defaultdict(list)
  for work in works:
    by_name[work.name].append(work)
  seconds = {n: sum(map(estimate, some)) for n, some in by_name.items()}
  total, flops = sum(seconds.values()), sum(work.flops for work in works)
  print(
    f"{training_step.name_of_work()}: {1e3 * total:.1f} ms,"
    f" {FLAGS.batch_size / total:.0f} sequences/s,"
    f" {flops / total / 1e12:.0f} TFLOP/s; {len(works)} operations,"
    f" {peak_bytes / 1e9:.1f} GB of GPU memory"
  )
  for name in sorted(seconds, key=seconds.get, reverse=True)[:15]:
    some = by_name[name]
    print(
      f"{1e3 * seconds[name]:8.2f} ms {len(some):6} {name:24}"
      f" {sum(w.num_bytes for w in some) / 1e9:8.2f} GB"
      f" {sum(w.flops for w in some) / 1e12:8.2f} TFLOP"
    )
  if FLAGS.json_file:
    with open(FLAGS.json_file, "a") as file:
      values = {"seconds": total, "flops": flops, "operations": len(works)}
      print(json.dumps({**FLAGS.flag_values_dict(), **values}), file=file)


def estimate(work: Work) -> float:
  """Seconds of an operation."""
  rate = FLAGS.tf32_tflops if work.dtype == "float32" else FLAGS.tflops
  memory = work.num_bytes / (0.85 * FLAGS.memory_tb * 1e12)
  return max(memory, work.flops / (rate * 1e12)) + FLAGS.kernel_us * 1e-6


def trace(settings: SimpleNamespace) -> tuple[list[Work], int]:
  """Runs a step of ours; returns its work and the peak memory of the GPU."""
  import tensorflow.compat.v1 as tf

  session, fetches, feed, _ = gpu_speed.make_step(settings)
  for _ in range(2):
    session.run(fetches, feed)
  tf.config.experimental.reset_memory_stats("GPU:0")
  ran = tf.RunMetadata()
  options = tf.RunOptions(
    trace_level=tf.RunOptions.SOFTWARE_TRACE, output_partition_graphs=True
  )
  session.run(fetches, feed, options, ran)
  peak_bytes = tf.config.experimental.get_memory_info("GPU:0")["peak"]
  return list(_works(ran)), peak_bytes


class _Tensor(NamedTuple):
  shape: list[int]
  dtype: Any

  @property
  def num_bytes(self) -> int:
    size = self.dtype.size if self.dtype.is_numpy_compatible else 0
    return math.prod(self.shape) * size


def _works(ran) -> Iterator[Work]:
  """The operations on the GPU of a `RunMetadata`."""
  import tensorflow.compat.v1 as tf

  made = {}
  for device in ran.step_stats.dev_stats:
    for node in device.node_stats:
      for output in node.output:
        described = output.tensor_description
        made[node.node_name, output.slot] = _Tensor(
          [axis.size for axis in described.shape.dim],
          tf.as_dtype(described.dtype),
        )
  for part in ran.partition_graphs:
    for node in part.node:
      outputs = _outputs(made, node.name)
      is_free = "GPU" not in node.device or _FREE.fullmatch(node.op)
      if is_free or not outputs:
        continue
      sources = (name.rpartition(":") for name in node.input if name[0] != "^")
      keys = ((n, int(i)) if n else (i, 0) for n, _, i in sources)
      inputs = [made[key] for key in keys if key in made]
      if node.op in _GATHERS:
        inputs = outputs
      yield Work(
        "XLA" if node.op in _CALLS else node.op,
        sum(t.num_bytes for t in [*inputs, *outputs]),
        _flops(node, inputs, outputs[0]) if "MatMul" in node.op else 0,
        inputs[0].dtype.name if inputs else "",
      )


def _outputs(made: dict, name: str) -> list[_Tensor]:
  found = []
  while (name, len(found)) in made:
    found.append(made[name, len(found)])
  return found


def _flops(node, inputs: list[_Tensor], output: _Tensor) -> int:
  """Floating-point operations of a product."""
  is_transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
  inner = inputs[0].shape[-2 if is_transposed else -1]
  return 2 * inner * math.prod(output.shape)


if __name__ == "__main__":
  from bertlib.cli import app

  define_flags()
  app.run(main)
