"""Compares what files compute with what TensorFlow runs.

Other programs have the formulas of BERT and its tokenizer once more. An ONNX
graph is computed here. Nothing here reads GGUF or a Hugging Face folder: for
them `modeling.py`, the model of the task and `tokenization.py` must give the
values of their released form, which `released.json` has.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from absl import logging

import modeling
import tokenization
from bertlib.cli.errors import InputError, some_of
from bertlib.compute.fast_compute import FastCompute
from bertlib.export import onnx_graph, signatures, tf1_module
from bertlib.io import json_files
from bertlib.task.task_record import TaskRecord

RELEASED = os.path.join(os.path.dirname(__file__), "released.json")

# Largest difference of equal models, as a part of the largest value. That of
# sums in another order is about 1e-6.
_TOLERANCE = 1e-4

MAX_BYTES = 2**31  # of an ONNX file

Arrays = Mapping[str, np.ndarray]  # by name


def converted(
  model: signatures.SignatureModel,
  weights: Arrays,
  needed: Collection[str],  # weights that the outputs depend on
  draw: Callable[..., Any],  # ONNX graph of weights
  flag: str,  # of its precision
) -> Any:
  """The ONNX graph by tf2onnx; None where that of `draw` computes the same."""
  inputs = two_texts(model, model.max_seq_length)

  def with_states(features):
    found = model.outputs(features)
    return found | model.hidden_states(features) | found

  function = _function(model, weights, with_states)
  expected = _comparable(_run(function, inputs), inputs)
  used = _Weights(weights)
  try:
    graph = draw(used, has_states=True)
    problem = _difference(graph, inputs, expected)
    if unused := sorted(set(needed) - used.names):
      problem = f"does not use {some_of(unused, 3)}"
  except Exception as error:  # no such weight or activation, another shape
    problem = f"cannot be made ({error!r:.200})"
  if not problem:
    return None
  problem = f"the ONNX graph of BERT {problem}"
  size = sum(weight.nbytes for weight in weights.values())
  if flag != "--precision=float32" or size >= MAX_BYTES:
    raise InputError(
      f"{flag}: {problem}, and tf2onnx converts that of TensorFlow in float32"
      " only, up to 2 GB. Leave out --quantize and --precision, or export a"
      " SavedModel"
    )
  try:
    import tf2onnx

    function = _function(model, weights, model.outputs)
    graph, _ = tf2onnx.convert.from_function(
      function, function.input_signature, opset=onnx_graph.OPSET
    )
    graph.ir_version = onnx_graph.IR_VERSION
    del graph.opset_import[1:]  # of other domains, which have no nodes
    # TensorFlow sorts them by name.
    order, values = [*expected], graph.graph.output
    values.sort(key=lambda value: order.index(value.name))
    rest = _difference(graph, inputs, expected)
  except ImportError as error:
    raise InputError(
      f"--format=onnx: {problem}. Install tf2onnx, which converts that of"
      " TensorFlow: pip install -e '.[tf2onnx]'"
    ) from error
  except Exception as error:  # of an old tf2onnx, or an unknown operation
    rest = f"cannot be made ({error!r:.200})"
  if rest:
    raise InputError(
      f"--format=onnx: {problem}, and that of tf2onnx {rest}. Export a"
      " SavedModel"
    )
  logging.warning(
    "%s; tf2onnx has converted that of TensorFlow, with equal outputs", problem
  )
  return graph


class _Weights(dict):
  """Weights by name, which collects the `names` of those that are read."""

  def __init__(self, weights: Arrays):
    super().__init__(weights)
    self.names: set[str] = set()

  def __getitem__(self, name):
    self.names.add(name)
    return super().__getitem__(name)


def _function(model, weights: Arrays, outputs: Callable):
  """Outputs of features by `modeling` alone; takes the inputs of ONNX."""
  model.compute = FastCompute()
  features = model.features()
  with tf.device("/cpu:0"):  # a GPU may round float32
    module = tf1_module.GraphModule(weights)

  def call(*inputs):
    inputs = (tf.cast(tensor, tf.int32) for tensor in inputs)
    with tf.device("/cpu:0"), module.scope():
      return outputs(dict(zip(features, inputs)))

  specs = [
    tf.TensorSpec(spec.shape, tf.int64, name)
    for name, spec in zip(_input_names(model), features.values())
  ]
  return tf.function(call, input_signature=specs, autograph=False)


def _input_names(model) -> list[str]:
  return [onnx_graph.INPUT_NAMES.get(n, n) for n in model.features()]


def _run(function, inputs: Arrays) -> Mapping[Any, Any]:
  return function.get_concrete_function()(*map(tf.constant, inputs.values()))


def two_texts(model, length: int) -> dict[str, np.ndarray]:
  """Inputs of a text of `length` and of a short one, in two segments each."""
  lengths, columns = np.array([[length], [min(length, 5)]]), np.arange(length)
  mask = (columns < lengths).astype(np.int64)
  size, num_segments = model.config.vocab_size, model.config.type_vocab_size
  ids = np.random.RandomState(0).randint(size, size=mask.shape) * mask
  segments = (columns > lengths // 2) * mask * min(num_segments - 1, 1)
  masks = lengths // [[1, 2]] - 1
  return dict(zip(_input_names(model), (ids, mask, segments, masks)))


def _comparable(
  outputs: Mapping[Any, Any], inputs: Arrays
) -> dict[Any, np.ndarray]:
  """Values at tokens as vectors; of probabilities their logarithms."""
  is_token, found = inputs["attention_mask"] > 0, {}
  for name, values in outputs.items():
    values, length = np.asarray(values), is_token.shape[1]
    is_span = name in ("start_logits", "end_logits")  # [B, S]
    # [B, S, _], [B, _, S]
    if is_span or (values.ndim == 3 and length in values.shape[1:]):
      axis = values.shape.index(length, 1)
      values = np.moveaxis(values, axis, 1)[is_token]
    if name == "probabilities":
      values = np.log(np.maximum(values, 1e-30))
    found[name] = values.ravel()
  return found


def _difference(graph, inputs: Arrays, expected: Arrays):
  """Difference of an ONNX graph's outputs in words; None if equal."""
  try:
    import onnxruntime

    session = onnxruntime.InferenceSession(
      graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
  except ImportError:
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(graph)
  names = [value.name for value in graph.graph.input]
  found = session.run(None, {name: inputs[name] for name in names})
  names = [value.name for value in graph.graph.output]
  return difference(expected, _comparable(dict(zip(names, found)), inputs))


def difference(expected: Mapping[Any, Any], found: Mapping) -> str | None:
  """Difference of outputs from those expected in words; None if equal."""
  for name, values in found.items():
    one, size = np.asarray(expected.get(name, ())), np.inf
    if one.shape == values.shape:
      size = np.abs(one - values).max() / max(np.abs(one).max(), 1e-30)
    if not size <= _TOLERANCE:
      return f"differs by {size:.1g} of the largest output"
  return None


# The released form


def check_tokenizer(flag: str, do_lower_case: bool) -> None:
  """Refuses to write the rules of a tokenizer if ours has other ones."""
  released = json_files.read(RELEASED, dict)["tokenizer"]
  vocab = {piece: index for index, piece in enumerate(released["vocab"])}
  tokenizer = tokenization.FullTokenizer(vocab, do_lower_case)
  kept = released["lower_case" if do_lower_case else "cased"]
  for text, expected in zip(released["texts"], kept):
    pieces = tokenizer.tokenize(text)
    ids = [vocab.get(piece) for piece in pieces]
    if ids != expected or tokenizer.encode(text) != ids:
      raise InputError(
        f"{flag}: tokenization.py splits {text!r} into {' '.join(pieces)!r},"
        " unlike programs that read the files. Undo the change, or predict with"
        " the scripts"
      )


def check_formula(
  flag: str,
  hidden_act: str,
  task: TaskRecord | None = None,  # None for the encoder
  kind: str | None = None,  # of the task; None for all
  has_pooler: bool = True,
) -> None:
  """Refuses to write a model whose formula is not the released one."""
  released = json_files.read(RELEASED, dict)["outputs"]
  act = hidden_act.lower().replace("gelu_new", "gelu_tanh")
  cases = released.get(f"{task.script if task else 'encoder'} {act}")
  problem = None if cases else "has an activation or output layers unlike"
  for description, kept in cases or ():
    if kind not in (None, description.get("kind")):
      continue
    try:
      found = released_outputs(task, description, hidden_act)
    except Exception as error:  # an edit may need more than the small model
      problem = f"cannot be compared ({error!r:.200}) with"
      break
    if not has_pooler:
      found.popitem()
    if differs := difference(dict(enumerate(kept)), found):
      problem = f"{differs} from"
  if problem:
    raise InputError(
      f"{flag}: the model {problem} the released code, whose formulas programs"
      " that read the files have. Export a SavedModel or ONNX"
    )


def released_outputs(
  task: TaskRecord | None, description: Mapping[str, Any], hidden_act: str
) -> dict[int, np.ndarray]:
  """Outputs of `build` of a small model, by the code that runs."""
  model, weights = small_model(task, description, hidden_act)
  inputs = two_texts(model, model.config.max_position_embeddings)

  def build(features):
    return dict(enumerate(tf.nest.flatten(model.build(features))))

  outputs = _run(_function(model, weights, build), inputs)
  # At most 64 of each: what far positions change, shows at all positions.
  return {
    name: values[:: -(-len(values) // 64)]
    for name, values in _comparable(outputs, inputs).items()
  }


def small_model(
  task: TaskRecord | None, description: Mapping[str, Any], hidden_act: str
) -> tuple[signatures.SignatureModel, dict[str, np.ndarray]]:
  """A model of two layers, and weights that are the same for ever."""
  sizes = json_files.read(RELEASED, dict)["config"]
  config = modeling.BertConfig(hidden_act=hidden_act, **sizes)
  model_class, build_model = signatures.find(task)
  model = model_class(description, config, None, build_model=build_model)
  weights = tf1_module.initial_weights(
    lambda: model.build(
      dict.fromkeys(model.features(), tf.ones([1, 1], tf.int32))
    )
  )
  for name, value in weights.items():
    draw = np.random.RandomState(zlib.crc32(name.encode()))
    mean = float(name.endswith("gamma"))
    weights[name] = draw.normal(mean, 0.3, value.shape).astype(np.float32)
  return model, weights
