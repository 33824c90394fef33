"""`tensorflow_hub.Module` of TensorFlow 1, for BERT.

tensorflow-hub no longer has this class, nor a reader for modules of TensorFlow
1. After `from bertlib import tensorflow_1 as tf`, `tensorflow_hub.Module` is
this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import model_folder
from bertlib.exchange import tfhub
from bertlib.io import model_files

_TOKENS = ("input_ids", "input_mask", "segment_ids")
# Inputs by signature.
_MASKS = "mlm"
_INPUTS = {
  _MASKS: (*_TOKENS, "mlm_positions"),
  "tokenization_info": (),
  "tokens": _TOKENS,
}


class Module:
  """A BERT encoder in the graph, with the weights of a published model.

  ```python
  module = tensorflow_hub.Module(
    "https://tfhub.dev/google/bert_uncased_L-12_H-768_A-12/1", trainable=True
  )
  pooled = module(inputs, signature="tokens", as_dict=True)["pooled_output"]
  ```

  The encoder is `modeling.BertModel`. `tf.global_variables_initializer`
  restores its weights.
  """

  def __init__(
    self,
    spec: str,
    trainable: bool = False,
    name: str = "module",
    tags: Iterable[str] | None = None,
  ):
    """Adds the variables to the graph.

    Args:
      spec: address of a BERT module at tfhub.dev, of which the published model
        is used; or the folder of a module of TensorFlow 1, of a SavedModel or
        of a model of this project.
      trainable: whether optimizers train the variables.
      name: variable scope; "module_1" and so on if it is in use.
      tags: {"train"} for dropout.

    Raises:
      InputError: there is no such model, or it is no BERT encoder.
    """
    folder = spec
    if not os.path.exists(os.path.join(spec, model_files.CONFIG)):
      folder = tfhub.convert(spec)
    self._trainable = trainable
    self._is_training = "train" in (tags or ())
    self._vocab_file = os.path.join(folder, model_files.VOCAB)
    self._do_lower_case = tfhub.lowercases(spec, folder)
    self._config = model_folder.load_config(
      os.path.join(folder, model_files.CONFIG)
    )
    with tf.variable_scope(None, default_name=name) as scope:
      self._scope = scope
    ids = tf.zeros([1, 1], tf.int32)
    self._run(dict.fromkeys(_INPUTS[_MASKS], ids), reuse=False)
    checkpoint = os.path.join(folder, model_files.CHECKPOINT)
    stored = {name for name, _ in tf.train.list_variables(checkpoint)}
    found = {n: v for n, v in self.variable_map.items() if n in stored}
    tf.train.init_from_checkpoint(checkpoint, found)

  def __call__(
    self,
    inputs: Mapping[str, Any] | None = None,
    signature: str = "tokens",
    as_dict: bool = False,
  ):
    """Applies the encoder.

    Args:
      inputs: int32 [B, S] input_ids, input_mask and segment_ids; for "mlm" also
        mlm_positions [B, P]. None for "tokenization_info".
      signature: "tokens", "mlm" or "tokenization_info".
      as_dict: whether to return all outputs by name, or the first one.

    Returns:
      pooled_output float [B, H] and sequence_output [B, S, H]; for "mlm" also
      mlm_logits [B, P, V]; for "tokenization_info" vocab_file, a string, and
      do_lower_case, a bool.

    Raises:
      ValueError: there is no such signature, or its inputs are others.
    """
    if signature not in _INPUTS:
      raise ValueError(
        f"signature={signature!r}: is not one of {', '.join(_INPUTS)}"
      )
    names = _INPUTS[signature]
    if not names:
      outputs = {
        "vocab_file": tf.constant(self._vocab_file),
        "do_lower_case": tf.constant(self._do_lower_case),
      }
    else:
      if sorted(inputs or ()) != sorted(names):
        raise ValueError(
          f"inputs: {', '.join(sorted(inputs or ())) or 'none'}, but"
          f" {signature!r} takes {', '.join(names)}"
        )
      outputs = self._run(inputs, reuse=True)
    return outputs if as_dict else next(iter(outputs.values()))

  def get_signature_names(self) -> list[str]:
    """Names of the signatures."""
    return [*_INPUTS]

  @property
  def variables(self) -> list[Any]:
    """The variables, those of the masked-LM head too, sorted by name."""
    return [variable for _, variable in sorted(self.variable_map.items())]

  @property
  def variable_map(self) -> dict[str, Any]:
    """The variables by their name in the checkpoint."""
    prefix = f"{self._scope.name}/"
    return {
      variable.op.name.removeprefix(prefix): variable
      for variable in tf.global_variables(prefix)
    }

  def _run(self, inputs: Mapping[str, Any], reuse: bool) -> dict[str, Any]:
    """Outputs of the encoder, and of the masked-LM head if it is used."""

    def get(getter, *args, **kwargs):
      kwargs["trainable"] = self._trainable
      return getter(*args, **kwargs)

    # The scope's name is absolute.
    with tf.variable_scope(
      self._scope, reuse=reuse, custom_getter=get, auxiliary_name_scope=False
    ):
      model = modeling.BertModel(
        self._config,
        self._is_training,
        *(tf.cast(inputs[name], tf.int32) for name in _TOKENS),
        scope="bert",
      )
      outputs = {
        "pooled_output": model.get_pooled_output(),
        "sequence_output": model.get_sequence_output(),
      }
      if "mlm_positions" in inputs:
        positions = tf.cast(inputs["mlm_positions"], tf.int32)
        logits = modeling.masked_lm_logits(
          self._config,
          outputs["sequence_output"],
          model.get_embedding_table(),
          positions,
        )
        size = [*tf.unstack(tf.shape(positions)), self._config.vocab_size]
        outputs["mlm_logits"] = tf.reshape(logits, size)
    return outputs
