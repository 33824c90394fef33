"""What the scripts share: flags, starting points, progress, results.

The functions that begin with `define_` and those that say so read absl's
flags; everything else takes plain arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf_v2
import tensorflow.compat.v1 as tf
from absl import flags, logging
from tqdm import tqdm

import download_model
import modeling
import optimization
from bertlib import (
  estimator_api,
  folder_lock,
  json_files,
  precision,
  published_models,
)
from bertlib.app import progress, read_receipt
from bertlib.checkpoints import finding, initialize, model_json, tfhub
from bertlib.compute import FastCompute
from bertlib.data import model_inputs, record_check
from bertlib.errors import InputError, english_list
from bertlib.files import write_whole
from bertlib.reporting import html_report
from bertlib.settings.common import CHOICES
from bertlib.training import (
  checkpoint_hook,
  distribution,
  memory_plan,
  model_selection,
  tpu,
)
from bertlib.training.model_selection import Selection

FLAGS = flags.FLAGS


def fill_in_model_flags() -> None:
  """Fetches a model that the flags name; its files become those of the flags.

  What else the command line says of a model stays.

  Raises:
    InputError: it cannot be had, has no vocabulary, or is named twice.
  """
  handle, checkpoint = FLAGS.bert_hub_module_handle, FLAGS.init_checkpoint
  if handle and checkpoint:
    raise InputError(
      "--bert_hub_module_handle and --init_checkpoint both say where to start;"
      " give one of them"
    )
  if handle:
    brought = tfhub.flags_for(handle)
  elif checkpoint and published_models.is_name(checkpoint):
    brought = download_model.flags_for(checkpoint)
  elif checkpoint:
    FLAGS["init_checkpoint"].value = find_init_checkpoint(checkpoint)
    return
  else:
    return
  for name, value in brought.items():
    # Not by assigning to FLAGS, which would ask what is required again.
    if name == "init_checkpoint" or not FLAGS[name].present:
      FLAGS[name].value = value
  if not FLAGS.vocab_file:
    raise InputError(f"{handle}: has no vocabulary; name it by --vocab_file")


def find_init_checkpoint(value: str) -> str:
  """The checkpoint that --init_checkpoint names, by itself or by its folder.

  Args:
    value: of the flag.

  Returns:
    See `finding.find_checkpoint`.

  Raises:
    InputError: there is none. If the value looks like the name of a model, the
      message has names like it.
  """
  try:
    return finding.find_checkpoint(value)
  except InputError as error:
    near = published_models.similar_names(value)
    if not near or os.path.exists(value):
      raise
    raise InputError(
      f"--init_checkpoint={value}: neither a checkpoint nor the name of a"
      f" model. Did you mean {' or '.join(near)}?"
    ) from error


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


def build_estimator(
  model_fn,
  model_dir: str,
  train_batch_size: int | None = None,
  eval_batch_size: int | None = None,
  predict_batch_size: int | None = None,
):
  """The Estimator of a script, on the devices that the flags name.

  Args:
    model_fn: of the script.
    model_dir: folder of its checkpoints.
    train_batch_size: examples a step, where it trains.
    eval_batch_size: examples a step of scoring, where it scores.
    predict_batch_size: examples a step of prediction, where it predicts.

  Returns:
    An `estimator_api.TPUEstimator`, which serves a CPU or GPU too, or a
    `distribution.ReplicatedEstimator`.
  """
  sizes = {
    "train_batch_size": train_batch_size,
    "eval_batch_size": eval_batch_size,
    "predict_batch_size": predict_batch_size,
  }
  run_config = {}
  if train_batch_size:
    run_config = {
      "tf_random_seed": FLAGS.seed,
      "save_checkpoints_steps": save_checkpoints_steps(),
      "keep_checkpoint_max": FLAGS.keep_checkpoint_max,
      # On a TPU it shows examples a second; else `ProgressHook` does.
      "save_summary_steps": FLAGS.log_steps if FLAGS.use_tpu else 0,
    }
  replicas = read_replicas()
  if replicas:
    return distribution.ReplicatedEstimator(
      model_fn, model_dir, replicas, run_config, **sizes
    )
  cluster = find_tpu()
  with distribution.without_tf_config():
    config = estimator_api.RunConfig(
      cluster=cluster,
      master=FLAGS.master,
      model_dir=model_dir,
      tpu_config=estimator_api.TPUConfig(
        iterations_per_loop=FLAGS.iterations_per_loop,
        num_shards=FLAGS.num_tpu_cores,
        per_host_input_for_training=(
          estimator_api.InputPipelineConfig.PER_HOST_V2
        ),
      ),
      **run_config,
    )
  estimator = estimator_api.TPUEstimator(
    use_tpu=FLAGS.use_tpu, model_fn=model_fn, config=config, **sizes
  )
  # What it writes for TensorBoard is dropped: `write_dev_scores` writes the
  # same under the names that training has.
  estimator.eval_dir = lambda name=None: "ram://eval"
  return estimator


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


def plan_training(
  compute: FastCompute,
  config: modeling.BertConfig,
  num_train_steps: int,
  num_predictions: int = 0,
) -> tuple[FastCompute, optimization.StepOptions]:
  """How the flags want a step of training made.

  Args:
    compute: from `read_execution`.
    config: the model's sizes.
    num_train_steps: length of training; 0 where there is none to plan.
    num_predictions: P, masked positions of a sequence.

  Returns:
    `compute`, which may recompute now, and the options of a step.

  Raises:
    InputError: the batch is not divisible as asked for, or nothing keeps
      training within the memory given.
  """
  if not num_train_steps:
    return compute, optimization.StepOptions()
  replicas = read_replicas()
  if replicas and FLAGS.optimizer_on_cpu:
    raise InputError(
      "--optimizer_on_cpu is for one device: it cannot be with"
      f" {replicas.count} replicas"
    )
  batch_size = FLAGS.train_batch_size // (replicas.count if replicas else 1)
  num_parts = FLAGS.gradient_accumulation_steps
  recomputes = FLAGS.recompute_activations
  if FLAGS.memory_gb is not None:
    plan = memory_plan.fit(
      config,
      batch_size,
      FLAGS.max_seq_length,
      int(FLAGS.memory_gb * 10**9),
      compute.dtype.size,
      num_predictions,
    )
    if plan is None:
      raise InputError(
        f"--memory_gb={FLAGS.memory_gb:g}: not even one sequence of"
        f" {FLAGS.max_seq_length} tokens fits. Give more, or a lower"
        " --max_seq_length"
      )
    num_parts, recomputes = plan.num_micro_batches, plan.recomputes
    logging.info(
      "--memory_gb=%g: --gradient_accumulation_steps=%d, %d sequences at once,"
      " --%srecompute_activations; takes %.1f GB at most",
      FLAGS.memory_gb,
      num_parts,
      batch_size // num_parts,
      "" if recomputes else "no",
      plan.num_bytes / 10**9,
    )
  if batch_size % num_parts:
    raise InputError(
      f"--gradient_accumulation_steps={num_parts} does not divide"
      f" --train_batch_size={FLAGS.train_batch_size}"
      + (f" shared by {replicas.count} replicas" if replicas else "")
    )
  if FLAGS.freeze_layers > config.num_hidden_layers:
    raise InputError(
      f"--freeze_layers={FLAGS.freeze_layers}: the model has"
      f" {config.num_hidden_layers} layers"
    )
  compute = dataclasses.replace(compute, recompute=recomputes)
  return compute, optimization.StepOptions(
    schedule=FLAGS.schedule,
    power=FLAGS.schedule_power,
    optimizer=FLAGS.optimizer,
    weight_decay=FLAGS.weight_decay,
    bias_correction=FLAGS.bias_correction,
    beta_1=FLAGS.beta_1,
    beta_2=FLAGS.beta_2,
    epsilon=FLAGS.epsilon,
    clip_norm=FLAGS.clip_norm,
    layer_decay=FLAGS.layer_decay,
    frozen=optimization.Frozen(FLAGS.freeze_layers, FLAGS.freeze_embeddings),
    num_micro_batches=num_parts,
    compiles=compute.jit_compile and not FLAGS.optimizer_on_cpu,
    on_cpu=FLAGS.optimizer_on_cpu,
    scales_loss=compute.dtype == tf.float16,
  )


# From the first step to the last


def train(
  estimator,
  input_fn,
  num_train_steps: int,
  what: str,
  unit: str,
  selection: Selection,
  evaluate: model_selection.Evaluate | None,
  find_bad_record: record_check.Find | None = None,
) -> None:
  """Trains, or goes on where training was stopped, as the flags say.

  Args:
    estimator: the model.
    input_fn: of the training data, from the step on that has been reached.
    num_train_steps: the step at which training ends.
    what: what it trains on, for the log.
    unit: what a step takes some of.
    selection: how it is scored on the way.
    evaluate: scores a checkpoint, if it is scored on the way.
    find_bad_record: looks for the record at fault when training fails.
  """
  replicas, writes = read_replicas(), is_chief()
  if writes:
    finding.go_on_in(FLAGS.output_dir)
  done = finding.steps_done(FLAGS.output_dir)
  if done >= num_train_steps:
    logging.info(
      "%s is already at step %d of %d: nothing is left to train",
      FLAGS.output_dir,
      done,
      num_train_steps,
    )
  else:
    logging.info(
      "Training on %s, from step %d to %d, %d %s a step",
      what,
      done,
      num_train_steps,
      FLAGS.train_batch_size,
      unit,
    )
  with checkpoint_hook.StopRequest() as own:
    stop, hooks = own, []
    if replicas and replicas.num_processes > 1:
      stop = checkpoint_hook.StopRequest()
      hooks = [checkpoint_hook.SharedStop(own, stop)]
    if writes and not FLAGS.use_tpu:
      params = {
        "batch_size": FLAGS.train_batch_size,
        "shard": replicas and replicas.shard,
      }
      hooks.append(
        checkpoint_hook.CheckpointHook(
          FLAGS.output_dir,
          save_checkpoints_steps(),
          FLAGS.save_checkpoints_secs,
          stop,
          own,
          functools.partial(checkpoint_hook.batch_at, input_fn, params),
          find_bad_record=find_bad_record,
        )
      )
    with record_check.named_at_failure(find_bad_record):
      model_selection.train(
        estimator,
        input_fn,
        num_train_steps,
        selection,
        evaluate if writes else None,
        hooks,
      )
  stop.exit_if_requested(FLAGS.output_dir)


def checkpoint_to_use() -> str | None:
  """The checkpoint to score and predict with; says which it is.

  Processes that are for training alone end here.

  Returns:
    See `finding.trained_checkpoint`.
  """
  if not is_chief():
    logging.info("This worker is done; the first one does the rest")
    sys.exit(0)
  checkpoint = finding.trained_checkpoint(FLAGS.output_dir)
  if checkpoint:
    logging.info("The weights are those of %s", checkpoint)
  return checkpoint


def write_report(
  results: Mapping[str, Any],
  selection: Selection,
  sections: Sequence[str],
  lengths: model_inputs.Lengths | None,
  warnings: Sequence[str] = (),
) -> None:
  """Writes the `report.html` of a training run.

  Args:
    results: of scoring the trained model, by name.
    selection: how it was scored on the way.
    sections: what the script has to show of the results, made by `report`.
    lengths: of the training examples, where they are known.
    warnings: sections of `point_out_collapse`, which come first.
  """
  scores = model_selection.DevScores(FLAGS.output_dir, selection)
  best = scores.best
  marked = best and (best["step"], f"best {selection.metric}")
  made = list(warnings)
  scalars = html_report.read_scalars(FLAGS.output_dir)
  if scalars:
    made.append(html_report.curves("Training", scalars, marked))
  if scores.rows:
    made.append(html_report.curves("Dev scores", scores.by_name(), marked))
  made += _seeds_section()
  made += sections
  if lengths:
    made.append(
      html_report.lengths(
        lengths.num_tokens,
        lengths.limit,
        sum(cut > 0 for cut in lengths.num_cut),
        sum(lengths.num_cut),
      )
    )
  made.append(html_report.table("Settings", _settings()))
  path = os.path.join(FLAGS.output_dir, "report.html")
  folder = os.path.basename(os.path.abspath(FLAGS.output_dir))
  html_report.write(path, folder, model_selection.plain_scores(results), made)
  logging.info("How the run went, to look at: %s", path)


def _seeds_section() -> list[str]:
  """A section about the runs of --seeds, of which the results are the best."""
  path = os.path.join(FLAGS.output_dir, model_selection.SEEDS_FILE)
  if not (getattr(FLAGS, "seeds", 0) and tf.gfile.Exists(path)):
    return []
  found = json_files.read(
    path,
    {
      "metric": str,
      "seeds": [int],
      "scores": [float],
      "best_seed": int,
      "collapsed": [int],
      "confidence_interval": [float],
    },
    "Remove it, or repeat the run",
  )
  rows = [
    {
      "seed": seed,
      found["metric"]: score,
      "note": ", ".join(
        note
        for note, applies in (
          ("kept as the best", seed == found["best_seed"]),
          ("collapsed", seed in found["collapsed"]),
        )
        if applies
      ),
    }
    for seed, score in zip(found["seeds"], found["scores"])
  ]
  low, high = found["confidence_interval"]
  for name in ("median", "mean", "standard_deviation"):
    shown = name.replace("_", " ")
    rows.append({"seed": shown, found["metric"]: found[name], "note": ""})
  rows[-2]["note"] = f"95% confidence interval {low:.4f} to {high:.4f}"
  return [html_report.table("Seeds", rows)]


def _settings() -> list[dict[str, Any]]:
  """Rows of the flags that were given, and of what `auto` stood for."""
  given = {n: FLAGS[n].value for n in sorted(FLAGS) if FLAGS[n].present}
  for name, value in compute_choices().items():
    if FLAGS[name].value == "auto":
      given[name] = f"auto: {value}"
  return [{"flag": f"--{n}", "value": value} for n, value in given.items()]


# While it runs


def train_spec(
  loss_fn,
  batch: Mapping[str, Any],
  learning_rate: float,
  num_train_steps: int,
  num_warmup_steps: int,
  use_tpu: bool,
  options: optimization.StepOptions,
  seed: int | None,
  init_checkpoint: str | None,
  config,
  batch_size: int,
  log_steps: int,
):
  """What a `model_fn` gives for training: a step of it, and how it is shown.

  Loss, learning rate, gradient norm and what else `loss_fn` tells go to
  TensorBoard every `log_steps` steps, on a TPU too.

  Args:
    loss_fn: of a batch, or an equal part of one, and the `dropout_seed`; gives
      the examples' mean loss, float32 [], and by name what else to show of
      them, float32 [].
    batch: features by name.
    learning_rate: the highest.
    num_train_steps: the step at which training ends.
    num_warmup_steps: steps until the highest learning rate.
    use_tpu: whether it runs on a TPU, where no line of progress is shown: many
      steps run between two visits to the host.
    options: how the step is made.
    seed: of dropout, or None for masks that nothing fixes.
    init_checkpoint: where the weights start, or None.
    config: the Estimator's `RunConfig`, or None where there is none.
    batch_size: examples a step.
    log_steps: steps between two lines of progress.

  Returns:
    A `TPUEstimatorSpec`.
  """
  global_step = tf.train.get_or_create_global_step()

  def part_loss(part, index):
    if seed is None:
      return loss_fn(part, None)
    draw = global_step
    if not use_tpu:  # whose cores do not tell their number
      draw = draw * optimization.num_replicas() + optimization.replica_number()
    draw = draw * options.num_micro_batches + tf.cast(index, tf.int64)
    return loss_fn(part, (seed, draw))

  loss_scale = optimization.LossScale() if options.scales_loss else None
  gradients = optimization.compute_gradients(
    part_loss, batch, options.num_micro_batches, loss_scale, options.frozen
  )
  model_dir = config and config.model_dir
  writes = model_dir and distribution.writes_summaries()
  last = model_dir and finding.last_checkpoint(model_dir)
  scaffold_fn = initialize.initialize_from_checkpoint(
    init_checkpoint, last, use_tpu
  )
  step = optimization.training_step(
    gradients,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    options=options,
    loss_scale=loss_scale,
  )
  shown = {
    "loss": step.loss,
    **step.scalars,
    "learning_rate": step.learning_rate,
    "gradient_norm": step.gradient_norm,
  }
  if loss_scale:
    shown["loss_scale"] = loss_scale.value
  hooks = []
  if not use_tpu:
    # A scaled loss may have a gradient without end: that step is left out.
    finite = ["loss"] if loss_scale else ["loss", "gradient_norm"]
    checkpoint_hook.watch(shown, finite)
    if optimization.num_replicas() > 1:
      checkpoint_hook.share_stop_requests()
    tensors = {name.replace("_", " "): value for name, value in shown.items()}
    hooks = [
      ProgressHook(
        tensors,
        num_train_steps,
        batch_size,
        log_steps,
        model_dir if writes else None,
      )
    ]
  return estimator_api.TPUEstimatorSpec(
    mode=estimator_api.ModeKeys.TRAIN,
    loss=step.loss,
    train_op=step.train_op,
    scaffold_fn=scaffold_fn,
    training_hooks=hooks,
    host_call=write_scalars(
      model_dir, step.train_op, shown, log_steps, num_train_steps
    )
    if writes
    else None,
  )


def write_scalars(
  model_dir: str,
  train_op,
  scalars: Mapping[str, Any],
  log_steps: int,
  num_train_steps: int,
):
  """A `host_call` that writes scalars for TensorBoard.

  The first and the last step are written whatever `log_steps` is.

  The host writes what the device gives, which is how a TPU's graph, that has no
  operations for files, can show its numbers.

  Args:
    model_dir: the folder.
    train_op: counts the step.
    scalars: float [] by name.
    log_steps: steps between two values.
    num_train_steps: the last step.

  Returns:
    The function and its tensors, with an axis over the TPU's cores.
  """
  with tf.control_dependencies([train_op]):
    done = tf.train.get_or_create_global_step().read_value()

  # What `tf.summary.scalar` adds, for which TensorBoard has to be installed.
  metadata = tf.SummaryMetadata(
    plugin_data=tf.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
  )

  def write(step, *values):
    is_due = (
      tf.equal(step[0] % max(log_steps, 1), 0)
      | tf.equal(step[0], 1)
      | tf.equal(step[0], num_train_steps)
    )
    with (
      tf_v2.summary.create_file_writer(model_dir).as_default(),
      tf_v2.summary.record_if(is_due),
    ):
      for name, value in zip(scalars, values):
        tf_v2.summary.write(name, tf.reduce_mean(value), step[0], metadata)
    return tf.summary.all_v2_summary_ops()

  return write, [tf.reshape(t, [1]) for t in (done, *scalars.values())]


def part_weight(
  weights, options: optimization.StepOptions, use_tpu: bool = False
):
  """By what a part of a batch divides its weighted sum.

  Parts may have more weight or less (more masks, more words), and the mean of
  their sums is the batch's mean if all divide by the same.

  Args:
    weights: float [...], of all examples of a replica.
    options: has the number of parts.
    use_tpu: see `optimization.sum_over_replicas`.

  Returns:
    float32 [].
  """
  total = tf.reduce_sum(tf.cast(weights, tf.float32))
  total = optimization.sum_over_replicas(total, use_tpu)
  num_replicas = optimization.num_replicas(use_tpu)
  return total / num_replicas / options.num_micro_batches


class ProgressHook(tf.train.SessionRunHook):
  """Shows how training goes: a bar on a terminal, plain lines elsewhere."""

  def __init__(
    self,
    tensors: Mapping[str, Any],
    num_train_steps: int,
    batch_size: int,
    log_steps: int = 20,
    model_dir: str | None = None,
  ):
    """Takes what to show.

    Args:
      tensors: scalar tensors by the name to show.
      num_train_steps: the step at which training ends.
      batch_size: examples a step.
      log_steps: steps between two lines.
      model_dir: folder for TensorBoard, which gets the examples a second, or
        None.
    """
    self._model_dir = model_dir
    self._tensors = dict(tensors)
    self._num_train_steps = num_train_steps
    self._batch_size = batch_size
    self._log_steps = max(log_steps, 1)
    self._bar = None

  def after_create_session(self, session, coord):
    del coord
    self._step = int(session.run(tf.train.get_global_step(session.graph)))
    self._seconds = []  # of each step since the last line
    self._start = None  # time and step after the first one, which compiles
    logging.info("Compiling the training step")
    if self._bar is None and sys.stderr.isatty():
      self._bar = tqdm(
        total=self._num_train_steps, initial=self._step, unit="step"
      )

  def before_run(self, run_context):
    del run_context
    self._began = time.time()
    step = self._step + 1
    due = step % self._log_steps == 0 or step == self._num_train_steps
    due |= self._start is None
    return tf.train.SessionRunArgs(self._tensors if due else {})

  def after_run(self, run_context, run_values):
    del run_context
    self._step += 1
    self._seconds.append(time.time() - self._began)
    if self._bar is not None:
      self._bar.update()
    if self._start is None:
      self._show_first(run_values.results)
    elif run_values.results:
      self._show(run_values.results)

  def _show_first(self, values: Mapping[str, float]) -> None:
    """Shows a step whose duration says nothing about that of the others."""
    shown = {name: f"{value:.4g}" for name, value in values.items()}
    if self._bar is not None:
      self._bar.set_postfix(shown)
    else:
      logging.info(
        "step %d of %d: %s; compiled in %.1f s",
        self._step,
        self._num_train_steps,
        ", ".join(f"{name} {value}" for name, value in shown.items()),
        sum(self._seconds),
      )
    self._start, self._seconds = (time.time(), self._step), []

  def _show(self, values: Mapping[str, float]) -> None:
    examples_per_second = self._batch_size / max(self._typical_seconds(), 1e-9)
    shown = {name: f"{value:.4g}" for name, value in values.items()}
    shown["examples/s"] = f"{examples_per_second:.1f}"
    if self._model_dir:
      entry = tf.Summary.Value(
        tag="examples/s", simple_value=examples_per_second
      )
      tf.summary.FileWriterCache.get(self._model_dir).add_summary(
        tf.Summary(value=[entry]), self._step
      )
    if self._bar is not None:
      self._bar.set_postfix(shown)
      return
    then, first_step = self._start
    seconds = (time.time() - then) / (self._step - first_step)
    left = round((self._num_train_steps - self._step) * seconds)
    logging.info(
      "step %d of %d: %s, %s left",
      self._step,
      self._num_train_steps,
      ", ".join(f"{name} {value}" for name, value in shown.items()),
      datetime.timedelta(seconds=left),
    )

  def _typical_seconds(self) -> float:
    """The mean of the steps since the last line, which begins anew.

    Those in which a checkpoint was saved, or scored, do not count: they took
    many times as long.
    """
    seconds, self._seconds = sorted(self._seconds), []
    middle = seconds[(len(seconds) - 1) // 2]
    typical = [one for one in seconds if one <= 5 * middle]
    return sum(typical) / len(typical)

  def end(self, session):
    del session
    if self._bar is not None:
      self._bar.close()
    if self._model_dir:
      tf.summary.FileWriterCache.get(self._model_dir).flush()


def follow(rows: Iterable[Any], total: int, unit: str) -> Iterator[Any]:
  """Shows the progress of predictions as they come.

  The time left is estimated from the first row on: what is before it is mostly
  compilation.

  Args:
    rows: predictions.
    total: their number.
    unit: plural noun for what is predicted.

  Yields:
    The predictions.
  """
  rows = iter(rows)
  logging.info("Compiling the prediction step")
  first = list(itertools.islice(rows, 1))
  with progress(total, unit, initial=len(first)) as bar:
    yield from first
    for row in rows:
      bar.update()
      yield row


def restore_trained(init_checkpoint: str | None, config, use_tpu: bool):
  """What weights start from where they are not trained.

  Args:
    init_checkpoint: a checkpoint, for a folder without one.
    config: the Estimator's `RunConfig`, or None where there is none.
    use_tpu: whether it runs on a TPU.

  Returns:
    See `initialize.initialize_from_checkpoint`.
  """
  trained = finding.trained_checkpoint(config and config.model_dir)
  return initialize.initialize_from_checkpoint(
    init_checkpoint, trained, use_tpu
  )


class CollectHook(tf.train.SessionRunHook):
  """Keeps the values of some tensors over all steps of an evaluation."""

  def __init__(self, tensors: Mapping[str, Any], into: dict[str, Any]):
    """Takes what to keep, and where.

    Args:
      tensors: tensors by name, each with the batch as its first axis.
      into: gets, at the end, an array for each name.
    """
    self._tensors = dict(tensors)
    self._into = into
    self._batches = []

  def of_whole_batches(
    self, others: Sequence[CollectHook], join: Callable[[Sequence[Any]], Any]
  ) -> CollectHook:
    """A hook like this one for whole batches, of which this has a part.

    Args:
      others: of the other parts, in order.
      join: makes one tensor of those of all parts.
    """
    joined = {
      name: join([hook._tensors[name] for hook in (self, *others)])
      for name in self._tensors
    }
    return CollectHook(joined, self._into)

  def before_run(self, run_context):
    del run_context
    return tf.train.SessionRunArgs(self._tensors)

  def after_run(self, run_context, run_values):
    del run_context
    self._batches.append(run_values.results)

  def end(self, session):
    del session
    for name in self._tensors:
      self._into[name] = np.concatenate([b[name] for b in self._batches])


# Afterwards


def write_dev_scores(
  results: Mapping[str, Any], checkpoint: str | None, ending: str = ""
) -> None:
  """Writes the scores of a dev set for TensorBoard, to `dev/`.

  Args:
    results: see `model_selection.plain_scores`.
    checkpoint: what was evaluated; None for a model without training.
    ending: of the folder's name, for a second dev set.
  """
  step = 0
  if checkpoint:
    reader = tf.train.load_checkpoint(checkpoint)
    step = int(reader.get_tensor("global_step"))
  model_selection.write_events(
    os.path.join(FLAGS.output_dir, f"dev{ending}"),
    step,
    model_selection.plain_scores(results),
  )


def point_out_collapse(
  answers: Iterable[str], gold: Iterable[str] | None = None
) -> list[str]:
  """Warns of a model that predicts the same for every example.

  Args:
    answers: the predictions.
    gold: the correct answers, if known.

  Returns:
    A section of `report`; none for a model whose predictions differ.
  """
  text = model_selection.collapse(answers, gold)
  if not text:
    return []
  logging.warning("%s", text)
  return [html_report.warning(text)]


def predictions_name(path: str) -> str:
  """What files with predictions of a text file are called, without endings.

  Args:
    path: the text file; "-" for standard input.
  """
  stem = os.path.splitext(os.path.basename(path))[0]
  return f"{'stdin' if path == '-' else stem}_predictions"


def write_results(path: str, results: Mapping[str, Any]) -> None:
  """Writes an `eval_results.txt` and logs it: `key = value`, keys sorted.

  Args:
    path: the file.
    results: values by key.
  """
  lines = [f"{key} = {value!s}" for key, value in sorted(results.items())]
  for line in lines:
    logging.info("  %s", line)
  with write_whole(path) as file:
    file.writelines(line + "\n" for line in lines)
