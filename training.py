"""What the scripts share: flags, starting points, progress, results.

The functions that begin with `define_` and those that say so read absl's
flags; everything else takes plain arguments.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging
from tqdm import tqdm

import estimator_api
import execution as execution_lib
import memory_plan
import modeling
import optimization
import tokenization
from command_line import InputError, open_any, write_whole
from execution import Execution

FLAGS = flags.FLAGS

# What a trained model is, beside its checkpoints: enough to load it again.
MODEL_FILE = "model.json"
CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"


# Flags


def define_model_flags(max_seq_length: int = 128) -> None:
  """Flags that say which model: all that the scripts have in common.

  Args:
    max_seq_length: the default of that flag, in tokens.
  """
  flags.DEFINE_string(
    "bert_config_file", None, "JSON file with the sizes of the model."
  )
  flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Checkpoint to start from, named as its files are without .index: a"
    " released BERT model or any model of the same sizes.",
  )
  flags.DEFINE_integer(
    "max_seq_length",
    max_seq_length,
    "Longest sequence in word pieces; what is longer is cut, what is shorter"
    " is padded.",
  )


def define_text_flags() -> None:
  """Flags that say how text becomes ids."""
  flags.DEFINE_string("vocab_file", None, "Vocabulary, one word piece a line.")
  flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Whether text is lower-cased and loses its accents: true for uncased"
    " models, false for cased ones.",
  )
  flags.DEFINE_alias("do_lower", "do_lower_case")


def define_training_flags() -> None:
  """Flags of a training run, but for how long it is."""
  flags.DEFINE_string(
    "output_dir", None, "Folder for checkpoints, records and results."
  )
  flags.DEFINE_float("learning_rate", 5e-5, "Highest learning rate of Adam.")
  flags.DEFINE_bool(
    "bias_correction",
    False,
    "Whether Adam's moments are corrected for their start at zero. BERT does"
    " not do it; on small data sets training is steadier with it.",
  )
  flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps a checkpoint.")
  flags.DEFINE_integer(
    "seed",
    12345,
    "Fixes new weights, example order and dropout: the same seed gives the"
    " same run.",
  )
  flags.DEFINE_integer("log_steps", 20, "Steps between two lines of progress.")
  flags.DEFINE_integer(
    "gradient_accumulation_steps",
    1,
    "Parts that the examples of a step are taken in, one after the other, to"
    " save memory. The step is that of the whole batch.",
    lower_bound=1,
  )
  flags.DEFINE_bool(
    "recompute_activations",
    False,
    "Whether activations are computed a second time for the gradient, instead"
    " of being kept: less memory, a third more time.",
  )
  flags.DEFINE_float(
    "memory_gb",
    None,
    "Memory that training may take, in GB of 10^9 bytes; sets the two flags"
    " above so that it does.",
    lower_bound=0.0,
  )
  flags.DEFINE_bool(
    "optimizer_on_cpu",
    False,
    "Whether Adam's moments are kept in the host's memory and not on the GPU.",
  )


def define_execution_flags() -> None:
  """Flags that say how the model is computed, in training or not."""
  flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16", "float16", "auto"],
    "Number format of matrix products and activations; the weights are"
    " float32. float16 is for GPUs without bfloat16, and scales the loss. auto"
    " takes what this device is fastest in.",
  )
  flags.DEFINE_enum(
    "xla",
    "auto",
    ["auto", "on", "off"],
    "Whether training compiles what is between matrix products, and the update"
    " of the weights. It takes a second for each new size of a batch. auto does"
    " it where there is no GPU.",
  )


def define_epoch_flags() -> None:
  """Flags of training by passes over a training set."""
  flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training set.")
  flags.DEFINE_float(
    "warmup_proportion",
    0.1,
    "Share of training in which the learning rate rises: 0.1 is a tenth.",
  )
  flags.DEFINE_bool(
    "group_by_length",
    False,
    "Whether a step's examples are of like length, which is faster; else they"
    " meet by chance.",
  )


def define_tpu_flags() -> None:
  """Flags of Cloud TPU; they do nothing without `--use_tpu`."""
  flags.DEFINE_bool("use_tpu", False, "Whether to run on a TPU.")
  flags.DEFINE_string("tpu_name", None, "Name or grpc:// address of the TPU.")
  flags.DEFINE_string("tpu_zone", None, "Zone of the TPU, if not the default.")
  flags.DEFINE_string("gcp_project", None, "Project of the TPU, likewise.")
  flags.DEFINE_string("master", None, "TensorFlow master address.")
  flags.DEFINE_integer("num_tpu_cores", 8, "Cores of the TPU.")
  flags.DEFINE_integer(
    "iterations_per_loop", 1000, "Steps between two visits to the host."
  )


def build_estimator(
  model_fn,
  model_dir: str,
  train_batch_size: int | None = None,
  eval_batch_size: int | None = None,
  predict_batch_size: int | None = None,
  **run_config,
):
  """A TPUEstimator with the TPU flags; on CPU and GPU it is one as well.

  Args:
    model_fn: of the script.
    model_dir: folder of its checkpoints.
    train_batch_size: examples a step, where it trains.
    eval_batch_size: examples a step of scoring, where it scores.
    predict_batch_size: examples a step of prediction, where it predicts.
    **run_config: further arguments of RunConfig.

  Returns:
    An `estimator_api.TPUEstimator`.
  """
  if not logging.level_debug():
    # Its account of itself is long; what matters of it is told here.
    tf.logging.set_verbosity(tf.logging.ERROR)
  cluster = None
  if FLAGS.use_tpu and FLAGS.tpu_name:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
      FLAGS.tpu_name, zone=FLAGS.tpu_zone, project=FLAGS.gcp_project
    )
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
  return estimator_api.TPUEstimator(
    use_tpu=FLAGS.use_tpu,
    model_fn=model_fn,
    config=config,
    train_batch_size=train_batch_size,
    eval_batch_size=eval_batch_size,
    predict_batch_size=predict_batch_size,
  )


def read_execution(packs: bool = True) -> Execution:
  """How the flags want the model computed.

  Args:
    packs: whether padding may be left out.

  Returns:
    The `Execution`, with `recomputes` off.
  """
  precision = FLAGS.precision
  if precision == "auto":
    precision = "bfloat16" if FLAGS.use_tpu else execution_lib.fastest_dtype()
  compiles = FLAGS.xla == "on"
  if FLAGS.xla == "auto":
    compiles = not tf.config.list_physical_devices("GPU")
  return Execution(
    dtype=tf.as_dtype(precision),
    packs=packs and not FLAGS.use_tpu,
    compiles=compiles and not FLAGS.use_tpu,
  )


def plan_training(
  execution: Execution,
  config: modeling.BertConfig,
  num_predictions: int = 0,
) -> tuple[Execution, optimization.StepOptions]:
  """How the flags want a step of training made.

  Args:
    execution: of `read_execution`.
    config: the model's sizes.
    num_predictions: P, masked positions of a sequence.

  Returns:
    The execution, which may recompute now, and the step's options.

  Raises:
    InputError: the batch is not divisible as asked for, or nothing keeps
      training within the memory given.
  """
  batch_size = FLAGS.train_batch_size
  num_parts = FLAGS.gradient_accumulation_steps
  recomputes = FLAGS.recompute_activations
  if FLAGS.memory_gb is not None:
    plan = memory_plan.fit(
      config,
      batch_size,
      FLAGS.max_seq_length,
      int(FLAGS.memory_gb * 10**9),
      execution.dtype.size,
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
      f" --train_batch_size={batch_size}"
    )
  return execution._replace(recomputes=recomputes), optimization.StepOptions(
    bias_correction=FLAGS.bias_correction,
    num_micro_batches=num_parts,
    compiles=execution.compiles and not FLAGS.optimizer_on_cpu,
    on_cpu=FLAGS.optimizer_on_cpu,
    scales_loss=execution.dtype == tf.float16,
  )


# What a run starts from


def load_config(path: str) -> modeling.BertConfig:
  """Reads a model's sizes.

  Args:
    path: a `bert_config.json`.

  Returns:
    The config.

  Raises:
    InputError: the file is missing or is not such a file.
  """
  try:
    with open_any(path) as file:
      values = json.load(file)
    config = modeling.BertConfig.from_dict(values)
    modeling.get_activation(config.hidden_act)
  except (OSError, tf.errors.NotFoundError) as error:
    raise InputError(
      f"{path}: cannot be read; name a bert_config.json"
    ) from error
  except (ValueError, TypeError) as error:
    raise InputError(f"{path}: not a bert_config.json ({error})") from error
  if not isinstance(config.vocab_size, int):
    raise InputError(f"{path}: not a bert_config.json (no vocab_size in it)")
  return config


def load_tokenizer(
  vocab_file: str,
  do_lower_case: bool,
  config: modeling.BertConfig,
  init_checkpoint: str | None = None,
  never_split: Iterable[str] = (),
) -> tokenization.FullTokenizer:
  """A tokenizer that fits the model.

  Args:
    vocab_file: the vocabulary.
    do_lower_case: whether it is of an uncased model.
    config: the model's sizes.
    init_checkpoint: whose folder's name may tell its case.
    never_split: see `tokenization.FullTokenizer`.

  Returns:
    The tokenizer.

  Raises:
    InputError: the vocabulary is missing, lacks a special entry, has more
      entries than the model, or is of the other case.
  """
  try:
    tokenization.validate_case_matches_checkpoint(
      do_lower_case, init_checkpoint
    )
    tokenizer = tokenization.FullTokenizer(
      vocab_file, do_lower_case, never_split
    )
    tokenization.check_vocab(tokenizer.vocab, config.vocab_size)
  except (OSError, tf.errors.NotFoundError) as error:
    raise InputError(
      f"{vocab_file}: cannot be read; name a vocab.txt"
    ) from error
  except UnicodeDecodeError as error:
    raise InputError(f"{vocab_file}: not a vocabulary in UTF-8") from error
  except ValueError as error:
    raise InputError(f"{vocab_file}: {error}") from error
  _check_case(vocab_file, tokenizer.vocab, do_lower_case)
  return tokenizer


def _check_case(vocab_file: str, vocab: Iterable[str], do_lower_case: bool):
  """Refuses a published vocabulary's worth of words of the other case."""
  words = [t for t in vocab if t.isascii() and t.lstrip("#").isalpha()]
  if len(words) < 1000:
    return
  has_capitals = sum(word != word.lower() for word in words) > len(words) / 100
  if has_capitals and do_lower_case:
    raise InputError(
      f"{vocab_file}: is cased, but text is lower-cased. Give"
      " --do_lower_case=False"
    )
  if not has_capitals and not do_lower_case:
    raise InputError(
      f"{vocab_file}: is uncased, but text keeps its capitals, for which it"
      " has no entries. Give --do_lower_case=True"
    )


