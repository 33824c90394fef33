"""Functions and classes of `tf.contrib` that TensorFlow 2 does not have.

Arguments, and names of variables, are as in TensorFlow 1.
"""

from __future__ import annotations

from tensorflow.python.ops import lookup_ops

from . import estimator_api

tf = estimator_api.tf.compat.v1  # with Keras 2


def layer_norm(
  inputs,
  center=True,
  scale=True,
  activation_fn=None,
  reuse=None,
  variables_collections=None,
  outputs_collections=None,
  trainable=True,
  begin_norm_axis=1,
  begin_params_axis=-1,
  scope=None,
):
  """Layer normalization over the axes from `begin_norm_axis` on.

  Not `modeling.layer_norm`: a script that needs this one has a `modeling` of
  its own. `variables_collections` is a list, or a dictionary of lists by name.
  """
  inputs = tf.convert_to_tensor(inputs)
  rank = inputs.shape.rank
  if rank is None or max(begin_norm_axis, begin_params_axis) >= rank:
    raise ValueError(f"layer_norm: an axis is not in shape {inputs.shape}.")

  def variable(name, initializer):
    more = variables_collections or ()
    more = more.get(name, ()) if isinstance(more, dict) else more
    return tf.get_variable(
      name,
      inputs.shape[begin_params_axis:],
      inputs.dtype,
      initializer,
      trainable=trainable,
      collections=[*{*more, "variables", "model_variables"}],
    )

  with tf.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
    beta = variable("beta", tf.zeros_initializer()) if center else None
    gamma = variable("gamma", tf.ones_initializer()) if scale else None
    # tf.nn.moments is another formula from TensorFlow 2.22 on.
    axes = [*range(rank)][begin_norm_axis:]
    mean = tf.reduce_mean(inputs, axes, keepdims=True)
    squares = tf.math.squared_difference(inputs, tf.stop_gradient(mean))
    variance = tf.reduce_mean(squares, axes, keepdims=True)
    epsilon = 1e-3 if inputs.dtype == tf.float16 else 1e-12
    outputs = tf.nn.batch_normalization(
      inputs, mean, variance, beta, gamma, variance_epsilon=epsilon
    )
    outputs = activation_fn(outputs) if activation_fn else outputs
  tf.add_to_collections(outputs_collections or (), outputs)
  return outputs


class MirroredStrategy(tf.distribute.MirroredStrategy):
  """`tf.distribute.MirroredStrategy` over the first `num_gpus` GPUs."""

  def __init__(
    self, devices=None, num_gpus=None, num_gpus_per_worker=None, **options
  ):
    num_gpus = num_gpus_per_worker if num_gpus is None else num_gpus
    if devices is None and num_gpus is not None:
      found = tf.config.experimental.list_logical_devices("GPU")
      # Training on devices that do not exist would wait forever.
      if num_gpus > len(found):
        tf.logging.warning(
          "num_gpus: asks for %d, but %d are visible.", num_gpus, len(found)
        )
      devices = [gpu.name for gpu in found[:num_gpus]] or ["/cpu:0"]
    across = options.get("cross_device_ops") or options.get("cross_tower_ops")
    super().__init__(devices, across)


def _of_mapping(table):
  return lambda mapping, *args, **kwargs: table(mapping, *args, **kwargs)


LOOKUP = {
  "HashTable": tf.lookup.StaticHashTable,
  **{
    name: _of_mapping(getattr(lookup_ops, name))
    for name in ("index_table_from_tensor", "index_to_string_table_from_tensor")
  },
}


