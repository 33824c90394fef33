"""SavedModel signatures of rerankers."""

from __future__ import annotations

import tensorflow as tf

from bertlib.export.signatures import SignatureModel


class Reranker(SignatureModel):
  """Scores of pairs of a query and a document."""

  main, output = "pair", "logits"

  def ids(self, inputs):
    """See base class."""
    logits = self.run(inputs)[:, 0]
    is_sigmoid = self.description["activation"] == "sigmoid"
    return {"score": tf.sigmoid(logits) if is_sigmoid else logits}

  def outputs(self, inputs):
    """See base class; documents are ranked by logits."""
    logits = self.build(inputs)
    return {"scores": logits, "logits": logits}
