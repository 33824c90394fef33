"""BERT as an ONNX graph, written with the `onnx` package alone.

Functions have the names of those in `modeling.py`, whose formulas they write:
for a trained model in float32, float16, or with 8-bit matrix products. Only
standard operations are used, in the forms that ONNX Runtime and OpenVINO fuse.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import needs_package
from bertlib.settings.embedding_spec import PROJECTION_SCOPE, EmbeddingSpec

# Files of a graph, and of one with 8-bit layers: those of transformers.js.
MODEL_FILE = "onnx/model.onnx"
INT8_MODEL_FILE = "onnx/model_quantized.onnx"

# Outputs by the names of transformers, for its readers. Ours come before them.
OF_TRANSFORMERS = ("logits", "start_logits", "end_logits", "last_hidden_state")

# Names of the inputs, int64 [B, S], by feature: those of transformers.
INPUT_NAMES = {
  "input_ids": "input_ids",
  "input_mask": "attention_mask",
  "segment_ids": "token_type_ids",
}

# Positions: of the first token alone.
CLS = "cls"

# The first versions with LayerNormalization.
OPSET, IR_VERSION = 17, 8

# Migration strength of 8-bit inputs, see `int8.quantize_kernel`. In MiniLM 0.8
# is better than 0.65 and 1.
_SMOOTHING = 0.8

# Highest --max_seq_length with attention probabilities in 8 bits. In texts of
# over 255 tokens their mean is below the step, 1 / 255.
_MAX_INT8_PROBS = 256

_TINY = 1e-20  # so that nothing is divided by 0

# Input of a masked language model: int64 [B, P], padded with 0.
MASKED_LM_POSITIONS = "masked_lm_positions"

_POOLER = "bert/pooler/dense"
_DEFAULTS = {"layer_norm_eps": 1e-12, "pooler_act": "tanh"}
_LOWEST = np.finfo(np.float32).min


class Output(NamedTuple):
  """An output of a graph, float32."""

  tensor: str
  shape: Sequence[Any]  # sizes, or names of what varies


class Graph:
  """Nodes and constants of an ONNX graph; equal ones are written once."""

  def __init__(self, stores_float16: bool = False):
    """Starts a graph; large constants may be stored in 16 bits."""
    with needs_package(
      "--format=onnx: needs the package onnx. Install it:"
      " pip install -e '.[onnx]'"
    ):
      import onnx
    self._onnx = onnx
    self._stores_float16 = stores_float16
    self._inputs: dict[str, Sequence[Any]] = {}
    self._nodes: list[Any] = []
    self._constants: list[Any] = []
    self._names: dict[Any, str] = {}  # by content

  def node(self, operation: str, *inputs: Any, **attributes: Any) -> str:
    """Name of the output of an operation on tensors, or on constants."""
    inputs = tuple(
      x if isinstance(x, str) else self.constant(x) for x in inputs
    )
    key = operation, inputs, str(attributes)
    if key not in self._names:
      name = self._names[key] = f"{operation}_{len(self._nodes)}"
      make = self._onnx.helper.make_node
      self._nodes.append(
        make(operation, inputs, [name], name=name, **attributes)
      )
    return self._names[key]

  def constant(self, value: Any, name: str | None = None) -> str:
    """Name of a constant, float32 unless of integers; a named one is new."""
    array = np.ascontiguousarray(value)
    if array.dtype.kind == "f":
      array = array.astype(np.float32)
    is_short = self._stores_float16 and array.ndim == 2
    if array.dtype == np.float32 and is_short:
      array = array.astype(np.float16)
    key = name, array.dtype, array.shape, hashlib.sha256(array).digest()
    if key not in self._names:
      self._names[key] = name or f"constant_{len(self._constants)}"
      self._constants.append(
        self._onnx.numpy_helper.from_array(array, self._names[key])
      )
    if array.dtype == np.float16:
      return self.cast(self._names[key])
    return self._names[key]

  def cast(self, tensor: str, dtype: str = "FLOAT") -> str:
    """A tensor in float32, or another type of ONNX."""
    return self.node("Cast", tensor, to=getattr(self._onnx.TensorProto, dtype))

  def input(self, name: str, shape: Sequence[Any]) -> str:
    """Declares an input, int64; sizes are numbers, or names if they vary."""
    self._inputs[name] = shape
    return name

  def model(self, outputs: Mapping[str, Output]) -> Any:
    """The ONNX model with these outputs, by name."""
    helper, types = self._onnx.helper, self._onnx.TensorProto
    names = {output.tensor: name for name, output in outputs.items()}
    for node in self._nodes:
      for tensors in (node.input, node.output):
        tensors[:] = [names.get(tensor, tensor) for tensor in tensors]
    # Shapes of other tensors are left out: with them, ONNX Runtime fuses sums
    # and layer normalizations, which is slower.
    graph = helper.make_graph(
      self._nodes,
      "bert",
      [
        helper.make_tensor_value_info(name, types.INT64, shape)
        for name, shape in self._inputs.items()
      ],
      [
        helper.make_tensor_value_info(name, types.FLOAT, output.shape)
        for name, output in outputs.items()
      ],
      self._constants,
    )
    return helper.make_model(
      graph,
      ir_version=IR_VERSION,
      opset_imports=[helper.make_opsetid("", OPSET)],
      producer_name="bert-estimator",
    )


class LayerNorm:
  """Hidden states as the layer normalization of a tensor.

  Each of `outputs` is a node of its own, since scales and shifts cost nothing
  in gamma and beta.
  """

  def __init__(self, encoder: Encoder, inputs: str, scope: str):
    """Describes the normalization of `inputs` with the weights in a scope."""
    self._encoder, self._inputs, self._scope = encoder, inputs, scope

  def outputs(self, scales: Any = 1.0, shift: Any = 0.0) -> str:
    """The hidden states, divided by `scales`, plus `shift`."""
    gamma, beta = (
      self._encoder.weights[f"{self._scope}/LayerNorm/{name}"]
      for name in ("gamma", "beta")
    )
    return self._encoder.graph.node(
      "LayerNormalization",
      self._inputs,
      gamma / scales,
      beta / scales + shift,
      axis=-1,
      epsilon=self._encoder.config["layer_norm_eps"],
    )

  def at(self, positions: str | None) -> LayerNorm:
    """The hidden states at positions [B, P]; None for all."""
    if positions is None:
      return self
    inputs = self._encoder.gather_positions(self._inputs, positions)
    return type(self)(self._encoder, inputs, self._scope)


class Projection(LayerNorm):
  """Hidden states as a dense layer, named by its scope, of embeddings."""

  def outputs(self, scales: Any = 1.0, shift: Any = 0.0) -> str:
    """See base class."""
    bias = self._encoder.weights[f"{self._scope}/bias"] / scales + shift
    kernel = self._encoder.weights[f"{self._scope}/kernel"] / scales
    node = self._encoder.graph.node
    return node("Add", node("MatMul", self._inputs, kernel), bias)


class Encoder:
  """The graph of an encoder, which heads are added to."""

  def __init__(
    self,
    graph: Graph,
    config: Mapping[str, Any],  # contents of `bert_config.json`
    weights: Mapping[str, np.ndarray],
    ranges: Mapping[str, Any],  # of 8-bit layers, see `quantization`
    seq_length: int | None = None,  # of every batch; None for any
    max_seq_length: int = 0,  # of the model
  ):
    """Declares the inputs of an encoder; `sequence_output` writes it."""
    self.graph, self.weights, self.ranges = graph, weights, ranges
    self.has_int8_probs = bool(ranges) and max_seq_length <= _MAX_INT8_PROBS
    self.config = _DEFAULTS | config
    for feature, name in INPUT_NAMES.items():
      if feature != "segment_ids" or self.config["type_vocab_size"] > 1:
        graph.input(name, ["batch", seq_length or "sequence"])

  # Of `modeling`

  def sequence_output(self, positions: str | None = None) -> LayerNorm:
    """Last hidden states [B, S, H]; at `positions` alone [B, P, H]."""
    hidden = self.embeddings()
    for index in range(self.config["num_hidden_layers"]):
      is_last = index == self.config["num_hidden_layers"] - 1
      hidden = self.layer(
        f"bert/encoder/layer_{index}", hidden, positions if is_last else None
      )
    return hidden

  def embeddings(self) -> LayerNorm:
    """Sum of the embeddings of words, segments and positions."""
    scope, node = "bert/embeddings", self.graph.node
    output = self.embedding_lookup()
    num_segments = self.config["type_vocab_size"]
    if num_segments:
      table = self.weights[f"{scope}/token_type_embeddings"]
      segments = table[0]
      if num_segments > 1:
        segments = node("Gather", table, INPUT_NAMES["segment_ids"])
      output = node("Add", output, segments)
    states = self.layer_norm(
      node("Add", output, self.position_embeddings()), scope
    )
    width = self.config["hidden_size"]
    if self.config.get("embedding_size") in (None, width):
      return states
    return Projection(self, states.outputs(), f"{scope}_project")

  def position_embeddings(self) -> str:
    """Position embeddings [S, H]; of RoBERTa [B, S, H], see `position_rows`."""
    node = self.graph.node
    table = self.weights["bert/embeddings/position_embeddings"]
    if pad_id := self.config.get("position_offset", 0):
      pad_id = np.int64(pad_id - 1)
      is_token = node("Not", node("Equal", "input_ids", pad_id))
      is_token = self.graph.cast(is_token, "INT64")
      counts = node("CumSum", is_token, np.int64(1))
      rows = node("Add", node("Mul", counts, is_token), pad_id)
      return node("Gather", table, rows)
    length = node("Slice", node("Shape", "input_ids"), [1], [2])
    return node("Slice", table, [0], length)

  def embedding_lookup(self) -> str:
    """Word embeddings [B, S, H]; in 8-bit models int8 with a scale per row."""
    table = self.weights["bert/embeddings/word_embeddings"]
    if not self.ranges:
      return self.graph.node("Gather", table, "input_ids")
    values, scales = _quantize(table, axis=1)
    rows = self.graph.node("Gather", values, "input_ids")
    scales = self.graph.node("Gather", scales[:, np.newaxis], "input_ids")
    return self.graph.node("Mul", self.graph.cast(rows), scales)

  def layer(
    self, scope: str, hidden: LayerNorm, positions: str | None
  ) -> LayerNorm:
    """A Transformer layer, at `positions` alone if they are given."""
    queries = hidden.at(positions)
    context, scales = self.attention_layer(
      f"{scope}/attention/self", queries, hidden
    )
    attention_output = self.add_and_norm(
      f"{scope}/attention/output", context, scales, queries
    )
    layer = f"{scope}/intermediate/dense"
    states, state_scales = self.quantized_norm(layer, attention_output)
    intermediate = self.dense(
      layer, states, state_scales, bias=self.weights[f"{layer}/bias"]
    )
    intermediate = self.activation(intermediate, self.config["hidden_act"])
    layer = f"{scope}/output/dense"
    scales = self.scales(layer)
    if layer in self.ranges:
      intermediate = self.graph.node("Mul", intermediate, 1.0 / scales)
    return self.add_and_norm(
      f"{scope}/output", intermediate, scales, attention_output
    )

  def attention_layer(
    self, scope: str, queries: LayerNorm, hidden: LayerNorm
  ) -> tuple[str, Any]:
    """Context [B, F, H], and the scales that it was divided by."""
    num_heads = self.config["num_attention_heads"]
    head_size = self.config["hidden_size"] // num_heads
    scales = self.scales(scope.replace("/self", "/output/dense"))

    def project(name, states, axes, factor, adds_bias=False):
      layer = f"{scope}/{name}"
      bias = self.weights[f"{layer}/bias"]
      inputs, input_scales = self.quantized_norm(layer, states)
      bias = bias if adds_bias else None
      matrix = self.dense(layer, inputs, input_scales, factor, bias)
      heads = self.graph.node("Reshape", matrix, [0, 0, num_heads, head_size])
      heads = self.graph.node("Transpose", heads, perm=axes)
      is_float = name == "value" and not self.has_int8_probs
      if layer not in self.ranges or is_float:
        return heads
      limit = np.max(self.ranges[layer].outputs * factor)
      return self.quantize(heads, -limit, limit, is_signed=True)

    # A bias of the keys adds the same number to all scores of a query; that of
    # the values adds itself to the context, and so to the bias of the output.
    factor = np.full(self.config["hidden_size"], 1.0 / math.sqrt(head_size))
    query = project("query", queries, [0, 2, 1, 3], factor, adds_bias=True)
    key = project("key", hidden, [0, 2, 3, 1], np.ones_like(factor))
    value = project("value", hidden, [0, 2, 1, 3], 1.0 / scales)
    scores = self.graph.node("MatMul", query, key)
    scores = self.graph.node("Add", scores, self.attention_bias())
    probs = self.graph.node("Softmax", scores, axis=-1)
    if f"{scope}/query" in self.ranges and self.has_int8_probs:
      probs = self.quantize(probs, 0.0, 1.0)
    context = self.graph.node("MatMul", probs, value)
    context = self.graph.node("Transpose", context, perm=[0, 2, 1, 3])
    shape = [0, 0, self.config["hidden_size"]]
    return self.graph.node("Reshape", context, shape), scales

  def attention_bias(self) -> str:
    """Bias of the scores [B, 1, 1, T]: -10000 at padding."""
    mask = self.graph.node("Unsqueeze", INPUT_NAMES["input_mask"], [1, 2])
    is_masked = self.graph.node("Sub", 1.0, self.graph.cast(mask))
    return self.graph.node("Mul", is_masked, -10000.0)

  def add_and_norm(
    self, scope: str, states: str, scales: Any, residual: LayerNorm
  ) -> LayerNorm:
    """End of a sublayer: a dense layer on states / scales, sum and norm."""
    layer = f"{scope}/dense"
    bias = self.weights[f"{layer}/bias"]
    if scope.endswith("/attention/output"):
      value_bias = self.weights[f"{scope[:-6]}self/value/bias"]
      bias = bias + value_bias @ self.weights[f"{layer}/kernel"]
    if layer in self.ranges:
      states = self.quantize(states, *self.limits(layer))
    if self.ranges:  # `residual` has a node of its own
      sums = self.dense(layer, states, scales)
      sums = self.graph.node("Add", sums, residual.outputs(shift=bias))
    else:
      sums = self.dense(layer, states, scales, bias=bias)
      sums = self.graph.node("Add", sums, residual.outputs())
    return self.layer_norm(sums, scope)

  def layer_norm(self, inputs: str, scope: str) -> LayerNorm:
    """Layer normalization with the weights in a scope."""
    return LayerNorm(self, inputs, scope)

  def dense(
    self,
    layer: str,
    inputs: str,
    input_scales: Any = 1.0,  # that the inputs were divided by
    factor: Any = 1.0,  # of each output
    bias: np.ndarray | None = None,
  ) -> str:
    """A fully connected layer; the kernel is int8 if the layer has ranges."""
    kernel = self.weights[f"{layer}/kernel"]
    kernel = kernel * np.reshape(input_scales, [-1, 1]) * factor
    if layer in self.ranges:
      values, scales = _quantize(kernel, axis=0)  # [width, units], [units]
      # ONNX Runtime replaces these constants on processors where sums of 8-bit
      # products overflow (session.x64quantprecision), once for each layer.
      kernel = self.graph.node(
        "DequantizeLinear",
        self.graph.constant(values, f"{layer}/kernel"),
        self.graph.constant(scales, f"{layer}/scales"),
        self.graph.constant(np.zeros_like(values[0]), f"{layer}/zero_points"),
        axis=1,
      )
    output = self.graph.node("MatMul", inputs, kernel)
    if bias is None:
      return output
    return self.graph.node("Add", output, bias * factor)

  def activation(self, states: str, name: str) -> str:
    """An activation of `modeling.get_activation`, by its name."""
    node, name = self.graph.node, (name or "linear").lower()
    if name == "gelu":  # in the form that engines fuse
      erf = node("Erf", node("Div", states, math.sqrt(2.0)))
      return node("Mul", node("Mul", states, node("Add", erf, 1.0)), 0.5)
    if name in ("gelu_tanh", "gelu_new"):
      cube = node(
        "Mul", node("Mul", node("Mul", states, states), states), 0.044715
      )
      inner = node("Mul", node("Add", states, cube), math.sqrt(2.0 / math.pi))
      inner = node("Add", node("Tanh", inner), 1.0)
      return node("Mul", node("Mul", states, inner), 0.5)
    if name == "linear":
      return states
    return node({"relu": "Relu", "tanh": "Tanh"}[name], states)

  def gather_positions(self, states: str, positions: str) -> str:
    """Hidden states at `positions` [B, P] or `CLS`, as [B, P, H]."""
    if positions == CLS:
      return self.graph.node("Slice", states, [0], [1], [1])
    indices = self.graph.node("Unsqueeze", positions, [2])
    return self.graph.node("GatherND", states, indices, batch_dims=1)

  # Of 8-bit layers

  def scales(self, layer: str) -> Any:
    """Divisors of the columns of a layer's inputs; 1 in float."""
    if layer not in self.ranges:
      return np.ones(len(self.weights[f"{layer}/kernel"]))
    return np.maximum(self.ranges[layer].columns, _TINY) ** _SMOOTHING

  def limits(self, layer: str) -> tuple[float, float]:
    """Lowest and highest input of a layer after the division by `scales`."""
    observed, scales = self.ranges[layer], self.scales(layer)
    columns = np.asarray(observed.columns)
    low = np.max(np.minimum(-min(observed.low, 0.0), columns) / scales)
    return -low, np.max(columns / scales)

  def quantized_norm(self, layer: str, states: LayerNorm) -> tuple[str, Any]:
    """Inputs of a layer and their scales."""
    if layer not in self.ranges:
      return states.outputs(), 1.0
    scales = self.scales(layer)
    return self.quantize(states.outputs(scales), *self.limits(layer)), scales

  def quantize(
    self, states: str, low: float, high: float, is_signed: bool = False
  ) -> str:
    """Rounds to 8 bits and back: [low, high], which contains 0."""
    if is_signed:
      scale, zero = high / 127.0, np.int8(0)
    else:
      scale = (high - low) / 255.0
      zero = np.uint8(np.rint(-low / scale))
    parameters = np.float32(max(scale, _TINY)), zero
    rounded = self.graph.node("QuantizeLinear", states, *parameters)
    return self.graph.node("DequantizeLinear", rounded, *parameters)

  def output_layer(self, name: str, **options: Any) -> dict[str, Output]:
    """Outputs of a task, by the name of a function of `_OUTPUT_LAYERS`."""
    # Records of tasks, which import no module of an export, ask for them.
    return _OUTPUT_LAYERS[name](self, **options)


