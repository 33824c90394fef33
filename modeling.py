"""The Transformer of BERT (Devlin et al. 2019) as TensorFlow graph functions.

`BertModel` builds the encoder; the functions after it put a task's head on
its outputs. Variables have the names of the released checkpoints. Letters in
shapes: B batch, S sequence, H hidden size, N attention heads, D size of a head
(H / N), P masked positions, V vocabulary, L labels. How all this is computed
(in which number format, with how many passes over memory) is an `Execution`.
"""

from __future__ import annotations

import collections
import copy
import functools
import json
import math
import re
import zlib
from collections.abc import Iterable
from typing import Any, Callable

import tensorflow.compat.v1 as tf

import execution as execution_lib
from execution import Execution


class BertConfig:
  """The sizes and rates of a model, as `bert_config.json` holds them."""

  # Not a key of the released files; a converted model may bring its own.
  layer_norm_eps = 1e-12

  def __init__(
    self,
    vocab_size: int | None,
    hidden_size: int = 768,
    num_hidden_layers: int = 12,
    num_attention_heads: int = 12,
    intermediate_size: int = 3072,
    hidden_act: str | Callable | None = "gelu",
    hidden_dropout_prob: float = 0.1,
    attention_probs_dropout_prob: float = 0.1,
    max_position_embeddings: int = 512,
    type_vocab_size: int = 16,
    initializer_range: float = 0.02,
  ):
    """Takes each value as it is.

    Args:
      vocab_size: rows of the word embedding table.
      hidden_size: width of every layer's output.
      num_hidden_layers: Transformer layers.
      num_attention_heads: heads of each layer; divides `hidden_size`.
      intermediate_size: width inside a layer's feed-forward part.
      hidden_act: name of its activation, see `get_activation`.
      hidden_dropout_prob: dropout of embeddings and layer outputs.
      attention_probs_dropout_prob: dropout of attention probabilities.
      max_position_embeddings: longest sequence, in tokens.
      type_vocab_size: number of segments.
      initializer_range: standard deviation of new weights.
    """
    self.vocab_size = vocab_size
    self.hidden_size = hidden_size
    self.num_hidden_layers = num_hidden_layers
    self.num_attention_heads = num_attention_heads
    self.hidden_act = hidden_act
    self.intermediate_size = intermediate_size
    self.hidden_dropout_prob = hidden_dropout_prob
    self.attention_probs_dropout_prob = attention_probs_dropout_prob
    self.max_position_embeddings = max_position_embeddings
    self.type_vocab_size = type_vocab_size
    self.initializer_range = initializer_range

  @classmethod
  def from_dict(cls, json_object: dict[str, Any]) -> BertConfig:
    """A config from a dictionary; keys it does not know are kept too."""
    config = cls(vocab_size=None)
    vars(config).update(json_object)
    return config

  @classmethod
  def from_json_file(cls, json_file: str) -> BertConfig:
    """A config from the file `json_file`, local or on a TensorFlow path."""
    with tf.gfile.GFile(json_file, "r") as reader:
      return cls.from_dict(json.load(reader))

  def to_dict(self) -> dict[str, Any]:
    """A copy of the values by key."""
    return copy.deepcopy(vars(self))

  def to_json_string(self) -> str:
    """JSON with sorted keys, two spaces an indent and a newline at the end."""
    return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


