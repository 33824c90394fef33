"""SavedModel signatures of sentence vectors."""

from __future__ import annotations

import functools

import tensorflow as tf

from bertlib.compute import pooling
from bertlib.export.signatures import (
  Signature,
  SignatureModel,
  Tensors,
  text_specs,
)
from bertlib.settings import embedding_spec


class Embedder(SignatureModel):
  """Vectors of texts, with a signature for each prompt of the model."""

  main, output = "embed", "sentence_embedding"

  def __init__(self, description, *args, **kwargs):
    """See base class."""
    super().__init__(description, *args, **kwargs)
    self.spec = embedding_spec.from_json(description["embedding"])

  def signatures(self):
    """See base class; instead of pairs, texts with a prefix."""
    signatures = {"ids": Signature(self.token_specs(), self.ids)}
    if not self.text:
      return signatures
    prefixes = {"embed": self.spec.prompt(None)}
    prefixes |= {f"embed_{k}": v for k, v in self.spec.prompts.items()}
    for name, prefix in prefixes.items():
      signatures[name] = Signature(
        text_specs("text"), functools.partial(self._embed_with, prefix)
      )
    tokenize = Signature(
      text_specs("text"), lambda inputs: self.encode({"text_a": inputs["text"]})
    )
    return signatures | {"tokenize": tokenize}

  def _embed_with(self, prefix: str, inputs: Tensors) -> Tensors:
    """Vectors of texts with a prefix: those of windows are joined."""
    texts = {"text_a": tf.strings.join([prefix, inputs["text"]])}
    encoded, text_of = self.encode_windows(texts, prefix)
    found = self.ids(encoded)
    if self.cutting.has_windows:
      vectors = tf.math.segment_mean(found["vectors"], text_of)
      found = {"vectors": pooling.output_vectors(vectors, self.spec)}
    return found

  def outputs(self, inputs):
    """See base class; with [CLS] pooling the states of [CLS] alone."""
    found, name = super().outputs(inputs), "last_hidden_state"
    if self.spec.projection_dim is None:
      states = self.hidden_states(inputs)[name]
      found[name] = states[:, :1] if self.spec.pooling == "cls" else states
    return found

  def ids(self, inputs):
    """See base class; float32 [B, width]."""
    return {"vectors": self.run(inputs)}
