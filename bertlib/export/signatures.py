"""SavedModel signatures: from ids or raw text to predictions.

The exported model of a task, in its folder, extends `SignatureModel`. It does
in the graph what the script does in Python before and after the model.
"""

from __future__ import annotations

import dataclasses
import importlib
import operator
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import tensorflow as tf

import modeling
import tokenization
from bertlib import PREFIX
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import model_inputs
from bertlib.export import tf1_module, tf_tokenizer
from bertlib.settings.common import LongTextSettings
from bertlib.task.task_record import TaskRecord

Tensors = Mapping[str, Any]


class Signature(NamedTuple):
  """A SavedModel signature: maps inputs by name to outputs by name."""

  inputs: dict[str, tf.TensorSpec]
  function: Callable[[Tensors], Tensors]


class SignatureModel:
  """Base class: a model with its tokenization and decoding in the graph."""

  # Name in the task's script of the function that builds its graph; None for a
  # class with a `build` of its own.
  graph: str | None = "Predictor.build"
  main = "text"  # the default signature
  output = "probabilities"  # name of what `build` returns, see `outputs`
  has_pooler = True  # of an encoder, and outputs of it
  # Whether the tokenizer finds masks in texts.
  finds_mask = False
  # Flags of texts that are longer than the model.
  long_texts = LongTextSettings

  def __init__(
    self,
    description: Mapping[str, Any],
    config: modeling.BertConfig,
    tokenizer: tokenization.Tokenizer | None,
    # Fixed S of every batch; None for any.
    seq_length: int | None = None,
    dtype=tf.float32,
    # Builds the graph of the task; None for only the encoder.
    build_model: Callable[..., Any] | None = None,
  ):
    """Describes the signatures of a model; without tokenizer, of ids alone."""
    self.description = description
    self.build_model = build_model
    self.config = config
    self.tokenizer = tokenizer
    self.seq_length = seq_length
    self.max_seq_length = seq_length or description["max_seq_length"]
    self.cutting = self.long_texts.of_model(description)
    self.compute = FastCompute(dtype, unpad=seq_length is None)
    # TensorFlow has operations for WordPiece alone.
    is_wordpiece = isinstance(tokenizer, tokenization.FullTokenizer)
    self.text = self.graph_tokenizer(tokenizer) if is_wordpiece else None
    self._frozen: tf1_module.FrozenGraph | None = None

  def freeze(
    self, weight_getter: Callable[..., Any], unused: Mapping[str, Any]
  ) -> None:
    """Makes the weights constants, see `tf1_module.FrozenGraph`."""
    self._frozen = tf1_module.FrozenGraph(self.build, weight_getter, unused)

  def graph_tokenizer(self, tokenizer) -> tf_tokenizer.GraphTokenizer:
    """The tokenizer as graph operations."""
    return tf_tokenizer.GraphTokenizer(tokenizer)

  def build(self, inputs: Tensors):
    """Builds the model's graph from `model_inputs.TOKEN_FEATURES`."""
    return self.build_model(self.description, self.config, inputs, self.compute)

  def run(self, inputs: Tensors):
    """The outputs of `build`, on any device."""
    with tf.device(None):
      return self._frozen(inputs) if self._frozen else self.build(inputs)

  def ids(self, inputs: Tensors) -> Tensors:
    """Outputs for a batch of ids."""
    raise NotImplementedError

  def signatures(self) -> dict[str, Signature]:
    """All signatures, by name."""
    signatures = {"ids": Signature(self.token_specs(), self.ids)}
    if self.text:
      one, two = text_specs("text_a"), text_specs("text_a", "text_b")

      signatures |= {
        "text": Signature(one, self.of_texts),
        "pair": Signature(two, self.of_texts),
        "tokenize": Signature(two, self.encode),
      }
    return signatures

  def outputs(self, inputs: Tensors) -> Tensors:
    """Outputs of files such as ONNX, by their names there."""
    return {self.output: self.build(inputs)}

  def hidden_states(self, inputs: Tensors) -> Tensors:
    """Outputs of the encoder whose weights `build` has already used."""
    encoder = Encoder(self.description, self.config, None)
    encoder.compute, encoder.has_pooler = self.compute, self.has_pooler
    scope = tf.compat.v1.get_variable_scope()
    with tf.compat.v1.variable_scope(scope, reuse=True):
      return encoder.outputs(inputs)

  def token_specs(self) -> dict[str, tf.TensorSpec]:
    """Specs of `features` by the names of the signature."""
    return self.features()

  def features(self) -> dict[str, tf.TensorSpec]:
    """Specs of int32 [B, S] for each of `model_inputs.TOKEN_FEATURES`."""
    return {
      name: tf.TensorSpec([None, self.seq_length], tf.int32, name)
      for name in model_inputs.TOKEN_FEATURES
    }

  def of_texts(self, texts: Tensors) -> Tensors:
    """Outputs for a batch of texts or pairs."""
    return self.ids(self.encode(texts))

  def encode(self, texts: Tensors) -> Tensors:
    """Encodes texts or pairs as ids, mask and segments, in one row each."""
    return self.encode_windows(texts, cutting=self.cutting.in_one_row())[0]

  def encode_windows(
    self,
    texts: Tensors,
    prompt: str = "",  # with which the first texts begin
    cutting: LongTextSettings | None = None,
  ) -> tuple[Tensors, Any]:
    """Encodes texts in rows; also the index of the text of each, int32."""
    return self.text.encode_pairs(
      texts["text_a"],
      texts.get("text_b"),
      self.max_seq_length,
      self.seq_length is not None,
      cutting or self.cutting,
      self.tokenizer.encode(prompt),
    )


