"""Tests of the Transformer graph, its heads and its losses."""

import dataclasses
import functools
import math
import os
import re
import zlib

import commands
import numpy as np
import pytest
import reference_data
import tensorflow.compat.v1 as tf
import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from parametrize import parametrize

import modeling
from bertlib.compute import xla
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import model_inputs

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures("graph")]


def started(config=None):
  """A session with the initial values of all variables."""
  session = tf.Session(config=config)
  session.run(tf.global_variables_initializer())
  return session


def run(fetches):
  with started() as session:
    return session.run(fetches)


def load_config(size):
  return modeling.BertConfig.from_json_file(
    reference_data.golden("modeling", size, "bert_config.json")
  )


def load(size, name):
  return dict(np.load(reference_data.golden("modeling", size, name + ".npz")))


def pretraining_losses(config, model, inputs):
  """Tensors of both heads of pretraining, by their golden names."""
  states, table = model.get_sequence_output(), model.get_embedding_table()
  positions = tf.convert_to_tensor(inputs["masked_lm_positions"])
  lm_losses, lm_log_probs = modeling.cross_entropy(
    modeling.masked_lm_logits(config, states, table, positions),
    tf.reshape(inputs["masked_lm_ids"], [-1]),
  )
  ns_losses, ns_log_probs = modeling.cross_entropy(
    modeling.next_sentence_logits(config, model.get_pooled_output()),
    tf.reshape(inputs["next_sentence_labels"], [-1]),
  )
  weights = tf.reshape(inputs["masked_lm_weights"], [-1])
  lm_loss = modeling.weighted_mean(lm_losses, weights)
  ns_loss = tf.reduce_mean(ns_losses)
  return {
    "masked_lm_log_probs": lm_log_probs,
    "masked_lm_per_example_loss": lm_losses,
    "masked_lm_loss": lm_loss,
    "next_sentence_log_probs": ns_log_probs,
    "next_sentence_per_example_loss": ns_losses,
    "next_sentence_loss": ns_loss,
    "total_loss": lm_loss + ns_loss,
  }


def pretraining_outputs(config, inputs, use_one_hot_embeddings=False):
  """All tensors in the golden files, by their golden names."""
  given = map(inputs.get, model_inputs.TOKEN_FEATURES)
  given = [None if ids is None else tf.constant(ids) for ids in given]
  model = modeling.BertModel(
    config, False, *given, use_one_hot_embeddings=use_one_hot_embeddings
  )
  outputs = {
    "embedding_output": model.get_embedding_output(),
    "sequence_output": model.get_sequence_output(),
    "pooled_output": model.get_pooled_output(),
  }
  for i, layer in enumerate(model.get_all_encoder_layers()):
    outputs[f"encoder_layer_{i}"] = layer
  return outputs | pretraining_losses(config, model, inputs)


def restore_weights(size):
  path = reference_data.golden("modeling", size, "bert_model.ckpt.index")
  checkpoint = path[: -len(".index")]
  assignment_map, _ = modeling.get_assignment_map_from_checkpoint(
    tf.trainable_variables(), checkpoint
  )
  tf.train.init_from_checkpoint(checkpoint, assignment_map)


def assert_all_close(actual, expected, tolerance):
  assert set(expected) == set(actual)
  for name, value in expected.items():
    assert actual[name].shape == value.shape, name
    np.testing.assert_allclose(
      actual[name], value, rtol=0, atol=tolerance, err_msg=name
    )


def outputs_of(size, inputs, act=None, **options):
  config = load_config(size)
  config.hidden_act = act or config.hidden_act
  tensors = pretraining_outputs(config, inputs, **options)
  restore_weights(size)
  return run(tensors)


@parametrize(
  "size, act",
  *(("tiny", act) for act in ("", "relu", "tanh", "linear")),
  pytest.param("small", "", marks=pytest.mark.needs_data),
)
def test_outputs_equal_the_reference(size, act):
  expected = load(size, f"outputs_{act}" if act else "outputs")
  assert_all_close(outputs_of(size, load(size, "inputs"), act), expected, 1e-5)


@pytest.mark.usefixtures("variables")
def test_one_hot_embeddings_equal_the_gathered_ones():
  inputs = load("tiny", "inputs")
  found = outputs_of("tiny", inputs, use_one_hot_embeddings=True)
  assert_all_close(found, load("tiny", "outputs"), 1e-5)


def test_mask_and_segments_are_optional():
  inputs = load("tiny", "inputs")
  del inputs["input_mask"], inputs["segment_ids"]
  expected = load("tiny", "outputs_no_mask_no_segments")
  assert_all_close(outputs_of("tiny", inputs), expected, 1e-5)


def test_all_zero_masks_and_segment_ids_outside_the_table():
  found = outputs_of("tiny", load("tiny", "edge_inputs"))
  assert_all_close(found, load("tiny", "edge_outputs"), 2e-3)


@pytest.mark.usefixtures("variables")
def test_variables_have_the_reference_names_in_order():
  pretraining_outputs(load_config("tiny"), load("tiny", "inputs"))
  made = [
    [v.op.name, v.shape.as_list(), v.dtype.base_dtype.name]
    for v in tf.global_variables()
  ]
  path = reference_data.golden("modeling", "tiny", "variables.jsonl")
  assert made == reference_data.read_jsonl(path)