class BertModel:
  """The encoder: token ids in, hidden states and a pooled vector out.

  ```python
  model = modeling.BertModel(config, is_training=True, input_ids=input_ids,
                             input_mask=input_mask, token_type_ids=segment_ids)
  logits = modeling.classification_logits(model.get_pooled_output(), 3)
  ```
  """

  def __init__(
    self,
    config: BertConfig,
    is_training: bool,
    input_ids,
    input_mask=None,
    token_type_ids=None,
    use_one_hot_embeddings: bool = False,
    scope: str | None = None,
    dropout_seed=None,
    execution: Execution | None = None,
    output_positions=None,
  ):
    """Builds the graph.

    Args:
      config: the model's sizes; not changed.
      is_training: whether dropout is on.
      input_ids: int32 [B, S], each in [0, V).
      input_mask: int32 [B, S], 1 at tokens to attend to, 0 at padding; None
        for all ones.
      token_type_ids: int32 [B, S], each token's segment; None for all zeros.
        An id outside the table adds nothing.
      use_one_hot_embeddings: looks words up by a matrix product, which is
        faster on a TPU.
      scope: variable scope; None for "bert".
      dropout_seed: see `dropout`; None for masks that no seed fixes.
      execution: how to compute; None for `Execution()`.
      output_positions: int32 [B, P], each in [0, S), the places whose last
        state is all that will be read, so that the last layer computes no
        others; that of [CLS], 0, comes first. None for every place.

    Raises:
      ValueError: the heads do not divide the hidden size, S is known and
        above `max_position_embeddings`, an input is not of rank 2, or what is
        to be computed a second time would not drop the same.
    """
    config = copy.deepcopy(config)
    execution = execution or Execution()
    if not is_training:
      config.hidden_dropout_prob = 0.0
      config.attention_probs_dropout_prob = 0.0
      execution = execution._replace(compiles=False, recomputes=False)
    dropout_probs = (
      config.hidden_dropout_prob,
      config.attention_probs_dropout_prob,
    )
    if execution.recomputes and dropout_seed is None and any(dropout_probs):
      raise ValueError("Recomputing with dropout needs a dropout_seed")
    batch_size, seq_length = get_shape_list(input_ids, expected_rank=2)
    if input_mask is None:
      input_mask = tf.ones([batch_size, seq_length], tf.int32)
    if token_type_ids is None:
      token_type_ids = tf.zeros([batch_size, seq_length], tf.int32)
    longest = config.max_position_embeddings
    if isinstance(seq_length, int) and seq_length > longest:
      raise ValueError(
        f"The sequences have {seq_length} tokens, but the model has only"
        f" max_position_embeddings = {longest}"
      )
    attention_mask = input_mask[:, tf.newaxis, :]  # [B, 1, S]
    if execution.packs:
      rows = execution_lib.PackedRows(input_mask)
      input_ids = rows.pack(input_ids)
      token_type_ids = rows.pack(token_type_ids)
      positions = rows.positions
    else:
      rows = execution_lib.PaddedRows(batch_size, seq_length)
      positions = None

    # A second model has weights of its own, but where they are to be shared.
    if scope is None and tf.get_variable_scope().reuse:
      scope = "bert"
    with tf.variable_scope(scope, default_name="bert"):
      with tf.variable_scope("embeddings"):
        words, self.embedding_table = embedding_lookup(
          input_ids,
          vocab_size=config.vocab_size,
          embedding_size=config.hidden_size,
          initializer_range=config.initializer_range,
          use_one_hot_embeddings=use_one_hot_embeddings,
        )
        embedded = embedding_postprocessor(
          words, token_type_ids, config, dropout_seed, positions
        )
      with tf.variable_scope("encoder"):
        embedded = tf.reshape(embedded, [-1, config.hidden_size])
        embedded = tf.cast(embedded, execution.dtype)
        *layers, last = transformer_layers(
          embedded,
          attention_mask,
          rows,
          config,
          dropout_seed,
          execution,
          output_positions,
        )
      last_rows = rows
      if output_positions is not None:
        last_rows = execution_lib.PaddedRows(*get_shape_list(output_positions))
      self.embedding_output = rows.to_sequence(embedded)
      self.sequence_output = last_rows.to_sequence(last)
      self.all_encoder_layers = [
        *map(rows.to_sequence, layers),
        self.sequence_output,
      ]
      with tf.variable_scope("pooler"):
        self.pooled_output = dense(
          self.sequence_output[:, 0],  # [B, H]: the state at [CLS]
          config.hidden_size,
          tf.tanh,
          config.initializer_range,
        )

  def get_pooled_output(self):
    """Float [B, H]: a dense tanh layer over the state at [CLS]."""
    return self.pooled_output

  def get_sequence_output(self):
    """Float [B, S, H], or [B, P, H] at `output_positions`: the last layer's."""
    return self.sequence_output

  def get_all_encoder_layers(self):
    """A list of float [B, S, H]: every layer's output, the first one first.

    With `output_positions` the last of them is [B, P, H].
    """
    return self.all_encoder_layers

  def get_embedding_output(self):
    """Float [B, S, H]: summed, normalised embeddings, the encoder's input."""
    return self.embedding_output

  def get_embedding_table(self):
    """The variable, float [V, H], of the word embeddings."""
    return self.embedding_table


# The encoder's parts


