"""Estimator on this TensorFlow: one weight w, fitted to y = 3x.

A step of gradient descent on w is a line of NumPy, so what training,
evaluation and prediction must give is known without TensorFlow.
"""

import os
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
import tensorflow as tf

from bertlib import estimator_api

pytestmark = pytest.mark.train

tf1 = tf.compat.v1

ON_2_15 = tf.__version__.startswith("2.15.")
needs_stand_ins = pytest.mark.skipif(
  ON_2_15, reason="TensorFlow 2.15 has the real modules"
)

X = np.arange(1, 9, dtype=np.float32) / 8
Y = 3 * X
LEARNING_RATE = 0.25


def weight_after(steps):
  """Value of w after `steps` steps, each over all examples."""
  weight = 0.0
  for _ in range(steps):
    weight -= LEARNING_RATE * np.mean(2 * X * (weight * X - Y))
  return weight


class CountSteps(tf1.train.SessionRunHook):
  steps = 0

  def after_run(self, run_context, run_values):
    self.steps += 1


hook_of_spec = CountSteps()


def input_fn(params):
  return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(
    params["batch_size"], drop_remainder=True
  )


def endless_input_fn(params):
  return input_fn(params).repeat()


def model_fn(features, labels, mode, params):
  weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer())
  y = weight * features["x"]
  if mode == estimator_api.ModeKeys.PREDICT:
    return estimator_api.TPUEstimatorSpec(mode, predictions={"y": y})
  loss = tf.reduce_mean((y - labels) ** 2)
  return estimator_api.TPUEstimatorSpec(
    mode,
    loss=loss,
    train_op=tf1.train.GradientDescentOptimizer(LEARNING_RATE).minimize(
      loss, tf1.train.get_global_step()
    ),
    eval_metrics=(lambda y: {"mean_y": tf1.metrics.mean(y)}, [y]),
    training_hooks=[hook_of_spec],
  )


def tpu_estimator(folder, use_tpu=False, **config):
  return estimator_api.TPUEstimator(
    model_fn,
    config=estimator_api.RunConfig(model_dir=str(folder), **config),
    use_tpu=use_tpu,
    train_batch_size=len(X),
    eval_batch_size=len(X),
    predict_batch_size=len(X),
  )


def plain_estimator(folder, **config):
  def plain_model_fn(features, labels, mode, params):
    return model_fn(features, labels, mode, params).as_estimator_spec()

  return estimator_api.Estimator(
    plain_model_fn,
    config=estimator_api.EstimatorRunConfig(model_dir=str(folder), **config),
    params={"batch_size": len(X)},
  )


@pytest.fixture(scope="module", params=[tpu_estimator, plain_estimator])
def trained(request, tmp_path_factory):
  """An estimator trained for 5 steps."""
  estimator = request.param(tmp_path_factory.mktemp("trained"))
  return estimator.train(endless_input_fn, max_steps=5)


def test_trains(trained):
  weight = trained.get_variable_value("weight")
  np.testing.assert_allclose(weight, weight_after(5), rtol=1e-6)


def test_evaluates(trained):
  results = trained.evaluate(input_fn, steps=1)
  y = weight_after(5) * X
  expected = {"loss": np.mean((y - Y) ** 2), "mean_y": y.mean()}
  expected["global_step"] = 5
  assert results == pytest.approx(expected, rel=1e-5)


def test_predicts(trained):
  y = [row["y"] for row in trained.predict(input_fn)]
  np.testing.assert_allclose(y, weight_after(5) * X, rtol=1e-6)


@pytest.mark.parametrize("make", [tpu_estimator, plain_estimator])
def test_resumes_from_its_checkpoint(make, tmp_path):
  make(tmp_path).train(endless_input_fn, max_steps=2)
  restarted = make(tmp_path).train(endless_input_fn, max_steps=5)
  weight = restarted.get_variable_value("weight")
  np.testing.assert_allclose(weight, weight_after(5), rtol=1e-6)


@pytest.mark.parametrize("make", [tpu_estimator, plain_estimator])
def test_runs_hooks_of_caller_and_model(make, tmp_path, monkeypatch):
  monkeypatch.setattr(hook_of_spec, "steps", 0)
  hook_of_caller = CountSteps()
  make(tmp_path).train(endless_input_fn, steps=3, hooks=[hook_of_caller])
  assert (hook_of_caller.steps, hook_of_spec.steps) == (3, 3)


