"""Tests of the options of `FastCompute`."""

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from modeling_test import run, started
from parametrize import parametrize

import modeling
from bertlib.compute import fast_compute, onednn, xla

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures("graph")]


NUM_HEADS, HEAD_SIZE = 2, 3
SIZE = 2_000_001


def row_counts(lengths, num_positions):
  """Numbers of rows of one sequence, by its number of tokens."""
  length = tf.placeholder(tf.int32, [])
  mask = tf.cast(tf.range(num_positions) < length, tf.int32)
  rows = tf.size(fast_compute.UnpaddedRows(mask[tf.newaxis]).positions)
  with tf.Session() as session:
    return {n: session.run(rows, {length: n}) for n in lengths}


def test_rows_are_at_most_an_eighth_more_than_tokens():
  lengths = {*range(1, 65), *(2**n + i for n in range(6, 17) for i in (-1, 1))}
  found = row_counts(lengths, 2**17)
  assert all(n <= found[n] <= 1.125 * n for n in lengths), found


def test_number_of_rows_takes_few_values():
  assert len({*row_counts(range(513, 1025), 2048).values()}) == 8


def test_rows_are_no_more_than_positions():
  assert max(row_counts([17, 18, 19], 19).values()) <= 19


@parametrize("from_mask", [[0, 0], [1, 1]], [[1, 1], [0, 0]])
def test_sequence_without_tokens_is_all_0(from_mask):
  rows = fast_compute.UnpaddedRows(tf.constant(from_mask))
  states = tf.ones([2, NUM_HEADS * HEAD_SIZE])
  heads = rows.split_heads(states, NUM_HEADS, HEAD_SIZE)
  _, sequence = run([heads, rows.pad(rows.merge_heads(heads))])
  assert (sequence == np.array(from_mask)[:, :, np.newaxis]).all()


@parametrize("dtype", tf.bfloat16, tf.float16)
def test_compiled_function_returns_the_dtype_of_its_first_input(dtype):
  x, scale = tf.ones([4], dtype), tf.ones([4])
  squared = xla.compiled(lambda x, s, *, power: tf.sin(x * s) ** power, power=2)
  result = squared(x, scale)
  gradients = tf.gradients(result, [x, scale])
  assert [t.dtype for t in (result, *gradients)] == [dtype, dtype, tf.float32]
  assert np.isfinite(np.float32(run(gradients))).all()


def test_compiled_function_computes_in_float32():
  x = tf.constant(0.5, tf.bfloat16, [4])
  # bfloat16, with 8 significant bits, would lose the 0.5.
  added = xla.compiled(lambda x: (x + 4096.0) - 4096.0)(x)
  assert run(added).tolist() == [0.5] * 4


def keep_mask(shape, dropout_prob, dropout_seed):
  return xla.keep_mask(shape, dropout_prob, xla.mask_key(dropout_seed))


@parametrize("dropout_prob", 0.1, 0.25, 0.5, 0.9)
@parametrize("dropout_seed", (11, 3), None)
def test_keep_mask_keeps_the_expected_fraction(dropout_prob, dropout_seed):
  tf.set_random_seed(1)
  mask = run(keep_mask([SIZE], dropout_prob, dropout_seed))
  deviation = math.sqrt(dropout_prob * (1 - dropout_prob) / (SIZE // 2))
  for half in (mask[::2], mask[1::2], mask[: SIZE // 2], mask[SIZE // 2 :]):
    assert abs(half.mean() - (1 - dropout_prob)) < 4 * deviation


def test_elements_are_dropped_independently():
  mask, next_step = run([keep_mask([SIZE], 0.5, (11, n)) for n in (3, 4)])
  both = [(mask & next_step).mean()]
  for distance in (1, 2, 3, 16, 64, 127, 128, 768, 2**15):
    both.append((mask[:-distance] & mask[distance:]).mean())
  atol = 4 * math.sqrt(0.25 * 0.75 / SIZE)
  np.testing.assert_allclose(both, 0.25, rtol=0, atol=atol)


@parametrize("dropout_seed", (1, 0), None)
def test_keep_mask_can_keep_nothing(dropout_seed):
  assert not run(keep_mask([SIZE], 1.0, dropout_seed)).any()


def tanh_layer(tensor):
  width = tensor.shape[-1]
  return tf.tanh(tf.matmul(tensor, tf.get_variable("kernel", [width, width])))


def test_grappler_does_not_remove_the_recomputation():
  x = tf.get_variable("x", initializer=tf.ones([2, 3]))
  upstream = tf.placeholder(tf.float32, [2, 3])
  y = x
  for name in ("first", "second"):
    with tf.variable_scope(name) as scope:
      y = fast_compute.recomputed(tanh_layer, scope)(y)
  fetches, feeds = tf.gradients(y, x, upstream), {upstream: np.ones([2, 3])}
  ran, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
  with started() as session:
    session.run([y, fetches], feeds, options, ran)
  nodes = [node.op for part in ran.partition_graphs for node in part.node]
  assert nodes.count("Tanh") == 4


@pytest.mark.skipif(
  not onednn.has_softmax(tf.bfloat16), reason="needs a CPU with bfloat16"
)
def test_attention_in_fewer_passes_equals_the_formula():
  values = np.random.RandomState(0).normal(size=[3, 3, 4, 40, 32])
  mask = np.arange(40) < np.reshape([40, 17, 33], [3, 1, 1])
  with tf.Graph().as_default(), tf.Session() as session:
    # No constants, which TensorFlow would compute on without oneDNN.
    tensors = tf.placeholder(tf.float32, values.shape)
    query, key, value = tf.unstack(tensors)
    exact = modeling.dot_product_attention(query, key, value, mask)
    narrow = tf.cast(tensors, tf.bfloat16)
    biases = [modeling.attention_bias(mask)]
    fused = onednn.attention(*tf.unstack(narrow), biases, 0.0, None)
    in_float32 = tf.nn.softmax(tf.cast(narrow, tf.float32))
    in_float32 = tf.cast(in_float32, tf.bfloat16)
    found = [exact, fused, tf.nn.softmax(narrow), in_float32]
    found = [tf.cast(each, tf.float32) for each in found]
    exact, fused, softmax, in_float32 = session.run(found, {tensors: values})
  np.testing.assert_allclose(fused, exact, rtol=0, atol=0.02)
  # TensorFlow 2.15 rounds the last of the 8 bits of bfloat16 differently.
  np.testing.assert_allclose(softmax, in_float32, rtol=2**-7)