@pytest.mark.usefixtures("variables")
def test_gradients_equal_the_reference():
  tensors = pretraining_outputs(load_config("tiny"), load("tiny", "inputs"))
  restore_weights("tiny")
  variables = tf.trainable_variables()
  gradients = tf.gradients(tensors["total_loss"], variables)
  dense = map(tf.convert_to_tensor, gradients)
  actual = {v.op.name: g for v, g in zip(variables, dense)}
  norm = tf.linalg.global_norm(gradients)
  actual["__global_norm_as_clipped"] = actual["__global_norm_dense"] = norm
  assert_all_close(run(actual), load("tiny", "gradients"), 2e-5)


def load_heads(session, heads):
  for variable in tf.trainable_variables():
    if "weights/" + variable.op.name in heads:
      variable.load(heads["weights/" + variable.op.name], session)


def test_classification_and_span_heads():
  inputs, heads = load("tiny", "inputs"), load("tiny", "heads")
  given = [tf.constant(inputs[n]) for n in model_inputs.TOKEN_FEATURES]
  model = modeling.BertModel(load_config("tiny"), False, *given)
  restore_weights("tiny")
  logits = modeling.classification_logits(model.get_pooled_output(), 3)
  losses, log_probs = modeling.cross_entropy(logits, heads["label_ids"])
  start, end = modeling.span_logits(model.get_sequence_output())
  tensors = {
    "classifier/logits": logits,
    "classifier/per_example_loss": losses,
    "classifier/loss": tf.reduce_mean(losses),
    "classifier/probabilities": tf.exp(log_probs),
    "squad/start_logits": start,
    "squad/end_logits": end,
  }
  with started() as session:
    load_heads(session, heads)
    actual = session.run(tensors)
  assert_all_close(actual, {name: heads[name] for name in tensors}, 1e-5)


@parametrize("name", "x", "input_tensor")
def test_gelu_equals_the_reference_and_the_normal_distribution(name):
  table = load("pieces", "gelu")
  y = run(modeling.gelu(**{name: tf.constant(table["x"])}))
  np.testing.assert_allclose(y, table["y"], rtol=0, atol=1e-5)
  exact = [x * 0.5 * math.erfc(-x / math.sqrt(2)) for x in table["x"].tolist()]
  np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5)


def test_get_activation_by_name():
  path = reference_data.golden("modeling", "pieces", "get_activation.jsonl")
  for case in reference_data.read_jsonl(path):
    if case["result"] == "ValueError":
      with pytest.raises(ValueError, match=f"^{case['message']}$"):
        modeling.get_activation(case["name"])
    elif case["result"] is None:
      assert modeling.get_activation(case["name"]) is None
    else:
      activation = modeling.get_activation(case["name"])
      y = run(activation(tf.constant(case["x"])))
      np.testing.assert_allclose(y, case["y"], rtol=0, atol=1e-5)


def test_get_activation_returns_a_function_unchanged():
  assert modeling.get_activation(tf.sin) is tf.sin
  assert modeling.get_activation("gelu_new") is modeling.gelu_tanh


@pytest.mark.usefixtures("variables")
def test_layer_norm_equals_the_reference():
  case = load("pieces", "layer_norm")
  y = modeling.layer_norm(tf.constant(case["x"]))
  with started() as session:
    for variable in tf.global_variables():
      variable.load(case[variable.op.name.split("/")[1]], session)
    y = session.run(y)
  tolerance = np.full([3, 3, 1], 1e-5)
  tolerance[2, 1] = 3e-4  # the reference loses digits in this row
  tolerance[1, 2] = np.inf  # and all of them in this
  assert (np.abs(y - case["y"]) <= tolerance).all()
  # A constant row has variance 0: only beta is left.
  np.testing.assert_allclose(y[1, 2], case["beta"], rtol=0, atol=1e-5)


@parametrize(
  "output, as_matrix, act",
  ("output_3d", False, None),
  ("output_2d", True, None),
  ("output_3d_gelu", False, "gelu"),
)
def test_attention_layer_equals_the_reference(output, as_matrix, act):
  case = load("pieces", "attention_layer")
  from_tensor, to_tensor = case["from_tensor"], case["to_tensor"]
  names = "query_act", "key_act", "value_act"
  options = dict.fromkeys(names, modeling.get_activation(act))
  if as_matrix:
    options |= {"batch_size": 2, "from_seq_length": 5, "to_seq_length": 7}
    from_tensor = from_tensor.reshape(10, 20)
    to_tensor = to_tensor.reshape(14, 12)
  mask = next(case[name] for name in case if "mask" in name)
  tensor = modeling.attention_layer(
    tf.constant(from_tensor),
    tf.constant(to_tensor),
    tf.constant(mask),
    num_attention_heads=3,
    size_per_head=8,
    do_return_2d_tensor=as_matrix,
    **options,
  )
  weights = {name.split("weights/")[-1]: case[name] for name in case}
  with started() as session:
    for variable in tf.global_variables():
      variable.load(weights[variable.op.name], session)
    actual = session.run(tensor)
  np.testing.assert_allclose(actual, case[output], rtol=0, atol=1e-5)


