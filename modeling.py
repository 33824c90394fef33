"""The Transformer of BERT (Devlin et al. 2019) as TensorFlow graph functions.

`BertModel` builds the encoder; the functions after it put a task's head on
its outputs. Variables have the names of the released checkpoints. Needs
TensorFlow alone and works in any graph of TensorFlow 1 style, with reference
or resource variables. The formulas here are the plain ones: how they are
computed faster is a subclass of `Compute`, in `bertlib/compute.py`.

Shapes: B batch, S sequence (F queries, T keys), H hidden size, N attention
heads, D head size (H / N), P predictions, V vocabulary, R rows of a matrix of
hidden states: B * S, or fewer where padding is left out.
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
    execution: Compute | None = None,
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
      scope: variable scope; None for "bert", or "bert_1" and so on where that
        scope was used before, except under `reuse=True`.
      dropout_seed: see `dropout`; None for random masks.
      execution: how to compute, such as a `compute.Execution`; None for
        `Compute()`.
      output_positions: int32 [B, P], each in [0, S): the last layer computes
        only the states at these positions. The first must be that of [CLS], 0.
        None for all positions.

    Raises:
      ValueError: `num_attention_heads` does not divide `hidden_size`, S is
        known and above `max_position_embeddings`, an input is not of rank 2,
        or recomputation would draw other dropout masks.
    """
    config = copy.deepcopy(config)
    execution = execution or Compute()
    if not is_training:
      config.hidden_dropout_prob = 0.0
      config.attention_probs_dropout_prob = 0.0
      execution = execution.for_inference()
    batch_size, seq_length = get_shape_list(input_ids, expected_rank=2)
    if input_mask is None:
      input_mask = tf.ones([batch_size, seq_length], tf.int32)
    if token_type_ids is None:
      token_type_ids = tf.zeros([batch_size, seq_length], tf.int32)
    rows, positions = execution.unpad(input_mask), None
    if rows is not None:
      input_ids, token_type_ids = map(rows.pack, (input_ids, token_type_ids))
      positions = rows.positions

    # Each model has a scope of its own. Where variables can only be shared,
    # that of the first is the only one that there is.
    if scope is None and tf.get_variable_scope().reuse is True:
      scope = "bert"
    with tf.variable_scope(scope, default_name="bert"):
      with tf.variable_scope("embeddings"):
        embedding_output, self.embedding_table = embedding_lookup(
          input_ids,
          vocab_size=config.vocab_size,
          embedding_size=config.hidden_size,
          initializer_range=config.initializer_range,
          use_one_hot_embeddings=use_one_hot_embeddings,
        )
        embedding_output = embedding_postprocessor(
          embedding_output,
          use_token_type=True,
          token_type_ids=token_type_ids,
          token_type_vocab_size=config.type_vocab_size,
          initializer_range=config.initializer_range,
          max_position_embeddings=config.max_position_embeddings,
          dropout_prob=config.hidden_dropout_prob,
          dropout_seed=dropout_seed,
          layer_norm_eps=config.layer_norm_eps,
          positions=positions,
        )
        embedding_output = tf.cast(embedding_output, execution.dtype)
      with tf.variable_scope("encoder"):
        self.all_encoder_layers = transformer_model(
          embedding_output,
          # The same for every query: broadcast, not repeated.
          tf.reshape(input_mask, [batch_size, 1, seq_length]),
          hidden_size=config.hidden_size,
          num_hidden_layers=config.num_hidden_layers,
          num_attention_heads=config.num_attention_heads,
          intermediate_size=config.intermediate_size,
          intermediate_act_fn=get_activation(config.hidden_act),
          hidden_dropout_prob=config.hidden_dropout_prob,
          attention_probs_dropout_prob=config.attention_probs_dropout_prob,
          initializer_range=config.initializer_range,
          do_return_all_layers=True,
          dropout_seed=dropout_seed,
          layer_norm_eps=config.layer_norm_eps,
          execution=execution,
          rows=rows,
          output_positions=output_positions,
        )
      if rows is not None:
        embedding_output = rows.to_sequence(reshape_to_matrix(embedding_output))
      self.embedding_output = embedding_output
      self.sequence_output = self.all_encoder_layers[-1]
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
    """Float [B, S, H]: normalized embeddings, the encoder's input."""
    return self.embedding_output

  def get_embedding_table(self):
    """The variable, float [V, H], of the word embeddings."""
    return self.embedding_table