class LabelModel(SignatureModel):
  """Base class: a model of labels, whose files have its logits too."""

  graph = "Predictor.build_with_logits"

  def build(self, inputs):
    """See base class; with the logits, by which windows are joined."""
    found = super().build(inputs)
    return found if self.cutting.has_windows else found[1]

  def outputs(self, inputs):
    """See base class."""
    logits, found = super().build(inputs)
    return {self.output: found, "logits": logits}


def text_specs(*names: str) -> dict[str, tf.TensorSpec]:
  """Specs of batches of texts, by name."""
  return {name: tf.TensorSpec([None], tf.string, name) for name in names}


def find(task: TaskRecord | None) -> tuple[type[SignatureModel], Any]:
  """Class and `build_model` of a task, or of an encoder."""
  model_class, build_model = task.export() if task else Encoder, None
  if model_class.graph:
    module = importlib.import_module(PREFIX + task.script)
    build_model = operator.attrgetter(model_class.graph)(module)
  return model_class, build_model


class EncoderOutputs(NamedTuple):
  """Outputs of an encoder, float32."""

  # [B, S, H] of the embeddings and of each layer.
  states: list[Any]
  pooled: Any  # [B, H]; None without a pooler


class Encoder(SignatureModel):
  """Encoder outputs: all layers, pooled output and mean of the tokens."""

  graph = None

  def build(self, inputs, is_training: bool = False):
    """See base class; `EncoderOutputs`."""
    unpad = self.compute.unpad and not is_training
    model = modeling.BertModel(
      self.config,
      is_training,
      inputs["input_ids"],
      inputs["input_mask"],
      inputs["segment_ids"],
      compute=dataclasses.replace(self.compute, unpad=unpad),
      use_pooler=self.has_pooler,
    )
    states = [model.get_embedding_output(), *model.get_all_encoder_layers()]
    return EncoderOutputs(
      [tf.cast(state, tf.float32) for state in states],
      self.has_pooler and tf.cast(model.get_pooled_output(), tf.float32),
    )

  def _pooled(self, outputs: EncoderOutputs, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, outputs.pooled) if self.has_pooler else {}

  def call(self, inputs: Tensors, is_training: bool) -> dict[str, Any]:
    """Outputs of an encoder under the names of TensorFlow Hub."""
    outputs = self.build(self._token_features(inputs), is_training)
    return {
      "sequence_output": outputs.states[-1],
      "encoder_outputs": outputs.states[1:],
      **self._pooled(outputs, "pooled_output", "default"),
    }

  def token_specs(self):
    """See base class; with the names of TensorFlow Hub."""
    specs = super().token_specs()
    return {
      hub_name: tf.TensorSpec(specs[name].shape, tf.int32, hub_name)
      for name, hub_name in model_inputs.HUB_NAMES.items()
    }

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    layers = Signature(self.token_specs(), self.layers)
    return signatures | {"layers": layers}

  def _token_features(self, inputs: Tensors) -> Tensors:
    names = model_inputs.HUB_NAMES.items()
    return {name: inputs[hub_name] for name, hub_name in names}

  def encode(self, texts):
    """See base class; with the names of TensorFlow Hub."""
    encoded = super().encode(texts).items()
    return {model_inputs.HUB_NAMES[name]: value for name, value in encoded}

  def outputs(self, inputs):
    """See base class."""
    outputs = self.build(inputs)
    return {
      "last_hidden_state": outputs.states[-1],
      **self._pooled(outputs, "pooler_output"),
    }

  def ids(self, inputs):
    """See base class."""
    outputs = self.run(self._token_features(inputs))
    states = outputs.states[-1]
    mask = tf.expand_dims(tf.cast(inputs["input_mask"], tf.float32), 2)
    mean = tf.reduce_sum(states * mask, 1) / tf.reduce_sum(mask, 1)
    return {
      **self._pooled(outputs, "pooled_output"),
      "mean_output": mean,
      "sequence_output": states,
    }

  def layers(self, inputs: Tensors) -> Tensors:
    """Hidden states of the embeddings and of every layer."""
    outputs = self.run(self._token_features(inputs))
    return {
      "all_layers": tf.stack(outputs.states, axis=1),  # [B, layers + 1, S, H]
      **self._pooled(outputs, "pooled_output"),
    }
