"""Devices of a run, and the precision and XLA setting chosen for them."""

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
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.cli.errors import InputError, english_list
from bertlib.cli.ranges import AUTO_CHOICES
from bertlib.compute import onednn, precision
from bertlib.hardware import distribution, tpu
from bertlib.settings.common import ComputeSettings, DeviceSettings


def find(
  settings: DeviceSettings,
  remote_paths: Mapping[str, str | None] | None = None,
) -> DeviceSettings:
  """Finds the devices, connects to a TPU, and limits the number of threads."""
  # Before the first session, which starts the threads.
  limit_threads(settings.num_threads)
  if settings.on_tpu:
    cluster = tpu.find_cluster(
      settings.tpu_name,
      settings.master,
      settings.tpu_zone,
      settings.gcp_project,
      # Paths that the TPU must be able to read, by flag.
      dict(remote_paths or {}),
    )
    return dataclasses.replace(settings, tpu_cluster=cluster)
  for gpu in gpus_without_code():
    logging.warning(
      "%s: TensorFlow %s has no code for this GPU. It may compile for half an"
      " hour at the start, or end with CUDA_ERROR_INVALID_PTX. See"
      " docs/how_to/gpus.md; CUDA_VISIBLE_DEVICES=-1 computes on the CPU",
      gpu,
      tf.__version__,
    )
  return dataclasses.replace(settings, replicas=_find_replicas(settings))


def limit_threads(num_threads: int) -> None:
  """Sets the number of threads that compute on the CPU; 0 for all cores."""
  # All sessions of a process share their threads. TensorFlow reads the number
  # from the environment, which the processes that this one starts inherit.
  if num_threads:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
      os.environ[name] = str(num_threads)


def share_gpus() -> None:
  """Takes GPU memory when it is needed, in this process and those it starts."""
  # Otherwise TensorFlow takes nearly all of it at the first tensor, and keeps
  # it until the process ends.
  os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def find_cluster(settings: DeviceSettings) -> distribution.Cluster | None:
  """Workers of the run, initializing no device; None for a single process."""
  if settings.on_tpu:
    return None
  is_wanted = settings.distribution == "multi_worker"
  # Slurm may have started several runs that know nothing of each other.
  is_named = settings.distribution != "off" and os.environ.get("TF_CONFIG")
  if not (is_wanted or is_named):
    return None
  cluster = distribution.read_cluster(os.environ)
  if cluster and not is_wanted:
    raise InputError(
      "TF_CONFIG lists several workers. Give --distribution=multi_worker to"
      " train with them, or --distribution=off to train on this one only"
    )
  if is_wanted and not cluster:
    raise InputError(
      "--distribution=multi_worker: there is only one worker. List several in"
      " TF_CONFIG, or start them by srun with several tasks"
    )
  return cluster


def _find_replicas(settings: DeviceSettings) -> distribution.Replicas | None:
  """Replicas on CPUs and GPUs; None for one device."""
  cluster = find_cluster(settings)
  kind = settings.distribution
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
  replicas = distribution.Replicas(num_local, cluster, on_gpu=num_gpus > 0)
  return replicas if replicas.count > 1 else None


def log_devices(devices: DeviceSettings, compute: ComputeSettings) -> None:
  """Logs devices, precision and XLA setting, with "auto" resolved."""
  gpus = tf.config.list_physical_devices("GPU")
  if devices.on_tpu:
    shown = f"TPU with {devices.num_tpu_cores} cores"
  elif gpus:
    names = Counter(map(_gpu_name, gpus))
    shown = english_list([f"{n} x {name}" for name, n in names.items()])
  else:
    shown = f"CPU with {os.cpu_count()} cores"
    if devices.num_threads:
      shown += f", {devices.num_threads} threads"
  replicas = devices.replicas
  logging.info(
    "Device: %s; replicas: %d; workers: %d; precision: %s; XLA: %s",
    shown,
    devices.num_tpu_cores if devices.on_tpu else devices.num_replicas_in_sync,
    replicas.num_processes if replicas else 1,
    compute.precision,
    compute.xla,
  )
  if devices.on_tpu:
    return
  if not gpus and shutil.which("nvidia-smi"):
    logging.warning(
      "TensorFlow finds no GPU, though nvidia-smi is installed;"
      " --tensorflow_log shows why"
    )
  if compute.precision == "int8":
    onednn.log_int8_speed()
  elif compute.precision not in precision.supported_dtypes():
    logging.warning(
      "--precision=%s: this device has no hardware support for it, so it may"
      " be slow",
      compute.precision,
    )


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
  devices: DeviceSettings,
  recorded: Mapping[str, Any] | None = None,
) -> ComputeSettings:
  """Replaces "auto" by the choice of an earlier run or for this machine."""
  choosers = {
    "precision": lambda: _fastest_precision(devices),
    "xla": _xla_where_it_compiles,
  }
  if compute.compute == "plain":  # whatever an earlier run has chosen
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
  return dataclasses.replace(compute, **chosen, automatic=frozenset(automatic))


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
