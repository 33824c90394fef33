"""Estimator and TPUEstimator for every supported TensorFlow version.

    from bertlib import estimator_api as tf_estimator

provides the same names on TensorFlow 2.15 to 2.21. They come from the package
`tensorflow-estimator` 2.15.0. After 2.15 TensorFlow removed five private
objects that this package imports, and moved tf.keras to Keras 3, which the
package does not support. This module, and no other in the project,

- checks the packages; errors contain the pip command that fixes them;
- switches tf.keras to Keras 2 for the whole process, even if TensorFlow is
  already imported;
- installs stand-ins for the removed objects. None of the five matters for a run
  on CPU or GPU without tf.distribute. A comment at each stand-in says what the
  original did and what the stand-in does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from importlib import metadata
from typing import Any

try:
  import tensorflow as tf
  from packaging.specifiers import SpecifierSet
except ModuleNotFoundError as error:
  raise ImportError(
    f"TensorFlow 2.15 to 2.21, for Python 3.9 to 3.13, is needed ({error}):"
    ' pip install "tensorflow>=2.15,<2.22"'
  ) from error

_RELEASE = ".".join(tf.__version__.split(".")[:2])


def _check_packages(release: str) -> None:
  """Checks that the packages that Estimator needs are installed and compatible.

  Args:
    release: TensorFlow's major and minor version, such as "2.21".

  Raises:
    ImportError: the release is not supported, or a package is missing or of the
      wrong version. The message ends with the pip command that fixes it.
  """
  if release not in [f"2.{minor}" for minor in range(15, 22)]:
    raise ImportError(
      f"Estimator needs TensorFlow 2.15 to 2.21, not {release}:"
      ' pip install "tensorflow>=2.15,<2.22"'
    )
  keras_2 = "keras" if release == "2.15" else "tf-keras"
  needed = {keras_2: f"~={release}.0", "tensorflow-estimator": "==2.15.0"}
  if release == "2.20":
    # TensorFlow 2.20 passes an argument that protobuf 7 removed, but its
    # requirements do not exclude protobuf 7.
    needed["protobuf"] = "<7"
  for package, versions in needed.items():
    try:
      found = metadata.version(package)
    except metadata.PackageNotFoundError:
      found = "none"
    if found == "none" or found not in SpecifierSet(versions):
      # Without --no-deps, tf-keras would install the package `tensorflow` on
      # top of `tensorflow-cpu`.
      packages = " ".join(f'"{name}{spec}"' for name, spec in needed.items())
      raise ImportError(
        f"Estimator on TensorFlow {release} needs {package}{versions}, found"
        f" {found}: pip install --no-deps {packages}"
      )


def _select_keras_2() -> None:
  """Switches tf.keras to Keras 2 for the whole process.

  Raises:
    RuntimeError: tf.keras was used before, which selected Keras 3.
  """
  # TensorFlow reads this variable at the first use of tf.keras, not at import.
  # 2.15 contains Keras 2, and works without the package tf-keras.
  if _RELEASE != "2.15":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
  # Only Keras 3 has `ops`.
  if hasattr(tf.keras, "ops") or hasattr(tf.compat.v1.keras, "ops"):
    raise RuntimeError(
      "Keras 3 is already in use in this process, but Estimator needs Keras 2:"
      " import bertlib.estimator_api before modules that use tf.keras"
      " (such as tensorflow_hub)"
    )
  # `from tensorflow.keras import ...` uses the value that the variable had when
  # TensorFlow was imported, and would select Keras 3 after all.
  sys.modules["tensorflow.keras"] = tf.keras


def _stand_in(name: str, **members: Any) -> None:
  """Installs a module with these members unless TensorFlow has one."""
  if name not in sys.modules and importlib.util.find_spec(name) is None:
    module = types.ModuleType(name, "Stands in for a module of TensorFlow 2.15")
    vars(module).update(members)
    sys.modules[name] = module


def _only_in_2_15(feature: str) -> RuntimeError:
  return RuntimeError(
    f"{feature} cannot run on TensorFlow {_RELEASE}, but can on TensorFlow 2.15"
  )


def _init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
  """Completes a RunConfig that has a tf.distribute strategy.

  Args:
    config: the RunConfig under construction.
    tf_config: value of the environment variable TF_CONFIG, parsed.

  Raises:
    RuntimeError: the settings may need the distribute coordinator.
  """
  if tf_config.get("cluster") or config._experimental_distribute:
    raise _only_in_2_15(
      "Estimator with experimental_distribute, or with a strategy and a cluster"
      " in TF_CONFIG,"
    )
  config._init_distributed_setting_from_environment_var(tf_config)


class _EmbeddingParameters:
  """Optimizer of a TPU embedding table, which this TensorFlow lacks."""

  def __init__(self, *args, **kwargs):
    raise _only_in_2_15("TPUEstimator with TPU embedding tables")


def _start_worker_watchdog(session: Any, shutdown_timeout: int) -> None:
  tf.compat.v1.logging.warning(
    "TF_TPU_WATCHDOG_TIMEOUT has no effect on TensorFlow %s: TPU workers keep"
    " running when this process dies",
    _RELEASE,
  )


def _graceful_shutdown_hook(
  checkpoint_prefix: str, on_shutdown_hooks: list[Any], saver: Any
) -> tf.compat.v1.train.SessionRunHook:
  tf.compat.v1.logging.warning(
    "TensorFlow %s does not monitor the health of TPU workers: if one is lost"
    " the run fails. Start it again to resume from its last checkpoint",
    _RELEASE,
  )
  return tf.compat.v1.train.SessionRunHook()


def _install_stand_ins() -> None:
  """Installs stand-ins for what TensorFlow removed after 2.15."""
  # The distribute coordinator, for tf.distribute on several machines. RunConfig
  # calls init_run_config if it has a strategy; train_and_evaluate asks whether
  # the coordinator should run. For a strategy on one machine the original, too,
  # only read TF_CONFIG; its other functions are called only for a config that
  # it has marked as its own.
  _stand_in(
    "tensorflow.python.distribute.estimator_training",
    init_run_config=_init_run_config,
    should_run_distribute_coordinator=lambda config: False,
  )

  # Embedding tables in TPU memory. TPUEstimator uses either module only with an
  # EmbeddingConfigSpec, whose optimizer must be an instance of one of these
  # classes. They cannot be instantiated, so that nothing else is reached.
  _stand_in(
    "tensorflow.python.tpu.tpu_embedding",
    AdagradParameters=_EmbeddingParameters,
    AdamParameters=_EmbeddingParameters,
    FtrlParameters=_EmbeddingParameters,
    MomentumParameters=_EmbeddingParameters,
    ProximalAdagradParameters=_EmbeddingParameters,
    RMSPropParameters=_EmbeddingParameters,
    StochasticGradientDescentParameters=_EmbeddingParameters,
  )
  _stand_in("tensorflow.python.tpu.tpu_embedding_gradient")

  # Heartbeats of TPU workers. Training on a TPU creates a hook that polls the
  # workers at each step. When one is about to be preempted, it saves a
  # checkpoint and calls one of three callables (TF_TPU_GRACEFUL_SHUTDOWN_MODE)
  # to shut workers down. The stand-in only warns and never calls them. Losing a
  # worker is then an error, as losing one without notice always was; the run
  # can be resumed from its last regular checkpoint.
  _stand_in(
    "tensorflow.python.tpu.session_support",
    GracefulShutdownHook=_graceful_shutdown_hook,
    ResetComputation=object,
    ShutdownAllWorkers=object,
    ShutdownLameWorkers=object,
    start_worker_watchdog=_start_worker_watchdog,
  )

  # Name of the API under which tensorflow-estimator registers its public names.
  # Only TensorFlow's generator of API modules reads that registry, and the
  # package is already generated, so that any name is fine.
  tf_export = importlib.import_module("tensorflow.python.util.tf_export")
  if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
    tf_export.ESTIMATOR_API_NAME = tf_export.TENSORFLOW_API_NAME


_check_packages(_RELEASE)
_select_keras_2()
_install_stand_ins()

# The whole API, as `tf.estimator` was in TensorFlow 1.
if _RELEASE == "2.15":
  estimator = tf.compat.v1.estimator
else:
  estimator = importlib.import_module("tensorflow_estimator").estimator

Estimator = estimator.Estimator
EstimatorSpec = estimator.EstimatorSpec
EstimatorRunConfig = estimator.RunConfig
ModeKeys = estimator.ModeKeys
NanLossDuringTrainingError = estimator.NanLossDuringTrainingError

TPUEstimator = estimator.tpu.TPUEstimator
TPUEstimatorSpec = estimator.tpu.TPUEstimatorSpec
TPUConfig = estimator.tpu.TPUConfig
InputPipelineConfig = estimator.tpu.InputPipelineConfig
RunConfig = estimator.tpu.RunConfig
