"""Names of TensorFlow 1, for scripts that were written for it.

    from bertlib import tensorflow_1 as tf

instead of `import tensorflow as tf` gives a script

- every name of `tensorflow.compat.v1`;
- `tf.estimator`, which TensorFlow removed after 2.15, also under the name
  `tf.compat.v1.estimator`;
- those parts of `tf.contrib` that BERT scripts used. TensorFlow 2 has them
  under other names, which `contrib` below shows.

Importing this module switches the whole process to the behavior of TensorFlow 1
(graphs, sizes of shapes as `Dimension`, reference variables, its log) and to
Keras 2. It also adds modules that other imports then find:
`tensorflow.contrib`, `tensorflow.estimator`, `tensorflow.compat.v1.estimator`
and `tensorflow.python.estimator`.
"""

# Imports are private: TensorFlow has names such as `tf.logging`.
import logging as _logging
import sys as _sys
import types as _types

import tensorflow.compat.v1 as _tf

from bertlib.compat import crf as _crf
from bertlib.compat.estimator_api import estimator

_PAGE = "docs/how_to/tensorflow_1_scripts.md"

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
  # Every BERT model has -1.
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
    # tf.nn.moments is another formula from TensorFlow 2.22 on.
    mean = _tf.reduce_mean(inputs, [-1], keepdims=True)
    squares = _tf.math.squared_difference(inputs, _tf.stop_gradient(mean))
    variance = _tf.reduce_mean(squares, [-1], keepdims=True)
    return _tf.nn.batch_normalization(
      inputs, mean, variance, beta, gamma, variance_epsilon=1e-12
    )


def _public(module) -> dict:
  """The public names of a module, with their values."""
  return {
    name: getattr(module, name)
    for name in dir(module)
    if not name.startswith("_")
  }


# TensorFlow's own has `compat.v1` without `estimator`.
compat = _types.SimpleNamespace(
  **_public(_tf.compat) | {"v1": _sys.modules[__name__]}
)


class _Contrib(_types.ModuleType):
  """A module of `tf.contrib`; the error for other names says where to look."""

  def __init__(self, name: str, **members):
    super().__init__(name)
    vars(self).update(members)
    # Python shows it where a name cannot be imported.
    self.__file__ = _PAGE

  def __getattr__(self, name: str):
    raise AttributeError(
      f"tf.contrib: {__name__} has no replacement for {name!r}."
      f" {_PAGE} lists those that it has."
    )


def _contrib(**members) -> _Contrib:
  return _Contrib("tensorflow.contrib", **members)


contrib = _contrib(
  cluster_resolver=_tf.distribute.cluster_resolver,
  compiler=_contrib(
    jit=_contrib(experimental_jit_scope=_tf.xla.experimental.jit_scope)
  ),
  crf=_crf,
  data=_tf.data.experimental,
  distribute=_tf.distribute,
  estimator=_contrib(**_public(estimator.experimental)),
  layers=_contrib(
    layer_norm=_layer_norm, xavier_initializer=_tf.glorot_uniform_initializer
  ),
  lookup=_contrib(**_public(_tf.lookup), HashTable=_tf.lookup.StaticHashTable),
  rnn=_contrib(
    **_public(_tf.nn.rnn_cell),
    static_bidirectional_rnn=_tf.nn.static_bidirectional_rnn,
    static_rnn=_tf.nn.static_rnn,
    static_state_saving_rnn=_tf.nn.static_state_saving_rnn,
  ),
  tpu=_contrib(**_public(_tf.tpu) | _public(estimator.tpu)),
  training=_contrib(checkpoints_iterator=_tf.train.checkpoints_iterator),
)


def _alias_modules() -> None:
  """Makes `import` find what TensorFlow 1 had under other names."""
  aliases = {
    "contrib": contrib,
    "contrib.layers.python.layers": _contrib(initializers=contrib.layers),
    "estimator": estimator,
    "compat.v1.estimator": estimator,
  }
  for name, module in _public(contrib).items():
    aliases[f"contrib.{name}"] = module
  for name, module in list(_sys.modules.items()):
    if name.startswith("tensorflow_estimator.python.estimator"):
      aliases[name.partition(".")[2]] = module
  for name, module in aliases.items():
    _sys.modules.setdefault(f"tensorflow.{name}", module)


_alias_modules()