def _quantize(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
  """Int8 values of a matrix, with the scales of its rows (1) or columns (0)."""
  scales = np.maximum(np.abs(matrix).max(axis=axis, keepdims=True), _TINY) / 127
  values = np.rint(matrix / scales).astype(np.int8)
  return values, scales.ravel().astype(np.float32)


# Output layers of tasks; each returns outputs by name, with the values of
# `Predictor.build` of the task.


def hidden_states(encoder: Encoder) -> dict[str, Output]:
  """Last hidden states [B, S, H]; with a trained pooler, pooled [B, H]."""
  width = encoder.config["hidden_size"]
  outputs = last_hidden_state(encoder)
  if f"{_POOLER}/kernel" in encoder.weights:
    states = outputs["last_hidden_state"].tensor
    first = encoder.gather_positions(states, CLS)
    pooled = _pooled_output(encoder, first)
    outputs["pooler_output"] = Output(pooled, ["batch", width])
  return outputs


def last_hidden_state(encoder: Encoder) -> dict[str, Output]:
  """Last hidden states [B, S, H] alone."""
  states = encoder.sequence_output().outputs()
  shape = ["batch", "sequence", encoder.config["hidden_size"]]
  return {"last_hidden_state": Output(states, shape)}


def classification(
  encoder: Encoder, activation: str | None
) -> dict[str, Output]:
  """Scores [B, labels], of [CLS] alone; probabilities by an activation."""
  states = encoder.sequence_output(CLS).outputs()
  logits = _output_layer(encoder, _pooled_output(encoder, states))
  shape = ["batch", len(encoder.weights["output_bias"])]
  name = "probabilities" if activation else "scores"
  found = encoder.graph.node(activation or "Identity", logits)
  return {name: Output(found, shape), "logits": Output(logits, shape)}


def token_classification(encoder: Encoder) -> dict[str, Output]:
  """Probabilities of the labels of each token [B, S, labels]."""
  logits = _output_layer(encoder, encoder.sequence_output().outputs())
  probabilities = encoder.graph.node("Softmax", logits, axis=-1)
  shape = ["batch", "sequence", len(encoder.weights["output_bias"])]
  return {
    "probabilities": Output(probabilities, shape),
    "logits": Output(logits, shape),
  }


def spans(encoder: Encoder) -> dict[str, Output]:
  """Logits of starts and ends [B, 2, S]; the lowest float at padding."""
  node = encoder.graph.node
  states = encoder.sequence_output().outputs()
  logits = _output_layer(encoder, states, "cls/squad/")
  logits = node("Transpose", logits, perm=[0, 2, 1])
  logits = node("Where", _is_token(encoder, 1), logits, _LOWEST)
  outputs = {"logits": Output(logits, ["batch", 2, "sequence"])}
  for index, name in enumerate(("start_logits", "end_logits")):
    tensor = node("Squeeze", node("Gather", logits, [index], axis=1), [1])
    outputs[name] = Output(tensor, ["batch", "sequence"])
  return outputs


def sentence_vectors(
  encoder: Encoder, spec: EmbeddingSpec
) -> dict[str, Output]:
  """Sentence vectors [B, width], see `pooling`."""
  node = encoder.graph.node
  positions = CLS if spec.pooling == "cls" else None
  of_tokens = states = encoder.sequence_output(positions).outputs()
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
  # A row without tokens is zeros, whatever its mean is.
  num_tokens = node("ReduceMax", INPUT_NAMES["input_mask"], axes=[1])
  has_tokens = node("Greater", num_tokens, np.int64(0))  # [B, 1]
  vectors = node("Where", has_tokens, vectors, 0.0)
  if spec.normalize:  # zero stays zero
    squares = node("ReduceSum", node("Mul", vectors, vectors), [1])
    vectors = node("Div", vectors, node("Sqrt", node("Max", squares, 1e-24)))
  hidden_size = encoder.config["hidden_size"]
  shape = ["batch", spec.width(hidden_size)]
  outputs = {"sentence_embedding": Output(vectors, shape)}
  if spec.projection_dim is None:  # else others would leave it out
    shape = ["batch", 1 if positions else "sequence", hidden_size]
    outputs["last_hidden_state"] = Output(of_tokens, shape)
  return outputs


def masked_lm(
  encoder: Encoder, predicts_pairs: bool = False
) -> dict[str, Output]:
  """Probabilities of the vocabulary at masked positions [B, P, V].

  With `predicts_pairs` also that the second text follows the first, [B].
  """
  scope, weights, node = "cls/predictions", encoder.weights, encoder.graph.node
  positions = encoder.graph.input(MASKED_LM_POSITIONS, ["batch", "masks"])
  outputs = {}
  if predicts_pairs:
    first = node("Mul", node("Slice", "input_ids", [0], [1], [1]), np.int64(0))
    both = node("Concat", first, positions, axis=1)
    states = encoder.sequence_output(both).outputs()
    pooled = _pooled_output(encoder, encoder.gather_positions(states, CLS))
    logits = _output_layer(encoder, pooled, "cls/seq_relationship/")
    of_pairs = node("Softmax", logits, axis=-1)
    is_next = node("Squeeze", node("Gather", of_pairs, [0], axis=1), [1])
    outputs["is_next_probability"] = Output(is_next, ["batch"])
    states = node("Slice", states, [1], [2**31 - 1], [1])
  else:
    states = encoder.sequence_output(positions).outputs()
  layer = f"{scope}/transform/dense"
  states = encoder.dense(layer, states, bias=weights[f"{layer}/bias"])
  states = encoder.activation(states, encoder.config["hidden_act"])
  states = encoder.layer_norm(states, f"{scope}/transform").outputs()
  kernel = weights["bert/embeddings/word_embeddings"].T
  logits = node("MatMul", states, kernel)
  logits = node("Add", logits, weights[f"{scope}/output_bias"])
  probabilities = node("Softmax", logits, axis=-1)
  shape = ["batch", "masks", encoder.config["vocab_size"]]
  return {"probabilities": Output(probabilities, shape), **outputs}


_OUTPUT_LAYERS: Mapping[str, Any] = {
  "classification": classification,
  "masked_lm": masked_lm,
  "sentence_vectors": sentence_vectors,
  "spans": spans,
  "token_classification": token_classification,
}


def _pooled_output(encoder: Encoder, states: str) -> str:
  """`modeling.BertModel.pooled_output` of the states of [CLS]: [B, H]."""
  states = encoder.graph.node("Squeeze", states, [1])
  bias = encoder.weights[f"{_POOLER}/bias"]
  pooled = encoder.dense(_POOLER, states, bias=bias)
  return encoder.activation(pooled, encoder.config["pooler_act"])


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