def check_max_seq_length(
  max_seq_length: int, config: modeling.BertConfig, least: int = 3
) -> None:
  """Refuses lengths that the model has no positions for.

  Args:
    max_seq_length: in tokens.
    config: the model's sizes.
    least: the shortest that makes sense.

  Raises:
    InputError: the length is out of range.
  """
  if not least <= max_seq_length <= config.max_position_embeddings:
    raise InputError(
      f"--max_seq_length={max_seq_length} is not between {least} and the"
      f" model's max_position_embeddings, {config.max_position_embeddings}"
    )


def check_checkpoint(path: str) -> None:
  """Refuses a checkpoint that is not there.

  Args:
    path: named as its files are, without `.index`.

  Raises:
    InputError: a file of it is missing.
  """
  index = path + ".index"
  is_part = re.search(r"\.(index|meta|data-\d+-of-\d+)$", path)
  # Checkpoints of TensorFlow's first format are one file of that name.
  if is_part or not (tf.gfile.Exists(index) or tf.gfile.Exists(path)):
    raise InputError(
      f"{path}: no such checkpoint. Name it as its files are, without"
      " .index or .data-00000-of-00001"
    )
  if tf.gfile.Exists(index) and not tf.gfile.Glob(path + ".data-*"):
    raise InputError(f"{path}: its .index is there, its .data files are not")


