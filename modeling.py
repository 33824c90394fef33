"""The Transformer of BERT (Devlin et al. 2019) as TensorFlow graph functions.

`BertModel` builds the encoder; the functions after it build task heads on its
outputs. Variables have the names of the released checkpoints. The file
needs only TensorFlow and works in any TensorFlow 1 style graph, with reference
or resource variables. Subclasses of `Compute` compute its formulas faster.

Shapes, in this file and in the whole project: B batch, S sequence (F queries,
T keys), H hidden size, N attention heads, D head size (H / N), P predictions,
V vocabulary, R rows of a matrix of hidden states (B * S, or fewer without
padding). Other sizes are spelled out.
"""

from __future__ import annotations

import collections
import contextlib
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
  """Hyperparameters of the encoder: the keys of `bert_config.json`."""

  # The released files do not set these; converted models may.
  layer_norm_eps = 1e-12
  pooler_act = "tanh"
  pooler_dropout_prob = 0.0  # of the pooler's input
  embedding_size = None  # width of the tables; None for `hidden_size`
  position_offset = 0  # row of a first token's position, see `position_rows`
  classifier_dropout = 0.1  # of the inputs of classifiers
  qa_dropout = 0.0  # of the input of span logits

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
    """Stores the values without checking them.

    Args:
      vocab_size: V, number of word embeddings.
      hidden_size: H, width of the hidden states.
      num_hidden_layers: number of Transformer layers.
      num_attention_heads: N, heads per layer; must divide `hidden_size`.
      intermediate_size: inner width of the feed-forward network of a layer.
      hidden_act: activation of that network, see `get_activation`.
      hidden_dropout_prob: dropout of embeddings and sublayer outputs.
      attention_probs_dropout_prob: dropout of the attention probabilities.
      max_position_embeddings: longest sequence, in tokens, `position_offset`
        included.
      type_vocab_size: number of segment types; below 2, all segment ids are 0.
      initializer_range: standard deviation of the initial weights.
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
    """Config from a dictionary; unknown keys are kept too."""
    config = cls(vocab_size=None)
    vars(config).update(json_object)
    if config.classifier_dropout is None:  # null in files of transformers
      del config.classifier_dropout
    return config

  @classmethod
  def from_json_file(cls, json_file: str) -> BertConfig:
    """Config from a JSON file, on any path that TensorFlow can read."""
    with tf.gfile.GFile(json_file, "r") as reader:
      return cls.from_dict(json.load(reader))

  def to_dict(self) -> dict[str, Any]:
    """Deep copy of the values, by key."""
    return copy.deepcopy(vars(self))

  def to_json_string(self) -> str:
    """JSON with sorted keys, indented by two, ending with a newline."""
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
    compute: Compute | None = None,
    output_positions=None,
    position_ids=None,
    sequence_ids=None,
    use_pooler: bool = True,
  ):
    """Builds the graph.

    Args:
      config: hyperparameters; not modified.
      is_training: whether to apply dropout.
      input_ids: int32 [B, S], each in [0, V).
      input_mask: int32 [B, S], 1 at tokens, 0 at padding; None for all 1.
      token_type_ids: int32 [B, S], each token's segment; None for all zeros.
        An id outside the segment table adds no embedding.
      use_one_hot_embeddings: look up word embeddings by a one-hot matrix
        product, which is faster on a TPU.
      scope: variable scope; None for "bert", or "bert_1" and so on if that
        scope is in use, except under `reuse=True`.
      dropout_seed: see `dropout`; None for random masks.
      compute: None for the plain `Compute()`.
      output_positions: int32 [B, P], each in [0, S): the last layer computes
        the hidden states at these positions only. The first of each sequence
        must be 0, the position of [CLS]. None for all positions.
      position_ids: int32 [B, S], each token's position in its sequence; None
        for 0 to S - 1.
      sequence_ids: int32 [B, S], for several sequences packed in each row: a
        token attends to tokens of its own id only. None for one sequence.
      use_pooler: whether there is a pooled output.

    Raises:
      ValueError: `num_attention_heads` does not divide `hidden_size`, S is
        known and above `max_position_embeddings`, an input is not of rank 2,
        or layers are recomputed with random dropout masks.
    """
    config = copy.deepcopy(config)
    compute = compute or Compute()
    if not is_training:
      config.hidden_dropout_prob = 0.0
      config.attention_probs_dropout_prob = 0.0
      config.pooler_dropout_prob = 0.0
      compute = compute.for_inference()
    batch_size, seq_length = get_shape_list(input_ids, expected_rank=2)
    if input_mask is None:
      input_mask = tf.ones([batch_size, seq_length], tf.int32)
    if token_type_ids is None or config.type_vocab_size < 2:
      token_type_ids = tf.zeros([batch_size, seq_length], tf.int32)
    compute = compute.for_batch(input_mask)

    # A second model gets its own scope, "bert_1", unless `reuse=True` requires
    # the variables of the first.
    if scope is None and tf.get_variable_scope().reuse is True:
      scope = "bert"
    with tf.variable_scope(scope, default_name="bert"):
      with tf.variable_scope("embeddings"):
        embedding_output, self.embedding_table = embedding_lookup(
          compute.unpad_input(input_ids),
          vocab_size=config.vocab_size,
          embedding_size=config.embedding_size or config.hidden_size,
          initializer_range=config.initializer_range,
          use_one_hot_embeddings=use_one_hot_embeddings,
        )
        positions, rows = compute.positions, position_ids
        if config.position_offset:
          rows = position_rows(input_ids, position_ids, config.position_offset)
        if rows is not None:
          positions = compute.unpad_input(rows)
        embedding_output = embedding_postprocessor(
          embedding_output,
          use_token_type=config.type_vocab_size > 0,
          token_type_ids=compute.unpad_input(token_type_ids),
          token_type_vocab_size=config.type_vocab_size,
          initializer_range=config.initializer_range,
          max_position_embeddings=config.max_position_embeddings,
          dropout_prob=config.hidden_dropout_prob,
          dropout_seed=dropout_seed,
          layer_norm_eps=config.layer_norm_eps,
          positions=positions,
        )
        embedding_output = tf.cast(embedding_output, compute.dtype)
      if embedding_output.shape.as_list()[-1] != config.hidden_size:
        args = config.hidden_size, None, config.initializer_range
        embedding_output = dense(
          embedding_output, *args, "embeddings_project", compute
        )
      with tf.variable_scope("encoder"):
        # All queries may attend to the same keys: broadcast over F.
        attention_mask = tf.reshape(input_mask, [batch_size, 1, seq_length])
        if sequence_ids is not None:
          attention_mask = confine_attention(attention_mask, sequence_ids)
        if position_ids is None:
          position_ids = tf.range(seq_length)[tf.newaxis]
        self.all_encoder_layers = transformer_model(
          embedding_output,
          attention_mask,
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
          compute=compute,
          output_positions=output_positions,
          score_biases=position_biases(position_ids, config),
        )
      self.embedding_output = compute.pad_output(embedding_output)
      self.sequence_output = self.all_encoder_layers[-1]
      # [CLS] is no word, so its state is free to stand for the whole sequence.
      # Training alone makes it do so: next sentence prediction trains this
      # layer, and fine-tuning adapts it to tasks with one answer per sequence.
      if not use_pooler:
        return
      with tf.variable_scope("pooler"):
        states = self.sequence_output
        if sequence_ids is None:  # [CLS] alone; without rows S may be 0
          states = tf.reshape(states[:, :1], [-1, config.hidden_size])
        states = dropout(states, config.pooler_dropout_prob, dropout_seed)
        self.pooled_output = dense(
          states,
          config.hidden_size,
          get_activation(config.pooler_act),
          config.initializer_range,
          compute=compute,
        )

  def get_pooled_output(self):
    """Dense layer on [CLS], [B, H]; with `sequence_ids` on all outputs."""
    return self.pooled_output

  def get_sequence_output(self):
    """Last hidden states: float [B, S, H]; [B, P, H] at `output_positions`."""
    return self.sequence_output

  def get_all_encoder_layers(self):
    """Hidden states by layer: float [B, S, H]; the last maybe [B, P, H]."""
    return self.all_encoder_layers

  def get_embedding_output(self):
    """Embeddings that the first layer gets: float [B, S, H]."""
    return self.embedding_output

  def get_embedding_table(self):
    """Word embeddings, a float32 variable [V, embedding_size]."""
    return self.embedding_table


# Activations and initialization


def gelu(x=None, input_tensor=None):
  """Gaussian Error Linear Unit, exact (erf) form (Hendrycks and Gimpel 2016).

  `x` times the standard normal cumulative distribution function at `x`, float
  of any shape. Older code names it `input_tensor`.
  """
  if x is None:
    x = input_tensor
  return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def gelu_tanh(x):
  """Tanh approximation of `gelu`, within 5e-4; any shape."""
  inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
  return 0.5 * x * (1.0 + tf.tanh(inner))


def get_activation(activation_string):
  """Activation function by name.

  Args:
    activation_string: "gelu", "gelu_tanh" (also called "gelu_new"), "relu",
      "tanh" or "linear", in any case; or a function, which is returned.

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
  """Truncated-normal initializer with that standard deviation."""
  return tf.truncated_normal_initializer(stddev=initializer_range)