def test_attention_mask_equals_the_reference():
  case = load("pieces", "attention_mask")
  expected = next(v for v in case.values() if v.ndim == 3)
  mask = modeling.create_attention_mask_from_input_mask(
    tf.constant(case["from_ids"]), tf.constant(case["to_mask"])
  )
  assert mask.dtype == tf.float32
  np.testing.assert_array_equal(run(mask), expected)


def test_bert_config_as_json():
  path = reference_data.golden("modeling", "pieces", "bert_config.jsonl")
  makers = {
    "constructor": lambda arguments: modeling.BertConfig(**arguments),
    "from_dict": modeling.BertConfig.from_dict,
  }
  for case in reference_data.read_jsonl(path):
    config = makers[case["how"]](case["arguments"])
    assert config.to_json_string() == case["to_json_string"]


TINY = tiny_model.config(9, num_hidden_layers=2)


def zeros(*shape):
  return tf.zeros(shape, tf.int32)


THREE_HEADS = tiny_model.config(9, num_attention_heads=3)


@parametrize(
  "call, message",
  (lambda: modeling.BertModel(TINY, False, zeros(1, 33)), "33 tokens"),
  (lambda: modeling.BertModel(THREE_HEADS, False, zeros(1, 5)), "3 does not"),
  (
    lambda: modeling.attention_layer(tf.zeros([10, 4]), tf.zeros([10, 4])),
    "batch_size",
  ),
  (
    lambda: postprocessed(tf.zeros([1, 3, 4]), use_token_type=True),
    "token_type_ids",
  ),
  (lambda: modeling.reshape_to_matrix(tf.zeros([3])), "two axes"),
  (
    lambda: modeling.gather_positions(tf.zeros([2, 3]), zeros(2, 1)),
    "must be of rank 3",
  ),
)
def test_tensors_of_other_shapes_are_rejected(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.usefixtures("variables")
@parametrize("batch_size", 13, None)
def test_output_shapes_are_as_static_as_those_of_the_ids(batch_size):
  ids = tf.placeholder(tf.int32, [batch_size, 7])
  model = modeling.BertModel(TINY, True, ids)
  states = [model.get_embedding_output(), *model.get_all_encoder_layers()]
  for state in states:
    assert state.shape.as_list() == [batch_size, 7, 16]
  assert model.get_pooled_output().shape.as_list() == [batch_size, 16]
  shapes = [tf.shape(state) for state in states]
  with started() as session:
    feeds = {ids: np.zeros([13, 7])}
    for _ in range(2):
      assert np.equal(session.run(shapes, feeds), [13, 7, 16]).all()


def test_tensor_names_that_other_code_looks_up(graph):
  modeling.BertModel(TINY, False, tf.placeholder(tf.int32, [None, 5]))
  for name, shape in {
    "embeddings/LayerNorm/batchnorm/add_1": [None, 5, 16],
    "encoder/layer_0/attention/self/Reshape": [None, 5, 2, 8],
    "encoder/layer_1/output/LayerNorm/batchnorm/add_1": [None, 16],
    "encoder/Reshape_2": [None, 5, 16],
    "encoder/Reshape_3": [None, 5, 16],
    "pooler/dense/Tanh": [None, 16],
  }.items():
    found = graph.get_tensor_by_name(f"bert/{name}:0").shape
    assert found.as_list() == shape, name


# Functions as google-research/bert calls them


@pytest.mark.usefixtures("variables")
def test_transformer_model_returns_the_last_layer_or_all():
  hidden = tf.random.stateless_normal([2, 5, 8], [1, 2])
  mask = tf.ones([2, 5, 5])
  sizes = 8, 2, 2, 16, tf.tanh, 0.0, 0.0, 0.02
  last = modeling.transformer_model(hidden, mask, *sizes)
  with tf.variable_scope("", reuse=True):
    layers = modeling.transformer_model(
      hidden, mask, *sizes, do_return_all_layers=True
    )
    unmasked = modeling.transformer_model(hidden, None, *sizes)
  assert len(layers) == 2
  last, layers, unmasked = run([last, layers, unmasked])
  np.testing.assert_array_equal(last, layers[-1])
  np.testing.assert_allclose(last, unmasked, rtol=0, atol=1e-6)
  assert np.abs(layers[0] - layers[1]).max() > 1e-4


def postprocessed(tensor, **options):
  return modeling.embedding_postprocessor(tensor, dropout_prob=0.0, **options)


@pytest.mark.usefixtures("variables")
def test_embedding_postprocessor_adds_the_selected_embeddings():
  words = tf.random.stateless_normal([2, 3, 4], [1, 2])
  types = tf.constant([[0, 1, 1], [1, 0, 0]])
  plain = postprocessed(words, use_position_embeddings=False)
  with tf.variable_scope("all"):
    everything = postprocessed(
      words,
      use_token_type=True,
      token_type_ids=types,
      token_type_vocab_size=2,
      token_type_embedding_name="kinds",
      position_embedding_name="positions",
      initializer_range=1.0,
      max_position_embeddings=3,
    )
  tables = {v.op.name: v for v in tf.global_variables()}
  norm = ["LayerNorm/beta", "LayerNorm/gamma"]
  own = ["kinds", "positions", *norm]
  assert list(tables) == [*norm, *(f"all/{name}" for name in own)]
  kinds = tf.gather(tables["all/kinds"], types)
  summed = words + kinds + tables["all/positions"]
  expected = [modeling.layer_norm(words), modeling.layer_norm(summed)]
  for one, other in zip(*run([expected, [plain, everything]])):
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)