def embedding_lookup(
  input_ids,
  vocab_size: int,
  embedding_size: int = 128,
  initializer_range: float = 0.02,
  word_embedding_name: str = "word_embeddings",
  use_one_hot_embeddings: bool = False,
):
  """Looks up the vector of every word piece.

  Args:
    input_ids: int32 [...], each in [0, vocab_size).
    vocab_size: rows of the table.
    embedding_size: its columns.
    initializer_range: standard deviation of a new table.
    word_embedding_name: the variable's name.
    use_one_hot_embeddings: by a matrix product instead of a gather.

  Returns:
    float32 [..., embedding_size], and the table.
  """
  table = tf.get_variable(
    word_embedding_name,
    [vocab_size, embedding_size],
    initializer=create_initializer(initializer_range),
  )
  if use_one_hot_embeddings:
    one_hot = tf.one_hot(input_ids, vocab_size, dtype=table.dtype)
    return tf.einsum("...v,vh->...h", one_hot, table), table
  return tf.gather(table, input_ids), table


def embedding_postprocessor(
  word_embeddings,
  token_type_ids,
  config: BertConfig,
  dropout_seed=None,
  positions=None,
):
  """Adds segment and position to the words, normalises, drops out.

  Args:
    word_embeddings: float [B, S, H], or [T, H] with `positions`.
    token_type_ids: int32 [B, S] or [T].
    config: gives the tables' sizes.
    dropout_seed: see `dropout`.
    positions: int32 [T], each token's position in its sequence; None where
      they count the S axis.

  Returns:
    As `word_embeddings`.
  """
  *_, length, width = get_shape_list(word_embeddings, expected_rank=[2, 3])
  initializer = create_initializer(config.initializer_range)
  token_type_table = tf.get_variable(
    "token_type_embeddings",
    [config.type_vocab_size, width],
    initializer=initializer,
  )
  position_table = tf.get_variable(
    "position_embeddings",
    [config.max_position_embeddings, width],
    initializer=initializer,
  )
  # So small a table is read faster by a product than by a gather.
  token_types = tf.one_hot(
    token_type_ids, config.type_vocab_size, dtype=token_type_table.dtype
  )
  output = word_embeddings
  output += tf.einsum("...t,th->...h", token_types, token_type_table)
  if positions is None:
    output += position_table[:length]  # [S, H], the same for every row
  else:
    output += execution_lib.take_rows(position_table, positions)
  output = layer_norm(output, epsilon=config.layer_norm_eps)
  return dropout(output, config.hidden_dropout_prob, dropout_seed)


def create_attention_mask_from_input_mask(from_tensor, to_mask):
  """Repeats a mask of places to attend to for every place that attends.

  Args:
    from_tensor: [B, F] or [B, F, ...]; only its shape is used.
    to_mask: int [B, T], 1 at places to attend to.

  Returns:
    float32 [B, F, T].
  """
  from_length = get_shape_list(from_tensor, expected_rank=[2, 3])[1]
  batch_size, to_length = get_shape_list(to_mask, expected_rank=2)
  return tf.broadcast_to(
    tf.cast(to_mask, tf.float32)[:, tf.newaxis, :],
    [batch_size, from_length, to_length],
  )


def transformer_model(
  input_tensor, attention_mask, config: BertConfig, dropout_seed=None
):
  """The stack of Transformer layers over a batch with padding.

  Args:
    input_tensor: float [B, S, H].
    attention_mask: float [B, S, S], see `transformer_layers`.
    config: gives the sizes.
    dropout_seed: see `dropout`.

  Returns:
    A list of float [B, S, H], one for each layer.

  Raises:
    ValueError: the heads do not divide the hidden size, or the input has
      another width.
  """
  batch_size, seq_length, width = get_shape_list(input_tensor, expected_rank=3)
  rows = execution_lib.PaddedRows(batch_size, seq_length)
  hidden = tf.reshape(input_tensor, [-1, width])  # [B * S, H]
  layers = transformer_layers(
    hidden, attention_mask, rows, config, dropout_seed
  )
  return [rows.to_sequence(layer) for layer in layers]