# Computation


class Compute:
  """Plain computation: float32, padding included, no fused operations.

  Subclasses compute the same function in less time or memory: commands use the
  `FastCompute` of bertlib/compute that `Devices.compute` gives. `BertModel`
  first calls `for_inference` (unless it trains) and `for_batch`, then the other
  methods of the object that these return.

  Attributes:
    dtype: dtype of matrix products and hidden states. Weights, layer
      normalization, softmax and losses are always float32.
    positions: int32 [1, R], of each unpadded row; None without unpadding.
    skips_positions: whether the last layer computes `output_positions` alone.
    is_training: False where nothing needs a gradient.
  """

  dtype = tf.float32
  positions = None
  skips_positions = False
  is_training = True

  def for_inference(self) -> Compute:
    """Returns the object to use outside training; here `self`."""
    return self

  def for_batch(self, input_mask) -> Compute:
    """Returns the object to use for a batch with this mask [B, S]; here `self`.

    A subclass may remove padding. Outside of attention, ids and hidden states
    then form a single sequence of R unpadded rows: B = 1, S = R.
    """
    del input_mask
    return self

  def unpad_input(self, ids):
    """Removes padding: [B, S] to [1, R]; here the identity."""
    return ids

  def pad_output(self, states):
    """Restores padding: [1, R, H] to [B, S, H]; here the identity."""
    return states

  def gather_positions(self, states, positions):
    """Calls `gather_positions`; subclasses take unpadded states [1, R, H]."""
    return gather_positions(states, positions)

  def split_heads(self, matrix, batch_size, seq_length, num_heads: int):
    """Gives each head its D columns: [B * S, N * D] to [B, N, S, D].

    Subclasses take unpadded rows, [R, N * D].
    """
    head_size = matrix.shape.as_list()[-1] // num_heads
    shape = [batch_size, seq_length, num_heads, head_size]
    # The heads are next to the batch: `tf.matmul` multiplies over the last two
    # axes, separately for each head of each sequence.
    return tf.transpose(tf.reshape(matrix, shape), [0, 2, 1, 3])

  def merge_heads(self, heads):
    """Concatenates the heads again: undoes `split_heads`."""
    _, num_heads, _, head_size = heads.shape.as_list()
    rows = tf.transpose(heads, [0, 2, 1, 3])  # [B, S, N, D]
    return tf.reshape(rows, [-1, num_heads * head_size])

  def attend(self, query, key, value, biases, dropout_prob, dropout_seed):
    """Calls `dot_product_attention` with a tuple of `score_biases`."""
    drops = dropout_prob, dropout_seed
    return dot_product_attention(query, key, value, None, *drops, biases)

  def run_layer(self, layer: Callable, inputs, scope, is_repeatable: bool):
    """Applies a layer with variables in `scope` to [R, H] and `score_biases`.

    `is_repeatable`: whether a second call draws the same dropout masks.
    """
    del scope, is_repeatable
    return layer(*inputs)

  def dense(self, inputs, kernel, bias, activation: Callable | None):
    """Dense layer: activation(inputs kernel + bias), [R, width] to [R, units].

    `kernel` and `bias` are float32; the result has the dtype of `inputs`.
    """
    kernel, bias = (tf.cast(v, inputs.dtype) for v in (kernel, bias))
    output = add_bias(tf.matmul(inputs, kernel), bias, self.is_training)
    return activation(output) if activation else output

  def add_and_norm(
    self, output, residual, dropout_prob, dropout_seed, epsilon: float
  ):
    """End of a sublayer: layer_norm(dropout(output) + residual), [R, H]."""
    output = dropout(output, dropout_prob, dropout_seed)
    return layer_norm(output + residual, epsilon=epsilon)


