"""Tests of the ways to compute."""

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertlib import compute

pytestmark = pytest.mark.graph


@pytest.fixture(autouse=True)
def graph():
  """A fresh graph for every test."""
  with tf.Graph().as_default() as graph:
    yield graph


def run(fetches, feeds=None):
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    return session.run(fetches, feeds)


# Tokens as rows of a matrix

NUM_HEADS, HEAD_SIZE = 2, 3


@st.composite
def masks(draw):
  """A token at the first place of each row, anything after it."""
  shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
  mask = draw(arrays.arrays(np.int32, shape, elements=st.integers(0, 1)))
  mask[:, 0] = 1
  return mask


@pytest.fixture(scope="module")
def packing():
  """Runs all that `UnpaddedRows` does on a mask and tensors of [B, S, N, D]."""
  shape = [None, None, NUM_HEADS, HEAD_SIZE]
  with tf.Graph().as_default() as graph:
    mask = tf.placeholder(tf.int32, shape[:2])
    tensor = tf.placeholder(tf.float32, shape)
    upstream = tf.placeholder(tf.float32, shape)
    rows = compute.UnpaddedRows(mask)
    places = tf.range(tf.size(mask))

    def packed(by_place):
      flat = tf.reshape(by_place, [-1, NUM_HEADS * HEAD_SIZE])
      return tf.gather(flat, rows.unpad(places)[0])

    def by_head(by_place):
      return tf.transpose(by_place, [0, 2, 1, 3])

    of_rows, of_heads = packed(tensor), by_head(tensor)
    heads = rows.split_heads(of_rows, NUM_HEADS, HEAD_SIZE)
    collected = rows.merge_heads(of_heads)
    sequence = rows.pad(of_rows)
    flat_upstream = tf.reshape(upstream, tf.shape(sequence))
    results = {
      "place": rows.unpad(places)[0],
      "positions": rows.positions[0],
      "rows": of_rows,
      "heads": heads,
      "heads_gradient": tf.gradients(heads, of_rows, by_head(upstream)),
      "collected": collected,
      "collected_gradient": tf.gradients(collected, of_heads, packed(upstream)),
      "sequence": sequence,
      "sequence_gradient": tf.gradients(sequence, of_rows, flat_upstream),
      "packed_upstream": packed(upstream),
    }

  with tf.Session(graph=graph) as session:
    yield lambda *arrays: session.run(
      results, dict(zip((mask, tensor, upstream), arrays))
    )


def packed_at_random(packing, mask):
  """The results, the tensor and its gradient, which is 0 at padding."""
  draw = np.random.default_rng(mask.size)
  shape = [*mask.shape, NUM_HEADS, HEAD_SIZE]
  tensor = draw.normal(size=shape).astype(np.float32)
  upstream = draw.normal(size=shape).astype(np.float32)
  upstream *= mask[:, :, np.newaxis, np.newaxis]
  return packing(mask, tensor, upstream), tensor, upstream


@settings(max_examples=50, deadline=None)
@given(mask=masks())
def test_rows_are_the_tokens_in_order_then_padding(packing, mask):
  seen, _, _ = packed_at_random(packing, mask)
  tokens = np.flatnonzero(mask)
  assert seen["place"][: len(tokens)].tolist() == tokens.tolist()
  others = seen["place"][len(tokens) :].tolist()
  assert others == np.flatnonzero(mask == 0)[: len(others)].tolist()
  np.testing.assert_array_equal(
    seen["positions"], seen["place"] % mask.shape[1]
  )


@settings(max_examples=50, deadline=None)
@given(mask=masks())
def test_heads_have_the_values_of_their_tokens(packing, mask):
  seen, tensor, _ = packed_at_random(packing, mask)
  by_place = seen["heads"].transpose(0, 2, 1, 3)
  np.testing.assert_array_equal(by_place[mask > 0], tensor[mask > 0])
  assert by_place.shape == tensor.shape


@settings(max_examples=50, deadline=None)
@given(mask=masks())
def test_rows_have_the_values_of_their_heads(packing, mask):
  seen, _, _ = packed_at_random(packing, mask)
  np.testing.assert_array_equal(seen["collected"], seen["rows"])


@settings(max_examples=50, deadline=None)
@given(mask=masks())
def test_a_sequence_has_its_tokens_and_0_at_padding(packing, mask):
  seen, tensor, _ = packed_at_random(packing, mask)
  by_place = seen["sequence"].reshape(tensor.shape)
  np.testing.assert_array_equal(by_place[mask > 0], tensor[mask > 0])
  assert (by_place[mask == 0] == 0.0).all()


