"""Using TensorFlow 1 graph code and its weights in TensorFlow 2."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
import tensorflow as tf

import modeling

_scopes = itertools.count()


class GraphModule(tf.Module):
  """A `tf.Module` with the weights that graph code gets by `tf.get_variable`.

  ```python
  module = tf1_module.GraphModule(tf1_module.initial_weights(build))

  @tf.function(autograph=False)
  def apply(input_ids):
    with module.scope():
      return build(input_ids)
  ```
  """

  def __init__(self, weights: Mapping[str, np.ndarray]):
    """Creates the variables, from values by variable name in the graph."""
    super().__init__()
    self.weights = [
      tf.Variable(value, name=name) for name, value in weights.items()
    ]
    self._weights = dict(zip(weights, self.weights))
    # TensorFlow's variable store is global: keep modules apart by their scope.
    self._scope = f"graph_module_{next(_scopes)}"

  @contextlib.contextmanager
  def scope(self):
    """Context, in a `tf.function`, in which get_variable returns weights."""

    def weight(_, **description):
      # KeyError for a variable that is not in the module.
      return self._weights[description["name"].partition("/")[2]]

    reuse = tf.compat.v1.AUTO_REUSE
    with (
      tf.variable_creator_scope(weight),
      tf.compat.v1.variable_scope(self._scope, reuse=reuse),
    ):
      yield


class FrozenGraph:
  """Graph code with constant weights, as one TensorFlow function."""

  # Several functions may call it: a SavedModel of them has its weights once.
  # Weights are constants of the graph, whose kernels oneDNN arranges for the
  # processor at the first call.
  def __init__(
    self,
    build: Callable[[Mapping[str, Any]], Any],
    weight_getter: Callable[..., Any],
    unused: Mapping[str, Any],  # shapes of weights that are zeros
  ):
    """Takes `build`, which gets its weights by `tf.get_variable`."""
    self._build = build
    self._weight_getter, self._unused = weight_getter, unused
    self._function: Callable | None = None

  def __call__(self, inputs: Mapping[str, Any]):
    """Calls `build`; names and shapes are those of the first call."""
    if self._function is None:
      specs = {
        name: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name)
        for name, tensor in inputs.items()
      }
      self._function = tf.function(
        self._call, input_signature=[specs], autograph=False
      )
    return self._function(dict(inputs))

  def _call(self, inputs):
    # TensorFlow counts scopes of one name: an own scope has names of its own.
    scope = f"frozen_graph_{next(_scopes)}"
    with tf.compat.v1.variable_scope(scope, custom_getter=self._get):
      return self._build(inputs)

  def _get(self, getter, name, *args, **kwargs):
    # TensorFlow copies constants when it optimizes a graph, so embedding tables
    # are captured tensors instead.
    is_table = name.endswith("_embeddings")
    with tf.init_scope() if is_table else contextlib.nullcontext():
      name = name.partition("/")[2]
      if name in self._unused:
        return tf.zeros(self._unused[name])
      return self._weight_getter(getter, name, *args, **kwargs)


def initial_weights(
  build: Callable[[], Any], init_checkpoint: str | None = None
) -> dict[str, np.ndarray]:
  """Trainable weights of a graph by name, of a checkpoint where it has them."""
  with tf.Graph().as_default():
    build()
    weights = tf.compat.v1.trainable_variables()
    if init_checkpoint:
      found, _ = modeling.get_assignment_map_from_checkpoint(
        weights, init_checkpoint
      )
      tf.compat.v1.train.init_from_checkpoint(init_checkpoint, found)
    with tf.compat.v1.Session() as session:
      session.run(tf.compat.v1.global_variables_initializer())
      values = session.run(weights)
  return {weight.op.name: value for weight, value in zip(weights, values)}