# Encoder


def embedding_lookup(
  input_ids,
  vocab_size: int,
  embedding_size: int = 128,
  initializer_range: float = 0.02,
  word_embedding_name: str = "word_embeddings",
  use_one_hot_embeddings: bool = False,
):
  """Looks up the word embedding of each token.

  Args:
    input_ids: int32 [B, S] or [..., num_ids]; each in [0, V).
    vocab_size: V, rows of the table.
    embedding_size: H, columns of the table.
    initializer_range: standard deviation of the initial table.
    word_embedding_name: name of the table's variable.
    use_one_hot_embeddings: multiply by a one-hot matrix instead of gathering.

  Returns:
    float32 [B, S, H], or [..., num_ids * H] with the embeddings of a position
    concatenated; and the table, float32 [V, H].
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
    use_token_type: whether to add segment embeddings.
    token_type_ids: int32 [B, S]; an id outside the table adds no embedding.
    token_type_vocab_size: rows of the segment table.
    token_type_embedding_name: name of the segment table's variable.
    use_position_embeddings: whether to add position embeddings.
    position_embedding_name: name of the position table's variable.
    initializer_range: standard deviation of the initial tables.
    max_position_embeddings: rows of the position table.
    dropout_prob: dropout of the result.
    dropout_seed: see `dropout`.
    layer_norm_eps: see `layer_norm`.
    positions: int32 [B, S], the position of each token; None for 0 to S - 1.

  Returns:
    [B, S, H], dtype of `input_tensor`.

  Raises:
    ValueError: `token_type_ids` are missing, or S is known and above
      `max_position_embeddings`. If S is unknown, running the graph raises
      `tf.errors.InvalidArgumentError` instead.
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
    # Segments tell the two texts of a pair apart; a single text has segment 0.
    #   tokens    [CLS] who wrote it ? [SEP] she did [SEP]
    #   segments    0    0    0    0 0   0    1   1    1
    # For a table this small a matrix product is faster than a gather.
    token_types = tf.one_hot(
      tf.reshape(token_type_ids, [-1]),
      token_type_vocab_size,
      dtype=table.dtype.base_dtype,
    )
    embeddings = tf.matmul(token_types, table)  # [B * S, H]
    output += reshape_from_matrix(embeddings, get_shape_list(output))
  if use_position_embeddings:
    # Attention sees a set of tokens. Their order is what these vectors tell it;
    # they are learned, so that there is none for a longer sequence.
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
      # Shared by all sequences. The slice fails if S is too large.
      output += tf.slice(table, [0, 0], [seq_length, width])  # [S, H]
  return layer_norm_and_dropout(
    output, dropout_prob, dropout_seed=dropout_seed, epsilon=layer_norm_eps
  )


def position_rows(input_ids, position_ids, offset: int):
  """Rows of RoBERTa's position table, int32 [B, S].

  Those of tokens are counted from `offset`, in each sequence that begins where
  `position_ids` are 0. The padding token, `offset - 1`, has its own row.
  """
  # In float, which is exact here: a GPU does not compare int32.
  is_token = tf.not_equal(tf.cast(input_ids, tf.float32), offset - 1.0)
  is_token = tf.cast(is_token, tf.float32)
  counts = tf.cumsum(is_token, axis=1)
  if position_ids is not None:
    first = tf.range(get_shape_list(input_ids)[1]) - position_ids
    counts -= tf.gather(counts - is_token, first, batch_dims=1)
  return tf.cast(counts * is_token, tf.int32) + offset - 1


def _sum_rows(op, gradient):
  num_rows, _ = get_shape_list(op.inputs[0])
  segments = gradient, op.inputs[1], num_rows
  return tf.math.unsorted_segment_sum(*segments), None, None


with contextlib.suppress(KeyError):  # of another copy of this module
  tf.RegisterGradient("bert_rows")(_sum_rows)  # once: its graph is kept


def take_rows(table, indices):
  """`tf.gather` from float [num_rows, width], with a dense gradient."""
  if tf.executing_eagerly_outside_functions():  # a function may be exported
    return tf.gather(tf.reshape(table, [-1, table.shape[-1]]), indices)
  with tf.get_default_graph().gradient_override_map({"GatherV2": "bert_rows"}):
    return tf.gather(tf.convert_to_tensor(table), indices)


def create_attention_mask_from_input_mask(from_tensor, to_mask):
  """Attention mask [B, F, T] from a padding mask, the same for every query.

  `from_tensor` is [B, F] or [B, F, ...], and only its shape is used; `to_mask`
  is int [B, T], 1 at positions to attend to.
  """
  from_length = get_shape_list(from_tensor, expected_rank=[2, 3])[1]
  batch_size, to_length = get_shape_list(to_mask, expected_rank=2)
  shape = [batch_size, from_length, to_length]
  return tf.broadcast_to(tf.cast(to_mask, tf.float32)[:, tf.newaxis], shape)


def confine_attention(attention_mask, sequence_ids):
  """Hides other sequences: mask [B, 1, S] and ids [B, S] to float [B, S, S]."""
  ids = tf.cast(sequence_ids, tf.float32)  # a GPU does not compare int32
  is_same = tf.equal(ids[:, :, tf.newaxis], ids[:, tf.newaxis, :])
  return tf.cast(is_same, ids.dtype) * tf.cast(attention_mask, ids.dtype)


def position_biases(positions, config: BertConfig) -> tuple:
  """Biases of the attention scores by position, for all layers; BERT has none.

  Define relative positions here. May create variables.

  Args:
    positions: int32 [B or 1, S], of each token in its sequence.
    config: hyperparameters of the encoder.

  Returns:
    Tuple of `score_biases`, see `dot_product_attention`; F = T = S.
  """
  del positions, config
  return ()


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
  compute: Compute | None = None,
  output_positions=None,
  score_biases: tuple = (),
):
  """Stack of Transformer encoder layers (Vaswani et al. 2017).

  Args:
    input_tensor: float [B, S, H]; unpadded (see `Compute.for_batch`) [1, R, H].
    attention_mask: [B, S, S], 1 where a query may attend to a key, 0 where
      not; or [B, 1, S], the same for all queries; None for all ones.
    hidden_size: H.
    num_hidden_layers: number of layers.
    num_attention_heads: N.
    intermediate_size: inner width of the feed-forward network.
    intermediate_act_fn: activation of that network, or None.
    hidden_dropout_prob: dropout of the outputs of attention and feed-forward.
    attention_probs_dropout_prob: dropout of the attention probabilities.
    initializer_range: standard deviation of the initial weights.
    do_return_all_layers: whether to return the output of every layer.
    dropout_seed: see `dropout`.
    layer_norm_eps: see `layer_norm`.
    compute: None for the plain `Compute()`.
    output_positions: int32 [B, P], the positions at which the last layer is
      computed; None for all.
    score_biases: see `dot_product_attention`.

  Returns:
    The output of the last layer: float [B, S, H]; with `output_positions`,
    [B, P, H]. With `do_return_all_layers`, a list of the outputs of all layers.

  Raises:
    ValueError: `num_attention_heads` does not divide `hidden_size`, the input
      is not `hidden_size` wide, or layers are recomputed with random dropout
      masks.
  """
  compute = compute or Compute()
  input_shape = get_shape_list(input_tensor, expected_rank=3)
  *rows_shape, width = input_shape  # [B, S]; of unpadded rows [1, R]
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

  def to_sequence(hidden):  # [R, H] to [B, S, H]
    return compute.pad_output(reshape_from_matrix(hidden, input_shape))

  def project(inputs, units, activation=None):
    return dense(inputs, units, activation, initializer_range, compute=compute)

  def add_and_norm(output, residual):
    return compute.add_and_norm(
      output, residual, hidden_dropout_prob, dropout_seed, layer_norm_eps
    )

  def at(positions, hidden):  # [R, H] to [B * P, H]
    states = reshape_from_matrix(hidden, input_shape)
    return compute.gather_positions(states, positions)

  def layer(hidden, *biases, positions=None):
    """[R, H] to [R, H], or with `positions` [B, P] to [B * P, H]."""
    queries, query_shape = hidden, rows_shape
    if positions is not None:
      queries, query_shape = at(positions, hidden), get_shape_list(positions)
      biases = tuple(biases_at(positions, bias) for bias in biases)
    with tf.variable_scope("attention"):
      with tf.variable_scope("self"):
        context = attention_layer(
          queries,
          hidden,
          num_attention_heads=num_attention_heads,
          size_per_head=hidden_size // num_attention_heads,
          attention_probs_dropout_prob=attention_probs_dropout_prob,
          initializer_range=initializer_range,
          do_return_2d_tensor=True,
          batch_size=query_shape[0],
          from_seq_length=query_shape[1],
          to_seq_length=rows_shape[1],
          dropout_seed=dropout_seed,
          compute=compute,
          score_biases=biases,
          unpadded_queries=positions is None,
        )
      with tf.variable_scope("output"):
        attention_output = add_and_norm(project(context, hidden_size), queries)
    with tf.variable_scope("intermediate"):
      intermediate = project(
        attention_output, intermediate_size, intermediate_act_fn
      )
    with tf.variable_scope("output"):
      return add_and_norm(project(intermediate, hidden_size), attention_output)

  # Hidden states stay matrices: reshaping them in each layer is slow on a TPU.
  hidden = reshape_to_matrix(input_tensor)  # [R, H]
  is_repeatable = dropout_seed is not None or not (
    hidden_dropout_prob or attention_probs_dropout_prob
  )
  if attention_mask is not None:
    score_biases = (attention_bias(attention_mask), *score_biases)
  picks = output_positions is not None and compute.skips_positions
  layer_outputs = []
  for index in range(num_hidden_layers):
    is_last = index == num_hidden_layers - 1
    positions = output_positions if picks and is_last else None
    with tf.variable_scope(f"layer_{index}") as scope:
      layer_fn = functools.partial(layer, positions=positions)
      inputs = hidden, *score_biases
      hidden = compute.run_layer(layer_fn, inputs, scope, is_repeatable)
    layer_outputs.append(hidden)

  lower_outputs = layer_outputs[:-1] if do_return_all_layers else []
  outputs = [to_sequence(output) for output in lower_outputs]
  if output_positions is None:
    outputs.append(to_sequence(hidden))  # [B, S, H]
  else:
    if not picks:
      hidden = at(output_positions, hidden)
    shape = [*get_shape_list(output_positions), width]
    outputs.append(reshape_from_matrix(hidden, shape))  # [B, P, H]
  return outputs if do_return_all_layers else outputs[-1]


def biases_at(positions, bias):
  """The rows of a bias at the queries [B, P]; one for all queries stays."""
  if bias.shape.as_list()[2] == 1:
    return bias
  rows = tf.transpose(bias, [0, 2, 1, 3])  # [B or 1, F, 1 or N, T]
  if rows.shape.as_list()[0] == 1:
    rows = tf.gather(rows[0], positions)
  else:
    rows = tf.gather(rows, positions, batch_dims=1)
  return tf.transpose(rows, [0, 2, 1, 3])  # [B, 1 or N, P, T]


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
  compute: Compute | None = None,
  score_biases: tuple = (),
  unpadded_queries: bool = True,
):
  """Multi-head attention (Vaswani et al. 2017, section 3.2.2).

  Queries come from `from_tensor`; keys and values from `to_tensor`. In
  self-attention the two are the same tensor. Each head has its own queries,
  keys and values: D columns of three learned projections.

  Args:
    from_tensor: float [B, F, from_width] or [B * F, from_width].
    to_tensor: float [B, T, to_width] or [B * T, to_width].
    attention_mask: [B, F, T] or [B, 1, T], 1 where a query may attend to a
      key, 0 where not; None for all ones.
    num_attention_heads: N.
    size_per_head: D.
    query_act: activation of the queries, or None.
    key_act: activation of the keys, or None.
    value_act: activation of the values, or None.
    attention_probs_dropout_prob: dropout of the attention probabilities.
    initializer_range: standard deviation of the initial weights.
    do_return_2d_tensor: whether to return a matrix.
    batch_size: B; required with matrices.
    from_seq_length: F; required with matrices.
    to_seq_length: T; required with matrices.
    dropout_seed: see `dropout`.
    compute: None for the plain `Compute()`.
    score_biases: see `dot_product_attention`.
    unpadded_queries: whether `compute` removes padding of `from_tensor` too.

  Returns:
    float [B, F, N * D], or with `do_return_2d_tensor` [B * F, N * D].

  Raises:
    ValueError: inputs of other ranks, or matrices without B, F or T.
  """
  for tensor in (from_tensor, to_tensor):
    assert_rank(tensor, [2, 3])
  if from_tensor.shape.rank != to_tensor.shape.rank:
    raise ValueError("from_tensor and to_tensor must be of the same rank")
  if from_tensor.shape.rank == 3:
    batch_size, from_seq_length, _ = get_shape_list(from_tensor)
    to_seq_length = get_shape_list(to_tensor)[1]
  elif None in (batch_size, from_seq_length, to_seq_length):
    raise ValueError("Matrices need batch_size, from_seq_length, to_seq_length")
  width = num_attention_heads * size_per_head
  compute = compute or Compute()
  of_queries = compute if unpadded_queries else Compute()

  def project(matrix, activation, name):
    return dense(matrix, width, activation, initializer_range, name, compute)

  # A query says what a position looks for, a key what a position offers, and a
  # value what it passes on to the positions that attend to it.
  from_matrix = reshape_to_matrix(from_tensor)  # [B * F, from_width]
  to_matrix = reshape_to_matrix(to_tensor)  # [B * T, to_width]
  query = project(from_matrix, query_act, "query")  # [B * F, N * D]
  key = project(to_matrix, key_act, "key")  # [B * T, N * D]
  value = project(to_matrix, value_act, "value")  # [B * T, N * D]

  from_shape = batch_size, from_seq_length, num_attention_heads
  to_shape = batch_size, to_seq_length, num_attention_heads
  query = of_queries.split_heads(query, *from_shape)  # [B, N, F, D]
  key = compute.split_heads(key, *to_shape)  # [B, N, T, D]
  value = compute.split_heads(value, *to_shape)  # [B, N, T, D]

  if attention_mask is not None:
    score_biases = (attention_bias(attention_mask), *score_biases)
  drops = attention_probs_dropout_prob, dropout_seed
  context = compute.attend(query, key, value, score_biases, *drops)
  context = of_queries.merge_heads(context)  # [B * F, N * D]
  if do_return_2d_tensor:
    return context
  return tf.reshape(context, [batch_size, from_seq_length, width])


def dot_product_attention(
  query,
  key,
  value,
  attention_mask=None,
  dropout_prob: float = 0.0,
  dropout_seed=None,
  score_biases: tuple = (),
):
  """Attention of every head: softmax(query key^T / sqrt(D) + biases) value.

  Args:
    query: float [B, N, F, D].
    key: float [B, N, T, D].
    value: float [B, N, T, D].
    attention_mask: see `attention_layer`.
    dropout_prob: dropout of the attention probabilities.
    dropout_seed: see `dropout`.
    score_biases: float32 [B or 1, 1 or N, F or 1, T] each, added to the scores
      beside the bias of the mask.

  Returns:
    [B, N, F, D], dtype of `value`: for each query the average of the values,
    weighted by the attention probabilities.
  """
  # Scores are divided by sqrt(D); otherwise their variance would grow with D.
  # Scaling the queries gives the same result on a smaller tensor.
  query *= 1.0 / math.sqrt(query.shape.as_list()[-1])
  # Similarity of each query to each key: their dot product.
  scores = tf.matmul(query, key, transpose_b=True)  # [B, N, F, T]
  scores = tf.cast(scores, tf.float32)
  if attention_mask is not None:
    score_biases = (attention_bias(attention_mask), *score_biases)
  for bias in score_biases:
    scores += bias  # [B, N, F, T]
  probs = tf.nn.softmax(scores)  # [B, N, F, T], sums to 1 over T
  # Dropping a probability hides one key from one query.
  probs = dropout(probs, dropout_prob, dropout_seed)
  return tf.matmul(tf.cast(probs, value.dtype), value)  # [B, N, F, D]


def attention_bias(attention_mask):
  """Bias of the scores from a mask [B, F or 1, T]: float32 [B, 1, F or 1, T].

  Adding -10000 to the score of a masked key makes its probability 0. With -inf,
  a query whose keys are all masked would become NaN.
  """
  is_masked = 1.0 - tf.cast(attention_mask, tf.float32)
  return tf.expand_dims(is_masked, 1) * -10000.0


def dense(
  inputs,
  units: int,
  activation: Callable | None = None,
  initializer_range: float = 0.02,
  name: str = "dense",
  compute: Compute | None = None,
):
  """A fully connected layer, [..., units], in the dtype of its inputs.

  Args:
    inputs: float [..., width]; the width must be known.
    units: width of the output.
    activation: applied to the output, or None.
    initializer_range: standard deviation of the initial kernel.
    name: variable scope of `kernel` [width, units] and `bias` [units].
    compute: None for the plain `Compute()`.
  """
  width = inputs.shape.as_list()[-1]
  with tf.variable_scope(name):
    weights = dense_weights(width, units, initializer_range)
    matrix = reshape_to_matrix(inputs)
    output = (compute or Compute()).dense(matrix, *weights, activation)
    if matrix is inputs:
      return output
    return reshape_from_matrix(output, get_shape_list(inputs))


def dense_weights(width: int, units: int, initializer_range: float):
  """Variables `kernel` [width, units] and `bias` [units] of the scope."""
  initializer = create_initializer(initializer_range)
  kernel = tf.get_variable("kernel", [width, units], initializer=initializer)
  bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
  return kernel, bias


def add_bias(product, bias, is_training: bool = True):
  """Adds a bias [units] to the rows of a matrix product [R, units]."""
  # In bfloat16 on a CPU, the gradient of `bias_add` is summed in bfloat16: it
  # stops at 256 times its addend (TensorFlow 2.15 to 2.23). But TensorFlow
  # fuses a product with `bias_add` and GELU, and not with a sum and GELU.
  if is_training and product.dtype == tf.bfloat16:
    return product + bias
  return tf.nn.bias_add(product, bias)


def layer_norm(input_tensor, name: str | None = None, epsilon: float = 1e-12):
  """Layer normalization over the last axis (Ba et al. 2016).

  Args:
    input_tensor: float [..., H].
    name: scope of `beta` and `gamma`, both [H]; None for a new "LayerNorm".
    epsilon: added to the variance.

  Returns:
    Shape and dtype of `input_tensor`: each vector normalized to mean 0 and
    variance 1, times `gamma`, plus `beta`. Computed in float32.
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
  with tf.name_scope("moments"):  # tf.nn.moments changed in TensorFlow 2.22
    mean = tf.reduce_mean(vectors, [-1], keepdims=True, name="mean")
    squares = tf.math.squared_difference(vectors, tf.stop_gradient(mean))
    variance = tf.reduce_mean(squares, [-1], keepdims=True, name="variance")
  with tf.name_scope("batchnorm"):  # existing code looks up this name
    scale = tf.math.rsqrt(variance + epsilon) * gamma
    return (vectors - mean) * scale + beta