@settings(max_examples=50, deadline=None)
@given(mask=masks())
def test_gradients_go_where_the_values_came_from(packing, mask):
  seen, _, upstream = packed_at_random(packing, mask)
  (of_heads,) = seen["collected_gradient"]
  np.testing.assert_array_equal(of_heads.transpose(0, 2, 1, 3), upstream)
  for name in ("heads_gradient", "sequence_gradient"):
    np.testing.assert_array_equal(seen[name], [seen["packed_upstream"]], name)


def test_no_gradient_comes_from_rows_of_padding(packing):
  mask = np.array([[1] * 17 + [0] * 3], np.int32)
  ones = np.ones([1, 20, NUM_HEADS, HEAD_SIZE], np.float32)
  seen = packing(mask, ones, ones)
  assert len(seen["rows"]) == 18
  (gradient,) = seen["collected_gradient"]
  assert (gradient[:, :, :17] == 1.0).all() and (gradient[:, :, 17:] == 0).all()
  (gradient,) = seen["sequence_gradient"]
  assert (gradient[:17] == 1.0).all() and (gradient[17:] == 0.0).all()


def num_rows(num_tokens, num_places):
  """Of so many tokens, a scalar tensor, in one sequence of places."""
  mask = tf.cast(tf.range(num_places) < num_tokens, tf.int32)
  return tf.size(compute.UnpaddedRows(mask[tf.newaxis]).positions)


def test_rows_are_an_eighth_more_than_tokens_at_most():
  tokens = tf.placeholder(tf.int32, [])
  rows = num_rows(tokens, 2**17)
  numbers = {*range(1, 65), *(2**n + i for n in range(6, 17) for i in (-1, 1))}
  with tf.Session() as session:
    found = {n: session.run(rows, {tokens: n}) for n in sorted(numbers)}
  assert all(n <= found[n] <= 1.125 * n for n in numbers), found


def test_rows_are_of_few_sizes():
  tokens = tf.placeholder(tf.int32, [])
  rows = num_rows(tokens, 2048)
  with tf.Session() as session:
    sizes = {session.run(rows, {tokens: n}) for n in range(513, 1025)}
  assert len(sizes) == 8


@pytest.mark.parametrize("num_tokens", [17, 18, 19])
def test_rows_are_no_more_than_places(num_tokens):
  assert run(num_rows(tf.constant(num_tokens), 19)) <= 19


@pytest.mark.parametrize("from_mask", [[[0, 0], [1, 1]], [[1, 1], [0, 0]]])
def test_a_sequence_without_tokens_is_all_0(from_mask):
  rows = compute.UnpaddedRows(tf.constant(from_mask))
  states = tf.ones([2, NUM_HEADS * HEAD_SIZE])
  heads = rows.split_heads(states, NUM_HEADS, HEAD_SIZE)
  _, sequence = run([heads, rows.pad(rows.merge_heads(heads))])
  assert (sequence == np.array(from_mask)[:, :, np.newaxis]).all()


# Fewer passes over memory


def scaled_wave(x, scale, keep=None, *, power):
  wave = tf.sin(x * scale) ** power
  return wave if keep is None else tf.where(keep, wave, tf.zeros_like(wave))


def test_what_is_compiled_equals_the_plain_function_and_its_gradients():
  draw = np.random.default_rng(0)
  x = tf.constant(draw.normal(size=[3, 4]), tf.float32)
  scale = tf.constant(draw.normal(size=[4]), tf.float32)
  keep = tf.constant(draw.random(size=[3, 4]) < 0.5)
  upstream = tf.constant(draw.normal(size=[3, 4]), tf.float32)
  plain = scaled_wave(x, scale, keep, power=3)
  compiled = compute.compiled(scaled_wave, power=3)(x, scale, keep)
  seen = run(
    [[y, *tf.gradients(y, [x, scale], upstream)] for y in (plain, compiled)]
  )
  for expected, actual in zip(*seen):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_what_is_compiled_has_the_dtype_of_its_first_input(dtype):
  x, scale = tf.ones([4], dtype), tf.ones([4])
  result = compute.compiled(scaled_wave, power=2)(x, scale)
  gradients = tf.gradients(result, [x, scale])
  assert [t.dtype for t in (result, *gradients)] == [dtype, dtype, tf.float32]
  assert np.isfinite(np.float32(run(gradients))).all()


def there_and_back(x):
  return (x + 4096.0) - 4096.0


def test_what_is_compiled_computes_in_float32():
  x = tf.constant(0.5, tf.bfloat16, [4])
  # bfloat16 has eight binary digits.
  assert run(compute.compiled(there_and_back)(x)).tolist() == [0.5] * 4


