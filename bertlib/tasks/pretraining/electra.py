"""ELECTRA (Clark et al. 2020): replaced tokens, and the model that finds them.

A small generator fills the masks of a sequence with samples; the model, called
discriminator, decides for each token whether it is the original one:

  tokens    [CLS] the cook  [MASK] the soup [SEP]
  samples   [CLS] the cook  ate    the soup [SEP]    (it was "made")
  labels      0    0   0     1      0   0     0

The generator has the scope "generator", the discriminator is the model `bert`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import electra_weights
from bertlib.tasks.pretraining.objectives import Objective

_BLOCK = 175  # entries of a vocabulary, about the root of their number


class Networks:
  """Generator and discriminator of a batch; the former predicts tokens."""

  def __init__(
    self,
    config: modeling.BertConfig,  # of the discriminator
    objective: Objective,
    output_positions,  # int32 [B, P], of the generator
    **arguments: Any,  # of `modeling.BertModel`
  ):
    """Builds the generator."""
    self._config = config
    self._scope = functools.partial(
      tf.variable_scope, tf.get_variable_scope(), auxiliary_name_scope=False
    )
    self._getter = functools.partial(_shared_table, objective.is_disentangled)
    self._arguments = {"use_pooler": False, **arguments}
    with self._scope(custom_getter=self._getter):
      self._generator = modeling.BertModel(
        generator_config(config),
        scope=electra_weights.GENERATOR,
        output_positions=output_positions,
        **self._arguments,
      )
    self.get_sequence_output = self._generator.get_sequence_output
    self.get_embedding_table = self._generator.get_embedding_table

  def replaced_token_logits(self, input_ids):
    """Logits of "is not the original token" of each token, float32 [B, S]."""
    config = self._config
    with self._scope(custom_getter=self._getter):
      model = modeling.BertModel(
        config, scope="bert", **self._arguments | {"input_ids": input_ids}
      )
    with self._scope(), tf.variable_scope("discriminator_predictions"):
      states = modeling.dense(
        model.get_sequence_output(),
        config.hidden_size,
        modeling.get_activation(config.hidden_act),
        config.initializer_range,
      )
      logits = modeling.dense(
        states,
        1,
        initializer_range=config.initializer_range,
        name="dense_prediction",
      )
    return tf.cast(tf.squeeze(logits, -1), tf.float32)


def generator_config(config: modeling.BertConfig) -> modeling.BertConfig:
  """Config of the generator, given that of the discriminator."""
  values = electra_weights.generator_config(vars(config))
  return modeling.BertConfig.from_dict(values)


def _shared_table(is_disentangled: bool, getter, name: str, *args, **kwargs):
  """Custom getter of variables, by which both networks have the same tables."""
  own, shared = electra_weights.TABLES, electra_weights.GENERATOR_TABLES
  if not (own in name or shared in name):  # below any outer scope
    return getter(name, *args, **kwargs)
  kwargs["reuse"] = tf.AUTO_REUSE
  if not is_disentangled:
    return getter(name.replace(shared, own, 1), *args, **kwargs)
  of_generator = getter(name.replace(own, shared, 1), *args, **kwargs)
  if shared in name:
    return of_generator
  kwargs["initializer"] = tf.zeros_initializer()
  added = getter(
    name.replace(own, electra_weights.ADDED_TABLES, 1), *args, **kwargs
  )
  return tf.stop_gradient(of_generator) + added


def sample_tokens(
  log_probs,  # float32 [B * P, V]; gets no gradient
  draws,  # float32 [B, P], uniform in [0, 1); they determine the samples
  temperature: float = 1.0,  # divides `log_probs`
):
  """Samples of distributions over the vocabulary, int32 [B * P]."""
  # One number for each sample, not one for each entry of the vocabulary as
  # Gumbel's noise would need: the entry whose part of [0, 1) it is in. A block
  # of entries is found first: a sum over blocks is faster than one up to each
  # entry, and rounds less.
  log_probs = tf.stop_gradient(log_probs)
  if temperature != 1.0:
    log_probs = tf.nn.log_softmax(log_probs / temperature)
  size = modeling.get_shape_list(log_probs)[1]
  padding = [[0, 0], [0, -size % _BLOCK]]
  probs = tf.exp(tf.pad(log_probs, padding, constant_values=-np.inf))
  blocks = tf.reshape(probs, [-1, -(-size // _BLOCK), _BLOCK])
  sums = tf.reduce_sum(blocks, axis=2)
  block, rest = _choose(sums, tf.reshape(draws, [-1, 1]))
  entry, _ = _choose(tf.gather(blocks, block, batch_dims=1), rest)
  return tf.minimum(block * _BLOCK + entry, size - 1)


def _choose(weights, draws):
  """Indices [N] by weights [N, K]; the fraction of its part, of each draw."""
  ends = tf.cumsum(weights, axis=1)
  values = draws * ends[:, -1:]
  indices = tf.searchsorted(ends, values, side="right")
  indices = tf.minimum(indices, modeling.get_shape_list(weights)[1] - 1)
  width, end = (tf.gather(a, indices, batch_dims=1) for a in (weights, ends))
  return indices[:, 0], 1.0 - (end - values) / width


def replace_tokens(batch: Mapping[str, Any], log_probs, temperature: float):
  """The batch with its tokens replaced by samples, and their labels."""
  # All masked tokens are sampled, random and unchanged ones as well.
  positions, weights = batch["masked_lm_positions"], batch["masked_lm_weights"]
  samples = tf.reshape(
    sample_tokens(log_probs, batch["masked_lm_draws"], temperature),
    modeling.get_shape_list(positions),
  )
  input_ids, labels = batch["input_ids"], batch["masked_lm_ids"]
  change = samples - tf.gather(input_ids, positions, batch_dims=1)
  # A sample that happens to be the original token is no replaced one. A GPU
  # compares floats.
  differs = tf.not_equal(
    *(tf.cast(ids, tf.float32) for ids in (samples, labels))
  )
  slots = tf.one_hot(positions, modeling.get_shape_list(input_ids)[1])
  slots *= tf.cast(weights, tf.float32)[:, :, tf.newaxis]  # [B, P, S]

  def at_positions(values):  # [B, P] to [B, S]; ids are exact in float32
    values = tf.cast(values, tf.float32)[:, :, tf.newaxis]
    return tf.cast(tf.reduce_sum(slots * values, axis=1), tf.int32)

  return {
    **batch,
    "replaced_ids": input_ids + at_positions(change),
    "disc_labels": at_positions(differs),
    "disc_weights": tf.cast(batch["input_mask"], tf.float32),
    "is_sampled_right": 1.0 - tf.cast(differs, tf.float32),
  }


def disc_loss(
  bert_config: modeling.BertConfig,
  model: Networks,
  batch: Mapping[str, Any],  # of `replace_tokens`
  total_weight=None,
):
  """Loss of which tokens were replaced, see `run_pretraining.LOSSES`."""
  del bert_config
  # Of each token: all but padding, [CLS] and [SEP] too.
  logits = tf.reshape(model.replaced_token_logits(batch["replaced_ids"]), [-1])
  labels = tf.reshape(batch["disc_labels"], [-1])
  losses, log_probs = modeling.cross_entropy(
    tf.stack([tf.zeros_like(logits), logits], axis=1), labels
  )
  weights = tf.reshape(batch["disc_weights"], [-1])
  loss = modeling.weighted_mean(losses, weights, total_weight)
  return loss, losses, log_probs, labels


def metrics(batch: Mapping[str, Any], log_probs) -> dict[str, tuple[Any, Any]]:
  """(values, weights) of further metrics, given those of `disc_loss`."""
  is_replaced, weights = (
    tf.cast(tf.reshape(batch[f"disc_{name}"], [-1]), tf.float32)
    for name in ("labels", "weights")
  )
  is_found = tf.cast(log_probs[:, 1] > log_probs[:, 0], tf.float32)
  ranked = tf.stack([is_replaced, tf.exp(log_probs[:, 1])], axis=1)
  flat = [
    tf.reshape(batch[name], [-1])
    for name in ("is_sampled_right", "masked_lm_weights")
  ]
  return {
    "disc_auc": (ranked, weights),
    "disc_precision": (is_replaced, weights * is_found),
    "disc_recall": (is_found, weights * is_replaced),
    "sampled_masked_lm_accuracy": (*flat,),
  }


def streaming_mean(values, weights):
  """`tf.metrics.mean`; of a label and a score each, the area under the ROC."""
  if values.shape.rank == 1:
    return tf.metrics.mean(values, weights)
  labels, scores = tf.unstack(values, axis=1)
  return tf.metrics.auc(labels, scores, weights)
