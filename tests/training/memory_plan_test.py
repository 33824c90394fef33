"""Tests of the memory estimate of a training step."""

import dataclasses
import functools
import math

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize

import modeling
from bertlib.checkpoints import model_folder
from bertlib.compute.fast_compute import FastCompute
from bertlib.task.task_record import StepShape
from bertlib.training import step_plan

pytestmark = pytest.mark.unit

BASE = modeling.BertConfig(30522)
LARGE = modeling.BertConfig(30522, 1024, 24, 16, 4096)
BF16 = tf.bfloat16
MINILM = modeling.BertConfig(30522, 384, 6, 12, 4 * 384, type_vocab_size=2)


@pytest.mark.graph
@parametrize("embedding_size", None, 8)
def test_weights_are_those_of_the_model(embedding_size):
  config = modeling.BertConfig(100, 24, 3, intermediate_size=40)
  config.embedding_size = embedding_size
  with tf.Graph().as_default():
    modeling.BertModel(config, False, tf.zeros([1, 3], tf.int32))
    made = sum(v.shape.num_elements() for v in tf.trainable_variables())
  assert model_folder.num_weights(config) == made


@st.composite
def tasks(draw):
  """Arguments of `fit` without the memory limit."""
  return {
    "config": draw(st.sampled_from([BASE, LARGE])),
    "batch_size": draw(st.integers(1, 64)),
    "shape": StepShape(
      draw(st.integers(1, 512)),
      num_rows=draw(st.integers(1, 4)),
      num_predictions=draw(st.integers(0, 80)),
    ),
    "compute": FastCompute(draw(st.sampled_from([BF16, tf.float32]))),
  }


def bytes_of(task, num_micro_batches, recompute):
  part = {
    "batch_size": task["batch_size"] // num_micro_batches,
    "compute": dataclasses.replace(task["compute"], recompute=recompute),
  }
  accumulates = num_micro_batches > 1
  return step_plan.step_bytes(**{**task, **part}, accumulates=accumulates)


def ways(task):
  """All ways to compute a batch, the fastest first: (recomputed, parts)."""
  size = task["batch_size"]
  divisors = [n for n in range(1, size + 1) if size % n == 0]
  return [(again, n) for again in (False, True) for n in divisors]


@st.composite
def budgets(draw):
  """A task, and a budget in which some way just fits or just does not."""
  task = draw(tasks())
  recompute, num_micro_batches = draw(st.sampled_from(ways(task)))
  needed = bytes_of(task, num_micro_batches, recompute)
  return task, needed - draw(st.integers(0, 1))


@given(budgets())
def test_a_plan_is_the_fastest_that_fits(case):
  task, budget = case
  plans = [(n, again, bytes_of(task, n, again)) for again, n in ways(task)]
  expected = next((plan for plan in plans if plan[2] <= budget), None)
  assert step_plan.fit(num_bytes=budget, **task) == expected


@given(task=tasks(), recompute=st.booleans())
@parametrize("name", "batch_size", "seq_length", "num_rows", "num_predictions")
def test_a_larger_step_takes_more(name, task, recompute):
  task["compute"] = dataclasses.replace(task["compute"], recompute=recompute)
  size = step_plan.step_bytes(**task)
  if name == "batch_size":
    larger = task | {name: task[name] + 1}
  else:
    more = {name: getattr(task["shape"], name) + 1}
    larger = task | {"shape": task["shape"]._replace(**more)}
  assert size < step_plan.step_bytes(**larger)


@given(task=tasks())
def test_accumulation_takes_one_more_gradient_of_each_weight(task):
  step_bytes = functools.partial(step_plan.step_bytes, **task)
  one, other = step_bytes(), step_bytes(accumulates=True)
  added = 4 * model_folder.num_weights(task["config"])
  if task["shape"].num_predictions:  # its head takes more in a loop
    assert other - one > added
  else:
    assert math.isclose(other - one, added, abs_tol=1)


