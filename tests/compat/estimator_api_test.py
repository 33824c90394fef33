"""Estimator on this TensorFlow: one weight w, fitted to y = 3x.

A step of gradient descent on w is a line of NumPy, so what training,
evaluation and prediction must give is known without TensorFlow.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import commands
import numpy as np
import pytest
import tensorflow as tf
import tpu_graph
from parametrize import parametrize

from bertlib.compat import estimator_api

pytestmark = pytest.mark.train

tf1 = tf.compat.v1

ON_2_15 = tf.__version__.startswith("2.15.")
needs_stand_ins = pytest.mark.skipif(ON_2_15, reason="2.15 has real modules")

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
  data = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
  return data.batch(params["batch_size"], drop_remainder=True)


def endless_input_fn(params):
  return input_fn(params).repeat()


def model_fn(features, labels, mode, params):
  weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer())
  y = weight * features["x"]
  if mode == estimator_api.ModeKeys.PREDICT:
    return estimator_api.TPUEstimatorSpec(mode, predictions={"y": y})
  loss = tf.reduce_mean((y - labels) ** 2)
  optimizer = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
  return estimator_api.TPUEstimatorSpec(
    mode,
    loss=loss,
    train_op=optimizer.minimize(loss, tf1.train.get_global_step()),
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
  estimator = request.param(tmp_path_factory.mktemp("trained"))
  return estimator.train(endless_input_fn, max_steps=5)


def test_evaluates(trained):
  results = trained.evaluate(input_fn, steps=1)
  y = weight_after(5) * X
  expected = {"loss": np.mean((y - Y) ** 2), "mean_y": y.mean()}
  expected["global_step"] = 5
  assert results == pytest.approx(expected, rel=1e-5)


def test_predicts(trained):
  y = [row["y"] for row in trained.predict(input_fn)]
  np.testing.assert_allclose(y, weight_after(5) * X, rtol=1e-6)


@parametrize("make", tpu_estimator, plain_estimator)
def test_resumes_and_runs_all_hooks(make, tmp_path, monkeypatch):
  make(tmp_path).train(endless_input_fn, max_steps=2)
  monkeypatch.setattr(hook_of_spec, "steps", 0)
  hook_of_caller = CountSteps()
  restarted = make(tmp_path)
  restarted.train(endless_input_fn, max_steps=5, hooks=[hook_of_caller])
  weight = restarted.get_variable_value("weight")
  np.testing.assert_allclose(weight, weight_after(5), rtol=1e-6)
  assert (hook_of_caller.steps, hook_of_spec.steps) == (3, 3)


@needs_stand_ins
def test_refuses_a_strategy_on_a_cluster(tmp_path, monkeypatch):
  cluster = {"chief": ["a:1"], "worker": ["b:1"]}
  config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))
  strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
  with pytest.raises(RuntimeError, match=r"cluster .* can on TensorFlow 2\.15"):
    plain_estimator(tmp_path, train_distribute=strategy)


class GraphIsBuilt(Exception):
  """Raised instead of connecting to a TPU."""


class StopBeforeSession(tf1.train.SessionRunHook):
  def begin(self):
    raise GraphIsBuilt


@parametrize(
  "mode", "", "reset_computation", "shutdown_worker", "shutdown_all_workers"
)
def test_builds_the_graph_of_a_tpu(mode, tmp_path, monkeypatch):
  monkeypatch.setenv("TF_TPU_GRACEFUL_SHUTDOWN_MODE", mode)
  tpu_graph.simulate_cores(monkeypatch, 1)
  estimator = tpu_estimator(tmp_path, True, master="grpc://127.0.0.1:1")
  ends = {"max_steps": 1, "hooks": [StopBeforeSession()]}
  with pytest.raises(GraphIsBuilt):
    estimator.train(endless_input_fn, **ends)


@pytest.mark.unit
@needs_stand_ins
def test_stand_ins_say_what_they_cannot_do(monkeypatch):
  warnings = []
  monkeypatch.setattr(
    tf1.logging, "warning", lambda text, *_: warnings.append(text)
  )
  tpu = "tensorflow.python.tpu"
  support = sys.modules[f"{tpu}.session_support"]
  support.start_worker_watchdog(None, shutdown_timeout=60)
  assert warnings[0].startswith("TF_TPU_WATCHDOG_TIMEOUT has no effect")
  with pytest.raises(RuntimeError, match=r"can on TensorFlow 2\.15"):
    sys.modules[f"{tpu}.tpu_embedding"].AdagradParameters(0.1)


@pytest.mark.unit
@parametrize(
  "name",
  "distribute.estimator_training",
  "tpu.tpu_embedding",
  "tpu.tpu_embedding_gradient",
  "tpu.session_support",
)
def test_stand_ins_replace_only_missing_modules(name):
  folder = os.path.join(os.path.dirname(tf.__file__), "python")
  file = os.path.join(folder, *name.split(".")) + ".py"
  module = sys.modules[f"tensorflow.python.{name}"]
  expected = file if os.path.exists(file) else None
  assert getattr(module, "__file__", None) == expected


@pytest.mark.graph
@pytest.mark.skipif(not ON_2_15, reason="only TensorFlow 2.15 has its own")
@parametrize("name", "TPUEstimator", "TPUEstimatorSpec")
def test_tensorflow_2_15_uses_its_own_classes(name):
  assert getattr(estimator_api, name) is getattr(tf1.estimator.tpu, name)


@pytest.mark.process
def test_selects_keras_2_although_tensorflow_is_imported_first():
  keras_2 = "keras" if ON_2_15 else "tf_keras"
  process = commands.run_code(
    f"import tensorflow, bertlib.estimator_api, {keras_2}\n"
    "from tensorflow.keras.layers import Dense\n"
    f"print(Dense is {keras_2}.layers.Dense,"
    f" tensorflow.keras.layers.Dense is Dense)"
  )
  assert process.stdout == "True True\n", process.stderr


@pytest.mark.process
def test_a_command_imports_keras_2_at_its_first_use():
  lazily = ("tf_keras", "scipy", "pandas")
  process = commands.run_code(
    "import sys\n"
    "from bertlib.cli import tensorflow_log\n"
    "tensorflow_log.hide_information(keras_2=True)\n"
    "import run_classifier, tensorflow, tensorflow_estimator\n"
    f"print([name for name in {lazily} if name in sys.modules])\n"
    "print(hasattr(tensorflow.keras, 'ops'))\n"
    "print(hasattr(tensorflow_estimator.estimator, 'DNNClassifier'))"
  )
  assert process.stdout == "[]\nFalse\nTrue\n", process.stderr


REMOVED = "tensorflow.python.saved_model.model_utils.export_output"
OLD_PROTOBUF = """
import tensorflow as tf
from google.protobuf import text_format
def write(message):
  raise TypeError('unexpected keyword argument')