# Activations and initialization


def gelu(x=None, input_tensor=None):
  """The Gaussian Error Linear Unit in its exact form (Hendrycks 2016).

  Args:
    x: float, any shape.
    input_tensor: another name of `x`, which earlier callers use.

  Returns:
    x times the standard normal distribution function of x.
  """
  if x is None:
    x = input_tensor
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


# How the model is computed


class Compute:
  """The plain computation: in float32, of all positions, each step by itself.

  A subclass computes the same in another way and overrides some of this.

  Attributes:
    dtype: of matrix products and the states between them. Weights, layer
      normalization, softmax and losses are float32 in any case.
  """

  dtype = tf.float32

  def for_inference(self) -> Compute:
    """The same without what only training needs."""
    return self

  def unpad(self, input_mask):
    """Chooses the positions that are computed.

    Args:
      input_mask: int32 [B, S], 1 at tokens, 0 at padding.

    Returns:
      None for all positions: hidden states are then [B * S, H]. Otherwise an
      object that maps R rows to (sequence, position), such as
      `compute.UnpaddedRows`.
    """
    del input_mask

  def run_layer(self, layer: Callable, hidden, scope, is_repeatable: bool):
    """Applies a layer.

    Args:
      layer: function of a tensor, with variables in the current scope.
      hidden: float [R, H].
      scope: the current `tf.VariableScope`.
      is_repeatable: whether applying it twice draws the same dropout masks.

    Returns:
      What `layer` returns.
    """
    del scope, is_repeatable
    return layer(hidden)

  def activate(self, product, bias, activation: Callable):
    """`activation` of [R, W] plus [W]: the end of a dense layer."""
    return activation(tf.nn.bias_add(product, bias))

  def drop(self, tensor, dropout_prob: float, key: int | None, step):
    """Dropout of a tensor; `key` and `step` as of `dropout_key`."""
    if key is None:
      return tf.nn.dropout(tensor, rate=dropout_prob)
    return tf.nn.experimental.stateless_dropout(
      tensor, rate=dropout_prob, seed=[key, tf.cast(step, tf.int32)]
    )

  def add_and_norm(
    self, output, residual, dropout_prob, dropout_seed, epsilon: float
  ):
    """Dropout, residual sum, layer normalization: the end of a sublayer.

    Args:
      output: float [R, H].
      residual: float [R, H].
      dropout_prob: dropout of `output`; None or 0 for none.
      dropout_seed: see `dropout`.
      epsilon: see `layer_norm`.

    Returns:
      As `output`.
    """
    output = dropout(output, dropout_prob, dropout_seed)
    return layer_norm(output + residual, epsilon=epsilon)


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
    input_ids: int32 [B, S], or [..., I] for I ids at each position; each in
      [0, V).
    vocab_size: V, rows of the table.
    embedding_size: its columns, H.
    initializer_range: standard deviation of a new table.
    word_embedding_name: the variable's name.
    use_one_hot_embeddings: multiply by a one-hot matrix instead of gathering.

  Returns:
    float32 [B, S, H], or [..., I * H] with the vectors of a position side by
    side; and the table, float32 [V, H].
  """
  table = tf.get_variable(
    word_embedding_name,
    [vocab_size, embedding_size],
    initializer=create_initializer(initializer_range),
  )
  if use_one_hot_embeddings:
    one_hot = tf.one_hot(input_ids, vocab_size, dtype=table.dtype.base_dtype)
    output = tf.einsum("...v,vh->...h", one_hot, table)
  else:
    output = tf.gather(table, input_ids)
  if input_ids.shape.rank != 2:
    *shape, num_ids = get_shape_list(input_ids)
    output = tf.reshape(output, [*shape, num_ids * embedding_size])
  return output, table


def embedding_postprocessor(
  input_tensor,
  use_token_type: bool = False,
  token_type_ids=None,
  token_type_vocab_size: int = 16,
  token_type_embedding_name: str = "token_type_embeddings",
  use_position_embeddings: bool = True,
  position_embedding_name: str = "position_embeddings",
  initializer_range: float = 0.02,
  max_position_embeddings: int = 512,
  dropout_prob: float | None = 0.1,
  dropout_seed=None,
  layer_norm_eps: float = 1e-12,
  positions=None,
):
  """Adds segment and position embeddings, then layer norm and dropout.

  Args:
    input_tensor: float [B, S, H], the word embeddings.
    use_token_type: whether to add the embeddings of `token_type_ids`.
    token_type_ids: int32 [B, S]; an id outside the table adds nothing.
    token_type_vocab_size: rows of that table.
    token_type_embedding_name: its variable's name.
    use_position_embeddings: whether to add position embeddings.
    position_embedding_name: the variable's name.
    initializer_range: standard deviation of new tables.
    max_position_embeddings: rows of the position table.
    dropout_prob: dropout of the result.
    dropout_seed: see `dropout`.
    layer_norm_eps: see `layer_norm`.
    positions: int32 [B, S], the position of each vector; None for 0 to S - 1.

  Returns:
    As `input_tensor`.

  Raises:
    ValueError: `token_type_ids` are used and not given, or S is known and
      above `max_position_embeddings`. Where S is not known, running the graph
      raises `tf.errors.InvalidArgumentError`.
  """
  _, seq_length, width = get_shape_list(input_tensor, expected_rank=3)
  initializer = create_initializer(initializer_range)
  output = input_tensor
  if use_token_type:
    if token_type_ids is None:
      raise ValueError("use_token_type needs token_type_ids")
    table = tf.get_variable(
      token_type_embedding_name,
      [token_type_vocab_size, width],
      initializer=initializer,
    )
    # So small a table is read faster by a product than by a gather.
    token_types = tf.one_hot(
      token_type_ids, token_type_vocab_size, dtype=table.dtype.base_dtype
    )
    output += tf.einsum("...t,th->...h", token_types, table)
  if use_position_embeddings:
    table = tf.get_variable(
      position_embedding_name,
      [max_position_embeddings, width],
      initializer=initializer,
    )
    if positions is not None:
      output += take_rows(table, positions)
    else:
      if isinstance(seq_length, int) and seq_length > max_position_embeddings:
        raise ValueError(
          f"The sequences have {seq_length} tokens, but the model has only"
          f" max_position_embeddings = {max_position_embeddings}"
        )
      # [S, H], the same for every sequence; fails where S is too large.
      output += tf.slice(table, [0, 0], [seq_length, width])
  return layer_norm_and_dropout(
    output, dropout_prob, dropout_seed=dropout_seed, epsilon=layer_norm_eps
  )


@tf.custom_gradient
def take_rows(table, indices):
  """`tf.gather` of rows, with a dense gradient.

  Args:
    table: float [A, W].
    indices: int32 [...], each in [0, A).

  Returns:
    float [..., W].
  """

  def sum_rows(gradient):
    num_rows = table.shape.as_list()[0]
    if num_rows is None:
      num_rows = tf.shape(table)[0]
    return tf.math.unsorted_segment_sum(gradient, indices, num_rows), None

  return tf.gather(table, indices), sum_rows


def create_attention_mask_from_input_mask(from_tensor, to_mask):
  """Repeats a mask of keys for every query.

  Args:
    from_tensor: [B, F] or [B, F, ...]; only its shape is used.
    to_mask: int [B, T], 1 at positions to attend to.

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
  input_tensor,
  attention_mask=None,
  hidden_size: int = 768,
  num_hidden_layers: int = 12,
  num_attention_heads: int = 12,
  intermediate_size: int = 3072,
  intermediate_act_fn: Callable | None = gelu,
  hidden_dropout_prob: float | None = 0.1,
  attention_probs_dropout_prob: float | None = 0.1,
  initializer_range: float = 0.02,
  do_return_all_layers: bool = False,
  dropout_seed=None,
  layer_norm_eps: float = 1e-12,
  execution: Compute | None = None,
  rows=None,
  output_positions=None,
):
  """The stack of Transformer layers (Vaswani et al. 2017), encoder only.

  Args:
    input_tensor: float [B, S, H]; with `rows` [1, R, H].
    attention_mask: [B, S, S], 1 where a query may attend to a key, 0 where
      not; or [B, 1, S], the same for all queries; None for all ones.
    hidden_size: H.
    num_hidden_layers: number of layers.
    num_attention_heads: N.
    intermediate_size: width inside a layer's feed-forward part.
    intermediate_act_fn: activation of that part, or None.
    hidden_dropout_prob: dropout of the outputs of attention and feed-forward.
    attention_probs_dropout_prob: dropout of attention probabilities.
    initializer_range: standard deviation of new weights.
    do_return_all_layers: whether to return the output of every layer.
    dropout_seed: see `dropout`.
    layer_norm_eps: see `layer_norm`.
    execution: how to compute; None for `Compute()`.
    rows: maps rows to (sequence, position), see `Compute.unpad`; None for a
      row at every position.
    output_positions: int32 [B, P], the positions that the last layer computes;
      None for all. Needs an attention mask [B, 1, S].

  Returns:
    float [B, S, H], the output of the last layer, [B, P, H] with
    `output_positions`; or a list of these, one for each layer.

  Raises:
    ValueError: the heads do not divide the hidden size, the input has another
      width, or recomputation would draw other dropout masks.
  """
  execution = execution or Compute()
  batch_size, seq_length, width = get_shape_list(input_tensor, expected_rank=3)
  if rows is not None:
    batch_size, seq_length = rows.batch_size, rows.seq_length
  if hidden_size % num_attention_heads:
    raise ValueError(
      f"num_attention_heads = {num_attention_heads} does not divide"
      f" hidden_size = {hidden_size}"
    )
  if width != hidden_size:
    raise ValueError(
      f"The input is {width} wide, but hidden_size = {hidden_size}: the"
      " residual sums need both equal"
    )

  def to_sequence(matrix):  # [R, H] to [B, S, H]
    if rows is not None:
      return rows.to_sequence(matrix)
    return reshape_from_matrix(matrix, [batch_size, seq_length, width])

  def add_and_norm(output, residual):
    return execution.add_and_norm(
      output, residual, hidden_dropout_prob, dropout_seed, layer_norm_eps
    )

  def layer(hidden, picks: bool):
    """One layer: [R, H] to [R, H], or to [B * P, H] if it `picks`."""
    queries = hidden
    from_rows, from_seq_length = rows, seq_length
    if picks:
      from_rows, from_seq_length = None, get_shape_list(output_positions)[1]
      if rows is None:
        queries = gather_positions(to_sequence(hidden), output_positions)
      else:
        queries = rows.pick(hidden, output_positions)
    with tf.variable_scope("attention"):
      with tf.variable_scope("self"):
        context = attention_layer(
          queries,
          hidden,
          attention_mask,
          num_attention_heads=num_attention_heads,
          size_per_head=hidden_size // num_attention_heads,
          attention_probs_dropout_prob=attention_probs_dropout_prob,
          initializer_range=initializer_range,
          do_return_2d_tensor=True,
          batch_size=batch_size,
          from_seq_length=from_seq_length,
          to_seq_length=seq_length,
          dropout_seed=dropout_seed,
          execution=execution,
          from_rows=from_rows,
          to_rows=rows,
        )
      with tf.variable_scope("output"):
        context = dense(
          context, hidden_size, initializer_range=initializer_range
        )
        attention_output = add_and_norm(context, queries)
    with tf.variable_scope("intermediate"):
      intermediate = dense(
        attention_output,
        intermediate_size,
        intermediate_act_fn,
        initializer_range,
        execution=execution,
      )
    with tf.variable_scope("output"):
      output = dense(
        intermediate, hidden_size, initializer_range=initializer_range
      )
      return add_and_norm(output, attention_output)

  # Matrices throughout: on a TPU a reshape between two and three axes costs.
  states = [reshape_to_matrix(input_tensor)]
  is_repeatable = dropout_seed is not None or not (
    hidden_dropout_prob or attention_probs_dropout_prob
  )
  for index in range(num_hidden_layers):
    picks = output_positions is not None and index == num_hidden_layers - 1
    with tf.variable_scope(f"layer_{index}") as scope:
      states.append(
        execution.run_layer(
          functools.partial(layer, picks=picks),
          states[-1],
          scope,
          is_repeatable,
        )
      )

  *lower, last = states
  outputs = [*map(to_sequence, lower[1:])] if do_return_all_layers else []
  if output_positions is None:
    outputs.append(to_sequence(last))
  else:
    shape = [*get_shape_list(output_positions), width]
    outputs.append(reshape_from_matrix(last, shape))
  return outputs if do_return_all_layers else outputs[-1]


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
  execution: Compute | None = None,
  from_rows=None,
  to_rows=None,
):
  """Multi-head scaled dot-product attention (Vaswani et al. 2017, 3.2).

  Queries come from `from_tensor`; keys and values from `to_tensor`. The two
  are the same tensor in self-attention.

  Args:
    from_tensor: float [B, F, W] or [B * F, W]; with `from_rows` [R, W].
    to_tensor: float [B, T, X] or [B * T, X]; with `to_rows` [R, X].
    attention_mask: [B, F, T] or [B, 1, T], 1 where a query may attend to a
      key, 0 where not; None for all ones.
    num_attention_heads: N.
    size_per_head: D.
    query_act: activation of the queries, or None.
    key_act: activation of the keys, or None.
    value_act: activation of the values, or None.
    attention_probs_dropout_prob: dropout of the attention probabilities.
    initializer_range: standard deviation of new weights.
    do_return_2d_tensor: whether to return a matrix.
    batch_size: B; required with matrices.
    from_seq_length: F; required with matrices.
    to_seq_length: T; required with matrices.
    dropout_seed: see `dropout`.
    execution: how to compute; None for `Compute()`.
    from_rows: maps rows of `from_tensor` to (sequence, position), see
      `Compute.unpad`; None for a row at every position. Needs
      `do_return_2d_tensor`.
    to_rows: the same of `to_tensor`.

  Returns:
    float [B, F, N * D], or with `do_return_2d_tensor` [B * F, N * D] ([R,
    N * D] with `from_rows`).

  Raises:
    ValueError: the inputs differ in rank, or are matrices and a size is
      missing.
  """
  execution = execution or Compute()
  from_shape = get_shape_list(from_tensor, expected_rank=[2, 3])
  to_shape = get_shape_list(to_tensor, expected_rank=[2, 3])
  if len(from_shape) != len(to_shape):
    raise ValueError("from_tensor and to_tensor must be of the same rank")
  if len(from_shape) == 3:
    batch_size, from_seq_length = from_shape[:2]
    to_seq_length = to_shape[1]
  elif None in (batch_size, from_seq_length, to_seq_length):
    raise ValueError(
      "Attention over matrices needs batch_size, from_seq_length and"
      " to_seq_length"
    )

  def project(tensor, activation, name):  # to [R, N * D]
    return dense(
      reshape_to_matrix(tensor),
      num_attention_heads * size_per_head,
      activation,
      initializer_range,
      name=name,
    )

  def split_heads(matrix, seq_length, rows):
    if rows is not None:
      return rows.split_heads(matrix, num_attention_heads, size_per_head)
    heads = tf.reshape(
      matrix, [batch_size, seq_length, num_attention_heads, size_per_head]
    )  # [B, S, N, D]
    return tf.transpose(heads, [0, 2, 1, 3])  # [B, N, S, D]

  query = project(from_tensor, query_act, "query")  # [B * F, N * D]
  key = project(to_tensor, key_act, "key")  # [B * T, N * D]
  value = project(to_tensor, value_act, "value")  # [B * T, N * D]

  # Scale the queries instead of the scores: the tensor is smaller.
  query *= 1.0 / math.sqrt(size_per_head)
  query = split_heads(query, from_seq_length, from_rows)  # [B, N, F, D]
  key = split_heads(key, to_seq_length, to_rows)  # [B, N, T, D]
  value = split_heads(value, to_seq_length, to_rows)  # [B, N, T, D]

  scores = tf.matmul(query, key, transpose_b=True)  # [B, N, F, T]
  scores = tf.cast(scores, tf.float32)
  if attention_mask is not None:
    # A large negative number and not minus infinity: a query whose keys are
    # all masked attends by its scores alone, and nothing becomes NaN.
    masked = 1.0 - tf.cast(attention_mask, tf.float32)  # [B, F or 1, T]
    scores += masked[:, tf.newaxis, :, :] * -10000.0  # [B, N, F, T]
  probs = tf.nn.softmax(scores)  # [B, N, F, T]
  probs = dropout(probs, attention_probs_dropout_prob, dropout_seed, execution)

  context = tf.matmul(tf.cast(probs, value.dtype), value)  # [B, N, F, D]
  if from_rows is not None:
    return from_rows.merge_heads(context)  # [R, N * D]
  context = tf.transpose(context, [0, 2, 1, 3])  # [B, F, N, D]
  width = num_attention_heads * size_per_head
  if do_return_2d_tensor:
    return tf.reshape(context, [-1, width])  # [B * F, N * D]
  return tf.reshape(context, [batch_size, from_seq_length, width])