def layer_norm_and_dropout(
  input_tensor,
  dropout_prob: float | None,
  name: str | None = None,
  dropout_seed=None,
  epsilon: float = 1e-12,
):
  """`layer_norm`, then `dropout`, of float [..., H]."""
  output = layer_norm(input_tensor, name, epsilon)
  return dropout(output, dropout_prob, dropout_seed)


def dropout(input_tensor, dropout_prob: float | None, dropout_seed=None):
  """Dropout (Srivastava et al. 2014); with a seed, stateless.

  Args:
    input_tensor: float, any shape.
    dropout_prob: probability of dropping an element; None or 0 for no dropout.
    dropout_seed: None for a random dropout mask, or a pair: the run's seed, an
      int, and the step, an integer tensor []. The mask is then a function of
      seed, step and variable scope, so that a step that is run again drops the
      same elements. A scope has at most one dropout.

  Returns:
    Shape and dtype of the input; kept elements divided by 1 - dropout_prob.
  """
  if not dropout_prob:
    return input_tensor
  key, step = dropout_key(dropout_seed)
  if key is None:
    return tf.nn.dropout(input_tensor, rate=dropout_prob)
  return tf.nn.experimental.stateless_dropout(
    input_tensor, rate=dropout_prob, seed=[key, tf.cast(step, tf.int32)]
  )