def test_sequences_longer_than_the_position_table_fail():
  words = tf.placeholder(tf.float32, [1, None, 4])
  output = postprocessed(words, max_position_embeddings=2)
  with started() as session:
    assert session.run(output, {words: np.ones([1, 2, 4])}).shape == (1, 2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError):
      session.run(output, {words: np.ones([1, 3, 4])})


@pytest.mark.usefixtures("variables")
@parametrize("use_one_hot_embeddings", False, True)
def test_embeddings_of_several_ids_are_concatenated(use_one_hot_embeddings):
  ids = np.array([[[0, 3], [2, 2], [1, 0]]], np.int32)  # [1, 3, 2]
  output, table = modeling.embedding_lookup(
    tf.constant(ids), 4, 5, use_one_hot_embeddings=use_one_hot_embeddings
  )
  assert output.shape.as_list() == [1, 3, 10]
  output, table = run([output, table])
  np.testing.assert_array_equal(output, table[ids].reshape(1, 3, 10))


@pytest.mark.usefixtures("variables")
def test_each_layer_norm_of_a_scope_has_its_own_weights():
  with tf.variable_scope("here"):
    modeling.layer_norm(tf.zeros([2, 3]))
    modeling.layer_norm_and_dropout(tf.zeros([2, 3]), 0.1, "named")
    modeling.layer_norm(tf.zeros([2, 3]), None)
  assert [v.op.name for v in tf.global_variables()][::2] == [
    "here/LayerNorm/beta",
    "here/named/beta",
    "here/LayerNorm_1/beta",
  ]


@pytest.mark.usefixtures("variables")
def test_second_model_has_its_own_weights_except_under_reuse():
  ids = tf.zeros([1, 3], tf.int32)
  for reuse in (tf.AUTO_REUSE, True):
    with tf.variable_scope(tf.get_variable_scope(), reuse=reuse):
      for _ in range(2):
        modeling.BertModel(TINY, False, ids)
  scopes = [v.op.name.split("/")[0] for v in tf.global_variables()]
  assert list(dict.fromkeys(scopes)) == ["bert", "bert_1"]
  assert scopes.count("bert") == scopes.count("bert_1")


def masked_dropout(tensor, dropout_prob, dropout_seed):
  """`modeling.dropout` with the mask of compiled operations."""
  if not dropout_prob:
    return tensor
  key = xla.mask_key(dropout_seed)
  keep = xla.keep_mask(tensor.shape, dropout_prob, key)
  return tf.where(keep, tensor / (1.0 - dropout_prob), tf.zeros_like(tensor))


@parametrize("dropout", modeling.dropout, masked_dropout)
def test_dropout_is_a_function_of_seed_step_and_scope(dropout):
  def dropped(seed, step, scope="here"):
    with tf.variable_scope(scope):
      return dropout(tf.ones([1000]), 0.25, (seed, tf.constant(step, tf.int64)))

  others = [dropped(1, 8), dropped(2, 7), dropped(1, 7, "there")]
  first, again, *others = run([dropped(1, 7), dropped(1, 7), *others])
  np.testing.assert_array_equal(first, again)
  masks = [first, *others]
  assert len({mask.tobytes() for mask in masks}) == 4
  for mask in masks:
    assert set(mask.tolist()) == {0.0, np.float32(1 / 0.75)}
    assert abs((mask == 0).mean() - 0.25) < 0.06


@settings(max_examples=20, deadline=None)
@given(
  logits=arrays.arrays(
    np.float32, (4, 3), elements=st.floats(-20, 20, width=32)
  ),
  labels=st.lists(st.integers(-1, 3), min_size=4, max_size=4),
)
def test_cross_entropy_equals_numpy(logits, labels):
  shifted = logits.astype(np.float64)
  log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
  expected = [
    -log_probs[row, label] if 0 <= label < 3 else 0.0
    for row, label in enumerate(labels)
  ]
  with tf.Graph().as_default():
    losses, _ = modeling.cross_entropy(tf.constant(logits), labels)
    np.testing.assert_allclose(run(losses), expected, rtol=1e-5, atol=1e-4)


def test_weighted_mean_ignores_padding():
  losses, weights = tf.constant([1.0, 5.0, 9.0]), tf.constant([1.0, 1.0, 0.0])
  mean = run(modeling.weighted_mean(losses, weights))
  assert mean == pytest.approx(3.0, rel=1e-4)
  assert run(modeling.weighted_mean(losses, weights * 0)) == 0.0