def dense(
  inputs,
  units: int,
  activation: Callable | None = None,
  initializer_range: float = 0.02,
  name: str = "dense",
  execution: Compute | None = None,
):
  """A fully connected layer, computed in the dtype of its inputs.

  Args:
    inputs: float [..., W], W known.
    units: U, width of the output.
    activation: function of the output, or None.
    initializer_range: standard deviation of a new kernel.
    name: variable scope of `kernel` [W, U] and `bias` [U].
    execution: how to compute the activation; None for `Compute()`.

  Returns:
    [..., U], dtype of `inputs`.
  """
  width = inputs.shape.as_list()[-1]
  with tf.variable_scope(name):
    kernel = tf.get_variable(
      "kernel",
      [width, units],
      initializer=create_initializer(initializer_range),
    )
    bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    kernel, bias = (tf.cast(v, inputs.dtype) for v in (kernel, bias))
    output = tf.matmul(reshape_to_matrix(inputs), kernel)  # [R, U]
    if activation is None:
      output = tf.nn.bias_add(output, bias)
    else:
      output = (execution or Compute()).activate(output, bias, activation)
    if inputs.shape.rank == 2:
      return output
    return reshape_from_matrix(output, get_shape_list(inputs))


def layer_norm(input_tensor, name: str | None = None, epsilon: float = 1e-12):
  """Normalizes each vector, then scales and shifts it (Ba et al. 2016).

  Args:
    input_tensor: float [..., H].
    name: variable scope of `beta` and `gamma`, both [H]; None for "LayerNorm",
      or "LayerNorm_1" and so on where that was used before.
    epsilon: added to the variance.

  Returns:
    As `input_tensor`; over the last axis the mean is `beta` and the standard
    deviation `gamma`.
  """
  with tf.variable_scope(name, default_name="LayerNorm"):
    beta, gamma = norm_weights(input_tensor.shape.as_list()[-1])
    vectors = tf.cast(input_tensor, tf.float32)
    output = normalize(vectors, beta, gamma, epsilon)
  return tf.cast(output, input_tensor.dtype)