def transformer_layers(
  hidden,
  attention_mask,
  rows: execution_lib.Rows,
  config: BertConfig,
  dropout_seed=None,
  execution: Execution | None = None,
  output_positions=None,
):
  """The stack of Transformer layers (Vaswani et al. 2017), encoder only.

  Args:
    hidden: float [T, H], the states of the tokens.
    attention_mask: float [B, S, S], 1 where the second place is seen by the
      first; or [B, 1, S], the same for all that see.
    rows: knows the place of each token.
    config: gives the sizes.
    dropout_seed: see `dropout`.
    execution: how to compute; None for `Execution()`.
    output_positions: int32 [B, P], the places of which the last layer gives
      states; None for all. Needs an attention mask [B, 1, S].

  Returns:
    A list of float [T, H], one for each layer; with `output_positions` the last
    is [B * P, H].

  Raises:
    ValueError: the heads do not divide the hidden size, or the input has
      another width.
  """
  execution = execution or Execution()
  width = get_shape_list(hidden, expected_rank=2)[-1]
  if config.hidden_size % config.num_attention_heads:
    raise ValueError(
      f"num_attention_heads = {config.num_attention_heads} does not divide"
      f" hidden_size = {config.hidden_size}"
    )
  if width != config.hidden_size:
    raise ValueError(
      f"The input is {width} wide, but hidden_size = {config.hidden_size}:"
      " the residual sums need both equal"
    )

  layer_outputs = []
  for index in range(config.num_hidden_layers):
    is_last = index == config.num_hidden_layers - 1
    layer = functools.partial(
      transformer_layer,
      attention_mask=attention_mask,
      rows=rows,
      config=config,
      dropout_seed=dropout_seed,
      execution=execution,
      output_positions=output_positions if is_last else None,
    )
    with tf.variable_scope(f"layer_{index}") as scope:
      if execution.recomputes:
        hidden = execution_lib.recomputed(layer, scope)(hidden)
      else:
        hidden = layer(hidden)
    layer_outputs.append(hidden)
  return layer_outputs


def transformer_layer(
  hidden,
  attention_mask,
  rows: execution_lib.Rows,
  config: BertConfig,
  dropout_seed,
  execution: Execution,
  output_positions=None,
):
  """Attention and a feed-forward part.

  Each is followed by dropout, a residual sum and layer normalisation.

  Args:
    hidden: float [T, H], the states of the tokens.
    attention_mask: see `transformer_layers`.
    rows: knows the place of each token.
    config: gives the sizes.
    dropout_seed: see `dropout`.
    execution: how to compute.
    output_positions: see `transformer_layers`.

  Returns:
    float [T, H], or [B * P, H] with `output_positions`.
  """
  everywhere, from_rows = hidden, rows
  if output_positions is not None:
    hidden = rows.pick(everywhere, output_positions)
    from_rows = execution_lib.PaddedRows(*get_shape_list(output_positions))

  def add_and_norm(output, residual):
    return normalised_sum(
      output,
      residual,
      config.hidden_dropout_prob,
      dropout_seed,
      config.layer_norm_eps,
      execution,
    )

  with tf.variable_scope("attention"):
    with tf.variable_scope("self"):
      context = attention_layer(
        hidden,
        everywhere,
        attention_mask,
        num_attention_heads=config.num_attention_heads,
        size_per_head=config.hidden_size // config.num_attention_heads,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        initializer_range=config.initializer_range,
        do_return_2d_tensor=True,
        dropout_seed=dropout_seed,
        from_rows=from_rows,
        to_rows=rows,
        execution=execution,
      )
    with tf.variable_scope("output"):
      context = dense(
        context,
        config.hidden_size,
        initializer_range=config.initializer_range,
      )
      hidden = add_and_norm(context, hidden)
  with tf.variable_scope("intermediate"):
    intermediate = dense(
      hidden,
      config.intermediate_size,
      get_activation(config.hidden_act),
      config.initializer_range,
      execution=execution,
    )
  with tf.variable_scope("output"):
    output = dense(
      intermediate,
      config.hidden_size,
      initializer_range=config.initializer_range,
    )
    return add_and_norm(output, hidden)