def test_assignment_map_names_the_variables_in_the_checkpoint():
  path = reference_data.golden("modeling", "tiny", "bert_model.ckpt.index")
  with tf.variable_scope("bert/pooler"):
    modeling.dense(tf.zeros([1, 4]), 4)
  tf.get_variable("new", [1])
  assignment_map, initialized = modeling.get_assignment_map_from_checkpoint(
    tf.trainable_variables(), path[: -len(".index")]
  )
  names = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
  assert dict(assignment_map) == {name: name for name in names}
  assert set(initialized) == {*names, *(name + ":0" for name in names)}


# Options of `FastCompute`

SMALL = functools.partial(
  tiny_model.config, 100, hidden_size=32, num_hidden_layers=2
)
RAGGED = (3, 16, 9, 1, 12)
LAYOUTS = {
  "ragged": (RAGGED, 16),
  "untrimmed": (RAGGED, 20),
  "full": ((16,) * 5, 16),
  "one token": ((1,), 1),
  "padding between tokens": (RAGGED, 16, None, slice(4, 6)),
}


class TrainingModel:
  """Graph of a model in training; weights are a function of their names."""

  def __init__(self, compute, dropout_prob=0.0, read=None, gathers=False):
    names = "hidden_dropout_prob", "attention_probs_dropout_prob"
    config = SMALL(**dict.fromkeys(names, dropout_prob))
    with tf.Graph().as_default() as self.graph:
      self._batch = {
        name: tf.placeholder(tf.int32, [None, None])
        for name in ("ids", "mask", "segments")
      }
      positions = tf.range(tf.shape(self._batch["ids"])[1])
      positions = positions[tf.newaxis] * tf.ones_like(self._batch["ids"])
      if read:
        positions = tf.gather(positions, read, axis=1)
      model = modeling.BertModel(
        config,
        True,
        *self._batch.values(),
        dropout_seed=(1, tf.constant(3)),
        compute=compute,
        output_positions=positions if gathers else None,
      )
      self.logits = modeling.classification_logits(model.get_pooled_output(), 3)
      labels = tf.range(tf.shape(self.logits)[0]) % 3
      self.losses, _ = modeling.cross_entropy(self.logits, labels)
      layers = model.get_all_encoder_layers()
      self.states = [model.get_embedding_output(), *layers]
      # Every state contributes, weighted by its position and its features.
      is_token = tf.gather(self._batch["mask"], positions, batch_dims=1)
      is_token = tf.cast(is_token, tf.float32)[:, :, tf.newaxis]
      sequence = tf.cast(model.get_sequence_output(), tf.float32)
      if not gathers:
        sequence = tf.gather(sequence, positions, batch_dims=1)
      steps = tf.cast(tf.range(tf.size(sequence[0])), tf.float32)
      pull = tf.sin(tf.reshape(steps, tf.shape(sequence)[1:])) * is_token
      loss = tf.reduce_mean(self.losses) + tf.reduce_mean(sequence * pull)
      variables = tf.trainable_variables()
      self.gradients = tf.gradients(loss, variables)
      norm = tf.linalg.global_norm(self.gradients)
      self._results = {"loss": loss, "norm": norm}
      for variable, gradient in zip(variables, self.gradients):
        self._results[variable.op.name] = tf.convert_to_tensor(gradient)
      self._session = tf.Session()
      for variable in variables:
        variable.load(weight_of(variable), self._session)

  def run(self, lengths, seq_length, fetches=None, gap=slice(0)):
    """Loss, norm and gradients by name, or the given `fetches`.

    `gap` is of more padding.
    """
    draw = np.random.default_rng(0)
    shape = len(lengths), seq_length
    mask = np.arange(seq_length) < np.array(lengths)[:, np.newaxis]
    mask[:, gap] = False
    arrays = draw.integers(1, 100, shape), 1, draw.integers(0, 2, shape)
    feeds = {
      tensor: array * mask
      for tensor, array in zip(self._batch.values(), arrays)
    }
    return self._session.run(fetches or self._results, feeds)


def weight_of(variable):
  """Random numbers that are a function of a variable's name."""
  name = variable.op.name
  draw = np.random.default_rng(zlib.crc32(name.encode()))
  return draw.normal(float(name.endswith("gamma")), 0.1, variable.shape)


training_model = functools.cache(TrainingModel)


PLAIN, UNPADDED = FastCompute(), FastCompute(unpad=True)


