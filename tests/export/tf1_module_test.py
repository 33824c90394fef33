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


def build():
  model = modeling.BertModel(CONFIG, False, tf.zeros([1, 2], tf.int32))
  return model.get_pooled_output()


def test_initial_weights_come_from_a_checkpoint_if_it_has_them(tmp_path):
  checkpoint = str(tmp_path / "model.ckpt")
  weights = wrong_input_world.weights()
  some = {n: v + 1 for n, v in weights.items() if "pooler" not in n}
  checkpoint_files.write_variables(checkpoint, some)
  started = tf1_module.initial_weights(build, checkpoint)
  assert started.keys() == weights.keys()
  assert all(np.array_equal(started[name], some[name]) for name in some)
  assert not started["bert/pooler/dense/bias"].any()
