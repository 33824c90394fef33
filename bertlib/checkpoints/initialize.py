"""Checkpoint to graph: checks that they fit, and initializes the variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.cli import terminal
from bertlib.cli.errors import InputError, some_of
from bertlib.data import model_inputs

# Weights of the encoder, all of which a model uses. The pooler is optional.
_ENCODER = ("bert/embeddings/", "bert/embeddings_project/", "bert/encoder/")
_POOLER = "bert/pooler/"

_FIX = (
  "Use the bert_config.json (and the task's labels) that belong to the"
  " checkpoint"
)

Shapes = Mapping[str, Sequence[int]]  # by name of the weight


def check_trained(
  checkpoint: str,
  needed: Shapes,
  scopes: Sequence[str] = (),
  known: Iterable[str] = (),  # further weights of the model
) -> None:
  """Refuses a checkpoint that is not of the model with the weights `needed`."""
  with checkpoint_files.as_input_errors(checkpoint):
    stored = checkpoint_files.shapes_of(checkpoint)
  for name, shape in needed.items():
    if name not in stored:
      raise InputError(f"{checkpoint}: lacks {name}, of shape {shape}. {_FIX}")
    check_shape(checkpoint, name, stored[name], shape)
  checkpoint_files.check_finite(checkpoint, needed)
  # `scopes` begin names of which the model has to use all, as of the encoder.
  check_all_used(checkpoint, stored, {*needed, *known}, scopes)


def check_shape(
  checkpoint: str, name: str, found: Sequence[int], needed: Sequence[int]
) -> None:
  """Rejects a checkpoint with a weight of another shape than the model's."""
  if list(found) != list(needed):
    raise InputError(
      f"{checkpoint}: {name} has shape {found}, but the model needs"
      f" {list(needed)}. {_FIX}"
    )


def check_all_used(
  checkpoint: str,
  stored: Shapes,
  needed: Collection[str],
  scopes: Sequence[str] = (),
) -> None:
  """Refuses a checkpoint with more weights than the model, such as layers."""
  left_over = [
    name
    for name in sorted(stored)
    if name.startswith((*_ENCODER, *scopes))
    and name not in needed
    # an optimizer slot of a weight
    and name.rpartition("/")[0] not in stored
  ]
  if left_over:
    raise InputError(
      f"{checkpoint}: has {len(left_over)} weights that the model does not use"
      f" (such as {left_over[0]}). {_FIX}"
    )


def warn_of_unused(checkpoint: str, known: Collection[str]) -> None:
  """Warns of trained weights that are not among those of a graph."""
  stored = checkpoint_files.shapes_of(checkpoint)
  state = checkpoint_files.optimizer_variables(stored)
  # Counters, of any library, have no dimensions.
  names = [n for n in sorted(stored.keys() - state) if stored[n]]
  if names := [name for name in names if name not in known]:
    terminal.warn_once(
      f"{checkpoint}: has weights that the model does not use:"
      f" {some_of(names)}. Use the code that trained it"
    )


def token_placeholders() -> dict[str, Any]:
  """Placeholders, int32 [B, S], for each of `model_inputs.TOKEN_FEATURES`."""
  return {
    name: tf.placeholder(tf.int32, [None, None], name)
    for name in model_inputs.TOKEN_FEATURES
  }


def name_of(variable) -> str:
  """Name of a variable in checkpoints, the same on every replica."""
  return variable.name.partition(":")[0]


def weights_of_graph() -> dict[str, list[int]]:
  """Shapes of the weights of the current graph, by name."""
  return {
    name_of(variable): variable.shape.as_list()
    for variable in tf.trainable_variables()
  }


def weights_of(tensors: Iterable[Any]) -> list[Any]:
  """The trainable variables that tensors are computed from."""
  found = set()
  open_ops = [tensor.op for tensor in tensors]
  while open_ops:
    op = open_ops.pop()
    if op not in found:
      found.add(op)
      open_ops += [*(value.op for value in op.inputs), *op.control_inputs]
  return [v for v in tf.trainable_variables() if v.op in found]


