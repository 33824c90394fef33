"""Tests of the plan of a pretraining, against graphs and small sums."""

import math

import pytest
import run_pretraining_test
import tensorflow.compat.v1 as tf
import tiny_pretraining

from benchmarks import pretraining_plan
from benchmarks.pretraining_plan import Phase
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs

pytestmark = pytest.mark.unit

CONFIG = tiny_pretraining.CONFIG
PHASE = Phase(
  seq_length=16,
  num_predictions=2,
  batch_size=48,
  num_steps=100,
  at_once=5,
  rate=2.0,
  epochs=4.0,
  record_bytes=100.0,
)


@pytest.mark.graph
def test_weights_are_those_of_the_graph(graph):
  names = *model_inputs.TOKEN_FEATURES, "masked_lm_positions"
  run_pretraining_test.build_model({name: [[0] * 4] for name in names})
  sizes = [math.prod(v.shape.as_list()) for v in tf.trainable_variables()]
  assert pretraining_plan.num_weights(CONFIG) == sum(sizes)


def test_a_ring_is_sent_around_twice():
  num_bytes = 4 * pretraining_plan.num_weights(CONFIG)
  sent = [pretraining_plan.exchanged_bytes(CONFIG, n) for n in (1, 2, 4)]
  assert sent == [0, num_bytes, 1.5 * num_bytes]


def test_a_share_of_a_phase():
  found = pretraining_plan.share(CONFIG, PHASE, 2, bandwidth=1e3)
  sent = 4 * pretraining_plan.num_weights(CONFIG)
  # Of 24, at most 5 each.
  assert (found.num_micro_batches, found.at_once) == (6, 4)
  assert found.computing == 12.0
  assert found.exchange == pytest.approx(sent / 1e3)
  assert found.hours == pytest.approx(100 * (12.0 + sent / 1e3) / 3600)


def test_devices_that_cannot_share_a_batch_are_refused():
  with pytest.raises(InputError, match="=48 cannot be divided among 7 devices"):
    pretraining_plan.share(CONFIG, PHASE, 7, bandwidth=1e3)
