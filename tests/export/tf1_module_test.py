"""Tests of TensorFlow 1 graph code in TensorFlow 2."""

import numpy as np
import pytest
import tensorflow as tf
import wrong_input_world

import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.export import tf1_module

pytestmark = pytest.mark.graph

CONFIG = modeling.BertConfig.from_dict(wrong_input_world.CONFIG)
IDS = np.int32([[2, 5, 6, 3], [2, 7, 3, 0]])


def build(input_ids):
  model = modeling.BertModel(CONFIG, False, input_ids)
  return model.get_pooled_output()


def initial_weights(init_checkpoint=None):
  return tf1_module.initial_weights(
    lambda: build(tf.constant(IDS)), init_checkpoint
  )


@pytest.fixture(scope="module")
def weights():
  random = np.random.default_rng(0)
  return {
    name: random.normal(size=value.shape).astype(np.float32)
    for name, value in initial_weights().items()
  }


def test_initial_weights_come_from_a_checkpoint_if_it_has_them(
  weights, tmp_path
):
  checkpoint = str(tmp_path / "model.ckpt")
  some = {n: v for n, v in weights.items() if "pooler" not in n}
  checkpoint_files.write_variables(checkpoint, some)
  started = initial_weights(checkpoint)
  assert started.keys() == weights.keys()
  assert all(np.array_equal(started[name], some[name]) for name in some)
  assert not started["bert/pooler/dense/bias"].any()