def norm_weights(width: int):
  """Variables `beta` and `gamma`, float32 [width], of the current scope."""
  beta = tf.get_variable("beta", [width], initializer=tf.zeros_initializer())
  gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer())
  return beta, gamma


def normalize(vectors, beta, gamma, epsilon: float):
  """`layer_norm` of float32 [..., H] with weights [H]."""
  mean, variance = tf.nn.moments(vectors, axes=[-1], keepdims=True)
  with tf.name_scope("batchnorm"):  # the name that is looked up in graphs
    scale = tf.math.rsqrt(variance + epsilon) * gamma
    return (vectors - mean) * scale + beta


def layer_norm_and_dropout(
  input_tensor,
  dropout_prob: float | None,
  name: str | None = None,
  dropout_seed=None,
  epsilon: float = 1e-12,
):
  """`layer_norm`, then `dropout`.

  Args:
    input_tensor: float [..., H].
    dropout_prob: see `dropout`.
    name: see `layer_norm`.
    dropout_seed: see `dropout`.
    epsilon: see `layer_norm`.

  Returns:
    As `input_tensor`.
  """
  output = layer_norm(input_tensor, name, epsilon)
  return dropout(output, dropout_prob, dropout_seed)


def dropout(
  input_tensor,
  dropout_prob: float | None,
  dropout_seed=None,
  execution: Compute | None = None,
):
  """Zeroes random elements and scales up the others (Srivastava et al. 2014).

  Args:
    input_tensor: float, any shape.
    dropout_prob: probability of dropping an element; None or 0 for none.
    dropout_seed: None for a random mask, or (the run's seed, an int; the step,
      an integer tensor []). The mask is then a function of these two and of
      the variable scope: the same step drops the same elements whenever it
      runs. A scope has at most one dropout.
    execution: how to draw the mask; None for `Compute()`. Different masks,
      same drop probability.

  Returns:
    As `input_tensor`.
  """
  if not dropout_prob:
    return input_tensor
  key, step = dropout_key(dropout_seed)
  return (execution or Compute()).drop(input_tensor, dropout_prob, key, step)