def dropout_key(dropout_seed):
  """Stateless dropout seed of a scope: (key, step), or (None, None)."""
  if dropout_seed is None:
    return None, None
  run_seed, step = dropout_seed
  name = f"{run_seed} {tf.get_variable_scope().name}"
  return zlib.crc32(name.encode()) & 0x7FFFFFFF, step


# Task heads


def masked_lm_logits(
  config: BertConfig, sequence_output, embedding_table, positions=None
):
  """Masked-LM logits at each masked position (Devlin et al. 2019, section 3.1).

  Args:
    config: hyperparameters of the encoder.
    sequence_output: float [B, S, H].
    embedding_table: float [V, embedding_size].
    positions: int32 [B, P], see `gather_positions`; None if `sequence_output`
      already holds the masked positions only, S = P.

  Returns:
    float [B * P, V].
  """
  if positions is None:
    width = sequence_output.shape.as_list()[-1]
    states = tf.reshape(sequence_output, [-1, width])
  else:
    states = gather_positions(sequence_output, positions)
  # The transform lets hidden states be other than word embeddings, which are
  # the output weights too; it serves pretraining alone.
  with tf.variable_scope("cls/predictions"):
    with tf.variable_scope("transform"):
      states = dense(
        states,
        embedding_table.shape.as_list()[-1],
        get_activation(config.hidden_act),
        config.initializer_range,
      )
      states = layer_norm(states, epsilon=config.layer_norm_eps)
    output_bias = tf.get_variable(
      "output_bias", [config.vocab_size], initializer=tf.zeros_initializer()
    )
    table = tf.cast(embedding_table, states.dtype)
    logits = tf.matmul(states, table, transpose_b=True)
    return add_bias(logits, tf.cast(output_bias, states.dtype))


