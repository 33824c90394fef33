"""Tests of the emulated GPU, most with the package `tensorflow` and gcc."""

import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

from benchmarks import emulated_gpu

HAS_KERNELS = tf.sysconfig.get_build_info()["is_cuda_build"]
needs_kernels = pytest.mark.skipif(
  not HAS_KERNELS, reason="tensorflow-cpu has no kernels for GPUs"
)
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")

STEP = """
import sys
import tensorflow.compat.v1 as tf
from benchmarks import task_models

tf.disable_eager_execution()
model_fn, layout = task_models.model_of("ner", "--xla=off")
with tf.device("/cpu:0"):
  batch = task_models.random_batch(layout)
  batches = tf.data.Dataset.from_tensors(batch).repeat()
  iterator = tf.data.make_initializable_iterator(batches)
spec = model_fn(iterator.get_next(), None, "train", {"batch_size": 4})
config = tf.ConfigProto(allow_soft_placement=True)
with tf.Session(config=config) as session:
  session.run([tf.global_variables_initializer(), iterator.initializer])
  for _ in range(int(sys.argv[1])):
    session.run(spec.train_op)
"""


def run_emulated(folder, *arguments):
  """Runs Python with an emulated GPU; returns the process and its log."""
  done = subprocess.run(
    [
      *(sys.executable, "-m", "benchmarks.emulated_gpu"),
      *(f"--log={folder / 'log'}", "--", *arguments),
    ],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  logs = sorted(folder.glob("log.*"), key=lambda path: path.stat().st_size)
  return done.stdout, emulated_gpu.read_log(logs[-1])


@needs_gcc
@pytest.mark.process
@pytest.mark.skipif(HAS_KERNELS, reason="needs tensorflow-cpu")
def test_tensorflow_without_kernels_is_refused():
  done = subprocess.run(
    [sys.executable, "-m", "benchmarks.emulated_gpu", "--", "-c", "1"],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1 and not done.stdout
  assert "Install the package `tensorflow`" in done.stderr


@needs_gcc
@pytest.mark.process
def test_emulated_libraries_compile(tmp_path):
  source = emulated_gpu.__file__.replace(".py", ".c")
  subprocess.run(
    ["gcc", "-Wall", "-Werror=implicit", "-c", source, "-o", tmp_path / "x.o"],
    check=True,
  )


@needs_gcc
@needs_kernels
@pytest.mark.slow
def test_step_copies_one_number_from_the_gpu_and_waits_once(tmp_path):
  counts = []
  for num_steps in (1, 4):
    folder = tmp_path / str(num_steps)
    folder.mkdir()
    counts.append(run_emulated(folder, "-c", STEP, str(num_steps))[1])
  few, many = counts
  assert many["copy DtoH 4"] - few["copy DtoH 4"] == 3  # the step's number
  copies = {line for line in many if line.startswith("copy DtoH")}
  assert copies == {"copy DtoH 4"}
  assert many["wait"] - few["wait"] == 3
  kernels = [sum(n for k, n in c.items() if "kernel" in k) for c in counts]
  assert kernels[1] > 3 * kernels[0] // 2


@needs_gcc
@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize(("version", "has_code"), [(9, True), (90, False)])
def test_a_gpu_that_tensorflow_was_not_built_for_is_named(version, has_code):
  program = (
    "from bertlib.training import devices as d\nprint(d.gpus_without_code())"
  )
  done = subprocess.run(
    [
      *(sys.executable, "-m", "benchmarks.emulated_gpu"),
      *(f"--compute_capability={version}", "--", "-c", program),
    ],
    capture_output=True,
    text=True,
  )
  expected = f"('emulated GPU (compute capability {version}.0)',)"
  assert done.stdout.strip() == ("()" if has_code else expected), done.stderr


@needs_gcc
@needs_kernels
@pytest.mark.slow
def test_operations_are_placed_as_predicted(tmp_path):
  printed, _ = run_emulated(
    tmp_path,
    *("-m", "benchmarks.gpu", "--toy", "--peer_python="),
    *("--checks=placement", "--checks=cpu_numbers"),
  )
  assert re.search(r"(?m)^pass +placement$", printed)
  assert re.search(r"(?m)^not run +cpu_numbers$", printed)
