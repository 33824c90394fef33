"""Estimator and TPUEstimator for every TensorFlow from 2.15 on.

    from bertlib import estimator_api as tf_estimator

provides the same names on each. They come from the package
`tensorflow-estimator` 2.15.0. After 2.15 TensorFlow removed five private
objects that this package imports, and moved tf.keras to Keras 3, which the
package does not support. This module, and no other in the project,

- checks what the packages can do; errors contain the pip command that fixes
  them;
- switches tf.keras to Keras 2 for the whole process, even if TensorFlow is
  already imported;
- installs stand-ins for the removed objects. None of the five matters for a run
  on CPU or GPU without tf.distribute. A comment at each stand-in says what the
  original did and what the stand-in does.

The file imports nothing of this project and can be copied into another one: see
docs/how_to/tf_estimator.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import types
from importlib import metadata
from typing import Any

try:
  import tensorflow as tf
except ModuleNotFoundError as error:
  raise ImportError(
    f"TensorFlow 2.15 or newer is needed ({error}): pip install"
    ' "tensorflow>=2.15"'
  ) from error

_NEWEST_TESTED = "2.22"

_RELEASE = ".".join(tf.__version__.split(".")[:2])
# TensorFlow 2.15 is the last with Estimator and the last with Keras 2.
_IS_2_15 = _RELEASE == "2.15"


def _minor(release: str) -> int:
  """15 for "2.15"."""
  return int(release.split(".")[1])


def _check_release(release: str) -> None:
  """Warns of a TensorFlow newer than tested; ImportError before 2.15."""
  if _minor(release) < 15:
    raise ImportError(
      f"Estimator needs TensorFlow 2.15 or newer, not {release}:"
      ' pip install "tensorflow>=2.15"'
    )
  if _minor(release) > _minor(_NEWEST_TESTED):
    logging.getLogger(__name__).warning(
      "Estimator has not been tested on TensorFlow %s, only on 2.15 to %s",
      release,
      _NEWEST_TESTED,
    )


def _unusable(package: str, problem: Exception | str) -> ImportError:
  """Error for a package that is missing or fails; names the fix."""
  try:
    found = metadata.version(package)
  except metadata.PackageNotFoundError:
    found = "none"
  if isinstance(problem, Exception):
    problem = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
  fixes = {
    "keras": "keras~=2.15.0",
    # A newer one may need a newer TensorFlow.
    "tf-keras": f"tf-keras<2.{_minor(_RELEASE) + 1}",
    "tensorflow-estimator": "tensorflow-estimator==2.15.0",
    "protobuf": "protobuf<7",
  }
  # Without --no-deps, tf-keras would install the package `tensorflow` on top of
  # `tensorflow-cpu`.
  return ImportError(
    f"Estimator on TensorFlow {_RELEASE} cannot use {package}, found {found}"
    f' ({problem}): pip install --no-deps "{fixes[package]}"'
  )


def _check_protobuf() -> None:
  """Writes an empty graph, to memory, as Estimator writes that of a model."""
  try:
    tf.io.write_graph(tf.compat.v1.GraphDef(), "ram://", "graph.pbtxt")
  except TypeError as error:
    # TensorFlow 2.20 passes an argument that protobuf 7 removed.
    raise _unusable("protobuf", error) from error


def _select_keras_2() -> None:
  """Switches tf.keras to Keras 2 for the whole process."""
  # TensorFlow reads this variable at the first use of tf.keras, not at import.
  # 2.15 contains Keras 2, and works without the package tf-keras.
  if not _IS_2_15:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
  package = "keras" if _IS_2_15 else "tf-keras"
  try:
    # Only Keras 3 has `ops`. Keras 2 takes a second to import: only where any
    # Keras is imported, or none is installed, is it worth a look.
    is_keras_3 = (
      "keras" in sys.modules or not importlib.util.find_spec("tf_keras")
    ) and (hasattr(tf.keras, "ops") or hasattr(tf.compat.v1.keras, "ops"))
  except Exception as error:
    raise _unusable(package, error) from error
  if is_keras_3 and _IS_2_15:
    raise _unusable(package, "it is Keras 3")
  if is_keras_3:
    # The first use of tf.keras in a process selects Keras 3 for good.
    raise RuntimeError(
      "Keras 3 is already in use in this process, but Estimator needs Keras 2:"
      f" import {__name__} before modules that use tf.keras"
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
  """Completes a RunConfig that has a tf.distribute strategy."""
  # These may need the distribute coordinator, which TensorFlow removed.
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


_PACKAGE = "tensorflow_estimator"


def _load(module: str) -> types.ModuleType:
  """Imports a module of the package."""
  try:
    return importlib.import_module(f"{_PACKAGE}.{module}")
  except Exception as error:
    raise _unusable("tensorflow-estimator", error) from error


def _defer_canned_estimators() -> None:
  """Puts the package into `sys.modules` without importing all of it."""
  # Its `__init__` imports canned estimators, and with them Keras 2: a second.
  if _PACKAGE not in sys.modules and (
    spec := importlib.util.find_spec(_PACKAGE)
  ):
    package = importlib.util.module_from_spec(spec)
    package.__getattr__ = __getattr__
    sys.modules[_PACKAGE] = package


def __getattr__(name: str) -> types.ModuleType:
  if name != "estimator":
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return tf.compat.v1.estimator if _IS_2_15 else _load("_api.v1.estimator")


_check_release(_RELEASE)
_select_keras_2()
_check_protobuf()
_install_stand_ins()
_defer_canned_estimators()

# `estimator`, the whole API as `tf.estimator` was in TensorFlow 1, is imported
# at its first use.
_own, _tpu = _load("python.estimator.estimator"), "python.estimator.tpu"

Estimator = _own.Estimator
EstimatorSpec = _load("python.estimator.model_fn").EstimatorSpec
EstimatorRunConfig = _own.run_config.RunConfig
ModeKeys = _own.ModeKeys
NanLossDuringTrainingError = tf.compat.v1.train.NanLossDuringTrainingError

TPUEstimator = _load(f"{_tpu}.tpu_estimator").TPUEstimator
TPUEstimatorSpec = _load(f"{_tpu}.tpu_estimator").TPUEstimatorSpec
TPUConfig = _load(f"{_tpu}.tpu_config").TPUConfig
InputPipelineConfig = _load(f"{_tpu}.tpu_config").InputPipelineConfig
RunConfig = _load(f"{_tpu}.tpu_config").RunConfig