def initialize_from_checkpoint(
  init_checkpoint: str | None,
  # Checkpoint that Estimator will restore completely: `init_checkpoint` is
  # ignored.
  trained: str | None = None,
  use_tpu=False,
  # Whether the encoder has to use all weights; training may start from some
  # layers of a checkpoint.
  uses_all: bool = False,
  # Whether to leave out output layers of another shape: those of another task,
  # from which a training may start.
  new_heads: bool = False,
  # With that, whether all output layers are those of another task.
  other_task: bool = False,
):
  """Initializes the weights; returns a `scaffold_fn` on a TPU, else None."""
  if trained:
    known = checkpoint_files.shapes_of(trained)
    missing = [
      name_of(v) for v in tf.global_variables() if name_of(v) not in known
    ]
    if missing:
      raise InputError(
        f"{trained}: lacks {missing[0]}, so it was not trained with these flags"
        " (--objective, --precision, --task_name, ...). Give those again, or"
        " name another --output_dir and this checkpoint as --init_checkpoint"
      )
    if tf.trainable_variables():  # else they are constants
      check_trained(trained, weights_of_graph())
    return None
  needed = weights_of_graph()
  # The weights are constants, but for a pooler that the checkpoint lacks.
  if all(name.startswith(_POOLER) for name in needed):
    return None
  is_first_replica = not tf.get_variable_scope().reuse
  if not init_checkpoint:
    if is_first_replica:
      logging.info("No --init_checkpoint: all weights are randomly initialized")
    return None
  # The caller of a `model_fn_builder` may name a folder.
  init_checkpoint = checkpoint_files.find_checkpoint(init_checkpoint)
  checkpoint_files.check_finite(init_checkpoint, needed)
  stored = checkpoint_files.shapes_of(init_checkpoint)
  assignment_map, _ = modeling.get_assignment_map_from_checkpoint(
    tf.trainable_variables(), checkpoint_files.kept(init_checkpoint)
  )
  if new_heads:
    others = {n for n in assignment_map if not n.startswith("bert/")}
    if not other_task:  # the layers of which a weight has another shape
      scopes = {n.rpartition("/")[0] for n in others if stored[n] != needed[n]}
      others = {n for n in others if n.rpartition("/")[0] in scopes}
    for name in others:
      del assignment_map[name]
    if others and is_first_replica:
      logging.warning(
        "%s: its output layer (%s) is that of another task and is left out; the"
        " new one starts from random weights",
        init_checkpoint,
        ", ".join(sorted(others)),
      )
  if is_first_replica:
    _check_restored(init_checkpoint, stored, needed, assignment_map)
    if uses_all:
      check_all_used(init_checkpoint, stored, needed)

  def restore():
    tf.train.init_from_checkpoint(
      checkpoint_files.kept(init_checkpoint), assignment_map
    )

  if use_tpu:
    # TPUEstimator initializes on the TPU, after the graph is built.
    return lambda: restore() or tf.train.Scaffold()
  restore()
  return None


def _check_restored(
  init_checkpoint: str,
  stored: Shapes,
  needed: Shapes,
  restored: Collection[str],
) -> None:
  """Rejects a checkpoint of another model; logs what is restored."""
  for name, shape in needed.items():
    if name in restored:
      check_shape(init_checkpoint, name, stored[name], shape)
  encoder = [name for name in needed if name.startswith(_ENCODER)]
  missing = [name for name in encoder if name not in restored]
  if missing and len(missing) == len(encoder):
    raise InputError(
      f"{init_checkpoint}: has none of the encoder's variables (such as"
      f" {encoder[0]}; its first is {next(iter(stored), 'none')}). Name a BERT"
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
    len(restored),
    len(needed),
    init_checkpoint,
  )
  _log_names(
    "Not found in checkpoint (randomly initialized)",
    [name for name in needed if name not in restored],
  )
  checkpoint_files.warn_of_averages(init_checkpoint, stored)
  _log_names(
    "Unused checkpoint variables",
    [name for name in stored if name not in restored],
  )


def _log_names(title: str, names: list[str]) -> None:
  """Logs variable names on one line; Adam slots are only counted."""
  slots = [n for n in names if n.endswith(("/adam_m", "/adam_v"))]
  shown = [n for n in names if n not in set(slots)]
  if slots:
    shown.append(f"{len(slots)} Adam slots")
  if shown:
    logging.info("%s: %s", title, ", ".join(shown))


def constant_getter(
  checkpoint: str, convert: Callable[[str, np.ndarray], Any] | None = None
) -> Callable:
  """Custom getter of variables that returns weights of a checkpoint."""
  # TensorFlow lays out constant kernels for the processor once, and converts
  # constants to another precision once. It does both for variables in every
  # batch.
  stored = checkpoint_files.Checkpoint(checkpoint)

  def get(getter, name, shape=None, **kwargs):
    # Created as usual.
    if name not in stored:
      return getter(name, shape=shape, **kwargs)
    check_shape(checkpoint, name, stored.shapes[name], shape)
    checkpoint_files.check_finite(checkpoint, [name])
    value = stored[name]
    return convert(name, value) if convert else tf.constant(value)

  return get