text_format.MessageToString = lambda *_, **kinds: write(**kinds)
"""


@pytest.mark.process
@parametrize(
  "program, error",
  pytest.param(
    "from tensorflow.keras.layers import Dense",
    "RuntimeError: Keras 3 is already in use",
    marks=needs_stand_ins,
  ),
  (
    "import sys; sys.modules['tensorflow'] = None",
    r"ImportError: TensorFlow 2\.15 or newer is needed.*"
    r'pip install "tensorflow>=2\.15"$',
  ),
  pytest.param(
    "import sys; sys.modules['tf_keras'] = None",
    '.* cannot use tf-keras, found .*pip install --no-deps "tf-keras',
    marks=needs_stand_ins,
  ),
  (
    "import sys; sys.modules['tensorflow_estimator'] = None",
    ".* cannot use tensorflow-estimator, found .*"
    'pip install --no-deps "tensorflow-estimator',
  ),
  pytest.param(
    f"import sys, tensorflow; sys.modules['{REMOVED}'] = None",
    rf".* cannot use tensorflow-estimator, found 2\.15\.0 \(.*{REMOVED}",
    marks=needs_stand_ins,
  ),
  (
    OLD_PROTOBUF,
    r'.* cannot use protobuf, found .*pip install --no-deps "protobuf<7"$',
  ),
)
def test_what_hinders_the_import_is_named_in_the_last_line(program, error):
  done = commands.run_code(f"{program}\nimport bertlib.estimator_api")
  assert re.match(error, done.stderr.splitlines()[-1])


@pytest.mark.unit
def test_older_releases_of_tensorflow_are_refused():
  with pytest.raises(ImportError, match=r"2\.15 or newer, not 2\.14: pip inst"):
    estimator_api._check_release("2.14")


@pytest.mark.unit
def test_the_newest_tested_release_is_that_of_ci():
  script = pathlib.Path(__file__).parents[2] / ".ci" / "run"
  (newest,) = re.findall(r"==(\d\.\d+)\.0rc", script.read_text())
  assert newest == estimator_api._NEWEST_TESTED


@pytest.mark.unit
@parametrize("release, warns", ("2.15", False), ("2.22", False), ("2.23", True))
def test_untested_releases_are_one_warning(release, warns, caplog):
  estimator_api._check_release(release)
  assert len(caplog.records) == warns
  assert (f"not been tested on TensorFlow {release}" in caplog.text) == warns


WIDE_AND_DEEP = """
import json, sys
import estimator_api
import tensorflow as tf

age = tf.feature_column.numeric_column("age")
word = tf.feature_column.categorical_column_with_vocabulary_list(
  "word", ["no", "yes"]
)

def input_fn():
  features = {"age": [[0.01], [0.02]] * 8, "word": [["no"], ["yes"]] * 8}
  data = tf.data.Dataset.from_tensor_slices((features, [[0], [1]] * 8))
  return data.repeat().batch(4)

model = estimator_api.estimator.DNNLinearCombinedClassifier(
  model_dir="model",
  linear_feature_columns=[word],
  dnn_feature_columns=[age],
  dnn_hidden_units=[4],
)
model.train(input_fn, steps=200)
print(json.dumps(float(model.evaluate(input_fn, steps=4)["accuracy"])))
print(any(name.split(".")[0] == "bertlib" for name in sys.modules))
"""


@pytest.mark.process
def test_the_file_works_alone_in_another_project(tmp_path):
  shutil.copy(estimator_api.__file__, tmp_path)
  done = subprocess.run(
    [sys.executable, "-c", WIDE_AND_DEEP],
    cwd=tmp_path,
    env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    capture_output=True,
    text=True,
  )
  assert done.stdout == "1.0\nFalse\n", done.stderr
