"""Output layers of tasks in an ONNX graph; each returns outputs by name.

An output has the values of `Predictor.build` of the task.
"""

from __future__ import annotations

import numpy as np

from bertlib.export.onnx_graph import CLS, INPUT_NAMES, Encoder, Output
from bertlib.settings.embedding_spec import PROJECTION_SCOPE, EmbeddingSpec

Outputs = dict[str, Output]

# Input of a masked language model: int64 [B, P], padded with 0.
MASKED_LM_POSITIONS = "masked_lm_positions"

_POOLER = "bert/pooler/dense"
_LOWEST = np.finfo(np.float32).min


def hidden_states(encoder: Encoder) -> Outputs:
  """Last hidden states [B, S, H]; with a trained pooler, pooled [B, H]."""
  states = encoder.sequence_output().outputs()
  width = encoder.config["hidden_size"]
  outputs = {"last_hidden_state": Output(states, ["batch", "sequence", width])}
  if f"{_POOLER}/kernel" in encoder.weights:
    first = encoder.gather_positions(states, CLS)
    pooled = _pooled_output(encoder, first)
    outputs["pooler_output"] = Output(pooled, ["batch", width])
  return outputs


def classification(encoder: Encoder, activation: str | None) -> Outputs:
  """Scores [B, labels], of [CLS] alone; probabilities by an activation."""
  states = encoder.sequence_output(CLS).outputs()
  logits = _output_layer(encoder, _pooled_output(encoder, states))
  shape = ["batch", len(encoder.weights["output_bias"])]
  if not activation:
    return {"scores": Output(logits, shape)}
  return {
    "probabilities": Output(encoder.graph.node(activation, logits), shape)
  }


def token_classification(encoder: Encoder) -> Outputs:
  """Probabilities of the labels of each token [B, S, labels]."""
  logits = _output_layer(encoder, encoder.sequence_output().outputs())
  probabilities = encoder.graph.node("Softmax", logits, axis=-1)
  shape = ["batch", "sequence", len(encoder.weights["output_bias"])]
  return {"probabilities": Output(probabilities, shape)}


def spans(encoder: Encoder) -> Outputs:
  """Logits of starts and ends [B, 2, S]; the lowest float at padding."""
  node = encoder.graph.node
  states = encoder.sequence_output().outputs()
  logits = _output_layer(encoder, states, "cls/squad/")
  logits = node("Transpose", logits, perm=[0, 2, 1])
  logits = node("Where", _is_token(encoder, 1), logits, _LOWEST)
  return {"logits": Output(logits, ["batch", 2, "sequence"])}


def sentence_vectors(encoder: Encoder, spec: EmbeddingSpec) -> Outputs:
  """Sentence vectors [B, width], see `pooling`."""
  node = encoder.graph.node
  positions = CLS if spec.pooling == "cls" else None
  states = encoder.sequence_output(positions).outputs()
  if spec.pooling == "mean":
    weights = encoder.graph.cast(_is_token(encoder, 2))  # [B, S, 1]
    sums = node("ReduceSum", node("Mul", states, weights), [1], keepdims=0)
    vectors = node("Div", sums, node("ReduceSum", weights, [1], keepdims=0))
  elif spec.pooling == "max":
    states = node("Where", _is_token(encoder, 2), states, _LOWEST)
    vectors = node("ReduceMax", states, axes=[1], keepdims=0)
  else:
    vectors = node("Squeeze", states, [1])
  if spec.projection_dim is not None:
    bias = encoder.weights[f"{PROJECTION_SCOPE}/bias"]
    vectors = encoder.dense(PROJECTION_SCOPE, vectors, bias=bias)
    vectors = encoder.activation(vectors, spec.projection_activation)
  if spec.normalize:  # zero stays zero
    squares = node("ReduceSum", node("Mul", vectors, vectors), [1])
    vectors = node("Div", vectors, node("Sqrt", node("Max", squares, 1e-24)))
  width = spec.width(encoder.config["hidden_size"])
  return {"sentence_embedding": Output(vectors, ["batch", width])}


def masked_lm(encoder: Encoder) -> Outputs:
  """Probabilities of the vocabulary at masked positions [B, P, V]."""
  scope, weights = "cls/predictions", encoder.weights
  positions = encoder.graph.input(MASKED_LM_POSITIONS, ["batch", "masks"])
  states = encoder.sequence_output(positions).outputs()
  layer = f"{scope}/transform/dense"
  states = encoder.dense(layer, states, bias=weights[f"{layer}/bias"])
  states = encoder.activation(states, encoder.config["hidden_act"])
  states = encoder.layer_norm(states, f"{scope}/transform").outputs()
  kernel = weights["bert/embeddings/word_embeddings"].T
  logits = encoder.graph.node("MatMul", states, kernel)
  logits = encoder.graph.node("Add", logits, weights[f"{scope}/output_bias"])
  probabilities = encoder.graph.node("Softmax", logits, axis=-1)
  shape = ["batch", "masks", encoder.config["vocab_size"]]
  return {"probabilities": Output(probabilities, shape)}


def _pooled_output(encoder: Encoder, states: str) -> str:
  """`modeling.BertModel.pooled_output` of the states of [CLS]: [B, H]."""
  states = encoder.graph.node("Squeeze", states, [1])
  bias = encoder.weights[f"{_POOLER}/bias"]
  return encoder.activation(encoder.dense(_POOLER, states, bias=bias), "tanh")


def _output_layer(encoder: Encoder, states: str, scope: str = "") -> str:
  """Linear output layer: [..., H] to [..., outputs]."""
  kernel = encoder.weights[f"{scope}output_weights"].T
  logits = encoder.graph.node("MatMul", states, kernel)
  bias = encoder.weights[f"{scope}output_bias"]
  return encoder.graph.node("Add", logits, bias)


def _is_token(encoder: Encoder, axis: int) -> str:
  """True at tokens, with a further axis."""
  mask = encoder.graph.node("Unsqueeze", INPUT_NAMES["input_mask"], [axis])
  return encoder.graph.node("Greater", mask, np.int64(0))
