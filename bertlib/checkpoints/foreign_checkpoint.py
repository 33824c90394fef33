"""Checkpoints of other projects, read by the names of this one."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import (
  checkpoint_files,
  electra_weights,
  keras_files,
)
from bertlib.checkpoints.checkpoint_files import OBJECT_GRAPH, Checkpoint


class ForeignCheckpoint(Checkpoint):
  """Variables by our names, whatever their names in the checkpoint are."""

  def __init__(self, path: str):
    """See base class."""
    super().__init__(path)
    self._objects: dict[str, np.ndarray] = {}  # by our names
    if OBJECT_GRAPH in self.shapes:
      self._objects = keras_files.read_objects(
        self.shapes, self._reader.get_tensor, path
      )
      self.shapes = {n: [*value.shape] for n, value in self._objects.items()}
      self.dtypes = dict.fromkeys(self.shapes, tf.float32)
    self._names = electra_weights.google_names(self.shapes, path)
    for ours, name in self._names.items():
      for values in (self.shapes, self.dtypes):
        values[ours] = values.pop(name)

  def _read(self, name: str) -> np.ndarray:
    if self._objects:
      return self._objects[name]
    return super()._read(self._names.get(name, name))


def convert(path: str, target: str) -> None:
  """Writes the variables by our names, as a checkpoint with path `target`."""
  variables = electra_weights.with_added_tables(dict(ForeignCheckpoint(path)))
  checkpoint_files.write_variables(target, variables)
