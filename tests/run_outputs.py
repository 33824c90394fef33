"""Reads outputs of commands."""

import collections
import json
from pathlib import Path

import numpy as np
import reference_data
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import checkpoint_files


def read_json(path):
  """The value in a JSON file."""
  with open(path, encoding="utf-8") as file:
    return json.load(file)


def edit_json(path, **changed):
  """Changes values in a JSON file; `...` removes a key."""
  content = read_json(path) | changed
  content = {key: value for key, value in content.items() if value is not ...}
  path.write_text(json.dumps(content))


def read_results(path):
  """Lines `key = value` of a results file, with values as text."""
  with open(path, encoding="utf-8") as file:
    return dict(line.rstrip("\n").split(" = ") for line in file)


def read_numbers(path):
  """`read_results` of a file whose values are numbers."""
  return {key: float(value) for key, value in read_results(path).items()}


def read_variables(checkpoint):
  """Arrays by name of a checkpoint, or of the last checkpoint in a folder."""
  reader = tf.train.load_checkpoint(str(checkpoint))
  names = reader.get_variable_to_shape_map()
  return {name: reader.get_tensor(name) for name in names}


def steps_done(folder):
  """Step of the last checkpoint in a folder; 0 if there is none."""
  checkpoint = checkpoint_files.last_checkpoint(str(folder))
  return checkpoint_files.step_of(checkpoint) if checkpoint else 0


def read_scalars(folder):
  """TensorBoard's scalars by tag and step."""
  found = collections.defaultdict(dict)
  for path in sorted(Path(folder).glob("events.*")):
    for event in tf.train.summary_iterator(str(path)):
      for value in event.summary.value:
        found[value.tag][event.step] = (
          float(tf.make_ndarray(value.tensor))
          if value.HasField("tensor")
          else value.simple_value
        )
  return found


def assert_same_bits(arrays, expected):
  """Asserts that arrays by name have the same types, shapes and bits."""

  def bits(arrays):
    return {
      name: (array.dtype, array.shape, array.tobytes())
      for name, array in arrays.items()
    }

  assert bits(arrays) == bits(expected)


def assert_same_variables(checkpoint, other):
  """Asserts that two checkpoints, or folders of some, agree in every bit."""
  found, expected = read_variables(checkpoint), read_variables(other)
  assert found.keys() == expected.keys()
  for name, value in found.items():
    np.testing.assert_array_equal(value, expected[name], err_msg=name)


def train_steps(model_fn, batches, weights=None):
  """Losses of the steps on batches, and arrays by name of all variables then.

  Args:
    model_fn: of one of the scripts.
    batches: arrays by feature, with a row for each step.
    weights: values by name of variables that no checkpoint initializes.
  """
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    inputs = {
      name: tf.placeholder(batches[name].dtype, batches[name].shape[1:])
      for name in batches
    }
    spec = model_fn(inputs, None, "train", {"batch_size": 5})
    session.run(tf.global_variables_initializer())
    for name, value in (weights or {}).items():
      (variable,) = tf.trainable_variables(f"{name}:")
      variable.load(value, session)
    losses = []
    for rows in zip(*batches.values()):
      feed = dict(zip(inputs.values(), rows))
      losses.append(session.run([spec.loss, spec.train_op], feed)[0])
    return losses, session.run({v.op.name: v for v in tf.global_variables()})


def assert_reference_steps(golden, run, model_fn, weights=None):
  """Asserts that the steps of a run of the reference give its variables.

  Args:
    golden: see `reference_data.golden`.
    run: folder of the run.
    model_fn: of one of the scripts.
    weights: see `train_steps`.

  Returns:
    All variables after the steps, and those of the reference.
  """
  batches, steps, final = (
    dict(np.load(golden("optimization", run, f"{name}.npz")))
    for name in ("batches", "steps", "final")
  )
  losses, values = train_steps(model_fn, batches, weights)
  np.testing.assert_allclose(losses, steps["total_loss"], rtol=0, atol=2e-5)
  for name, value in final.items():
    np.testing.assert_allclose(
      reference_data.first_rows(values[name], value),
      value,
      rtol=0,
      atol=1e-4 if "squad/output_bias" in name else 3e-5,
      err_msg=name,
    )
  return values, final
