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
import importlib as _importlib
import importlib.util as _import_util
import logging as _logging
import sys as _sys
import types as _types

import tensorflow.compat.v1 as _tf
from tensorflow.python import pywrap_tensorflow
from tensorflow.python.distribute import cross_device_ops as _cross_device_ops
from tensorflow.python.ops import lookup_ops as _lookup_ops

from . import contrib as _own
from . import crf as _crf
from . import metrics as _metrics
from . import script_names as _script_names
from .estimator_api import estimator

_tf.disable_v2_behavior()
# Otherwise `tf.app.run` shows each line of TensorFlow's log twice.
_logging.getLogger("tensorflow").propagate = False


def __getattr__(name: str):
  return getattr(_tf, name)


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


_HAS_SLIM = _import_util.find_spec("tf_slim") is not None


class _Contrib(_types.ModuleType):
  """A module of `tf.contrib`; the error for other names says where to look.

  Where the package tf_slim is installed, its module `others` has further names.
  """

  def __init__(self, others: str | None = None, **members):
    super().__init__("tensorflow.contrib")
    self._others = others
    vars(self).update(members)
    # Python shows it where a name cannot be imported.
    self.__file__ = _script_names.PAGE

  def __getattr__(self, name: str):
    if self._others and _HAS_SLIM and not name.startswith("_"):
      return getattr(_importlib.import_module(self._others), name)
    raise AttributeError(
      f"tf.contrib: {__name__} has no replacement for {name!r}."
      f" {_script_names.PAGE} lists those that it has."
    )


contrib = _Contrib(
  autograph=_tf.autograph,
  cluster_resolver=_tf.distribute.cluster_resolver,
  compiler=_Contrib(
    jit=_Contrib(experimental_jit_scope=_tf.xla.experimental.jit_scope)
  ),
  crf=_crf,
  data=_tf.data.experimental,
  distribute=_Contrib(
    **_public(_tf.distribute) | {"MirroredStrategy": _own.MirroredStrategy},
    AllReduceCrossDeviceOps=_cross_device_ops.AllReduceCrossDeviceOps,
    AllReduceCrossTowerOps=_cross_device_ops.AllReduceCrossDeviceOps,
  ),
  estimator=_Contrib(**_public(estimator.experimental)),
  framework=_Contrib(others="tf_slim", nest=_tf.nest),
  keras=_tf.keras,
  layers=_Contrib(
    others="tf_slim",
    layer_norm=_own.layer_norm,
    xavier_initializer=_tf.glorot_uniform_initializer,
  ),
  linalg=_tf.linalg,
  lookup=_Contrib(**_public(_lookup_ops) | _public(_tf.lookup) | _own.LOOKUP),
  metrics=_Contrib(others="tf_slim.metrics", **_public(_metrics)),
  predictor=_Contrib(from_saved_model=_own.SavedModelPredictor),
  rnn=_Contrib(
    **_public(_tf.nn.rnn_cell),
    LSTMBlockFusedCell=_own.LSTMBlockFusedCell,
    TimeReversedFusedRNN=_own.TimeReversedFusedRNN,
    static_bidirectional_rnn=_tf.nn.static_bidirectional_rnn,
    static_rnn=_tf.nn.static_rnn,
    static_state_saving_rnn=_tf.nn.static_state_saving_rnn,
  ),
  tpu=_Contrib(**_public(_tf.tpu) | _public(estimator.tpu)),
  training=_Contrib(
    others="tf_slim.training.training",
    checkpoints_iterator=_tf.train.checkpoints_iterator,
  ),
  **({"slim": _Contrib(others="tf_slim")} if _HAS_SLIM else {}),
)


# Modules in `tensorflow.python`, and those beside them that names moved to.
_MOVED = {
  "framework.ops": ("indexed_slices", "tensor", "tensor_conversion"),
  "ops.array_ops": ("array_ops_stack",),
  "ops.control_flow_ops": (
    *("cond", "while_loop", "control_flow_assert", "control_flow_case"),
    "control_flow_switch_case",
  ),
  "ops.variables": ("ref_variable", "variable_v1"),
  "ops.variable_scope": ("resource_variables_toggle", "variable_v1"),
}


def _restore_moved_names() -> None:
  """Puts private names where scripts and tf_slim look for them."""
  for old, places in _MOVED.items():
    module = _importlib.import_module(f"tensorflow.python.{old}")
    for place in places:
      new = f"{module.__package__}.{place}"
      if _import_util.find_spec(new):  # names moved in several releases
        for name, value in _public(_importlib.import_module(new)).items():
          vars(module).setdefault(name, value)
  _sys.modules["tensorflow.python.ops.variable_scope"].variable = _tf.Variable
  pywrap_tensorflow.NewCheckpointReader = _tf.train.NewCheckpointReader
  # After 2.15 the layers of Keras 2 are not where TensorFlow looks for them.
  if "tf_keras" in _sys.modules:
    for name in ("legacy_tf_layers", "legacy_tf_layers.normalization"):
      module = _importlib.import_module(f"tf_keras.src.{name}")
      _sys.modules.setdefault(f"tf_keras.{name}", module)


def _alias_modules() -> None:
  """Makes `import` find what TensorFlow 1 had under other names."""
  aliases = {
    "contrib": contrib,
    "contrib.layers.python.layers": _Contrib(initializers=contrib.layers),
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


_restore_moved_names()
_alias_modules()
_script_names.warn_of_main()
if __name__ == "__main__":
  _script_names.main()
