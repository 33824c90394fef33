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

  The weights are `module.trainable_variables`. Gradients flow to them, and
  `tf.saved_model.save` saves them.
  """

  def __init__(self, weights: Mapping[str, np.ndarray]):
    """Creates the variables.

    Args:
      weights: values by variable name in the graph.
    """
    super().__init__()
    self.weights = [
      tf.Variable(value, name=name) for name, value in weights.items()
    ]
    self._weights = dict(zip(weights, self.weights))
    # TensorFlow's variable store is global: keep modules apart by their scope.
    self._scope = f"graph_module_{next(_scopes)}"

  @contextlib.contextmanager
  def scope(self):
    """Context, within a `tf.function`, in which get_variable returns weights.

    Raises:
      KeyError: graph code requests a variable that is not in the module.
    """

    def weight(_, **description):
      return self._weights[description["name"].partition("/")[2]]

    reuse = tf.compat.v1.AUTO_REUSE
    with (
      tf.variable_creator_scope(weight),
      tf.compat.v1.variable_scope(self._scope, reuse=reuse),
    ):
      yield


def initial_weights(
  build: Callable[[], Any], init_checkpoint: str | None = None
) -> dict[str, np.ndarray]:
  """Initial weights of a graph for training.

  Args:
    build: builds the graph. It can set a random seed.
    init_checkpoint: initializes the weights that it contains; others are
      randomly initialized. None for all.

  Returns:
    Values of the trainable variables by name.
  """
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