def gather_positions(sequence, positions):
  """Gathers the hidden states [B, S, H] at `positions` of each sequence.

  Positions are int32 [B, P], each in [0, S); padding slots hold 0. Row
  b * P + p of the result, [B * P, H], is sequence[b, positions[b, p]].
  """
  batch_size, seq_length, width = get_shape_list(sequence, expected_rank=3)
  starts = tf.range(batch_size) * seq_length  # [B], first row per sequence
  rows = tf.cast(positions, tf.int32) + starts[:, tf.newaxis]  # [B, P]
  return take_rows(tf.reshape(sequence, [-1, width]), tf.reshape(rows, [-1]))


def next_sentence_logits(config: BertConfig, pooled_output):
  """Next-sentence logits of the pooled output [B, H] (Devlin et al. 2019, 3.1).

  Returns float [B, 2]: logits of "the second segment follows the first" (0) and
  of "it is a random one" (1).
  """
  with tf.variable_scope("cls/seq_relationship"):
    return _output_layer(pooled_output, 2, config.initializer_range)


def classification_logits(
  pooled_output, num_labels: int, dropout_prob: float = 0.0, dropout_seed=None
):
  """Classification logits of a sequence; with one label, a regression value.

  Args:
    pooled_output: float [B, H].
    num_labels: number of labels.
    dropout_prob: dropout of `pooled_output`; 0 outside training.
    dropout_seed: see `dropout`.

  Returns:
    float [B, num_labels].
  """
  pooled_output = dropout(pooled_output, dropout_prob, dropout_seed)
  return _output_layer(pooled_output, num_labels)


