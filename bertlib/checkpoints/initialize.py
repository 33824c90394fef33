"""Initializing the variables of a graph from a checkpoint."""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import optimization
from bertlib.checkpoints import checkpoint_files, finding
from bertlib.errors import InputError


def initialize_from_checkpoint(
  init_checkpoint: str | None, trained: str | None = None, use_tpu=False
):
  """Initializes the graph's weights from a checkpoint and logs which.

  Args:
    init_checkpoint: path of the checkpoint, or None.
    trained: checkpoint that Estimator will restore completely, or None. If
      given, `init_checkpoint` is ignored.
    use_tpu: whether to defer initialization to a `scaffold_fn`, as TPUEstimator
      requires.

  Returns:
    A `scaffold_fn` on a TPU, else None.

  Raises:
    InputError: the checkpoint is missing, has other shapes, or lacks weights
      of the encoder.
  """
  if trained:
    known = dict(tf.train.list_variables(trained))
    missing = [
      optimization.name_of(v)
      for v in tf.global_variables()
      if optimization.name_of(v) not in known
    ]
    if missing:
      raise InputError(
        f"{trained}: lacks {missing[0]}, so it was not trained with these flags"
        " (--precision, --task_name, ...). Give those again, or name another"
        " --output_dir and this checkpoint as --init_checkpoint"
      )
    return None
  variables = tf.trainable_variables()
  if not variables:  # the weights are constants
    return None
  is_first_replica = not tf.get_variable_scope().reuse
  if not init_checkpoint:
    if is_first_replica:
      logging.info("No --init_checkpoint: all weights are randomly initialized")
    return None
  init_checkpoint = finding.find_checkpoint(init_checkpoint)
  checkpoint_files.check(init_checkpoint)
  assignment_map, _ = modeling.get_assignment_map_from_checkpoint(
    variables, init_checkpoint
  )
  if is_first_replica:
    _check_restored(variables, assignment_map, init_checkpoint)

  def restore():
    tf.train.init_from_checkpoint(init_checkpoint, assignment_map)

  if use_tpu:
    return lambda: restore() or tf.train.Scaffold()
  restore()
  return None


def _check_restored(variables, assignment_map, init_checkpoint: str) -> None:
  """Rejects a checkpoint of another model; logs what is restored."""
  shapes = dict(tf.train.list_variables(init_checkpoint))
  for variable in variables:
    name, shape = optimization.name_of(variable), variable.shape.as_list()
    if name in assignment_map and shapes[name] != shape:
      raise InputError(
        f"{init_checkpoint}: {name} has shape {shapes[name]}, but the model"
        f" needs {shape}. Use the bert_config.json (and the task's labels) that"
        " belong to the checkpoint"
      )
  # The pooler is optional; the rest of the encoder must be complete.
  encoder = [
    optimization.name_of(v)
    for v in variables
    if optimization.name_of(v).startswith(("bert/embeddings/", "bert/encoder/"))
  ]
  missing = [name for name in encoder if name not in assignment_map]
  if missing and len(missing) == len(encoder):
    raise InputError(
      f"{init_checkpoint}: has none of the encoder's variables (such as"
      f" {encoder[0]}; its first is {next(iter(shapes), 'none')}). Name a BERT"
      " checkpoint; convert one of another library first"
    )
  if missing:
    raise InputError(
      f"{init_checkpoint}: lacks {len(missing)} of the encoder's"
      f" {len(encoder)} variables (such as {missing[0]}). Use the"
      " bert_config.json that belongs to the checkpoint"
    )
  logging.info(
    "%d of %d variables restored from %s",
    len(assignment_map),
    len(variables),
    init_checkpoint,
  )
  _log_names(
    "Not found in checkpoint (randomly initialized)",
    [
      optimization.name_of(v)
      for v in variables
      if optimization.name_of(v) not in assignment_map
    ],
  )
  _log_names(
    "Unused checkpoint variables",
    [name for name in shapes if name not in assignment_map],
  )


def _log_names(title: str, names: list[str]) -> None:
  """Logs variable names on one line; Adam slots are only counted."""
  slots = [n for n in names if n.endswith(("/adam_m", "/adam_v"))]
  shown = [n for n in names if n not in set(slots)]
  if slots:
    shown.append(f"{len(slots)} Adam slots")
  if shown:
    logging.info("%s: %s", title, ", ".join(shown))
