"""Devices of a run, and the precision and compiler that suit them."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib import precision
from bertlib.errors import InputError, english_list
from bertlib.settings.common import CHOICES, ComputeSettings, DeviceSettings
from bertlib.training import distribution, tpu


def find(
  settings: DeviceSettings,
  trains: bool = False,
  remote_paths: Mapping[str, str | None] | None = None,
) -> DeviceSettings:
  """Finds the devices that the flags name; connects to a TPU.

  Args:
    settings: flags of devices.
    trains: whether the run trains.
    remote_paths: paths by flag that a TPU has to reach.

  Returns:
    The settings with `replicas` or `tpu_cluster`.

  Raises:
    InputError: there are no such devices, or flags and environment contradict
      each other.
  """
  if settings.on_tpu:
    cluster = tpu.find_cluster(
      settings.tpu_name,
      settings.master,
      settings.tpu_zone,
      settings.gcp_project,
      dict(remote_paths or {}),
    )
    return dataclasses.replace(settings, tpu_cluster=cluster)
  return dataclasses.replace(
    settings, replicas=_find_replicas(settings, trains)
  )


def find_cluster(
  settings: DeviceSettings, trains: bool
) -> distribution.Cluster | None:
  """Finds the processes that train together; looks at no device.

  Args:
    settings: flags of devices.
    trains: whether the run trains.

  Returns:
    The `Cluster`; None for one process alone, and on a TPU.

  Raises:
    InputError: flags and environment contradict each other.
  """
  if settings.on_tpu:
    return None
  if settings.distribution != "multi_worker":
    if "TF_CONFIG" in os.environ and settings.distribution != "off":
      raise InputError(
        "TF_CONFIG names processes that train together: give"
        " --distribution=multi_worker, or off to train alone"
      )
    return None
  if not trains:
    raise InputError(
      "--distribution=multi_worker is for training: give --do_train, or use"
      " the devices of one machine"
    )
  cluster = distribution.read_cluster(os.environ)
  if not cluster:
    raise InputError(
      "--distribution=multi_worker: there is one process alone. Name several"
      " in TF_CONFIG, or start this by srun with several tasks"
    )
  return cluster


def _find_replicas(
  settings: DeviceSettings, trains: bool
) -> distribution.Replicas | None:
  """Replicas on CPUs and GPUs; None for one device."""
  cluster = find_cluster(settings, trains)
  kind = settings.distribution
  num_gpus = len(tf.config.list_physical_devices("GPU"))
  asked = settings.num_replicas
  num_local = asked or (max(num_gpus, 1) if kind != "off" else 1)
  if kind == "off" and num_local > 1:
    raise InputError("--num_replicas is for --distribution=mirrored")
  if num_gpus and num_local > num_gpus:
    raise InputError(
      f"--num_replicas={num_local}: this machine has {num_gpus} GPUs"
    )
  if cluster and num_local > max(num_gpus, 1):
    raise InputError(
      f"--num_replicas={num_local}: without GPUs each worker is one replica;"
      " start more workers"
    )
  replicas = distribution.Replicas(num_local, cluster, on_gpu=num_gpus > 0)
  return replicas if replicas.count > 1 else None


def log_devices(devices: DeviceSettings, compute: ComputeSettings) -> None:
  """Logs what a run computes on, and in which precision.

  Args:
    devices: of the run.
    compute: without "auto", see `choose`.
  """
  gpus = tf.config.list_physical_devices("GPU")
  if devices.on_tpu:
    shown = f"TPU with {devices.num_tpu_cores} cores"
  elif gpus:
    names = Counter(map(_gpu_name, gpus))
    shown = english_list([f"{n} x {name}" for name, n in names.items()])
  else:
    shown = f"CPU with {os.cpu_count()} cores"
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
      "TensorFlow sees no GPU, though this machine has nvidia-smi;"
      " --tensorflow_log shows why"
    )
  if compute.precision not in precision.supported_formats():
    logging.warning(
      "--precision=%s: this device has no instructions for it, so it may be"
      " slow",
      compute.precision,
    )


def _gpu_name(gpu) -> str:
  details = tf.config.experimental.get_device_details(gpu)
  return details.get("device_name", "GPU")


def choose(
  compute: ComputeSettings,
  devices: DeviceSettings,
  recorded: Mapping[str, Any] | None = None,
) -> ComputeSettings:
  """Replaces "auto" by what this machine, or an earlier run, makes of it.

  Args:
    compute: flags of the computation.
    devices: of the run.
    recorded: choices by flag of the run that is resumed, evaluated or
      repeated; they take precedence over those for this machine.

  Returns:
    The settings with a `precision` and an `xla` other than "auto".

  Raises:
    InputError: a TPU is to compute in float16.
  """
  choose_one = {
    "precision": lambda: _fastest_precision(devices),
    "xla": _xla_without_gpu,
  }
  chosen, automatic = {}, set()
  for name, choose_value in choose_one.items():
    value = getattr(compute, name)
    if value == "auto":
      automatic.add(name)
      value = (recorded or {}).get(name)
      if value not in CHOICES[name]:
        value = choose_value()
    chosen[name] = value
  if chosen["precision"] == "float16" and devices.on_tpu:
    raise InputError(
      "--precision=float16 does not go with --use_tpu: TPUs have no fast"
      " float16; give --precision=bfloat16"
    )
  return dataclasses.replace(compute, **chosen, automatic=frozenset(automatic))


def _fastest_precision(devices: DeviceSettings) -> str:
  if devices.on_tpu:
    return "bfloat16"
  # Workers that measure may come to different choices.
  measures = devices.distribution != "multi_worker"
  return precision.fastest_dtype(measures=measures)


def _xla_without_gpu() -> str:
  return "off" if tf.config.list_physical_devices("GPU") else "on"