def attention_layer(
  from_tensor,
  to_tensor,
  attention_mask=None,
  num_attention_heads: int = 1,
  size_per_head: int = 512,
  query_act=None,
  key_act=None,
  value_act=None,
  attention_probs_dropout_prob: float = 0.0,
  initializer_range: float = 0.02,
  do_return_2d_tensor: bool = False,
  batch_size=None,
  from_seq_length=None,
  to_seq_length=None,
  dropout_seed=None,
  from_rows: execution_lib.Rows | None = None,
  to_rows: execution_lib.Rows | None = None,
  execution: Execution | None = None,
):
  """Multi-headed scaled dot-product attention (Vaswani et al. 2017, 3.2).

  Each place of `from_tensor` asks; the places of `to_tensor` answer. The two
  are the same tensor in self-attention.

  Args:
    from_tensor: float [B, F, W] or [B * F, W], or with `from_rows` a matrix of
      these.
    to_tensor: float [B, T, X] or [B * T, X], likewise.
    attention_mask: [B, F, T] or [B, 1, T], 1 where F may see T, 0 where not;
      None for all.
    num_attention_heads: N.
    size_per_head: D.
    query_act: activation of the queries, or None.
    key_act: activation of the keys, or None.
    value_act: activation of the values, or None.
    attention_probs_dropout_prob: dropout of the attention probabilities.
    initializer_range: standard deviation of new weights.
    do_return_2d_tensor: whether the result is a matrix.
    batch_size: B; needed with matrices whose rows nothing else places.
    from_seq_length: F; likewise.
    to_seq_length: T; likewise.
    dropout_seed: see `dropout`.
    from_rows: the place of each row of a matrix `from_tensor`.
    to_rows: the same of `to_tensor`.
    execution: how to compute; None for `Execution()`.

  Returns:
    float [B, F, N * D], or [B * F, N * D] with `do_return_2d_tensor`.

  Raises:
    ValueError: the inputs differ in rank, or are matrices and a size is
      missing.
  """
  from_shape = get_shape_list(from_tensor, expected_rank=[2, 3])
  to_shape = get_shape_list(to_tensor, expected_rank=[2, 3])
  if len(from_shape) != len(to_shape):
    raise ValueError("from_tensor and to_tensor must be of the same rank")
  if len(from_shape) == 3:
    batch_size, from_seq_length = from_shape[:2]
    to_seq_length = to_shape[1]
  elif not (from_rows and to_rows) and None in (
    batch_size,
    from_seq_length,
    to_seq_length,
  ):
    raise ValueError(
      "Attention over matrices needs batch_size, from_seq_length and"
      " to_seq_length"
    )
  execution = execution or Execution()
  padded = functools.partial(execution_lib.PaddedRows, batch_size)
  from_rows = from_rows or padded(from_seq_length)
  to_rows = to_rows or padded(to_seq_length)

  def project(tensor, activation, name):
    width = get_shape_list(tensor)[-1]
    return dense(
      tf.reshape(tensor, [-1, width]),
      num_attention_heads * size_per_head,
      activation,
      initializer_range,
      name=name,
    )

  def by_head(rows, matrix):
    return rows.to_heads(matrix, num_attention_heads, size_per_head)

  query = project(from_tensor, query_act, "query")
  # Queries are fewer numbers than the scores that this is meant for.
  query *= 1.0 / math.sqrt(size_per_head)
  query = by_head(from_rows, query)  # [B, N, F, D]
  key = by_head(to_rows, project(to_tensor, key_act, "key"))
  value = by_head(to_rows, project(to_tensor, value_act, "value"))

  scores = tf.matmul(query, key, transpose_b=True)  # [B, N, F, T]
  scores = tf.cast(scores, tf.float32)
  if attention_mask is not None:
    # A large negative number rather than minus infinity: a row with nothing to
    # see then attends by its scores alone, and nothing becomes NaN.
    hidden_places = 1.0 - tf.cast(attention_mask, tf.float32)
    scores += hidden_places[:, tf.newaxis, :, :] * -10000.0
  probs = dropout(
    tf.nn.softmax(scores), attention_probs_dropout_prob, dropout_seed, execution
  )
  context = tf.matmul(tf.cast(probs, value.dtype), value)  # [B, N, F, D]
  context = from_rows.from_heads(context)  # [B * F, N * D]
  if do_return_2d_tensor:
    return context
  return from_rows.to_sequence(context)


def dense(
  inputs,
  units: int,
  activation: Callable | None = None,
  initializer_range: float = 0.02,
  name: str = "dense",
  execution: Execution | None = None,
):
  """A fully connected layer, computed in the dtype of its inputs.

  Args:
    inputs: float [..., W], W known.
    units: U, width of the output.
    activation: function of the output, or None.
    initializer_range: standard deviation of a new kernel.
    name: variable scope of `kernel` [W, U] and `bias` [U].
    execution: whether the activation `compiles`; None for `Execution()`.

  Returns:
    [..., U], dtype of `inputs`.
  """
  shape = get_shape_list(inputs)
  with tf.variable_scope(name):
    kernel = tf.get_variable(
      "kernel",
      [shape[-1], units],
      initializer=create_initializer(initializer_range),
    )
    bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    matrix = tf.reshape(inputs, [-1, shape[-1]])
    output = tf.matmul(matrix, tf.cast(kernel, inputs.dtype))
    bias = tf.cast(bias, inputs.dtype)
    if activation is None:
      output = tf.nn.bias_add(output, bias)
    elif execution and execution.compiles:
      output = execution_lib.compiled(_activated, activation=activation)(
        output, bias
      )
    else:
      output = _activated(output, bias, activation)
    return tf.reshape(output, [*shape[:-1], units])


def _activated(product, bias, activation: Callable):
  return activation(tf.nn.bias_add(product, bias))


