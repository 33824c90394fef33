"""SavedModel signatures of classifiers."""

from __future__ import annotations

import tensorflow as tf

from bertlib.data import model_inputs
from bertlib.export.signatures import LabelModel, Signature, Tensors
from bertlib.tasks.classification import classification


class Classifier(LabelModel):
  """Labels of texts or pairs."""

  def __init__(self, description, *args, **kwargs):
    """See base class."""
    super().__init__(description, *args, **kwargs)
    self.problem = classification.problem_from_description(description)
    if self.problem.kind in ("regression", "multiple_choice"):
      self.output = "scores"
    if self.problem.kind == "multiple_choice":
      self.main = "choices"
    elif description.get("has_pairs"):
      self.main = "pair"

  def signatures(self):
    """See base class; for multiple choice, each choice is encoded as a pair."""
    signatures = super().signatures()
    if self.problem.kind != "multiple_choice":
      return signatures
    shape = [None, self.problem.num_labels]
    specs = {
      name: tf.TensorSpec([*shape, self.seq_length], tf.int32, name)
      for name in model_inputs.TOKEN_FEATURES
    }
    texts = {
      name: tf.TensorSpec(shape, tf.string, name)
      for name in ("text_a", "text_b")
    }
    choice_signatures = {"ids": Signature(specs, self.choose)}
    if self.text:
      choice_signatures["choices"] = Signature(
        texts,
        lambda inputs: self.of_texts(
          {k: tf.reshape(v, [-1]) for k, v in inputs.items()}
        ),
      )
      choice_signatures["tokenize"] = signatures["tokenize"]
    return choice_signatures

  def choose(self, inputs: Tensors) -> Tensors:
    """Multiple-choice outputs for ids [B, choices, S]."""
    return self.ids(
      {k: tf.reshape(v, [-1, tf.shape(v)[-1]]) for k, v in inputs.items()}
    )

  def ids(self, inputs):
    """See base class."""
    return self._results(self.run(inputs))

  def of_texts(self, texts):
    """See base class; joins the logits of windows."""
    inputs, text_of = self.encode_windows(texts)
    logits = self.run(inputs)
    if self.cutting.has_windows:
      is_max = self.cutting.join_windows == "max"
      join = tf.math.segment_max if is_max else tf.math.segment_mean
      logits = join(logits, text_of)
    return self._results(logits)

  def _results(self, logits) -> Tensors:
    """The results of a signature from logits [B, labels]."""
    problem = self.problem
    if problem.kind == "regression":
      return {"score": logits[:, 0]}
    if problem.kind == "multi_label":
      outputs = tf.sigmoid(logits)
      thresholds = self.description.get("thresholds", {})
      thresholds = [thresholds.get(label, 0.5) for label in problem.labels]
      return {"probabilities": outputs, "has_label": outputs >= thresholds}
    if problem.kind == "multiple_choice":
      logits = tf.reshape(logits, [-1, problem.num_labels])
    outputs = tf.nn.softmax(logits)
    best = tf.argmax(outputs, axis=-1)
    label = tf.gather(tf.constant(problem.labels), best)
    return {"probabilities": outputs, "label": label}