def token_classification_logits(
  sequence_output, num_labels: int, dropout_prob: float = 0.0, dropout_seed=None
):
  """Classification logits of each token: [B, S, H] to [B, S, num_labels]."""
  return classification_logits(
    sequence_output, num_labels, dropout_prob, dropout_seed
  )


def span_logits(sequence_output):
  """Answer-span logits (Devlin et al. 2019, section 4.2).

  Args:
    sequence_output: float [B, S, H].

  Returns:
    Two float [B, S]: start logits and end logits.
  """
  with tf.variable_scope("cls/squad"):
    logits = _output_layer(sequence_output, 2)  # [B, S, 2]
  return logits[:, :, 0], logits[:, :, 1]


def _output_layer(inputs, num_outputs: int, initializer_range: float = 0.02):
  """Linear output layer with weights [num_outputs, H]: [..., num_outputs]."""
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
  logits = add_bias(logits, tf.cast(output_bias, inputs.dtype))
  return tf.reshape(logits, [*shape[:-1], num_outputs])


# Losses


def cross_entropy(logits, label_ids):
  """Cross-entropy loss of each example.

  Args:
    logits: float [num_examples, num_labels].
    label_ids: int [num_examples]; an id outside [0, num_labels) has loss 0.

  Returns:
    The losses, float32 [num_examples], and the log probabilities, float32
    [num_examples, num_labels].
  """
  log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32), axis=-1)
  labels = tf.one_hot(label_ids, get_shape_list(logits)[-1], dtype=tf.float32)
  # With `keepdims` the gradient needs no shape that a GPU would compute.
  sums = tf.reduce_sum(labels * log_probs, axis=-1, keepdims=True)
  return -tf.squeeze(sums, axis=-1), log_probs


