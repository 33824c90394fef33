"""Graph code of TensorFlow 1, with its weights, inside code of TensorFlow 2."""

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
  """The weights that a graph function takes from `tf.get_variable`.

  ```python
  module = tf1_module.GraphModule(tf1_module.initial_weights(build))

  @tf.function(autograph=False)
  def apply(input_ids):
    with module.scope():
      return build(input_ids)
  ```

  They are `module.trainable_variables`, gradients reach them, and
  `tf.saved_model.save` keeps them.
  """

  def __init__(self, weights: Mapping[str, np.ndarray]):
    """Takes the value of each weight by the name that the graph gives it."""
    super().__init__()
    self.weights = [
      tf.Variable(value, name=name) for name, value in weights.items()
    ]
    self._weights = dict(zip(weights, self.weights))
    # Graph code looks its variables up in a table that all functions share.
    self._scope = f"graph_module_{next(_scopes)}"

  @contextlib.contextmanager
  def scope(self):
    """Inside, `tf.get_variable` gives these weights; within a `tf.function`.

    Raises:
      KeyError: a weight is asked for that is not here.
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
  """The weights of a graph, as training would start from them.

  Args:
    build: makes the graph.
    init_checkpoint: which gives the weights that it has; None: all are random,
      by the seed that `build` sets, if it does.

  Returns:
    The value of each trainable variable by its name.
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
