"""Tests of the operations of ONNX graphs against `modeling`."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_model

import modeling
from bertlib.export import onnx_graph

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason=".[test]")

pytestmark = pytest.mark.graph

WEIGHTS = np.random.default_rng(0).normal(size=[5, 4]).astype(np.float32)


def encoder(**changed):
  config = vars(tiny_model.config(9, **changed))
  return onnx_graph.Encoder(onnx_graph.Graph(), config, {}, {})


@pytest.mark.parametrize(
  "name", ["gelu", "GELU", "gelu_tanh", "gelu_new", "relu", "tanh", "linear"]
)
def test_activations_are_those_of_modeling(name):
  values = np.linspace(-6, 6, 101, dtype=np.float32)
  of_onnx = encoder()
  tensor = of_onnx.activation(of_onnx.graph.node("Identity", values), name)
  model = of_onnx.graph.model({"values": onnx_graph.Output(tensor, [101])})
  session = onnxruntime.InferenceSession(model.SerializeToString())
  ids = np.zeros([1, 1], np.int64)
  inputs = dict.fromkeys(onnx_graph.INPUT_NAMES.values(), ids)
  (found,) = session.run(None, inputs)
  function = modeling.get_activation(name) or tf.identity
  with tf.Graph().as_default(), tf.Session() as session:
    expected = session.run(function(tf.constant(values)))
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_equal_nodes_and_constants_are_written_once():
  graph = onnx_graph.Graph()
  first, second = (graph.node("Neg", WEIGHTS.copy()) for _ in range(2))
  assert first == second
  graph.node("Abs", WEIGHTS)
  model = graph.model({"values": onnx_graph.Output(first, [5, 4])})
  assert len(model.graph.node) == 2
  assert len(model.graph.initializer) == 1
