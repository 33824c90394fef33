"""What the flags of a training command stand for."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags, logging

from bertlib import (
  folder_lock,
  precision,
)
from bertlib.app import read_receipt
from bertlib.checkpoints import model_json
from bertlib.compute import FastCompute
from bertlib.errors import InputError, english_list
from bertlib.settings.common import CHOICES
from bertlib.training import distribution, model_selection, tpu
from bertlib.training.model_selection import Selection

FLAGS = flags.FLAGS


def read_replicas() -> distribution.Replicas | None:
  """Where the flags want replicas; None for one device, or a TPU.

  Raises:
    InputError: they contradict each other or the environment.
  """
  kind = FLAGS.distribution
  if FLAGS.use_tpu:
    return None
  num_gpus = len(tf.config.list_physical_devices("GPU"))
  cluster = None
  if kind == "multi_worker":
    if "do_train" not in FLAGS or not FLAGS.do_train:
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
  elif "TF_CONFIG" in os.environ and kind != "off":
    raise InputError(
      "TF_CONFIG names processes that train together: give"
      " --distribution=multi_worker, or off to train alone"
    )
  num_local = FLAGS.num_replicas or (max(num_gpus, 1) if kind != "off" else 1)
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
  replicas = distribution.Replicas(num_local, cluster)
  return replicas if replicas.count > 1 else None


def log_devices() -> None:
  """Logs what a run computes on, and in which number format."""
  chosen = compute_choices()
  gpus = tf.config.list_physical_devices("GPU")
  replicas = read_replicas()
  if FLAGS.use_tpu:
    devices = f"TPU with {FLAGS.num_tpu_cores} cores"
  elif gpus:
    names = Counter(map(_gpu_name, gpus))
    devices = english_list([f"{n} x {name}" for name, n in names.items()])
  else:
    devices = f"CPU with {os.cpu_count()} cores"
  num_replicas = replicas.count if replicas else 1
  num_workers = replicas.num_processes if replicas else 1
  logging.info(
    "Device: %s; replicas: %d; workers: %d; precision: %s; XLA: %s",
    devices,
    FLAGS.num_tpu_cores if FLAGS.use_tpu else num_replicas,
    num_workers,
    chosen["precision"],
    chosen["xla"],
  )
  if FLAGS.use_tpu:
    return
  if not gpus and shutil.which("nvidia-smi"):
    logging.warning(
      "TensorFlow sees no GPU, though this machine has nvidia-smi;"
      " --tensorflow_log shows why"
    )
  if chosen["precision"] not in precision.supported_formats():
    logging.warning(
      "--precision=%s: this device has no instructions for it, so it may be"
      " slow",
      chosen["precision"],
    )


def _gpu_name(gpu) -> str:
  details = tf.config.experimental.get_device_details(gpu)
  return details.get("device_name", "GPU")


def is_chief() -> bool:
  """Whether this process writes what all have done; see `read_replicas`."""
  replicas = read_replicas()
  return not replicas or replicas.is_chief


def lock_output_dir() -> contextlib.AbstractContextManager[None]:
  """Holds the lock of --output_dir in its block, if this process trains there.

  Evaluation and prediction need no lock, and of several workers the first one
  writes alone.
  """
  if FLAGS.do_train and is_chief():
    return folder_lock.lock_folder(FLAGS.output_dir)
  return contextlib.nullcontext()


def find_tpu():
  """The TPU of the flags, if any, see `tpu.find_cluster`."""
  if FLAGS.distribution == "tpu":
    FLAGS["use_tpu"].value = True
  elif FLAGS.distribution and FLAGS.use_tpu:
    raise InputError(
      f"--use_tpu and --distribution={FLAGS.distribution}: give one of them"
    )
  if not FLAGS.use_tpu:
    return None
  names = [n for n in ("output_dir", "init_checkpoint") if n in FLAGS]
  return tpu.find_cluster(
    FLAGS.tpu_name,
    FLAGS.master,
    FLAGS.tpu_zone,
    FLAGS.gcp_project,
    {name: FLAGS[name].value for name in names},
  )


def save_checkpoints_steps() -> int:
  """Steps a checkpoint as the flags want it; each scoring needs one.

  Raises:
    InputError: --eval_steps would be without.
  """
  steps = FLAGS.save_checkpoints_steps
  if not FLAGS.eval_steps or FLAGS.eval_steps % steps == 0:
    return steps
  if FLAGS["save_checkpoints_steps"].present:
    raise InputError(
      f"--eval_steps={FLAGS.eval_steps} scores checkpoints, so it has to be a"
      f" multiple of --save_checkpoints_steps={steps}"
    )
  return FLAGS.eval_steps


def read_selection(metrics: Sequence[str]) -> Selection:
  """How the flags want the best weights found.

  Args:
    metrics: scores that there are, the task's own first.

  Returns:
    The `Selection`.

  Raises:
    InputError: there is no such score, or nothing that the flags speak of.
  """
  if FLAGS.patience and not FLAGS.eval_steps:
    raise InputError("--patience counts scorings: add --eval_steps")
  save_checkpoints_steps()
  metric = model_selection.plain_name(FLAGS.best_metric or metrics[0])
  if metric not in metrics:
    raise InputError(
      f"--best_metric={FLAGS.best_metric}: there is no such score; there are"
      f" {', '.join(metrics)}"
    )
  eval_steps = FLAGS.eval_steps if FLAGS.do_train else None
  return Selection(eval_steps or 0, metric, FLAGS.patience)


def read_seeds() -> list[int]:
  """The seeds of `--seeds`; none where there is one run alone.

  Raises:
    InputError: the runs could not be compared.
  """
  if FLAGS.seeds and not (FLAGS.do_train and FLAGS.do_eval):
    raise InputError("--seeds compares dev scores: add --do_train, --do_eval")
  if FLAGS.seeds == 1:
    raise InputError("--seeds=1: give 2 or more, or --seed=... for one run")
  return [FLAGS.seed + index for index in range(FLAGS.seeds)]


def read_execution(unpad: bool = True) -> FastCompute:
  """How the flags want the model computed.

  Args:
    unpad: whether padding may be left out.

  Returns:
    The `FastCompute`, with `recompute` off.

  Raises:
    InputError: a TPU is to compute in float16.
  """
  chosen = compute_choices()
  if chosen["precision"] == "float16" and FLAGS.use_tpu:
    raise InputError(
      "--precision=float16 does not go with --use_tpu: TPUs have no fast"
      " float16; give --precision=bfloat16"
    )
  return FastCompute(
    dtype=tf.as_dtype(chosen["precision"]),
    unpad=unpad and not FLAGS.use_tpu,
    jit_compile=chosen["xla"] == "on" and not FLAGS.use_tpu,
  )


def compute_choices() -> dict[str, str]:
  """Values of --precision and --xla, with what `auto` stands for here.

  Where a run resumes, or evaluates what another has trained, `auto` is what
  that run recorded in its folder; with --rerun, what the receipt says.

  Returns:
    `precision` and `xla`, by name, none of them "auto".
  """
  given = {"precision": FLAGS.precision, "xla": FLAGS.xla}
  if "auto" not in given.values():
    return given
  recorded = {}
  if getattr(FLAGS, "output_dir", None):
    recorded = model_json.load_description(FLAGS.output_dir)
  if getattr(FLAGS, "rerun", None):
    recorded |= read_receipt(FLAGS.rerun)
  choose = {"precision": _fastest_precision, "xla": _xla_without_gpu}
  return {
    name: (_known(name, recorded) or choose[name]())
    if value == "auto"
    else value
    for name, value in given.items()
  }


def _known(name: str, recorded: Mapping[str, Any]) -> str | None:
  """What a run has recorded of a choice; None if that is no value of it."""
  value = recorded.get(name)
  return value if value in CHOICES[name] else None


def _fastest_precision() -> str:
  if FLAGS.use_tpu:
    return "bfloat16"
  # Workers that measure need not come to the same choice.
  return precision.fastest_dtype(measures=FLAGS.distribution != "multi_worker")


def _xla_without_gpu() -> str:
  return "off" if tf.config.list_physical_devices("GPU") else "on"


def choice_flags() -> list[str]:
  """Flags by which another process makes the choices of this one."""
  return [f"--{name}={value}" for name, value in compute_choices().items()]


def count_steps(num_examples: int, unit: str) -> int:
  """Steps of training that --num_train_epochs asks for.

  Args:
    num_examples: of an epoch.
    unit: plural noun of what these are.

  Returns:
    The steps, at least one.

  Raises:
    InputError: there are not enough for one.
  """
  batches = num_examples / FLAGS.train_batch_size
  num_steps = int(batches * FLAGS.num_train_epochs)
  if not num_steps:
    enough = math.ceil(10 / batches) / 10 if batches else 1
    raise InputError(
      f"--num_train_epochs={FLAGS.num_train_epochs:g}: {num_examples} training"
      f" {unit} are not enough for one step of"
      f" --train_batch_size={FLAGS.train_batch_size}. Give {enough:g} epochs or"
      " more, a smaller batch, or more data"
    )
  return num_steps
