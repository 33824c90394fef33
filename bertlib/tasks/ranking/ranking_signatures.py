"""SavedModel signatures of rerankers."""

from __future__ import annotations

import tensorflow as tf

from bertlib.export.signatures import (
  Signature,
  SignatureModel,
  Tensors,
  text_specs,
)
from bertlib.settings.common import LongDocumentSettings


class Reranker(SignatureModel):
  """Scores of queries and documents, and the order of a query's documents."""

  main, output = "pair", "scores"
  long_texts = LongDocumentSettings

  def outputs(self, inputs):
    """See base class; logits, also by their name in transformers."""
    logits = self.build(inputs)
    return {self.output: logits, "logits": logits}

  def signatures(self):
    """See base class; pairs are a query and a document."""
    signatures = super().signatures()
    if self.text:
      del signatures["text"]
      query = {"query": tf.TensorSpec([], tf.string, "query")}
      inputs = query | text_specs("documents")
      signatures["rank"] = Signature(inputs, self.rank)
    return signatures

  def encode_windows(self, texts, **more):
    """See base class; with the prompt of queries."""
    prefix = self.description.get("query_prefix", "")
    queries = tf.strings.join([prefix, texts["text_a"]])
    return super().encode_windows({**texts, "text_a": queries}, **more)

  def of_texts(self, texts):
    """See base class; the best window of a document counts."""
    return {"score": self._activated(self._logits(texts))}

  def _logits(self, texts: Tensors):
    encoded, text_of = self.encode_windows(texts)
    return tf.math.segment_max(self.run(encoded)[:, 0], text_of)

  def ids(self, inputs):
    """See base class; float32 [B]."""
    return {"score": self._activated(self.run(inputs)[:, 0])}

  def rank(self, inputs: Tensors) -> Tensors:
    """Scores of a query's documents, and their indices, the best one first."""
    documents = inputs["documents"]
    queries = tf.fill(tf.shape(documents), inputs["query"])
    pairs = {"text_a": queries, "text_b": documents}
    logits = self._logits(pairs)
    # Scores may be equal where logits are not.
    order = tf.argsort(logits, direction="DESCENDING", stable=True)
    return {"scores": self._activated(logits), "order": order}

  def _activated(self, logits):
    is_sigmoid = self.description["activation"] == "sigmoid"
    return tf.sigmoid(logits) if is_sigmoid else logits
