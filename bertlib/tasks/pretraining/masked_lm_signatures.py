"""SavedModel signatures of masked language models."""

from __future__ import annotations

import re

import tensorflow as tf

from bertlib.cli.errors import InputError
from bertlib.export.signatures import SignatureModel, Tensors
from bertlib.tasks.pretraining import objectives


class MaskedLM(SignatureModel):
  """Top-k predictions for each [MASK]."""

  graph = "create_model"
  finds_mask = True
  top_k = 5

  def build(self, inputs):
    """Masked-LM logits, float32 [B, P, V], and next-sentence logits, [B, 2].

    A model of `--objective=mlm` has only the former.
    """
    objective = objectives.of_model(self.description)
    if not objective.predicts_tokens:
      raise InputError(
        f"objective {objective.name}: has no masked LM, so it is not exported."
        f" convert_checkpoint.py makes a {objective.huggingface_class} of it"
      )
    logits, *others = self.build_model(
      self.config,
      inputs,
      use_one_hot_embeddings=False,
      compute=self.compute,
      objective=objective,
    )
    size = tf.shape(inputs["masked_lm_positions"])
    logits = tf.reshape(logits, [*tf.unstack(size), self.config.vocab_size])
    return tuple(tf.cast(each, tf.float32) for each in (logits, *others))

  def features(self):
    """See base class; adds `masked_lm_positions`, int32 [B, P]."""
    name = "masked_lm_positions"
    positions = tf.TensorSpec([None, None], tf.int32, name)
    return super().features() | {name: positions}

  def outputs(self, inputs):
    """See base class; [B, P, V], and of pairs [B]."""
    words, *pairs = map(tf.nn.softmax, self.build(inputs))
    is_next = (probabilities[:, 0] for probabilities in pairs)
    return dict(
      zip(("probabilities", "is_next_probability"), [words, *is_next])
    )

  def ids(self, inputs):
    """See base class."""
    names = "masked_lm_probabilities", "next_sentence_probabilities"
    return dict(zip(names, map(tf.nn.softmax, self.run(inputs))))

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    for name in {"text", "pair"} & set(signatures):
      signatures[name] = signatures[name]._replace(function=self.fill)
    return signatures

  def encode(self, texts):
    """See base class; words may adjoin [MASK] without a space."""
    mask = self.tokenizer.special_tokens.mask
    separated = {
      name: tf.strings.regex_replace(text, re.escape(mask), f" {mask} ")
      for name, text in texts.items()
    }
    return super().encode(separated)

  def fill(self, texts: Tensors) -> Tensors:
    """Top-k tokens and probabilities per mask, padded: [B, masks, top_k]."""
    encoded = self.encode(texts)
    vocab = self.tokenizer.inv_vocab
    is_mask = encoded["input_ids"] == self.tokenizer.special_ids.mask
    indices = tf.where(is_mask)
    positions = tf.RaggedTensor.from_value_rowids(
      tf.cast(indices[:, 1], tf.int32),
      indices[:, 0],
      tf.shape(is_mask, tf.int64)[0],
    )
    logits, *_ = self.run(
      {**encoded, "masked_lm_positions": positions.to_tensor(0)}
    )
    probabilities, ids = tf.math.top_k(tf.nn.softmax(logits), self.top_k)
    entries = [vocab.get(i, str(i)) for i in range(self.config.vocab_size)]
    is_real = tf.ones_like(positions).to_tensor(0)[:, :, tf.newaxis] > 0
    tokens = tf.gather(tf.constant(entries), ids)
    return {
      "tokens": tf.where(is_real, tokens, ""),
      "probabilities": tf.where(is_real, probabilities, 0.0),
    }