def test_trains_with_a_strategy_on_one_machine(tmp_path):
  strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
  estimator = plain_estimator(tmp_path, train_distribute=strategy)
  estimator.train(endless_input_fn, max_steps=5)
  weight = estimator.get_variable_value("weight")
  np.testing.assert_allclose(weight, weight_after(5), rtol=1e-6)


@needs_stand_ins
def test_refuses_a_strategy_on_a_cluster(tmp_path, monkeypatch):
  monkeypatch.setenv(
    "TF_CONFIG",
    '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]},'
    ' "task": {"type": "chief", "index": 0}}',
  )
  strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
  with pytest.raises(RuntimeError, match=r"cluster .* can on TensorFlow 2\.15"):
    plain_estimator(tmp_path, train_distribute=strategy)


class GraphIsBuilt(Exception):
  """Raised instead of connecting to a TPU."""


class StopBeforeSession(tf1.train.SessionRunHook):
  def begin(self):
    raise GraphIsBuilt


@pytest.fixture
def one_tpu_core(monkeypatch):
  """Simulates a TPU with one core until the graph is built."""
  monkeypatch.setattr(
    sys.modules["tensorflow.python.tpu.tpu_system_metadata"],
    "_query_tpu_system_metadata",
    lambda *args, **kwargs: tf.tpu.experimental.TPUSystemMetadata(
      num_cores=1,
      num_hosts=1,
      num_of_cores_per_host=1,
      topology=None,
      devices=[],
    ),
  )
  return {"use_tpu": True, "master": "grpc://127.0.0.1:1"}


@pytest.mark.parametrize(
  "mode", ["", "reset_computation", "shutdown_worker", "shutdown_all_workers"]
)
def test_builds_the_training_graph_of_a_tpu(
  mode, one_tpu_core, tmp_path, monkeypatch
):
  monkeypatch.setenv("TF_TPU_GRACEFUL_SHUTDOWN_MODE", mode)
  with pytest.raises(GraphIsBuilt):
    tpu_estimator(tmp_path, **one_tpu_core).train(
      endless_input_fn, max_steps=1, hooks=[StopBeforeSession()]
    )


@pytest.mark.unit
@needs_stand_ins
def test_watchdog_stand_in_warns_that_it_has_no_effect(caplog):
  session_support = sys.modules["tensorflow.python.tpu.session_support"]
  with caplog.at_level("WARNING", "tensorflow"):
    tf.get_logger().addHandler(caplog.handler)
    session_support.start_worker_watchdog(None, shutdown_timeout=60)
    tf.get_logger().removeHandler(caplog.handler)
  assert "TF_TPU_WATCHDOG_TIMEOUT has no effect" in caplog.text


@pytest.mark.unit
@needs_stand_ins
def test_refuses_tpu_embeddings():
  tpu_embedding = sys.modules["tensorflow.python.tpu.tpu_embedding"]
  with pytest.raises(RuntimeError, match=r"can on TensorFlow 2\.15"):
    tpu_embedding.AdagradParameters(0.1)


@pytest.mark.unit
@pytest.mark.parametrize(
  "name",
  [
    "distribute.estimator_training",
    "tpu.tpu_embedding",
    "tpu.tpu_embedding_gradient",
    "tpu.session_support",
  ],
)
def test_stand_ins_replace_only_missing_modules(name):
  folder = os.path.join(os.path.dirname(tf.__file__), "python")
  file = os.path.join(folder, *name.split(".")) + ".py"
  module = sys.modules[f"tensorflow.python.{name}"]
  expected = file if os.path.exists(file) else None
  assert getattr(module, "__file__", None) == expected


@pytest.mark.unit
def test_stand_ins_do_not_shadow_modules_not_yet_imported(monkeypatch):
  monkeypatch.delitem(sys.modules, "this", raising=False)
  estimator_api._stand_in("this", stood_in=True)
  assert "this" not in sys.modules


@pytest.mark.graph
@pytest.mark.skipif(not ON_2_15, reason="only TensorFlow 2.15 has its own")
@pytest.mark.parametrize("name", ["TPUEstimator", "TPUEstimatorSpec"])
def test_tensorflow_2_15_uses_its_own_classes(name):
  own = getattr(tf1.estimator.tpu, name)
  assert getattr(estimator_api, name) is own


