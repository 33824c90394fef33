"""Writing checkpoints from NumPy arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import checkpoint_files, finding
from bertlib.io import model_files


def write_variables(prefix: str, variables: Mapping[str, np.ndarray]) -> None:
  """Writes variables as a checkpoint with the path `prefix`."""
  # Saving needs no GPU, whose memory a session would take.
  on_cpu = tf.ConfigProto(device_count={"GPU": 0})
  with tf.Graph().as_default(), tf.Session(config=on_cpu) as session:
    values = [tf.placeholder(v.dtype, v.shape) for v in variables.values()]
    save = tf.raw_ops.SaveV2(
      prefix=prefix,
      tensor_names=list(variables),
      shape_and_slices=[""] * len(variables),
      tensors=values,
    )
    session.run(save, dict(zip(values, variables.values())))


def save_best(model_dir: str, checkpoint: str) -> str:
  """Copies a checkpoint without optimizer to `best/`; returns its path."""
  best_dir = os.path.join(model_dir, finding.BEST)
  tf.gfile.MakeDirs(best_dir)
  for name in model_files.COMPANIONS:
    source = os.path.join(model_dir, name)
    if tf.gfile.Exists(source):
      tf.gfile.Copy(source, os.path.join(best_dir, name), overwrite=True)
  stored = checkpoint_files.Checkpoint(checkpoint)
  state = optimizer_variables(stored)
  path = os.path.join(best_dir, os.path.basename(checkpoint))
  write_variables(path, {n: stored[n] for n in stored if n not in state})
  # The state file switches to the new checkpoint atomically.
  finding.write_state_file(best_dir, path)
  # Last, so that there is a complete checkpoint at any time.
  for file, saved, _ in checkpoint_files.saved_files(best_dir):
    if saved != path:
      tf.gfile.Remove(file)
  return path


# State of an optimizer, and of a training, beside its slots.
_STATE = re.compile(
  r"(.*/)?beta[12]_power(_\d+)?|loss_scale/.*|(budget|packing)/.*"
)


def optimizer_variables(names: Iterable[str]) -> set[str]:
  """Names of an optimizer's state, and of moving averages of weights."""
  # The name of a slot is NAME/SLOT beside the weight NAME, in any optimizer.
  known = set(names)
  return {
    name
    for name in known
    if name.rpartition("/")[0] in known or _STATE.fullmatch(name)
  }