def find_model(
  init_checkpoint: str | None, output_dir: str, may_be_new: bool
) -> str | None:
  """Finds the checkpoint that has to hold all of the model.

  Args:
    init_checkpoint: `--init_checkpoint`, or None.
    output_dir: whose last checkpoint goes first.
    may_be_new: whether the run makes do with a model that is new, in whole or
      in part, as training does.

  Returns:
    The checkpoint; None for a model that is new.

  Raises:
    InputError: `init_checkpoint` is not there, or there is no model.
  """
  if init_checkpoint:
    check_checkpoint(init_checkpoint)
  trained = tf.train.latest_checkpoint(output_dir)
  if trained or may_be_new:
    return trained
  if not init_checkpoint:
    raise InputError(
      f"{output_dir}: holds no trained model; add --do_train, or name"
      " one with --init_checkpoint"
    )
  return init_checkpoint


def initialize_from_checkpoint(
  init_checkpoint: str | None, model_dir: str | None = None, use_tpu=False
):
  """Lets the graph's weights start from a checkpoint, and says which do.

  A checkpoint in `model_dir` goes first: Estimator restores all of it.

  Args:
    init_checkpoint: path of the checkpoint, or None.
    model_dir: the Estimator's folder, or None.
    use_tpu: whether the work has to wait for the TPU's own graph.

  Returns:
    A `scaffold_fn` on a TPU, else None.

  Raises:
    InputError: the checkpoint is missing, has other shapes, or lacks some or
      all of the encoder's weights.
  """
  trained = model_dir and tf.train.latest_checkpoint(model_dir)
  if trained:
    known = dict(tf.train.list_variables(trained))
    missing = [
      v.op.name for v in tf.global_variables() if v.op.name not in known
    ]
    if missing:
      raise InputError(
        f"{trained}: lacks {missing[0]}, so it was not trained with these flags"
        " (--precision, --task_name, ...). Give those again, or name another"
        " --output_dir and this checkpoint as --init_checkpoint"
      )
    logging.info("All weights come from %s", trained)
    return None
  variables = tf.trainable_variables()
  if not init_checkpoint:
    logging.info("No --init_checkpoint: all weights start at random")
    return None
  check_checkpoint(init_checkpoint)
  assignment_map, _ = modeling.get_assignment_map_from_checkpoint(
    variables, init_checkpoint
  )
  _check_restored(variables, assignment_map, init_checkpoint)

  def restore():
    tf.train.init_from_checkpoint(init_checkpoint, assignment_map)

  if use_tpu:
    return lambda: restore() or tf.train.Scaffold()
  restore()
  return None