def trained(compute, layout="ragged", **options):
  return training_model(compute, **options).run(*LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unpadding_gives_the_loss_and_gradients_of_padded_rows(layout):
  assert_all_close(trained(UNPADDED, layout), trained(PLAIN, layout), 1e-5)


# [CLS], one position twice, and one that is padding in some rows.
READ = (0, 7, 2, 7, 11)


@pytest.mark.train
@parametrize("layout", "ragged", "full")
@parametrize(
  "compute",
  PLAIN,
  UNPADDED,
  FastCompute(unpad=True, jit_compile=True, recompute=True),
)
def test_last_layer_at_output_positions_has_the_same_gradients(compute, layout):
  whole = trained(PLAIN, layout, read=READ)
  picked = trained(compute, layout, read=READ, gathers=True)
  assert_all_close(picked, whole, 1e-5)


def position_biases_of_the_page():
  """The examples of `position_biases` in the documentation."""
  page = os.path.join(commands.ROOT, "docs/explanation/changing_the_model.md")
  with open(page, encoding="utf-8") as file:
    blocks = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
  examples = []
  for block in blocks:
    names = {**vars(modeling)}
    exec(block, names)
    examples.append(names["position_biases"])
  return dict(zip(("ALiBi", "T5"), examples, strict=True))


POSITION_BIASES = position_biases_of_the_page()


@pytest.mark.train
@parametrize(
  "compute, biases",
  (PLAIN, "T5"),
  (FastCompute(unpad=True, jit_compile=True, recompute=True), "T5"),
  (FastCompute(unpad=True, jit_compile=True, on_gpu=True), "ALiBi"),
  ids=["picked", "all", "gpu"],
)
def test_position_biases_train_as_in_the_plain_model(
  monkeypatch, compute, biases
):
  unbiased = trained(PLAIN, read=READ)
  monkeypatch.setattr(modeling, "position_biases", POSITION_BIASES[biases])
  plain = TrainingModel(modeling.Compute(), read=READ).run(RAGGED, 16)
  model = TrainingModel(compute, read=READ, gathers=True)
  assert_all_close(model.run(RAGGED, 16), plain, 1e-5)
  assert abs(plain["loss"] - unbiased["loss"]) > 1e-4


def test_plain_compute_gathers_positions_from_all():
  model = TrainingModel(modeling.Compute(), read=READ, gathers=True)
  product = "bert/encoder/layer_1/output/dense/MatMul:0"
  found = model.run(RAGGED, 16, [model.graph.get_tensor_by_name(product)])
  assert len(found[0]) == len(RAGGED) * 16


@parametrize("compute", PLAIN, UNPADDED)
def test_last_layer_computes_states_at_output_positions_only(compute):
  model = training_model(compute, read=READ, gathers=True)
  products = {
    op.name.removeprefix("bert/encoder/layer_1/"): op.outputs[0]
    for op in model.graph.get_operations()
    if op.type == "MatMul" and op.name.startswith("bert/encoder/layer_1/")
  }
  found = model.run(RAGGED, 20, products)
  num_rows = {name: len(product) for name, product in found.items()}
  everywhere = 44 if compute.unpad else len(RAGGED) * 20
  read = len(RAGGED) * len(READ)
  assert num_rows == {
    "attention/self/query/MatMul": read,
    "attention/self/key/MatMul": everywhere,
    "attention/self/value/MatMul": everywhere,
    "attention/output/dense/MatMul": read,
    "intermediate/dense/MatMul": read,
    "output/dense/MatMul": read,
  }


# Sequences of these lengths share a row of 12 tokens.
PACKED = [[3, 5, 2], [7, 4], [12]]


def sequences_and_rows():
  """Sequences alone in rows of 12; rows of them; where a token is."""
  draw = np.random.default_rng(0)
  num_rows, length = len(PACKED), 12
  alone, rows = (
    {name: np.zeros([n, length], np.int32) for name in ("ids", "segments")}
    for n in (sum(map(len, PACKED)), num_rows)
  )
  number = 0
  positions, sequences = (np.zeros([num_rows, length], np.int32) for _ in "ab")
  for row, lengths in enumerate(PACKED):
    start = 0
    for count, size in enumerate(lengths, start=1):
      part = slice(start, start + size)
      for name, high in (("ids", 99), ("segments", 2)):
        values = draw.integers(high == 99, high, size)
        alone[name][number, :size] = rows[name][row, part] = values
      positions[row, part] = np.arange(size)
      sequences[row, part] = count
      start, number = start + size, number + 1
  return alone, rows, positions, sequences


def pull_of(states, weights):
  """A number to which each state contributes in its own way."""
  width = states.shape[-1]
  pull = np.sin(np.arange(width, dtype=np.float32))
  return tf.reduce_sum(tf.cast(states, tf.float32) * pull * weights)


@pytest.mark.train
@parametrize("picks, biases", (False, None), (False, "ALiBi"), (True, "T5"))
@parametrize(
  "compute",
  modeling.Compute(),
  UNPADDED,
  FastCompute(unpad=True, jit_compile=True, recompute=True),
  FastCompute(jit_compile=True, on_gpu=True),
  ids=["plain", "unpadded", "all", "gpu"],
)
def test_packed_sequences_are_computed_like_each_alone(
  monkeypatch, compute, picks, biases
):
  if biases:
    monkeypatch.setattr(modeling, "position_biases", POSITION_BIASES[biases])
  alone, rows, positions, sequences = sequences_and_rows()
  config = SMALL(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  # All positions, or those of some tokens.
  columns = np.array([0, 7, 3, 9, 1]) if picks else np.arange(12)
  picked = np.tile(columns, [len(PACKED), 1])
  with tf.variable_scope("", reuse=tf.AUTO_REUSE):
    model, packed = (
      modeling.BertModel(
        config,
        True,
        tf.constant(batch["ids"]),
        tf.constant(np.int32(batch["ids"] > 0)),
        tf.constant(batch["segments"]),
        scope="bert",
        dropout_seed=(1, tf.constant(3)),
        **options,
      )
      for batch, options in (
        (alone, {}),
        (
          rows,
          {
            "compute": compute,
            "position_ids": tf.constant(positions),
            "sequence_ids": tf.constant(sequences),
            "output_positions": tf.constant(picked) if picks else None,
          },
        ),
      )
    )
  # The state of each picked token in the row of its sequence.
  first = np.cumsum([0, *map(len, PACKED)])[:-1, np.newaxis]
  where = np.stack([first + sequences - 1, positions], axis=-1)
  where = np.take_along_axis(where, picked[:, :, np.newaxis], axis=1)
  is_token = np.take_along_axis(sequences, picked, axis=1)[:, :, np.newaxis] > 0
  expected = tf.gather_nd(model.get_sequence_output(), where * is_token)
  states = packed.get_sequence_output()
  pooled = packed.get_pooled_output()
  with tf.variable_scope("bert/pooler", reuse=True):
    expected_pooled = modeling.dense(expected, config.hidden_size, tf.tanh)

  def results(states, pooled):
    pull = pull_of(states, is_token) + pull_of(pooled, is_token)
    gradients = tf.gradients(pull, tf.trainable_variables())
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return [states * is_token, pooled * is_token, *dense]

  both = results(states, pooled), results(expected, expected_pooled)
  for actual, reference in zip(*run(both)):
    np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)


def test_rows_of_positions_are_counted_in_each_sequence_without_padding_ids():
  ids = [[0, 5, 1, 6, 0, 1, 7], [0, 7, 8, 0, 0, 0, 9]]
  positions = [[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 0, 0, 1]]
  expected = [[2, 3, 1, 4, 2, 1, 3], [2, 3, 4, 5, 2, 2, 3]]
  rows = modeling.position_rows(tf.constant(ids), tf.constant(positions), 2)
  np.testing.assert_array_equal(run(rows), expected)
  rows = modeling.position_rows(tf.constant(ids), None, 2)
  alone = [[2, 3, 1, 4, 5, 1, 6], [*range(2, 9)]]
  np.testing.assert_array_equal(run(rows), alone)


@parametrize("num_segments", 0, 1)
def test_models_without_segments_take_any_segment_ids(num_segments):
  config = tiny_model.config(9, type_vocab_size=num_segments)
  ids = tf.ones([2, 5], tf.int32)
  with tf.variable_scope("", reuse=tf.AUTO_REUSE):
    one, other = (
      modeling.BertModel(config, False, ids, token_type_ids=each, scope="bert")
      for each in (ids, None)
    )
  names = {variable.op.name for variable in tf.global_variables()}
  has_table = "bert/embeddings/token_type_embeddings" in names
  assert has_table == bool(num_segments)
  np.testing.assert_array_equal(*run([one.pooled_output, other.pooled_output]))


def test_each_layer_normalization_has_the_epsilon_of_the_config():
  # With so large a one, every output is the shift, which is 0 at first.
  config = tiny_model.config(9)
  config.layer_norm_eps = 1e30
  ids = tf.ones([2, 5], tf.int32)
  model = modeling.BertModel(config, False, ids)
  states = tf.random_normal([2, 5, 16], seed=1)
  table = model.get_embedding_table()
  logits = modeling.masked_lm_logits(config, states, table)
  layers = model.get_all_encoder_layers()
  for values in run([model.get_embedding_output(), *layers, logits]):
    np.testing.assert_allclose(values, 0.0, atol=1e-9)


@pytest.mark.train
@parametrize("on_gpu", False, True)
@parametrize("unpad", False, True)
def test_compiled_model_trains_like_the_plain_model(unpad, on_gpu):
  compute = FastCompute(jit_compile=True, unpad=unpad, on_gpu=on_gpu)
  assert_all_close(trained(compute), trained(PLAIN), 1e-5)


def assert_same_with_gradients(plain, fused, tensors):
  upstream = tf.random.stateless_normal(plain.shape, [1, 2])
  both = ([y, *tf.gradients(y, tensors, upstream)] for y in (plain, fused))
  expected, actual = run(list(both))
  for one, other in zip(expected, actual):
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)


