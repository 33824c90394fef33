"""Tests of the operations of ONNX graphs against `modeling`."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_model
from parametrize import parametrize

import modeling
from bertlib.compute import int8
from bertlib.export import onnx_graph

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason=".[test]")

pytestmark = pytest.mark.graph

WEIGHTS = np.random.default_rng(0).normal(size=[5, 4]).astype(np.float32)


def encoder(**changed):
  config = vars(tiny_model.config(9, **changed))
  return onnx_graph.Encoder(onnx_graph.Graph(), config, {}, {})


def run(graph, tensor, shape, num_tokens=1):
  """Value of a tensor of a graph."""
  model = graph.model({"found": onnx_graph.Output(tensor, shape)})
  session = onnxruntime.InferenceSession(model.SerializeToString())
  ids = np.ones([1, num_tokens], np.int64)
  names = onnx_graph.INPUT_NAMES.values()
  return session.run(None, dict.fromkeys(names, ids))[0]


@parametrize(
  "name", "gelu", "GELU", "gelu_tanh", "gelu_new", "relu", "tanh", "linear"
)
def test_activations_are_those_of_modeling(name):
  values = np.linspace(-6, 6, 101, dtype=np.float32)
  of_onnx = encoder()
  tensor = of_onnx.activation(of_onnx.graph.node("Identity", values), name)
  found = run(of_onnx.graph, tensor, [101])
  function = modeling.get_activation(name) or tf.identity
  with tf.Graph().as_default(), tf.Session() as session:
    expected = session.run(function(tf.constant(values)))
  np.testing.assert_allclose(found, expected, atol=1e-6)


@parametrize("max_seq_length, is_kept", (256, 0), (600, 1))
def test_attention_to_600_tokens_is_not_rounded_to_0(max_seq_length, is_kept):
  # Each of 600 equal probabilities is less than half a step of 8 bits.
  identity, vector = np.eye(4, dtype=np.float32), np.zeros(4, np.float32)
  layers = [f"a/self/{name}" for name in ("query", "key", "value")]
  weights = dict.fromkeys([f"{layer}/kernel" for layer in layers], identity)
  weights |= {f"{layer}/bias": vector for layer in layers}
  weights |= {
    "a/self/query/kernel": 0.0 * identity,
    "a/output/dense/kernel": identity,
    "a/LayerNorm/gamma": vector + 1.0,
    "a/LayerNorm/beta": vector,
  }
  seen = int8.Observation(-2.0, 2.0, vector + 2.0, vector + 2.0)
  encoder = onnx_graph.Encoder(
    onnx_graph.Graph(),
    {"num_attention_heads": 1, "hidden_size": 4, "type_vocab_size": 2},
    weights,
    dict.fromkeys(layers, seen),
    max_seq_length=max_seq_length,
  )
  states = np.tile(np.float32([3.0, 1.0, -1.0, -3.0]), [1, 600, 1])
  states = encoder.graph.node("Identity", states)
  hidden = onnx_graph.LayerNorm(encoder, states, "a")
  context, _ = encoder.attention_layer("a/self", hidden, hidden)
  found = run(encoder.graph, context, [1, 600, 4], num_tokens=600)
  normalized = np.array([3.0, 1.0, -1.0, -3.0]) / np.sqrt(5.0)
  np.testing.assert_allclose(found[0, 0], is_kept * normalized, atol=0.03)


def test_equal_nodes_and_constants_are_written_once():
  graph = onnx_graph.Graph()
  first, second = (graph.node("Neg", WEIGHTS.copy()) for _ in range(2))
  assert first == second
  graph.node("Abs", WEIGHTS)
  model = graph.model({"values": onnx_graph.Output(first, [5, 4])})
  assert len(model.graph.node) == 2
  assert len(model.graph.initializer) == 1