def _check_restored(variables, assignment_map, init_checkpoint: str) -> None:
  """Says what a checkpoint gives to the graph; refuses one that cannot."""
  shapes = dict(tf.train.list_variables(init_checkpoint))
  for variable in variables:
    name, shape = variable.op.name, variable.shape.as_list()
    if name in assignment_map and shapes[name] != shape:
      raise InputError(
        f"{init_checkpoint}: {name} has the shape {shapes[name]} there, but"
        f" the model asked for needs {shape}. Name the bert_config.json (and"
        " the task's labels) that belong to the checkpoint"
      )
  # A model may come without its pooler; the rest of it belongs together.
  encoder = [
    v.op.name
    for v in variables
    if v.op.name.startswith(("bert/embeddings/", "bert/encoder/"))
  ]
  missing = [name for name in encoder if name not in assignment_map]
  if missing and len(missing) == len(encoder):
    raise InputError(
      f"{init_checkpoint}: has none of the encoder's variables (such as"
      f" {encoder[0]}; it begins with {next(iter(shapes), 'nothing')}). Name"
      " a BERT checkpoint; one of another library has to be converted first"
    )
  if missing:
    raise InputError(
      f"{init_checkpoint}: lacks {len(missing)} of the encoder's"
      f" {len(encoder)} variables (such as {missing[0]}). Name the"
      " bert_config.json that belongs to the checkpoint"
    )
  logging.info(
    "%d of %d variables restored from %s",
    len(assignment_map),
    len(variables),
    init_checkpoint,
  )
  _log_names(
    "Not in the checkpoint, start at random",
    [v.op.name for v in variables if v.op.name not in assignment_map],
  )
  _log_names(
    "In the checkpoint, taken by nothing",
    [name for name in shapes if name not in assignment_map],
  )


