"""Reads the event files that a run writes for TensorBoard."""

from __future__ import annotations

import os


def read_scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
  """Reads (step, value) pairs in order of steps, by tag, from event files."""
  import tensorflow.compat.v1 as tf

  if not tf.io.gfile.isdir(folder):
    return {}
  written = []
  for name in sorted(tf.io.gfile.listdir(folder)):
    path = os.path.join(folder, name)
    if ".tfevents." not in name or tf.io.gfile.isdir(path):
      continue
    try:
      records = tf.data.TFRecordDataset(path).as_numpy_iterator()
      for event in map(tf.Event.FromString, records):
        for value in event.summary.value:
          number = _scalar(tf, value)
          if number is not None:
            written.append((event.wall_time, value.tag, event.step, number))
    # A killed run may leave an incomplete record at the end.
    except tf.errors.DataLossError:
      pass
  found: dict[str, dict[int, float]] = {}
  # A resumed run may write a step twice: the later value is used.
  for _, tag, step, number in sorted(written, key=lambda entry: entry[0]):
    found.setdefault(tag, {})[step] = number
  return {tag: sorted(found[tag].items()) for tag in sorted(found)}


def _scalar(tf, value) -> float | None:
  """The scalar in a summary value; None if the value is not a scalar."""
  if value.HasField("simple_value"):
    return value.simple_value
  if value.HasField("tensor"):
    array = tf.make_ndarray(value.tensor)
    if array.shape == () and array.dtype.kind in "fiu":
      return float(array)
  return None
