"""Tests of the scripts' `model_fn`s with the original's arguments."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_model

import optimization
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_squad
from bertlib.compat import estimator_api
from bertlib.compute.fast_compute import FastCompute
from bertlib.settings.embedding_spec import EmbeddingSpec
from bertlib.tasks.embeddings import embedding_losses

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures("graph")]

CONFIG = tiny_model.config(30, hidden_size=8, intermediate_size=16)
LEARNS = {
  "init_checkpoint": None,
  "learning_rate": 0.1,
  "num_train_steps": 10,
  "num_warmup_steps": 2,
  "use_tpu": False,
  "use_one_hot_embeddings": False,
}
Modes = estimator_api.ModeKeys


def features(**more):
  """Two sequences of six tokens, the second one shorter; and more features."""
  ids = np.array([[5, 9, 3, 7, 8, 2], [4, 6, 2, 0, 0, 0]])
  arrays = {"input_ids": ids, "input_mask": ids > 0, "segment_ids": ids % 2}
  return {n: tf.constant(a, tf.int32) for n, a in (arrays | more).items()}


def groups():
  """More features: two groups of an anchor and its positive."""
  ids = [[[5, 9, 3, 7, 8, 2], [4, 6, 2, 0, 0, 0]], [[4, 7, 2, 0, 0, 0]] * 2]
  return {
    "input_ids": ids,
    "input_mask": np.sign(ids),
    "segment_ids": np.zeros_like(ids),
    "text_ids": [[0, 1], [2, 3]],
  }


def run_mode(model_fn, batch, mode):
  """Predictions or the loss; after training, the names of what changed."""
  spec = model_fn(batch, None, mode, {"batch_size": 2})
  with tf.Session() as session:
    weights = {v.op.name: v for v in tf.trainable_variables()}
    session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())
    if mode == Modes.PREDICT:
      return session.run(spec.predictions)
    if mode == Modes.EVAL:
      return {"loss": session.run(spec.loss)}
    for _ in range(2):  # the rate of the first is 0
      before = session.run(weights)
      loss, _ = session.run([spec.loss, spec.train_op])
    assert np.isfinite(loss)
    after = session.run(weights)
  return {name for name in weights if (before[name] != after[name]).any()}


CASES = {
  "classifier": (
    functools.partial(run_classifier.model_fn_builder, CONFIG, 3),
    {"label_ids": [0, 2], "is_real_example": [1, 1]},
    {"probabilities"},
  ),
  "squad": (
    functools.partial(run_squad.model_fn_builder, CONFIG),
    {"unique_ids": [7, 8], "start_positions": [1, 0], "end_positions": [2, 0]},
    {"unique_ids", "start_logits", "end_logits"},
  ),
  "ner": (
    functools.partial(run_ner.model_fn_builder, CONFIG, 3),
    {"label_ids": [[-1, 0, 2, 1, 0, -1], [-1, 1, -1, -1, -1, -1]]},
    {"probabilities"},
  ),
  "embeddings": (
    functools.partial(
      run_embeddings.model_fn_builder,
      CONFIG,
      spec=EmbeddingSpec(projection_dim=4),
      loss=embedding_losses.LossOptions("infonce"),
    ),
    groups(),
    {"vectors"},
  ),
  "pretraining": (
    functools.partial(run_pretraining.model_fn_builder, CONFIG),
    {
      "masked_lm_positions": [[1, 3], [1, 0]],
      "masked_lm_ids": [[4, 5], [6, 0]],
      "masked_lm_weights": [[1, 1], [1, 0]],
      "next_sentence_labels": [[0], [1]],
    },
    None,
  ),
}


@pytest.mark.train
@pytest.mark.parametrize("script", CASES)
def test_training_step_changes_every_part_of_the_model(script, variables):
  build, more, _ = CASES[script]
  moved = run_mode(build(**LEARNS), features(**more), Modes.TRAIN)
  assert "bert/embeddings/word_embeddings" in moved
  assert "bert/encoder/layer_0/output/LayerNorm/gamma" in moved
  assert len(moved) > 20
  table, *_ = tf.trainable_variables()
  assert table.dtype.name.endswith("_ref") == (variables == "reference")


def trained_weights(copy_weight):
  """Weights of a classifier after two steps in bfloat16, and its copies.

  With two micro-batches; optimization_test.py has one.
  """
  compute = FastCompute(
    tf.bfloat16, unpad=True, jit_compile=True, copy_weight=copy_weight
  )
  options = optimization.StepOptions(jit_compile=True)
  how = {"compute": compute, "options": options, "num_micro_batches": 2}
  build, more, _ = CASES["classifier"]
  model_fn = build(**LEARNS, seed=1, **how)
  with tf.Graph().as_default(), tf.Session() as session:
    batch = features(**more)
    spec = model_fn(batch, None, Modes.TRAIN, {"batch_size": 2})
    weights = tf.trainable_variables()
    session.run(tf.global_variables_initializer())
    draw = np.random.default_rng(0)
    for weight in weights:
      weight.load(draw.normal(size=weight.shape), session)
    session.run(tf.local_variables_initializer())
    for _ in range(2):
      session.run(spec.train_op)
    return session.run([weights, optimization.weight_copies()])


@pytest.mark.train
def test_copies_of_weights_do_not_change_training():
  expected, _ = trained_weights(None)
  actual, copies = trained_weights(optimization.weight_copy)
  assert len(copies) == 7  # six kernels of the layer, and the pooler's
  for one, other in zip(actual, expected):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
  ("script", "changed", "num_rows"),
  [
    ("classifier", {}, 2),
    ("pretraining", {}, 6),  # two masks and [CLS] of each sequence
    ("embeddings", {}, 24),
    ("embeddings", {"spec": EmbeddingSpec(pooling="cls")}, 4),
  ],
)
def test_the_last_layer_is_computed_where_it_is_used(
  script, changed, num_rows, graph
):
  build, more, _ = CASES[script]
  model_fn = build(**LEARNS, compute=FastCompute(), **changed)
  model_fn(features(**more), None, Modes.TRAIN, {"batch_size": 2})
  last = graph.get_tensor_by_name("bert/encoder/layer_0/output/dense/MatMul:0")
  assert last.shape[0] == num_rows


@pytest.mark.parametrize("script", CASES)
def test_model_fn_evaluates_and_predicts(script):
  build, more, predicted = CASES[script]
  model_fn = build(**LEARNS)
  batch = features(**more)
  if script in ("classifier", "pretraining"):  # others evaluate predictions
    assert np.isfinite(run_mode(model_fn, batch, Modes.EVAL)["loss"])
  if predicted:
    with tf.Graph().as_default():
      found = run_mode(model_fn, features(**more), Modes.PREDICT)
    assert predicted <= set(found)
    assert all(np.isfinite(values).all() for values in found.values())