@parametrize("dropout_prob", 0.0, 0.3)
def test_fused_sublayer_end_equals_the_plain_one(monkeypatch, dropout_prob):
  output, residual = (
    tf.random.stateless_normal([6, 32], [3, number]) for number in range(2)
  )
  options = dropout_prob, (1, tf.constant(3)), 1e-12
  with tf.variable_scope("here"):
    compute = FastCompute(jit_compile=True)
    fused = compute.add_and_norm(output, residual, *options)
  monkeypatch.setattr(modeling, "dropout", masked_dropout)
  with tf.variable_scope("here", reuse=True):
    plain = modeling.Compute().add_and_norm(output, residual, *options)
  inputs = [output, residual, *tf.trainable_variables()]
  assert_same_with_gradients(plain, fused, inputs)


@parametrize("attend", xla.attention_on_cpu, xla.attention_on_gpu)
@parametrize(
  "num_queries, num_biases, dropout_prob",
  (5, 0, 0.0),
  (5, 2, 0.3),
  (2, 2, 0.0),
  (2, 0, 0.3),
)
def test_fused_attention_equals_the_plain_one(
  monkeypatch, num_queries, dropout_prob, attend, num_biases
):
  shapes = [(1, 2, num_queries, 5), (3, 1, 1, 5)][:num_biases]
  query, key, value = (
    tf.random.stateless_normal([3, 2, length, 4], [3, number])
    for number, length in enumerate([num_queries, 5, 5])
  )
  mask = tf.sequence_mask([5, 3, 1], 5)[:, tf.newaxis]
  more = [tf.random.stateless_normal(shape, [4, 4]) for shape in shapes]
  drops = dropout_prob, (1, tf.constant(3))
  biases = modeling.attention_bias(mask), *more
  fused = attend(query, key, value, biases, *drops)
  monkeypatch.setattr(modeling, "dropout", masked_dropout)
  plain = modeling.dot_product_attention(query, key, value, mask, *drops, more)
  assert_same_with_gradients(plain, fused, [query, key, value, *more])