def _log_names(what: str, names: list[str]) -> None:
  """Names on a line; an optimizer's moments are only counted."""
  moments = [n for n in names if n.endswith(("/adam_m", "/adam_v"))]
  shown = [n for n in names if n not in set(moments)]
  if moments:
    shown.append(f"{len(moments)} moments of Adam")
  if shown:
    logging.info("%s: %s", what, ", ".join(shown))


def claim_output_dir(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  vocab_file: str | None,
) -> None:
  """Makes a folder that of one model.

  The model's description, config and vocabulary are written to the folder, so
  that it can be loaded again without them being named.

  Args:
    output_dir: the folder, for which `check_output_dir` had no objection.
    model: what else describes the model (its script, task, labels, ...).
    config: its sizes.
    vocab_file: its vocabulary; None where it is not known.
  """

  def path(name):
    return os.path.join(output_dir, name)

  if vocab_file:
    with open_any(vocab_file, "rb") as file:
      vocab = file.read()
    with write_whole(path(VOCAB_FILE), "wb") as file:
      file.write(vocab)
  with write_whole(path(CONFIG_FILE)) as file:
    file.write(config.to_json_string())
  with write_whole(path(MODEL_FILE)) as file:
    file.write(json.dumps(model, indent=2, ensure_ascii=False) + "\n")


def check_output_dir(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  keys: Iterable[str] = ("script", "task", "labels"),
) -> None:
  """Refuses a folder with a checkpoint of another model.

  Args:
    output_dir: the folder; may be missing.
    model: what describes this run's model.
    config: its sizes.
    keys: what of the description has to agree.

  Raises:
    InputError: it holds another's checkpoint; both are named.
  """
  checkpoint = tf.train.latest_checkpoint(output_dir)
  if checkpoint is None:
    return
  shapes = dict(tf.train.list_variables(checkpoint))
  description = load_model_description(output_dir)
  theirs = {key: description[key] for key in keys if key in description}
  ours = {key: model[key] for key in theirs}
  if "bert/embeddings/word_embeddings" in shapes:
    layers = {n.split("/")[2] for n in shapes if n.startswith("bert/encoder/")}
    theirs["vocab_size"], theirs["hidden_size"] = shapes[
      "bert/embeddings/word_embeddings"
    ]
    theirs["num_hidden_layers"] = len(layers)
    ours |= {key: getattr(config, key) for key in theirs if key not in ours}
  if "output_bias" in shapes and "labels" in model:
    theirs["outputs"] = shapes["output_bias"][0]
    ours["outputs"] = max(len(model["labels"]), 1)
  for key, value in theirs.items():
    if value != ours[key]:
      raise InputError(
        f"{output_dir}: holds a model with {key} {value!r}, but this run's is"
        f" {ours[key]!r}. Name another --output_dir, or remove this one"
      )


def load_model_description(model_dir: str) -> dict[str, Any]:
  """What `claim_output_dir` wrote of a model.

  Args:
    model_dir: the folder.

  Returns:
    The description; empty where there is none, as in folders of the reference.
  """
  path = os.path.join(model_dir, MODEL_FILE)
  if not tf.gfile.Exists(path):
    return {}
  with open_any(path) as file:
    return json.load(file)


def steps_done(model_dir: str) -> int:
  """The step of the last checkpoint in a folder; 0 where there is none."""
  checkpoint = tf.train.latest_checkpoint(model_dir)
  if checkpoint is None:
    return 0
  return int(tf.train.load_checkpoint(checkpoint).get_tensor("global_step"))


