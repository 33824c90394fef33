"""Names of TensorFlow 1, for scripts that were written for it.

    from bertlib import tensorflow_1 as tf

in place of `import tensorflow as tf` gives a script

- every name of `tensorflow.compat.v1`;
- `tf.estimator`, which TensorFlow removed after 2.15;
- those parts of `tf.contrib` that BERT scripts used. TensorFlow 2 has them
  under other names, which `contrib` below shows.

Importing this module switches the whole process to the behavior of TensorFlow 1
(graphs, sizes of shapes as `Dimension`, reference variables, its log) and to
Keras 2.
"""

# Imports are private: TensorFlow has names such as `tf.logging`.
import logging as _logging
import types as _types

import tensorflow.compat.v1 as _tf

from bertlib.estimator_api import estimator

_tf.disable_v2_behavior()
# Otherwise `tf.app.run` shows each line of TensorFlow's log twice.
_logging.getLogger("tensorflow").propagate = False


def __getattr__(name: str):
  return getattr(_tf, name)


def _layer_norm(
  inputs, *, begin_norm_axis: int, begin_params_axis: int, scope=None
):
  """Layer normalization over the last axis, `epsilon` 1e-12.

  Not `modeling.layer_norm`: a script that needs this one has a `modeling` of
  its own.

  Args:
    inputs: float [..., H].
    begin_norm_axis: -1, as in every BERT model.
    begin_params_axis: -1.
    scope: variable scope of `beta` and `gamma`, both [H]; None for "LayerNorm".

  Returns:
    Shape and dtype of `inputs`.

  Raises:
    ValueError: another axis.
  """
  if (begin_norm_axis, begin_params_axis) != (-1, -1):
    raise ValueError(
      "tf.contrib.layers.layer_norm: only begin_norm_axis=-1 and"
      " begin_params_axis=-1 are supported."
    )
  with _tf.variable_scope(scope, "LayerNorm"):
    weights = {"shape": inputs.shape[-1:], "dtype": inputs.dtype}
    beta = _tf.get_variable(
      "beta", **weights, initializer=_tf.zeros_initializer()
    )
    gamma = _tf.get_variable(
      "gamma", **weights, initializer=_tf.ones_initializer()
    )
    mean, variance = _tf.nn.moments(inputs, [-1], keepdims=True)
    return _tf.nn.batch_normalization(
      inputs, mean, variance, beta, gamma, variance_epsilon=1e-12
    )


class _Contrib(_types.SimpleNamespace):
  """A module of `tf.contrib`; the error for other names says where to look."""

  def __getattr__(self, name: str):
    raise AttributeError(
      f"tf.contrib: bertlib.tensorflow_1 has no replacement for {name!r}."
      " docs/how_to/tensorflow_1_scripts.md lists those that it has."
    )


contrib = _Contrib(
  cluster_resolver=_tf.distribute.cluster_resolver,
  compiler=_Contrib(
    jit=_Contrib(experimental_jit_scope=_tf.xla.experimental.jit_scope)
  ),
  data=_tf.data.experimental,
  distribute=_tf.distribute,
  layers=_Contrib(
    layer_norm=_layer_norm, xavier_initializer=_tf.glorot_uniform_initializer
  ),
  tpu=_Contrib(
    **{
      name: getattr(module, name)
      for module in (_tf.tpu, estimator.tpu)
      for name in dir(module)
      if not name.startswith("_")
    }
  ),
  training=_Contrib(checkpoints_iterator=_tf.train.checkpoints_iterator),
)