def test_dropout_can_drop_everything():
  x = modeling.dropout(tf.ones([5]), 0.999999, (1, 2))
  assert run(x).tolist() == [0.0] * 5


@pytest.mark.train
@parametrize("compute", PLAIN, FastCompute(unpad=True, jit_compile=True))
def test_recomputed_activations_equal_the_stored_ones(compute):
  stored = trained(compute, dropout_prob=0.1)
  recompute = dataclasses.replace(compute, recompute=True)
  # Not bit-identical: Grappler fuses different operations in the first run.
  assert_all_close(trained(recompute, dropout_prob=0.1), stored, 1e-6)


def test_layers_are_recomputed_one_at_a_time():
  graph = training_model(FastCompute(recompute=True), 0.1).graph

  def before(op):
    todo, found = [op], set()
    while todo:
      op = todo.pop()
      nearest = {t.op for t in op.inputs} | set(op.control_inputs)
      todo += nearest - found
      found |= nearest
    return found

  ops = graph.get_operations()
  softmaxes = [op for op in ops if op.type == "Softmax"]
  (of_head,) = (op for op in ops if op.type == "LogSoftmax")
  *stored, last_layer, first_layer = softmaxes
  assert len(stored) == 2 and set(stored) < before(of_head)
  assert of_head in before(last_layer) and last_layer in before(first_layer)


# Machine epsilon: relative distance between neighboring numbers.
EPSILON = {tf.bfloat16: 2.0**-7, tf.float16: 2.0**-10}


@pytest.mark.train
@parametrize("all_options", False, True)
@pytest.mark.parametrize("dtype", EPSILON)
def test_mixed_precision_trains_nearly_like_float32(dtype, all_options):
  options = [all_options] * 3
  actual, expected = trained(FastCompute(dtype, *options)), trained(PLAIN)
  # Forward and backward passes through two layers round a number a few dozen
  # times, up or down, by a quarter of epsilon on average. Such errors grow with
  # the root of their number: to one or two epsilon.
  assert abs(actual["loss"] - expected["loss"]) < 2 * EPSILON[dtype]
  names = set(expected) - {"loss", "norm"}
  error = math.hypot(*(length(actual[n] - expected[n]) for n in names))
  norm = math.hypot(*(length(expected[n]) for n in names))
  assert error < 2 * EPSILON[dtype] * norm


def length(tensor):
  return float(np.linalg.norm(tensor))


@pytest.mark.parametrize("dtype", EPSILON)
def test_matrix_products_are_narrow_and_softmax_and_norms_float32(dtype):
  graph = training_model(FastCompute(dtype)).graph
  dtypes = {}
  for op in graph.get_operations():
    if "encoder/layer_" in op.name and op.outputs:
      dtypes.setdefault(op.type, set()).add(op.outputs[0].dtype)
  assert dtypes["MatMul"] == dtypes["BatchMatMulV2"] == {dtype}
  for delicate in ("Softmax", "Rsqrt", "SquaredDifference", "RsqrtGrad"):
    assert dtypes[delicate] == {tf.float32}


@parametrize("dtype", tf.float32, *EPSILON)
def test_weights_their_gradients_and_losses_are_float32(dtype):
  model = training_model(FastCompute(dtype))
  variables = model.graph.get_collection("variables")
  assert {v.dtype.base_dtype for v in variables} == {tf.float32}
  assert {gradient.dtype for gradient in model.gradients} == {tf.float32}
  assert model.losses.dtype == tf.float32
  states = [model.logits, *model.states]
  assert {state.dtype for state in states} == {dtype}


def operations(is_training, compute):
  with tf.Graph().as_default() as graph:
    ids = tf.placeholder(tf.int32, [None, None])
    model = modeling.BertModel(
      TINY, is_training, ids, dropout_seed=(1, tf.constant(3)), compute=compute
    )
    tf.gradients(model.get_pooled_output(), tf.trainable_variables())
  return [(op.name, op.type) for op in graph.get_operations()]


@parametrize(
  "is_training, compute",
  (False, FastCompute(jit_compile=True, recompute=True)),
  (True, PLAIN),
)
def test_inference_and_no_options_build_the_plain_graph(is_training, compute):
  plain = operations(is_training, modeling.Compute())
  assert operations(is_training, compute) == plain