def weighted_mean(losses, weights, total_weight=None):
  """Weighted mean of losses; 0 if all weights are 0.

  Args:
    losses: float32 [num_examples].
    weights: float [num_examples], at least 0; padding has 0.
    total_weight: float [], the divisor; None for the sum of `weights`.

  Returns:
    float32 []. As in google-research/bert, 1e-5 is added to the divisor.
  """
  weights = tf.cast(weights, losses.dtype)
  if total_weight is None:
    total_weight = tf.reduce_sum(weights)
  return tf.reduce_sum(weights * losses) / (total_weight + 1e-5)


# Checkpoints and tensor shapes


def get_assignment_map_from_checkpoint(
  tvars: Iterable, init_checkpoint: str
) -> tuple[collections.OrderedDict, dict[str, int]]:
  """Matches variables of the graph with those of a checkpoint, by name.

  Args:
    tvars: variables of the graph.
    init_checkpoint: path of the checkpoint.

  Returns:
    The assignment map for `tf.train.init_from_checkpoint`, from names in the
    checkpoint to the same names in the graph; and a dictionary whose keys are
    the names of the variables found, with and without ":0".
  """
  names = {re.sub(r":\d+$", "", variable.name) for variable in tvars}
  stored = [name for name, _ in tf.train.list_variables(init_checkpoint)]
  found = [name for name in stored if name in names]
  assignment_map = collections.OrderedDict((name, name) for name in found)
  initialized = {n: 1 for name in found for n in (name, name + ":0")}
  return assignment_map, initialized


def reshape_to_matrix(input_tensor):
  """Reshapes [..., width] to a matrix [R, width]; a matrix is unchanged."""
  rank = input_tensor.shape.rank
  if rank < 2:
    raise ValueError(f"Expected at least two axes, not {input_tensor.shape}")
  if rank == 2:
    return input_tensor
  return tf.reshape(input_tensor, [-1, input_tensor.shape.as_list()[-1]])


def reshape_from_matrix(output_tensor, orig_shape_list: list):
  """Undoes `reshape_to_matrix` for a tensor that had this shape list.

  The last axis may have another size. A matrix is unchanged.
  """
  if len(orig_shape_list) == 2:
    return output_tensor
  width = get_shape_list(output_tensor)[-1]
  return tf.reshape(output_tensor, [*orig_shape_list[:-1], width])


def get_shape_list(
  tensor, expected_rank: int | list[int] | None = None, name: str | None = None
) -> list:
  """Shape of a tensor as a list: ints where known, else scalar tensors.

  Args:
    tensor: any tensor or variable of known rank.
    expected_rank: required rank, or a list of allowed ranks.
    name: name of the tensor in the error message.

  Returns:
    One entry per axis.

  Raises:
    ValueError: the rank is not an expected one.
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
  """Raises ValueError if the rank is not expected; see `get_shape_list`."""
  ranks = [expected_rank] if isinstance(expected_rank, int) else expected_rank
  if tensor.shape.rank not in ranks:
    expected = " or ".join(map(str, ranks))
    raise ValueError(
      f"{name or tensor.name} {tensor.shape} must be of rank {expected}"
    )
