"""Custom gradients and cached functions that live as long as their graph.

TensorFlow keeps such functions, and with them their graphs, for the life of the
process.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Callable

import tensorflow.compat.v1 as tf

# Collections whose key is not a string are not saved with the graph. This one
# has pairs: an operation, and the function of its gradient.
_GRADIENTS = ("custom_gradients",)


def cache_in_graph(function: Callable) -> Callable:
  """`functools.cache`, with one cache per graph."""
  key = (f"cache of {function.__name__}",)

  @functools.wraps(function)
  def call(*args, **kwargs):
    graph = tf.get_default_graph()
    if not graph.get_collection(key):
      graph.add_to_collection(key, functools.cache(function))
    (cached,) = graph.get_collection(key)
    return cached(*args, **kwargs)

  return call


def custom_gradient(function: Callable) -> Callable:
  """`tf.custom_gradient` whose graph can be freed; reads no variables."""

  def call(*inputs):
    if tf.executing_eagerly_outside_functions():  # may be recorded by a tape
      return tf.custom_gradient(function)(*inputs)
    # Gradients are registered by type of operation, so this is an `identity_n`,
    # whose own gradient function `_gradient` finds in the graph.
    inputs = [tf.convert_to_tensor(value) for value in inputs]
    result, gradient_fn = function(*inputs)
    graph = tf.get_default_graph()
    with graph.gradient_override_map({"IdentityN": _registered_gradient()}):
      output = tf.identity_n([result, *inputs])[0]
    graph.add_to_collection(_GRADIENTS, (output.op, gradient_fn))
    return output

  return call


@functools.cache
def _registered_gradient() -> str:
  """Registers the gradient of all such functions once; returns its name."""
  name = "bertlib.custom_gradient"
  with contextlib.suppress(KeyError):  # another copy of this module has done it
    tf.RegisterGradient(name)(_gradient)
  return name


def _gradient(op, upstream, *_):
  gradient_fn = dict(op.graph.get_collection(_GRADIENTS))[op]
  # The first input of `identity_n` is the result; gradients go to the others.
  return [None, *tf.nest.flatten(gradient_fn(upstream))]
