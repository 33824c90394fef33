"""Devices of a run, the precision chosen for them, and its Estimator."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Callable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import checkpoint_files, initialize
from bertlib.cli import lazy_module
from bertlib.cli.errors import InputError, english_list
from bertlib.cli.option import AUTO_CHOICES
from bertlib.compat import estimator_api
from bertlib.compute import onednn, precision
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import tf_records
from bertlib.hardware.replicas import ONE_DEVICE, Replicas, without_tf_config
from bertlib.io import processes
from bertlib.settings import model_description
from bertlib.settings.command import EstimatorSettings
from bertlib.settings.common import ComputeSettings, DeviceSettings

# Of runs with several replicas, or on a TPU.
distribution = lazy_module.load("bertlib.hardware.distribution")


@dataclasses.dataclass(frozen=True)
class Devices:
  """Devices, precision and XLA setting of a run, with "auto" resolved.

  Attributes:
    flags: the flags about devices.
    replicas: the replicas that share a batch; one on a TPU, with all cores.
    tpu_cluster: cluster resolver of the TPU; None without one.
    precision: format of the hidden states, or "int8".
    xla: "on" or "off".
    automatic: names of the flags that were "auto".
    is_plain: modeling.py alone computes.
  """

  flags: DeviceSettings
  replicas: Replicas = ONE_DEVICE
  tpu_cluster: Any = None
  precision: str = "float32"
  xla: str = "off"
  automatic: frozenset[str] = frozenset()
  is_plain: bool = False

  @property
  def on_tpu(self) -> bool:
    """True on a TPU."""
    return self.flags.on_tpu

  @property
  def replicas_per_memory(self) -> int:
    """Replicas that share one memory: more than one only on the CPU."""
    return 1 if self.replicas.on_gpu else self.replicas.num_local

  @property
  def is_chief(self) -> bool:
    """True for the process that writes the results of all workers."""
    return self.replicas.is_chief

  @property
  def choices(self) -> dict[str, str]:
    """Precision and XLA setting, by the names of their flags."""
    return {name: getattr(self, name) for name in AUTO_CHOICES}

  @property
  def hardware(self) -> dict[str, Any]:
    """Entries of a receipt: whether oneDNN computes, and the GPUs."""
    gpus = tf.config.list_physical_devices("GPU")
    return {"onednn": onednn.is_on(), "gpus": [*map(_gpu_name, gpus)]}

  @property
  def num_parts(self) -> int:
    """Number of GPUs, CPUs or cores of a TPU that share a batch."""
    return self.flags.num_tpu_cores if self.on_tpu else self.replicas.count

  def share_of(self, batch_size: int) -> int:
    """Share of a batch of one replica: a GPU, a CPU or a core of a TPU."""
    return batch_size // self.num_parts

  def compute(self, masks_padding: bool = True) -> FastCompute:
    """Precision, unpadding and XLA compilation of a model."""
    dtype = precision.hidden_dtype(self.precision)
    if self.is_plain:
      return FastCompute(dtype)
    on_gpu = bool(tf.config.list_physical_devices("GPU")) and not self.on_tpu
    return FastCompute(
      dtype=dtype,
      # Padding that attention sees may not be left out.
      unpad=masks_padding and not self.on_tpu,
      jit_compile=self.xla == "on" and not self.on_tpu,
      # On a GPU, --xla=auto compiles in training alone.
      jit_inference=on_gpu and "xla" not in self.automatic,
      on_gpu=on_gpu,
      use_onednn=not self.on_tpu and onednn.is_available(),
    )


def find(
  settings: DeviceSettings,
  # Paths that a TPU must be able to read, by flag.
  remote_paths: Mapping[str, str | None] | None = None,
) -> Devices:
  """Finds the devices, connects to a TPU, and limits the number of threads."""
  # All sessions of a process share their threads, which the first one starts.
  # TensorFlow reads the number from the environment, which the processes that
  # this one starts inherit.
  if settings.num_threads:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
      os.environ[name] = str(settings.num_threads)
  if settings.on_tpu:
    cluster = distribution.find_tpu(settings, remote_paths or {})
    return Devices(settings, tpu_cluster=cluster)
  for gpu in gpus_without_code():
    logging.warning(
      "%s: TensorFlow %s has no code for this GPU. It may compile for half an"
      " hour at the start, or end with CUDA_ERROR_INVALID_PTX. See"
      " docs/how_to/gpus.md; CUDA_VISIBLE_DEVICES=-1 computes on the CPU",
      gpu,
      tf.__version__,
    )
  return Devices(settings, _find_replicas(settings))


def share_gpus() -> None:
  """Takes GPU memory when it is needed, in this process and those it starts."""
  # Otherwise TensorFlow takes nearly all of it at the first tensor, and keeps
  # it until the process ends.
  os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def _find_replicas(settings: DeviceSettings) -> Replicas:
  """Replicas on CPUs and GPUs."""
  cluster, kind = None, settings.distribution
  # Slurm may have started several runs that know nothing of each other.
  if kind == "multi_worker" or (kind != "off" and os.environ.get("TF_CONFIG")):
    cluster = distribution.find_cluster(is_wanted=kind == "multi_worker")
  num_gpus = len(tf.config.list_physical_devices("GPU"))
  default = max(num_gpus, 1) if kind != "off" else 1
  num_local = settings.num_replicas or default
  if num_gpus and num_local > num_gpus:
    raise InputError(
      f"--num_replicas={num_local}: this machine has {num_gpus} GPUs. Give at"
      " most that"
    )
  if cluster and num_local > max(num_gpus, 1):
    raise InputError(
      f"--num_replicas={num_local}: without GPUs each worker has one"
      " replica. Start more workers instead"
    )
  return Replicas(num_local, cluster, on_gpu=num_gpus > 0)


# What a run uses


def log_devices(devices: Devices) -> None:
  """Logs devices, precision and XLA setting."""
  gpus = tf.config.list_physical_devices("GPU")
  if devices.on_tpu:
    shown = f"TPU with {devices.flags.num_tpu_cores} cores"
  elif gpus:
    names = Counter(map(_gpu_name, gpus))
    shown = english_list([f"{n} x {name}" for name, n in names.items()])
  else:
    shown = f"CPU with {processes.usable_cores()} cores"
    if devices.flags.num_threads:
      shown += f", {devices.flags.num_threads} threads"
  logging.info(
    "Device: %s; replicas: %d; workers: %d; precision: %s; XLA: %s",
    shown,
    devices.num_parts,
    devices.replicas.num_processes,
    devices.precision,
    devices.xla,
  )
  if devices.on_tpu:
    return
  if not gpus and shutil.which("nvidia-smi"):
    logging.warning(
      "TensorFlow finds no GPU, though nvidia-smi is installed;"
      " --tensorflow_log shows why"
    )
  precision.warn_if_emulated(devices.precision)


@functools.cache
def gpus_without_code() -> tuple[str, ...]:
  """Names of GPUs that the installed TensorFlow was not built for."""
  # Code runs on GPUs of its own major version of compute capability. For newer
  # ones the driver can compile intermediate code, if TensorFlow has any that it
  # understands, but XLA may not know them and end the process.
  build = tf.sysconfig.get_build_info()
  if not build["is_cuda_build"]:
    return ()
  built_for = build.get("cuda_compute_capabilities")
  found = []
  for gpu in tf.config.list_physical_devices("GPU"):
    details = tf.config.experimental.get_device_details(gpu)
    capability = details.get("compute_capability")
    if capability and not _has_code(capability, built_for):
      shown = ".".join(map(str, capability))
      found.append(f"{_gpu_name(gpu)} (compute capability {shown})")
  return tuple(dict.fromkeys(found))


def _has_code(capability: tuple[int, int], built_for: list | None) -> bool:
  """True if TensorFlow, `built_for` "sm_89" or "compute_90", has GPU code."""
  if built_for is None:
    # TensorFlow 2.22 and newer do not list them. Its wheels have code for those
    # before 10.0.
    return capability < (10, 0) or not _tensorflow_misses_code()
  versions = [re.search(r"(\d+)\.?(\d)", name).groups() for name in built_for]
  return any(
    int(major) == capability[0] and int(minor) <= capability[1]
    for major, minor in versions
  )


def _tensorflow_misses_code() -> bool:
  """True if TensorFlow logs, in a child process, that it has no code."""
  log = subprocess.run(
    [sys.executable, "-c", "import tensorflow as tf; tf.compat.v1.Session()"],
    env={
      **os.environ,
      "TF_CPP_MIN_LOG_LEVEL": "0",
      "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    },
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
  ).stderr
  return b"not built with CUDA kernel binaries" in log


def _gpu_name(gpu) -> str:
  details = tf.config.experimental.get_device_details(gpu)
  return details.get("device_name", "GPU")


def choose(
  compute: ComputeSettings,
  devices: Devices,
  recorded: Mapping[str, Any] | None = None,
) -> Devices:
  """Replaces "auto" by the choice of an earlier run or for this machine."""
  choosers = {
    "precision": lambda: _fastest_precision(devices.flags),
    "xla": _xla_where_it_compiles,
  }
  is_plain = compute.compute == "plain"
  if is_plain:  # whatever an earlier run has chosen
    compute = dataclasses.replace(compute, xla="off")
  chosen, automatic = {}, set()
  for name, choose_value in choosers.items():
    value = getattr(compute, name)
    if value == "auto":
      automatic.add(name)
      # A run that is resumed or evaluated elsewhere keeps its choice.
      value = (recorded or {}).get(name)
      # A run on a GPU may have chosen float16, which is not for a TPU.
      if value not in AUTO_CHOICES[name] or (
        value == "float16" and devices.on_tpu
      ):
        value = choose_value()
    chosen[name] = value
  if chosen["precision"] == "int8":
    onednn.check_int8()
  return dataclasses.replace(
    devices, **chosen, automatic=frozenset(automatic), is_plain=is_plain
  )


def _fastest_precision(devices: DeviceSettings) -> str:
  if devices.on_tpu:
    return "bfloat16"
  # Workers that each measure could choose different formats.
  measures = devices.distribution != "multi_worker"
  return precision.fastest_dtype(measures=measures)


def _xla_where_it_compiles() -> str:
  """Selects "on" if XLA can compile for the GPU, with code and ptxas."""
  if not tf.config.list_physical_devices("GPU"):
    return "on"
  if gpus_without_code():  # the trial could end the process
    logging.info("--xla=auto: off, since TensorFlow has no code for this GPU")
    return "off"
  double = tf.function(lambda x: 2.0 * x, jit_compile=True, autograph=False)
  try:
    with tf.Graph().as_default(), tf.Session() as session:
      session.run(double(tf.ones([2])))
  except tf.errors.OpError as error:
    logging.warning(
      "--xla=auto: off, since XLA cannot compile for this GPU. Install"
      " tensorflow[and-cuda], which brings ptxas. %s",
      error.message,
    )
    return "off"
  return "on"


# The Estimator of a run


def find_and_choose(settings: EstimatorSettings) -> Devices:
  """Finds the devices of a run, and what "auto" stands for on them."""
  flags = settings.flags
  paths = {"init_checkpoint": settings.model.init_checkpoint}
  recorded = {}
  if flags and flags.output_dir:
    paths["output_dir"] = flags.output_dir
    # Where a run resumes, or evaluates what another has trained, "auto" is what
    # that run recorded in its folder.
    recorded = model_description.load(flags.output_dir)
  if flags and flags.seeds:  # "auto" computes here, before those runs
    share_gpus()
  found = find(settings.devices, paths)
  return choose(settings.compute, found, recorded)


def make_estimator(
  devices: Devices,
  model_fn,
  model_dir: str,
  for_training: Mapping[str, Any] = {},  # arguments of a `RunConfig`
  **batch_sizes: int,
):
  """Builds a TPUEstimator, which serves CPU and GPU too, or one of replicas."""
  flags = devices.flags
  if devices.replicas.count > 1:
    return distribution.ReplicatedEstimator(
      model_fn, model_dir, devices.replicas, for_training, **batch_sizes
    )
  with without_tf_config():
    run_config = estimator_api.RunConfig(
      cluster=devices.tpu_cluster,
      master=flags.master,
      model_dir=model_dir,
      tpu_config=estimator_api.TPUConfig(
        iterations_per_loop=flags.iterations_per_loop,
        num_shards=flags.num_tpu_cores,
        per_host_input_for_training=(
          estimator_api.InputPipelineConfig.PER_HOST_V2
        ),
      ),
      **for_training,
    )
  estimator = estimator_api.TPUEstimator(
    use_tpu=devices.on_tpu, model_fn=model_fn, config=run_config, **batch_sizes
  )
  # What it writes for TensorBoard is dropped: `loop.write_metrics`
  # writes the same under the names that training has.
  estimator.eval_dir = lambda name=None: "ram://eval"
  return estimator


def check_model_fn(
  checkpoint: str | None, model_fn: Callable, layout: tf_records.Layout
) -> initialize.Shapes:
  """Refuses a checkpoint of another model; returns the model's weights."""
  if checkpoint:
    checkpoint_files.check(checkpoint)
    num_variables = len(checkpoint_files.shapes_of(checkpoint))
    logging.info("%s: %d variables, none corrupt", checkpoint, num_variables)

  def reference_variable(create, **arguments):
    return create(**{**arguments, "use_resource": False})

  # Building the graph of a prediction logs what would be restored. Nothing runs
  # it: variables of the kind with the fewest operations will do.
  with (
    tf.Graph().as_default(),
    tf.variable_creator_scope(reference_variable),
  ):
    batch = {
      name: tf.zeros([1, *shape], tf.float32 if is_float else tf.int32)
      for name, (shape, is_float, *_) in layout.items()
    }
    model_fn(batch, None, estimator_api.ModeKeys.PREDICT, {"batch_size": 1})
    return initialize.weights_of_graph()
