"""Compares the kernels of this folder with the functions that they replace.

Whoever changes `modeling.py` trains and predicts with the change: a kernel that
computes something else is not used, and the log says so.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import modeling
from bertlib.compute import onednn, xla

# Results of float32 sums in another order. Gradients of vectors of low variance
# are large, hence a relative tolerance.
_RTOL, _ATOL = 1e-3, 1e-4

# How a line of the log ends, by the part, or by the module of its kernel.
_DIFFERENCES = {
  "chosen positions": "without all positions",
  "fast_compute": "without padding",
  "int8": "than the 8-bit kernels",
  "onednn": "than the oneDNN kernel",
  "xla": "than the XLA kernel",
}

# Length of sequences that shows what depends on the distance of positions.
_LONG = 512

# Of the released modeling.py. Which of 64 elements are kept by `dropout`, at a
# rate of 0.25 with the seed (1, 3) in the scope "here":
_KEPT = "b795e39bd1e5afd4"
# `gelu` and `gelu_tanh` at -3, -1, -0.3, 0.5 and 2:
_GELU = -0.0040498, -0.1586553, -0.1146266, 0.3457312, 1.9544997
_GELU_TANH = -0.0036374, -0.1588080, -0.1146291, 0.3457140, 1.9545977


def is_used(
  part: str,
  kernel: Callable,
  *details: Any,  # of the layer: the activation of a dense one
  draws: bool = False,
) -> bool:
  """True if `kernel` computes `part` as `modeling` does; logs it if not."""
  # A kernel that draws dropout masks cannot equal `modeling`, and neither can
  # one in 8 bits. The functions that they stand for are compared with numbers
  # of the released modeling.py instead.
  if not _computes_the_same(part, kernel, *details):
    return False
  return not draws or _computes_the_same(f"dropout of {part}", xla.keep_mask)


@functools.cache
def _computes_the_same(part: str, kernel: Callable, *details: Any) -> bool:
  """Compares a kernel, once in a process; logs it if it differs."""
  compare = functools.partial(_COMPARISONS[part], kernel, *details)
  # Uncompiled, the operations are compared, not the compiler. But an activation
  # may be of any kind, and has to compile.
  if _equal(compare, compiles=part == "dense layers"):
    return True
  logging.warning(
    "%s: modeling.py computes something else %s; using modeling.py",
    part,
    _DIFFERENCES.get(part)
    or _DIFFERENCES[kernel.__module__.rpartition(".")[2]],
  )
  return False


def _equal(
  compare: Callable[[], Iterator[tuple[Any, Any]]], compiles: bool = False
) -> bool:
  """True if the pairs of arrays or tensors are equal; False on an error."""
  with tf.Graph().as_default(), tf.device("/cpu:0"):
    if not compiles:
      xla.compile_nothing()
    try:
      pairs = list(compare())
      # The first session of a process starts TensorFlow's threads.
      threads = tf.config.threading.get_intra_op_parallelism_threads()
      config = tf.ConfigProto(
        device_count={"GPU": 0}, intra_op_parallelism_threads=threads
      )
      # To optimize graphs that run once would take longer than to run them.
      config.graph_options.rewrite_options.disable_meta_optimizer = True
      with tf.Session(config=config) as session:
        values = session.run(
          [tuple(map(tf.convert_to_tensor, p)) for p in pairs]
        )
    except (TypeError, ValueError, tf.errors.OpError) as error:
      # A changed function may take other arguments. If it is also wrong, the
      # graph of the run raises the same error.
      logging.info("modeling.py cannot be compared with a kernel: %s", error)
      return False
  return all(np.allclose(one, other, _RTOL, _ATOL) for one, other in values)


def _numbers(*shape: int, scale: float = 1.0):
  """Constants that are the same in every process."""
  draw = np.random.default_rng(sum(shape))
  return tf.constant(draw.normal(0.0, scale, shape), tf.float32)


def _weight(getter, name: str, shape=None, **_):
  """Custom getter: constants instead of variables, by name."""
  del getter
  draw = np.random.default_rng(zlib.crc32(name.encode()))
  mean = float(name.endswith("gamma"))
  return tf.constant(draw.normal(mean, 0.3, shape), tf.float32)


def _weight_of_any_norm(getter, name: str, shape=None, **_):
  return _weight(getter, name.rpartition("/")[2], shape)


def _with_gradients(one, other, inputs) -> Iterator[tuple[Any, Any]]:
  """Pairs of results, and of their gradients."""
  yield one, other
  upstream = tf.sin(tf.reshape(tf.range(float(np.prod(one.shape))), one.shape))
  gradients = (tf.gradients(y, inputs, upstream) for y in (one, other))
  yield from zip(*gradients)


def _attention(kernel: Callable) -> Iterator[tuple[Any, Any]]:
  heads = [
    _numbers(2, 2, length, 4, scale=scale)
    for length, scale in ((3, 4.0), (5, 1.0), (5, 30.0))
  ]
  mask = tf.constant([[[1, 1, 1, 1, 1]], [[1, 1, 0, 1, 0]]])
  # And a mask per query, of packed sequences.
  ids = tf.constant([[1, 1, 2, 2, 2], [1, 2, 2, 3, 0]])
  packed = modeling.confine_attention(mask, ids)[:, 1:4]
  cases = [[modeling.attention_bias(each)] for each in (mask, packed)]
  if kernel is not onednn.attention:  # which is for masks alone
    cases.append([cases[0][0], _numbers(1, 2, 3, 5), _numbers(2, 1, 1, 5)])
  # And sequences that are longer than a window.
  long = [_numbers(1, 2, _LONG, 4, scale=scale) for scale in (1.0, 0.5, 2.0)]
  tensors = [heads] * len(cases) + [long]
  cases.append([tf.zeros([1, 1, 1, _LONG])])
  attends = modeling.Compute().attend, kernel
  for heads, biases in zip(tensors, cases):
    one, other = (attend(*heads, biases, 0.0, None) for attend in attends)
    yield from _with_gradients(one, other, [*heads, *biases[1:]])


def _dense(
  kernel: Callable, activation: Callable | None
) -> Iterator[tuple[Any, Any]]:
  layer = modeling.Compute().dense
  inputs = [_numbers(6, 4, scale=10.0), _numbers(4, 3), _numbers(3)]
  one, other = (dense(*inputs, activation) for dense in (layer, kernel))
  yield from _with_gradients(one, other, inputs)
  # In bfloat16, the sum over many rows must not stop at a multiple of one.
  rows, weights = tf.tile(_numbers(1, 4, scale=0.5), [2048, 1]), inputs[1:]
  outputs = layer(rows, *weights, activation)
  narrow = kernel(tf.cast(rows, tf.bfloat16), *weights, activation)
  sums = (tf.gradients(each, weights) for each in (outputs, narrow))
  for exact, found in zip(*sums):
    yield True, tf.norm(found - exact) <= 0.05 * tf.norm(exact)


def _normalization(kernel: Callable) -> Iterator[tuple[Any, Any]]:
  # Rows of low variance, and of values beyond the usual range; as many as the
  # kernel of oneDNN needs.
  scales = tf.constant([[1e-6], [1e-2], [1.0], [100.0]] * 128)
  output = _numbers(512, 128) * scales
  residual = tf.roll(output, 1, axis=1)

  norms = modeling.Compute().add_and_norm, kernel
  with tf.variable_scope("", custom_getter=_weight_of_any_norm):
    one, other = (norm(output, residual, 0.0, None, 1e-12) for norm in norms)
  yield one, other


def _padding(compute_class: type) -> Iterator[tuple[Any, Any]]:
  """A model that computes some positions of its last layer only."""
  computes = (
    compute_class(unpad=unpad, compares=False) for unpad in (False, True)
  )
  is_token, layers, unpadded_layers = _layers(*computes)
  (first, last), (first_unpadded, last_unpadded) = layers, unpadded_layers
  yield first * is_token, first_unpadded
  yield last, last_unpadded


def _positions(compute_class: type) -> Iterator[tuple[Any, Any]]:
  """The last layer of a model at all positions, and at some of them."""
  computes = modeling.Compute(), compute_class(compares=False)
  _, (_, gathered), (_, picked) = _layers(*computes)
  yield gathered, picked


def _layers(*computes: modeling.Compute) -> Iterator[Any]:
  """Whether positions have tokens, and states of two layers by `computes`."""
  config = modeling.BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=_LONG,
    type_vocab_size=2,
  )
  mask = tf.sequence_mask([_LONG, 2, 4], dtype=tf.int32)
  ids = (tf.range(3 * _LONG) % 10 + 1) * tf.reshape(mask, [-1])
  ids = tf.reshape(ids, [3, _LONG])
  positions = tf.constant([[0, _LONG - 2], [0, 1], [0, 2]])
  yield tf.cast(mask, tf.float32)[:, :, tf.newaxis]
  for compute in computes:
    with tf.variable_scope("", custom_getter=_weight):
      model = modeling.BertModel(
        config,
        False,
        ids,
        mask,
        ids % 2,
        scope="bert",
        compute=compute,
        output_positions=positions,
      )
    yield model.get_all_encoder_layers()


def _dropped(values):
  """64 values after the released dropout with the seed of `_KEPT`."""
  kept = np.unpackbits(np.frombuffer(bytes.fromhex(_KEPT), np.uint8))
  return values * np.float32(kept / 0.75)


def _dropout_of_attention(_) -> Iterator[tuple[Any, Any]]:
  """Probabilities after dropout, which are the context of unit vectors."""
  query, key = _numbers(2, 2, 2, 8), _numbers(2, 2, 8, 8)
  value, drops = tf.eye(8, batch_shape=[2, 2]), (0.25, (1, tf.constant(3)))
  attend = modeling.Compute().attend
  probs = attend(query, key, value, (), 0.0, None)
  with tf.variable_scope("here"):
    dropped = attend(query, key, value, (), *drops)
  yield tf.reshape(dropped, [-1]), _dropped(tf.reshape(probs, [-1]))


def _dropout_of_norm(_) -> Iterator[tuple[Any, Any]]:
  """Normalized sums after dropout of the output alone."""
  output, residual = _numbers(8, 8), _numbers(8, 8, scale=2.0)
  drops, norm = (0.25, (1, tf.constant(3))), modeling.Compute().add_and_norm
  dropped = tf.reshape(_dropped(tf.reshape(output, [-1])), [8, 8])
  with tf.variable_scope("here", custom_getter=_weight_of_any_norm):
    yield (
      norm(output, residual, *drops, 1e-12),
      norm(dropped, residual, 0.0, None, 1e-12),
    )


def _released_dense(_) -> Iterator[tuple[Any, Any]]:
  draw = np.random.default_rng(0)
  inputs, kernel, bias = (
    draw.normal(0.0, 3.0, shape).astype(np.float32)
    for shape in ([6, 4], [4, 3], 3)
  )
  layer = modeling.Compute().dense
  arguments = [tf.constant(value) for value in (inputs, kernel, bias)]
  yield layer(*arguments, None), inputs @ kernel + bias
  at = tf.constant([-3.0, -1.0, -0.3, 0.5, 2.0])
  yield modeling.gelu(at), _GELU
  yield modeling.gelu_tanh(at), _GELU_TANH


_COMPARISONS = {
  "attention": _attention,
  "dense layers": _dense,
  "8-bit dense layers": _released_dense,
  "normalization": _normalization,
  "padding": _padding,
  "chosen positions": _positions,
  "dropout of attention": _dropout_of_attention,
  "dropout of normalization": _dropout_of_norm,
}