def dropout_key(dropout_seed):
  """Stateless dropout seed of a scope: (key, step), or (None, None)."""
  if dropout_seed is None:
    return None, None
  run_seed, step = dropout_seed
  name = f"{run_seed} {tf.get_variable_scope().name}"
  return zlib.crc32(name.encode()) & 0x7FFFFFFF, step


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
  starts = tf.range(batch_size) * seq_length  # [B], rows of [CLS]
  rows = tf.cast(positions, tf.int32) + starts[:, tf.newaxis]  # [B, P]
  return take_rows(tf.reshape(sequence, [-1, width]), tf.reshape(rows, [-1]))


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


# Checkpoints and shapes


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


def reshape_to_matrix(input_tensor):
  """[..., W] to a matrix [R, W]; a matrix is returned as it is.

  Raises:
    ValueError: the tensor has less than two axes.
  """
  rank = input_tensor.shape.rank
  if rank < 2:
    raise ValueError(f"Expected at least two axes, not {input_tensor.shape}")
  if rank == 2:
    return input_tensor
  return tf.reshape(input_tensor, [-1, input_tensor.shape.as_list()[-1]])


def reshape_from_matrix(output_tensor, orig_shape_list: list):
  """Undoes `reshape_to_matrix`; the last axis may have another size.

  Args:
    output_tensor: [R, U].
    orig_shape_list: the shape before, as of `get_shape_list`; its last entry
      is not used.

  Returns:
    [..., U]; `output_tensor` itself where the shape was that of a matrix.
  """
  if len(orig_shape_list) == 2:
    return output_tensor
  width = get_shape_list(output_tensor)[-1]
  return tf.reshape(output_tensor, [*orig_shape_list[:-1], width])


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