def layer_norm(input_tensor, name: str = "LayerNorm", epsilon: float = 1e-12):
  """Normalises each vector, then scales and shifts it (Ba et al. 2016).

  Args:
    input_tensor: float [..., H].
    name: variable scope of `beta` and `gamma`, both [H].
    epsilon: added to the variance.

  Returns:
    As `input_tensor`: over the last axis of mean `beta` and deviation `gamma`.
  """
  beta, gamma = _norm_weights(input_tensor, name)
  vectors = tf.cast(input_tensor, tf.float32)
  return tf.cast(_normalised(vectors, beta, gamma, epsilon), input_tensor.dtype)


def _norm_weights(input_tensor, name: str = "LayerNorm"):
  width = get_shape_list(input_tensor)[-1]
  with tf.variable_scope(name):
    beta = tf.get_variable("beta", [width], initializer=tf.zeros_initializer())
    gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer())
  return beta, gamma


def _normalised(vectors, beta, gamma, epsilon: float):
  mean, variance = tf.nn.moments(vectors, axes=[-1], keepdims=True)
  scale = tf.math.rsqrt(variance + epsilon) * gamma
  return (vectors - mean) * scale + beta


def normalised_sum(
  output,
  residual,
  dropout_prob: float | None,
  dropout_seed,
  epsilon: float,
  execution: Execution,
):
  """Drops out, adds a residual, normalises: what ends each part of a layer.

  Args:
    output: float [T, H].
    residual: float [T, H].
    dropout_prob: dropout of `output`; None or 0 for none.
    dropout_seed: see `dropout`.
    epsilon: see `layer_norm`.
    execution: how to compute.

  Returns:
    As `output`.
  """
  if not execution.compiles:
    output = dropout(output, dropout_prob, dropout_seed)
    return layer_norm(output + residual, epsilon=epsilon)
  tensors = [output, residual, *_norm_weights(output)]
  if dropout_prob:
    tensors.append(
      execution_lib.keep_mask(
        get_shape_list(output), dropout_prob, *_key_and_step(dropout_seed)
      )
    )
  return execution_lib.compiled(
    _normalised_sum, epsilon=epsilon, dropout_prob=dropout_prob
  )(*tensors)


def _normalised_sum(
  output, residual, beta, gamma, keep=None, *, epsilon, dropout_prob
):
  if keep is not None:
    output = _dropped(output, keep, dropout_prob)
  return _normalised(output + residual, beta, gamma, epsilon)


def _dropped(tensor, keep, dropout_prob: float):
  # Nothing may be kept at all; what is multiplied then is 0.
  scale = 1.0 / max(execution_lib.kept_share(dropout_prob), 2.0**-16)
  return tensor * (tf.cast(keep, tensor.dtype) * scale)


def dropout(
  input_tensor,
  dropout_prob: float | None,
  dropout_seed=None,
  execution: Execution | None = None,
):
  """Sets some elements to zero and scales the others up (Srivastava 2014).

  Args:
    input_tensor: float, any shape.
    dropout_prob: probability of an element being dropped; None or 0 for none.
    dropout_seed: None, or (the run's seed, an int; the step, an integer
      tensor []). The mask is then a function of these two and of the variable
      scope, so that the same step drops the same elements whenever it is run;
      a scope has at most one dropout.
    execution: whether to draw 16 bits an element, as where it `compiles`;
      None for `Execution()`. The masks are others, their odds the same.

  Returns:
    As `input_tensor`.
  """
  if not dropout_prob:
    return input_tensor
  key, step = _key_and_step(dropout_seed)
  if execution and execution.compiles:
    shape = get_shape_list(input_tensor)
    keep = execution_lib.keep_mask(shape, dropout_prob, key, step)
    return _dropped(input_tensor, keep, dropout_prob)
  if key is None:
    return tf.nn.dropout(input_tensor, rate=dropout_prob)
  return tf.nn.experimental.stateless_dropout(
    input_tensor, rate=dropout_prob, seed=[key, tf.cast(step, tf.int32)]
  )


def _key_and_step(dropout_seed):
  """What fixes the dropout of a scope: an int and a tensor, or None twice."""
  if dropout_seed is None:
    return None, None
  run_seed, step = dropout_seed
  place = f"{run_seed} {tf.get_variable_scope().name}"
  return zlib.crc32(place.encode()) & 0x7FFFFFFF, step


# The heads