def test_a_function_is_compiled_once():
  once = compute.compiled(scaled_wave, power=5)
  assert compute.compiled(scaled_wave, power=5) is once
  assert compute.compiled(scaled_wave, power=6) is not once


SIZE = 2_000_001


@pytest.mark.parametrize("dropout_prob", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("key", [11, None])
def test_the_share_kept_is_the_one_asked_for(dropout_prob, key):
  tf.set_random_seed(1)
  mask = run(compute.keep_mask([SIZE], dropout_prob, key, tf.constant(3)))
  deviation = math.sqrt(dropout_prob * (1 - dropout_prob) / (SIZE // 2))
  # Two elements of one random word are each right by themselves.
  for half in (mask[::2], mask[1::2]):
    assert abs(half.mean() - (1 - dropout_prob)) < 4 * deviation


def test_elements_of_one_word_are_dropped_apart():
  mask = run(compute.keep_mask([2 * SIZE], 0.5, 11, tf.constant(3)))
  both = (mask[::2] & mask[1::2]).mean()
  assert abs(both - 0.25) < 4 * math.sqrt(0.25 * 0.75 / SIZE)


@pytest.mark.parametrize("shape", [[1], [7], [3, 5], [2, 4, 3]])
def test_masks_have_the_shape_asked_for(shape):
  sizes = [tf.constant(size) for size in shape]
  for of in (shape, sizes):
    mask = run(compute.keep_mask(of, 0.5, 1, tf.constant(0)))
    assert mask.shape == tuple(shape) and mask.dtype == bool


def test_a_mask_is_a_function_of_key_and_step():
  masks = run(
    {
      name: compute.keep_mask([999], 0.5, key, tf.constant(step, tf.int64))
      for name, key, step in [
        ("first", 1, 7),
        ("again", 1, 7),
        ("step", 1, 8),
        ("key", 2, 7),
      ]
    }
  )
  np.testing.assert_array_equal(masks["first"], masks.pop("again"))
  assert len({mask.tobytes() for mask in masks.values()}) == 3


@pytest.mark.parametrize("key", [1, None])
def test_a_mask_may_keep_nothing(key):
  mask = run(compute.keep_mask([5], 0.999999, key, tf.constant(0)))
  assert not mask.any() and mask.shape == (5,)


@given(dropout_prob=st.floats(0.0, 1.0))
def test_the_share_told_is_near_the_one_asked_for(dropout_prob):
  share = compute.kept_share(dropout_prob)
  assert abs(share - (1.0 - dropout_prob)) <= 1e-5


# Less memory


def ancestors(op):
  """All operations that an operation waits for."""
  todo, found = [op], set()
  while todo:
    op = todo.pop()
    before = {t.op for t in op.inputs} | set(op.control_inputs)
    todo += before - found
    found |= before
  return found


def tanh_layer(tensor):
  width = tensor.shape[-1]
  kernel = tf.get_variable("kernel", [width, width])
  return tf.tanh(tf.matmul(tensor, kernel))


@pytest.fixture
def recomputed():
  """Output, input's gradient and upstream gradient of two tanh layers."""
  x = tf.get_variable("x", initializer=tf.ones([2, 3]))
  upstream = tf.placeholder(tf.float32, [2, 3])
  y = x
  for name in ("first", "second"):
    with tf.variable_scope(name) as scope:
      y = compute.recomputed(tanh_layer, scope)(y)
  return y, tf.gradients(y, x, upstream)[0], upstream


def test_a_layer_runs_again_once_its_gradient_is_there(graph, recomputed):
  _, _, upstream = recomputed
  tanhs = [op for op in graph.get_operations() if op.type == "Tanh"]
  waits = [upstream.op in ancestors(op.inputs[0].op) for op in tanhs]
  assert waits == [False, False, True, True]
  *_, of_second, of_first = tanhs
  assert of_second in ancestors(of_first.inputs[0].op)


def test_grappler_leaves_the_second_run_alone(recomputed):
  y, gradient, upstream = recomputed
  ran = tf.RunMetadata()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(
      [y, gradient],
      {upstream: np.ones([2, 3])},
      tf.RunOptions(output_partition_graphs=True),
      ran,
    )
  nodes = [node.op for part in ran.partition_graphs for node in part.node]
  assert nodes.count("Tanh") == 4


def test_a_recomputed_layer_has_the_variables_of_a_plain_one(recomputed):
  names = [v.op.name for v in tf.trainable_variables()]
  assert names == ["x", "first/kernel", "second/kernel"]