def run_python(program):
  """Runs a program in a new interpreter without a selected Keras."""
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
  environment.pop("TF_USE_LEGACY_KERAS", None)
  return subprocess.run(
    [sys.executable, "-c", program],
    env=environment,
    capture_output=True,
    text=True,
  )


@pytest.mark.process
@pytest.mark.parametrize(
  "first, second",
  [
    ("bertlib.estimator_api", "tensorflow"),
    ("tensorflow", "bertlib.estimator_api"),
  ],
)
def test_selects_keras_2_in_any_order_of_imports(first, second):
  keras_2 = "keras" if ON_2_15 else "tf_keras"
  process = run_python(
    f"import {first}, {second}, {keras_2}\n"
    "from tensorflow.keras.layers import Dense\n"
    f"print(Dense is {keras_2}.layers.Dense,"
    f" tensorflow.keras.layers.Dense is Dense)"
  )
  assert process.stdout == "True True\n", process.stderr


@pytest.mark.process
@pytest.mark.skipif(ON_2_15, reason="TensorFlow 2.15 has Keras 2")
def test_raises_if_keras_3_is_in_use():
  process = run_python(
    "from tensorflow.keras.layers import Dense\nimport bertlib.estimator_api"
  )
  last_line = process.stderr.splitlines()[-1]
  assert last_line.startswith("RuntimeError: Keras 3 is already in use")


@pytest.mark.process
def test_missing_tensorflow_error_contains_the_pip_command():
  process = run_python(
    "import sys\nsys.modules['tensorflow'] = None\nimport bertlib.estimator_api"
  )
  last_line = process.stderr.splitlines()[-1]
  assert last_line.startswith("ImportError: TensorFlow 2.15 to 2.21, for")
  assert last_line.endswith('pip install "tensorflow>=2.15,<2.22"')


def set_installed(monkeypatch, **versions):
  def version(name):
    try:
      return versions[name.replace("-", "_")]
    except KeyError:
      raise metadata.PackageNotFoundError(name) from None

  monkeypatch.setattr(metadata, "version", version)


@pytest.mark.unit
@pytest.mark.parametrize("release", ["2.14", "2.22"])
def test_refuses_other_releases_of_tensorflow(release):
  with pytest.raises(ImportError) as raised:
    estimator_api._check_packages(release)
  assert str(raised.value) == (
    f"Estimator needs TensorFlow 2.15 to 2.21, not {release}:"
    ' pip install "tensorflow>=2.15,<2.22"'
  )


@pytest.mark.graph
@pytest.mark.parametrize(
  "release, installed, complaint",
  [
    (
      "2.21",
      {"tf_keras": "2.20.1", "tensorflow_estimator": "2.15.0"},
      "Estimator on TensorFlow 2.21 needs tf-keras~=2.21.0, found 2.20.1: pip"
      ' install --no-deps "tf-keras~=2.21.0" "tensorflow-estimator==2.15.0"',
    ),
    (
      "2.20",
      {
        "tf_keras": "2.20.1",
        "tensorflow_estimator": "2.15.0",
        "protobuf": "7.34.0",
      },
      "Estimator on TensorFlow 2.20 needs protobuf<7, found 7.34.0: pip"
      ' install --no-deps "tf-keras~=2.20.0" "tensorflow-estimator==2.15.0"'
      ' "protobuf<7"',
    ),
    (
      "2.16",
      {"tf_keras": "2.16.0"},
      "Estimator on TensorFlow 2.16 needs tensorflow-estimator==2.15.0, found"
      ' none: pip install --no-deps "tf-keras~=2.16.0"'
      ' "tensorflow-estimator==2.15.0"',
    ),
    (
      "2.15",
      {"keras": "3.3.0", "tensorflow_estimator": "2.15.0"},
      "Estimator on TensorFlow 2.15 needs keras~=2.15.0, found 3.3.0: pip"
      ' install --no-deps "keras~=2.15.0" "tensorflow-estimator==2.15.0"',
    ),
  ],
)
def test_names_the_incompatible_package(
  release, installed, complaint, monkeypatch
):
  set_installed(monkeypatch, **installed)
  with pytest.raises(ImportError) as raised:
    estimator_api._check_packages(release)
  assert str(raised.value) == complaint


@pytest.mark.graph
def test_accepts_a_patch_release_of_tf_keras(monkeypatch):
  set_installed(monkeypatch, tf_keras="2.18.1", tensorflow_estimator="2.15.0")
  estimator_api._check_packages("2.18")