def masked_lm_logits(
  config: BertConfig, sequence_output, embedding_table, positions=None
):
  """Scores every vocabulary entry at each masked position.

  The word embeddings serve as output weights too (Devlin et al. 2019, 3.1).

  Args:
    config: of the encoder.
    sequence_output: float [B, S, H].
    embedding_table: float [V, H].
    positions: int32 [B, P], see `gather_positions`; None where
      `sequence_output` has the states at the masked positions alone, S = P.

  Returns:
    float [B * P, V].
  """
  if positions is None:
    states = tf.reshape(sequence_output, [-1, config.hidden_size])
  else:
    states = gather_positions(sequence_output, positions)
  with tf.variable_scope("cls/predictions"):
    with tf.variable_scope("transform"):
      states = dense(
        states,
        config.hidden_size,
        get_activation(config.hidden_act),
        config.initializer_range,
      )
      states = layer_norm(states, epsilon=config.layer_norm_eps)
    output_bias = tf.get_variable(
      "output_bias", [config.vocab_size], initializer=tf.zeros_initializer()
    )
    table = tf.cast(embedding_table, states.dtype)
    logits = tf.matmul(states, table, transpose_b=True)
    return tf.nn.bias_add(logits, tf.cast(output_bias, states.dtype))


def gather_positions(sequence, positions):
  """Picks the hidden state at each masked position.

  Args:
    sequence: float [B, S, H].
    positions: int32 [B, P], each in [0, S); padding slots hold 0.

  Returns:
    [B * P, H], dtype of `sequence`; row b * P + p is
    sequence[b, positions[b, p]].

  Raises:
    ValueError: `sequence` is not of rank 3.
  """
  batch_size, seq_length, width = get_shape_list(sequence, expected_rank=3)
  rows = execution_lib.PaddedRows(batch_size, seq_length)
  return rows.pick(tf.reshape(sequence, [-1, width]), positions)


def next_sentence_logits(config: BertConfig, pooled_output):
  """Scores "the second segment follows the first" (0) and "it does not" (1).

  Args:
    config: of the encoder.
    pooled_output: float [B, H].

  Returns:
    float [B, 2].
  """
  with tf.variable_scope("cls/seq_relationship"):
    return _output_layer(pooled_output, 2, config.initializer_range)


def classification_logits(
  pooled_output, num_labels: int, dropout_prob: float = 0.0, dropout_seed=None
):
  """Scores each label of a sequence; with one label, predicts a number.

  Args:
    pooled_output: float [B, H].
    num_labels: L.
    dropout_prob: dropout of `pooled_output`, for training.
    dropout_seed: see `dropout`.

  Returns:
    float [B, L].
  """
  pooled_output = dropout(pooled_output, dropout_prob, dropout_seed)
  return _output_layer(pooled_output, num_labels)


def token_classification_logits(
  sequence_output, num_labels: int, dropout_prob: float = 0.0, dropout_seed=None
):
  """Scores each label of every token.

  Args:
    sequence_output: float [B, S, H].
    num_labels: L.
    dropout_prob: dropout of `sequence_output`, for training.
    dropout_seed: see `dropout`.

  Returns:
    float [B, S, L].
  """
  sequence_output = dropout(sequence_output, dropout_prob, dropout_seed)
  return _output_layer(sequence_output, num_labels)


def span_logits(sequence_output):
  """Scores every token as the first and as the last of an answer.

  Args:
    sequence_output: float [B, S, H].

  Returns:
    Two float [B, S]: scores of the start and of the end.
  """
  with tf.variable_scope("cls/squad"):
    logits = _output_layer(sequence_output, 2)  # [B, S, 2]
  return logits[:, :, 0], logits[:, :, 1]


def _output_layer(inputs, num_outputs: int, initializer_range: float = 0.02):
  """[..., H] to [..., num_outputs] by weights kept as [num_outputs, H]."""
  shape = get_shape_list(inputs)
  output_weights = tf.get_variable(
    "output_weights",
    [num_outputs, shape[-1]],
    initializer=create_initializer(initializer_range),
  )
  output_bias = tf.get_variable(
    "output_bias", [num_outputs], initializer=tf.zeros_initializer()
  )
  matrix = tf.reshape(inputs, [-1, shape[-1]])
  output_weights = tf.cast(output_weights, inputs.dtype)
  logits = tf.matmul(matrix, output_weights, transpose_b=True)
  logits = tf.nn.bias_add(logits, tf.cast(output_bias, inputs.dtype))
  return tf.reshape(logits, [*shape[:-1], num_outputs])


# The losses