@given(task=tasks())
def test_the_last_layer_takes_what_its_positions_take(task):
  shape = task.pop("shape")
  length = shape.seq_length
  counts = None, length, max(length // 2, 1), 1
  shapes = [shape._replace(num_output_positions=count) for count in counts]
  whole, *sizes = (step_plan.step_bytes(**task, shape=s) for s in shapes)
  assert whole == sizes[0]
  assert sizes == sorted(sizes, reverse=True)


def planned_gigabytes(config, batch, masks, accumulates=False, **options):
  num_sequences, seq_length = batch
  counts = {"num_predictions": masks, "num_output_positions": 1 + masks}
  shape = StepShape(seq_length, **counts)
  how = FastCompute(**{"jit_compile": True, **options}), accumulates
  return step_plan.step_bytes(config, num_sequences, shape, *how) / 1e9


# Peaks of resident memory that were measured on two cores of an x86-64 CPU by
# a process with TensorFlow 2.21 and XLA: `benchmarks/peak_memory.py`, and steps
# of `run_pretraining.model_fn_builder` in the same way.
@parametrize(
  "sizes, batch, masks, options, peak",
  # Layers, hidden size, heads; sequences, length; masks; gigabytes.
  ((1, 256, 4), (64, 256), 0, {}, 1.18),
  ((2, 256, 4), (64, 256), 0, {}, 1.82),
  ((2, 256, 4), (64, 256), 0, {"dtype": BF16}, 1.69),
  ((3, 384, 6), (32, 128), 0, {}, 1.65),
  ((2, 256, 4), (16, 256), 0, {"accumulates": True}, 1.44),
  ((2, 256, 4), (64, 128), 20, {}, 2.10),
  ((3, 384, 6), (32, 256), 4, {}, 2.36),
  ((3, 384, 6), (32, 256), 4, {"dtype": BF16}, 2.05),
  ((2, 256, 4), (32, 128), 20, {"accumulates": True}, 2.05),
  ((2, 256, 4), (32, 128), 20, {"accumulates": True, "dtype": BF16}, 2.06),
)
def test_steps_take_no_more_than_planned(sizes, batch, masks, options, peak):
  num_layers, width, num_heads = sizes
  config = modeling.BertConfig(
    30522, width, num_layers, num_heads, 4 * width, type_vocab_size=2
  )
  assert peak <= planned_gigabytes(config, batch, masks, **options) < 1.6 * peak


# Peaks that TensorFlow 2.21 reported for an emulated GPU, in the check
# `planned_memory` of `benchmarks.gpu`.
@parametrize(
  "config, batch, masks, options, peak",
  # Sequences, length; masks; gigabytes.
  (BASE, (8, 128), 0, {}, 3.53),
  (BASE, (8, 128), 0, {"jit_compile": False}, 4.98),
  (MINILM, (256, 64), 0, {}, 3.38),
  (BASE, (256, 128), 0, {"dtype": BF16, "jit_compile": False}, 28.76),
  (BASE, (256, 128), 20, {"dtype": BF16}, 17.74),
  (BASE, (32, 512), 20, {}, 21.20),
  (LARGE, (64, 128), 0, {"jit_compile": False}, 37.22),
  (LARGE, (24, 384), 0, {"dtype": BF16, "recompute": True}, 9.33),
  (BASE, (64, 128), 20, {"dtype": BF16, "accumulates": True}, 7.13),
)
def test_gpu_steps_take_what_is_planned(config, batch, masks, options, peak):
  options = options | {"on_gpu": True}
  planned = planned_gigabytes(config, batch, masks, **options)
  assert planned == pytest.approx(peak, rel=0.1)


def test_a_plan_for_a_gpu_leaves_a_tenth_of_the_memory():
  shape = StepShape(128)
  sizes = BASE, 8, shape, FastCompute(jit_compile=True, on_gpu=True)
  needed = step_plan.step_bytes(*sizes)
  for share, fits in ((1.1, True), (1.09, False)):
    plan = step_plan.fit(*sizes, int(share * needed))
    assert (plan[:2] == (1, False)) == fits


def test_work_is_that_of_a_count_by_hand():
  config = modeling.BertConfig(10, 2, 1, 1, 3)
  flops = functools.partial(step_plan.step_flops, config, 1)
  # One sequence of five tokens. Forward: query, key, value and output, 5x2 by
  # 2x2; scores, 5x2 by 2x5, and context, 5x5 by 5x2; 5x2 by 2x3 and 5x3 by 3x2;
  # pooler, 1x2 by 2x2. Of 7 masks 7x2 by 2x2 and 7x2 by 2x10.
  layer = 4 * 20 + 50 + 50 + 30 + 30
  pooler, masks = 4, 28 + 140
  assert flops(StepShape(5)) == 3 * 2 * (layer + pooler)
  shape = StepShape(5, num_predictions=7)
  assert flops(shape) == 3 * 2 * (layer + pooler + masks)
  assert flops(StepShape(5, num_rows=2)) == 2 * 3 * 2 * (layer + pooler)
  assert flops(StepShape(5), True) == 2 * (4 * layer + 3 * pooler)
