"""Estimator and TPUEstimator, wherever this TensorFlow keeps them.

    from bertlib import estimator_api as tf_estimator

gives the same names on TensorFlow 2.15 and on 2.16 to 2.21. They come from
the package `tensorflow-estimator` 2.15.0 on all of them. After 2.15 TensorFlow
dropped five private things which that package imports, and moved tf.keras to
Keras 3, which it does not know. So here, and nowhere else in this project,

- the packages are checked, and what is wrong said with the command to mend it;
- tf.keras becomes Keras 2 for the whole process, whether TensorFlow was
  imported before or not;
- stand-ins go where something was dropped. None of the five does anything for
  a run on CPU or GPU without tf.distribute; what each did elsewhere, and does
  now, is written at its stand-in.
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
  """Checks that what Estimator needs beside TensorFlow is there and fits.

  Args:
    release: TensorFlow's major and minor version, "2.21".

  Raises:
    ImportError: the release is not supported, or a package is missing or of
      another version; the message ends with the pip command that cures it.
  """
  if release not in [f"2.{minor}" for minor in range(15, 22)]:
    raise ImportError(
      f"Estimator needs TensorFlow 2.15 to 2.21, not {release}:"
      ' pip install "tensorflow>=2.15,<2.22"'
    )
  keras_2 = "keras" if release == "2.15" else "tf-keras"
  needed = {keras_2: f"~={release}.0", "tensorflow-estimator": "==2.15.0"}
  if release == "2.20":
    # It passes an argument that protobuf 7 dropped, and does not say so.
    needed["protobuf"] = "<7"
  for package, versions in needed.items():
    try:
      found = metadata.version(package)
    except metadata.PackageNotFoundError:
      found = "none"
    if found == "none" or found not in SpecifierSet(versions):
      # Without --no-deps, tf-keras would bring the package `tensorflow` to
      # where `tensorflow-cpu` is.
      cure = " ".join(f'"{name}{spec}"' for name, spec in needed.items())
      raise ImportError(
        f"Estimator on TensorFlow {release} needs {package}{versions}, found"
        f" {found}: pip install --no-deps {cure}"
      )


def _select_keras_2() -> None:
  """Makes tf.keras Keras 2 for the whole process.

  Raises:
    RuntimeError: tf.keras was used before, and became Keras 3.
  """
  # TensorFlow reads this when tf.keras is first used, not when imported. 2.15
  # has Keras 2 of its own, and need not have the package the variable names.
  if _RELEASE != "2.15":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
  # Only Keras 3 has `ops`.
  if hasattr(tf.keras, "ops") or hasattr(tf.compat.v1.keras, "ops"):
    raise RuntimeError(
      "Keras 3 is already in use in this process, but Estimator needs Keras 2:"
      " import bertlib.estimator_api before what uses tf.keras"
      " (tensorflow_hub, say)"
    )
  # `from tensorflow.keras import ...` would go by what the variable was when
  # TensorFlow was imported, and make tf.keras Keras 3 after all.
  sys.modules["tensorflow.keras"] = tf.keras


def _stand_in(name: str, **members: Any) -> None:
  """Puts a module of these members at `name` if TensorFlow has none there."""
  if name not in sys.modules and importlib.util.find_spec(name) is None:
    module = types.ModuleType(name, "Stands in for a module of TensorFlow 2.15")
    vars(module).update(members)
    sys.modules[name] = module


def _only_in_2_15(what: str) -> RuntimeError:
  return RuntimeError(
    f"{what} cannot run on TensorFlow {_RELEASE}, but can on TensorFlow 2.15"
  )


def _init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
  """Completes a RunConfig that has a tf.distribute strategy.

  Args:
    config: the RunConfig under construction.
    tf_config: what the environment variable TF_CONFIG says.

  Raises:
    RuntimeError: these settings may ask for the coordinator.
  """
  if tf_config.get("cluster") or config._experimental_distribute:
    raise _only_in_2_15(
      "Estimator with experimental_distribute, or with a strategy and a cluster"
      " in TF_CONFIG,"
    )
  config._init_distributed_setting_from_environment_var(tf_config)


class _EmbeddingParameters:
  """The optimizer of a TPU embedding table, which this TensorFlow lacks."""

  def __init__(self, *args, **kwargs):
    raise _only_in_2_15("TPUEstimator with TPU embedding tables")


def _start_worker_watchdog(session: Any, shutdown_timeout: int) -> None:
  tf.compat.v1.logging.warning(
    "TF_TPU_WATCHDOG_TIMEOUT has no effect on TensorFlow %s: TPU workers go on"
    " when this process dies",
    _RELEASE,
  )


def _graceful_shutdown_hook(
  checkpoint_prefix: str, on_shutdown_hooks: list[Any], saver: Any
) -> tf.compat.v1.train.SessionRunHook:
  tf.compat.v1.logging.warning(
    "TensorFlow %s does not watch the health of TPU workers: when one is lost"
    " the run fails, and goes on from its last checkpoint if started again",
    _RELEASE,
  )
  return tf.compat.v1.train.SessionRunHook()


def _install_stand_ins() -> None:
  """Gives tensorflow-estimator what TensorFlow dropped after 2.15."""
  # The coordinator of tf.distribute on several machines. RunConfig calls
  # init_run_config if given a strategy; train_and_evaluate asks whether the
  # coordinator should run. For a strategy on one machine the real one, too,
  # only read TF_CONFIG and stayed out of the way; its other functions are
  # called only for a config that it has marked as its own.
  _stand_in(
    "tensorflow.python.distribute.estimator_training",
    init_run_config=_init_run_config,
    should_run_distribute_coordinator=lambda config: False,
  )

  # Embedding tables in TPU memory. TPUEstimator uses either module only if
  # given an EmbeddingConfigSpec, whose optimizer must be an instance of one of
  # these classes; no instance can be made, so nothing else is reached.
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

  # Heartbeats of TPU workers. Training on TPU makes a hook that asks after the
  # workers at each step and, when one is about to go, saves and calls one of
  # three callables, by TF_TPU_GRACEFUL_SHUTDOWN_MODE, to shut workers down.
  # Here the hook says that it does not watch, and never calls them. Losing a
  # worker then ends as losing one without notice always did: in an error, with
  # the last regular checkpoint to go on from.
  _stand_in(
    "tensorflow.python.tpu.session_support",
    GracefulShutdownHook=_graceful_shutdown_hook,
    ResetComputation=object,
    ShutdownAllWorkers=object,
    ShutdownLameWorkers=object,
    start_worker_watchdog=_start_worker_watchdog,
  )

  # Under which API tensorflow-estimator registers its public names. Only
  # TensorFlow's generator of API modules reads the register, and the package
  # was generated long ago, so TensorFlow's own API name does as well.
  tf_export = importlib.import_module("tensorflow.python.util.tf_export")
  if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
    tf_export.ESTIMATOR_API_NAME = tf_export.TENSORFLOW_API_NAME


_check_packages(_RELEASE)
_select_keras_2()
_install_stand_ins()

if _RELEASE == "2.15":
  _estimator = tf.compat.v1.estimator
else:
  _estimator = importlib.import_module("tensorflow_estimator").estimator

Estimator = _estimator.Estimator
EstimatorSpec = _estimator.EstimatorSpec
EstimatorRunConfig = _estimator.RunConfig
ModeKeys = _estimator.ModeKeys
NanLossDuringTrainingError = _estimator.NanLossDuringTrainingError

TPUEstimator = _estimator.tpu.TPUEstimator
TPUEstimatorSpec = _estimator.tpu.TPUEstimatorSpec
TPUConfig = _estimator.tpu.TPUConfig
InputPipelineConfig = _estimator.tpu.InputPipelineConfig
RunConfig = _estimator.tpu.RunConfig