def is_trained(model_dir: str, done: int, num_train_steps: int) -> bool:
  """Whether a folder's model is at the end of its training; says so if it is.

  Args:
    model_dir: the folder.
    done: its `steps_done`.
    num_train_steps: the step at which training ends.
  """
  if done >= num_train_steps:
    logging.info(
      "%s is already at step %d of %d: nothing is left to train",
      model_dir,
      done,
      num_train_steps,
    )
  return done >= num_train_steps


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
  restore,
  batch_size: int,
  log_steps: int,
):
  """What a `model_fn` gives for training: a step of it, and how it is shown.

  Args:
    loss_fn: of a batch, or an equal part of one, and the `dropout_seed`; gives
      the examples' mean loss, float32 [], and by name what else to show of
      them, float32 []. If there is any, it goes to TensorBoard, as do the
      learning rate and the norm.
    batch: features by name.
    learning_rate: the highest.
    num_train_steps: the step at which training ends.
    num_warmup_steps: steps until the highest learning rate.
    use_tpu: whether it runs on a TPU, where nothing is shown: many steps run
      between two visits to the host.
    options: how the step is made.
    seed: of dropout, or None for masks that nothing fixes.
    restore: called once the weights are in the graph, to let them start from a
      checkpoint; gives the `scaffold_fn`.
    batch_size: examples a step.
    log_steps: steps between two lines of progress.

  Returns:
    A `TPUEstimatorSpec`.
  """
  global_step = tf.train.get_or_create_global_step()

  def part_loss(part, index):
    if seed is None:
      return loss_fn(part, None)
    draw = global_step * options.num_micro_batches + tf.cast(index, tf.int64)
    return loss_fn(part, (seed, draw))

  loss_scale = optimization.LossScale() if options.scales_loss else None
  gradients = optimization.compute_gradients(
    part_loss, batch, options.num_micro_batches, loss_scale
  )
  scaffold_fn = restore()
  step = optimization.training_step(
    gradients,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    options=options,
    loss_scale=loss_scale,
  )
  hooks = []
  if not use_tpu:
    shown = {
      **gradients.scalars,
      "learning_rate": step.learning_rate,
      "gradient_norm": step.gradient_norm,
    }
    if loss_scale:
      shown["loss_scale"] = loss_scale.value
    if gradients.scalars:
      for name, value in shown.items():
        tf.summary.scalar(name, value)  # Estimator has one of the loss
    tensors = {name.replace("_", " "): value for name, value in shown.items()}
    tensors = {"loss": gradients.loss} | tensors
    hooks = [ProgressHook(tensors, num_train_steps, batch_size, log_steps)]
  return estimator_api.TPUEstimatorSpec(
    mode=estimator_api.ModeKeys.TRAIN,
    loss=gradients.loss,
    train_op=step.train_op,
    scaffold_fn=scaffold_fn,
    training_hooks=hooks,
  )


class ProgressHook(tf.train.SessionRunHook):
  """Shows how training goes: a bar on a terminal, plain lines elsewhere."""

  def __init__(
    self,
    tensors: Mapping[str, Any],
    num_train_steps: int,
    batch_size: int,
    log_steps: int = 20,
  ):
    """Takes what to show.

    Args:
      tensors: scalar tensors by the name to show.
      num_train_steps: the step at which training ends.
      batch_size: examples a step.
      log_steps: steps between two lines.
    """
    self._tensors = dict(tensors)
    self._num_train_steps = num_train_steps
    self._batch_size = batch_size
    self._log_steps = max(log_steps, 1)
    self._bar = None

  def after_create_session(self, session, coord):
    del coord
    self._step = int(session.run(tf.train.get_global_step(session.graph)))
    self._mark = time.time(), self._step
    if self._bar is None and sys.stderr.isatty():
      self._bar = tqdm(
        total=self._num_train_steps, initial=self._step, unit="step"
      )

  def before_run(self, run_context):
    del run_context
    step = self._step + 1
    due = step % self._log_steps == 0 or step == self._num_train_steps
    return tf.train.SessionRunArgs(self._tensors if due else {})

  def after_run(self, run_context, run_values):
    del run_context
    self._step += 1
    if self._bar is not None:
      self._bar.update()
    if run_values.results:
      self._show(run_values.results)

  def _show(self, values: Mapping[str, float]) -> None:
    now, (then, last_step) = time.time(), self._mark
    self._mark = now, self._step
    rate = (self._step - last_step) / max(now - then, 1e-9)
    shown = {name: f"{value:.4g}" for name, value in values.items()}
    shown["examples/s"] = f"{rate * self._batch_size:.1f}"
    if self._bar is not None:
      self._bar.set_postfix(shown)
      return
    left = round((self._num_train_steps - self._step) / rate)
    logging.info(
      "step %d of %d: %s, %s left",
      self._step,
      self._num_train_steps,
      ", ".join(f"{name} {value}" for name, value in shown.items()),
      datetime.timedelta(seconds=left),
    )

  def end(self, session):
    del session
    if self._bar is not None:
      self._bar.close()


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