class SavedModelPredictor:
  """Function from inputs to outputs of a SavedModel, both dictionaries."""

  def __init__(
    self, export_dir, signature_def_key=None, *, tags=None, **session
  ):
    key = signature_def_key or "serving_default"
    self.session = tf.Session(**{"graph": tf.Graph(), **session})
    self.graph = self.session.graph
    with self.graph.as_default():
      signatures = tf.saved_model.load(
        self.session, (tags or "serve").split(","), export_dir
      ).signature_def
    if key not in signatures:
      known = ", ".join(signatures)
      raise ValueError(f"{export_dir}: no signature {key!r}, only {known}.")
    self.feed_tensors, self.fetch_tensors = (
      {k: self.graph.get_tensor_by_name(info.name) for k, info in part.items()}
      for part in (signatures[key].inputs, signatures[key].outputs)
    )

  def __call__(self, input_dict):
    """Outputs for inputs, which are arrays."""
    unknown = [*input_dict.keys() - self.feed_tensors.keys()]
    if unknown:
      raise ValueError(f"Inputs {unknown} are not of {[*self.feed_tensors]}.")
    feeds = {self.feed_tensors[k]: value for k, value in input_dict.items()}
    return self.session.run(self.fetch_tensors, feeds)


class LSTMBlockFusedCell(tf.layers.Layer):
  """LSTM over all tokens in one operation, [S, B, ...] to [S, B, num_units]."""

  def __init__(self, num_units, forget_bias=1.0, cell_clip=None, **layer):
    layer = {"name": "lstm_fused_cell", "reuse": None, **layer}
    super().__init__(_reuse=layer.pop("reuse"), **layer)
    self.num_units, self._forget_bias = num_units, forget_bias
    self._cell_clip = -1 if cell_clip is None else cell_clip

  def build(self, input_shape):
    """Creates `kernel` and `bias`."""
    gates, zeros = 4 * self.num_units, tf.zeros_initializer()
    size = tf.dimension_value(input_shape[2]) + self.num_units
    self._kernel = self.add_weight("kernel", [size, gates])
    self._bias = self.add_weight("bias", [gates], initializer=zeros)
    self.built = True

  def call(self, inputs, initial_state=None, dtype=None, sequence_length=None):
    """Outputs, 0 at padding, and the state of the last token."""
    num_tokens, batch_size = tf.unstack(tf.shape(inputs))[:2]
    if initial_state is None:
      zeros = tf.zeros([batch_size, self.num_units], dtype or inputs.dtype)
      initial_state = zeros, zeros
    if sequence_length is None:
      sequence_length = tf.fill([batch_size], num_tokens)
    lengths = tf.cast(sequence_length, tf.int32)
    no_peephole = tf.zeros([self.num_units], inputs.dtype)
    block = tf.raw_ops.BlockLSTM(
      seq_len_max=tf.cast(tf.reduce_max(lengths), tf.int64),
      x=inputs,
      cs_prev=initial_state[0],
      h_prev=initial_state[1],
      w=self._kernel,
      b=self._bias,
      **dict.fromkeys(("wci", "wcf", "wco"), no_peephole),
      forget_bias=self._forget_bias,
      cell_clip=self._cell_clip,
    )
    mask = tf.sequence_mask(lengths, num_tokens, block.h.dtype)
    outputs = block.h * tf.transpose(mask)[:, :, tf.newaxis]
    # With the state before the first token, for sequences of length 0.
    last = tf.stack([lengths, tf.range(batch_size)], axis=1)
    state = [
      tf.gather_nd(tf.concat([first[tf.newaxis], states], axis=0), last)
      for first, states in zip(initial_state, (block.cs, outputs))
    ]
    return outputs, tf.nn.rnn_cell.LSTMStateTuple(*state)


class TimeReversedFusedRNN:
  """Runs a fused cell from the last token to the first."""

  def __init__(self, cell):
    self._cell = cell

  def __call__(
    self, inputs, initial_state=None, dtype=None, sequence_length=None, **more
  ):
    """Outputs, in the order of `inputs`, and the state of the first token."""
    if sequence_length is None:
      sequence_length = tf.fill(tf.shape(inputs)[1:2], tf.shape(inputs)[0])
    outputs, state = self._cell(
      tf.reverse_sequence(inputs, sequence_length, 0, 1),
      initial_state,
      dtype,
      sequence_length,
      **more,
    )
    return tf.reverse_sequence(outputs, sequence_length, 0, 1), state