def cross_entropy(logits, label_ids):
  """Minus the log probability of each label.

  Args:
    logits: float [A, L].
    label_ids: int [A]; an id outside [0, L) costs nothing.

  Returns:
    float32 [A], the losses, and float32 [A, L], the log probabilities.
  """
  log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32), axis=-1)
  labels = tf.one_hot(label_ids, get_shape_list(logits)[-1], dtype=tf.float32)
  return -tf.reduce_sum(labels * log_probs, axis=-1), log_probs


def weighted_mean(losses, weights, total_weight=None):
  """Mean of the losses whose weight is not 0; 0 where all of them are.

  Args:
    losses: float32 [A].
    weights: float [A], from 0 to 1; padding has 0.
    total_weight: float [], by which to divide; None for their sum.

  Returns:
    float32 []. A small number in the divisor keeps it finite, as in the
    reference.
  """
  weights = tf.cast(weights, losses.dtype)
  if total_weight is None:
    total_weight = tf.reduce_sum(weights)
  return tf.reduce_sum(weights * losses) / (total_weight + 1e-5)


# Activations, initialisation, shapes


def gelu(x):
  """The Gaussian Error Linear Unit in its exact form (Hendrycks 2016).

  Args:
    x: float, any shape.

  Returns:
    x times the standard normal distribution function of x.
  """
  return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def gelu_tanh(x):
  """`gelu` by a tanh that is within 5e-4 of it.

  Args:
    x: float, any shape.

  Returns:
    As `x`.
  """
  inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
  return 0.5 * x * (1.0 + tf.tanh(inner))


def get_activation(activation_string):
  """The activation function of a name.

  Args:
    activation_string: "gelu", "gelu_tanh" (also called "gelu_new"), "relu",
      "tanh" or "linear", in any case; or a function, which is given back.

  Returns:
    A function of a tensor; None for "linear", "" and None.

  Raises:
    ValueError: there is no activation of that name.
  """
  if not isinstance(activation_string, str):
    return activation_string
  functions = {
    "": None,
    "linear": None,
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_tanh": gelu_tanh,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
  }
  name = activation_string.lower()
  if name not in functions:
    raise ValueError(f"Unsupported activation: {name}")
  return functions[name]


def create_initializer(initializer_range: float = 0.02):
  """Normal weights of that standard deviation, cut off at two deviations."""
  return tf.truncated_normal_initializer(stddev=initializer_range)


def get_assignment_map_from_checkpoint(
  tvars: Iterable, init_checkpoint: str
) -> tuple[collections.OrderedDict, dict[str, int]]:
  """Finds which variables a checkpoint has a value for.

  Args:
    tvars: variables of the graph.
    init_checkpoint: path of the checkpoint.

  Returns:
    For `tf.train.init_from_checkpoint`, the checkpoint's name to the graph's;
    and a dictionary whose keys are the names, with and without ":0", of the
    variables found.
  """
  wanted = {re.sub(r":\d+$", "", variable.name) for variable in tvars}
  found = [
    name
    for name, _ in tf.train.list_variables(init_checkpoint)
    if name in wanted
  ]
  assignment_map = collections.OrderedDict((name, name) for name in found)
  initialized = {n: 1 for name in found for n in (name, name + ":0")}
  return assignment_map, initialized


def get_shape_list(
  tensor, expected_rank: int | list[int] | None = None, name: str | None = None
) -> list:
  """The sizes of a tensor: numbers where known, scalar tensors elsewhere.

  Args:
    tensor: any tensor or variable of known rank.
    expected_rank: a rank, or several, one of which it must have.
    name: what to call it in an error.

  Returns:
    One entry a dimension.

  Raises:
    ValueError: it has another rank.
  """
  if expected_rank is not None:
    assert_rank(tensor, expected_rank, name)
  static = tensor.shape.as_list()
  if None not in static:
    return static
  dynamic = tf.shape(tensor)
  return [
    dynamic[axis] if size is None else size for axis, size in enumerate(static)
  ]


def assert_rank(
  tensor, expected_rank: int | list[int], name: str | None = None
) -> None:
  """Raises ValueError unless the tensor is of a rank named.

  Args:
    tensor: any tensor or variable.
    expected_rank: a rank, or several.
    name: what to call it in the error.

  Raises:
    ValueError: it has another rank.
  """
  ranks = [expected_rank] if isinstance(expected_rank, int) else expected_rank
  if tensor.shape.rank not in ranks:
    raise ValueError(
      f"{name or tensor.name} is of rank {tensor.shape.rank}, shape"
      f" {tensor.shape}; expected rank"
      f" {' or '.join(str(rank) for rank in ranks)}"
    )
