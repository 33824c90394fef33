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
        lambda inputs: self.ids(
          self.encode({k: tf.reshape(v, [-1]) for k, v in inputs.items()})
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
    outputs = self.run(inputs)
    return self._results(outputs[1] if self.cutting.has_windows else outputs)

  def of_texts(self, texts):
    """See base class; joins the logits of windows."""
    if not self.cutting.has_windows:
      return super().of_texts(texts)
    inputs, text_of = self.encode_windows(texts)
    logits, _ = self.run(inputs)
    is_max = self.cutting.join_windows == "max"
    join = tf.math.segment_max if is_max else tf.math.segment_mean
    outputs = join(logits, text_of)
    if self.problem.kind == "classification":
      outputs = tf.nn.softmax(outputs)
    elif self.problem.kind == "multi_label":
      outputs = tf.sigmoid(outputs)
    return self._results(outputs)

  def _results(self, outputs) -> Tensors:
    """The results of a signature from outputs [B, labels]."""
    problem = self.problem
    if problem.kind == "regression":
      return {"score": outputs[:, 0]}
    if problem.kind == "multi_label":
      thresholds = self.description.get("thresholds", {})
      thresholds = [thresholds.get(label, 0.5) for label in problem.labels]
      return {"probabilities": outputs, "has_label": outputs >= thresholds}
    if problem.kind == "multiple_choice":
      outputs = tf.nn.softmax(tf.reshape(outputs, [-1, problem.num_labels]))
    best = tf.argmax(outputs, axis=-1)
    label = tf.gather(tf.constant(problem.labels), best)
    return {"probabilities": outputs, "label": label}
