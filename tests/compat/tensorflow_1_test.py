"""Scripts written for TensorFlow 1, with the one changed line.

Importing `tensorflow_1` changes the process, so each test runs a program.
"""

import json
import os
import pathlib
import subprocess
import sys

import commands
import numpy as np
import pytest
from parametrize import parametrize

pytestmark = pytest.mark.process

PAGE = pathlib.Path(commands.ROOT) / "docs/how_to/tensorflow_1_scripts.md"

# The idiom of the scripts written beside google-research/bert in 2018 and 2019,
# where it is not TensorFlow's own.
SCRIPT = """
from __future__ import absolute_import
import json

import modeling
import optimization
from bertlib import tensorflow_1 as tf


def input_fn_builder(is_training):
  def decode(label):
    return {"input_ids": tf.fill([6], label + 1), "label_ids": label}

  def input_fn(params):
    d = tf.data.Dataset.from_tensor_slices([0, 1] * 16)
    if is_training:
      d = d.repeat().shuffle(buffer_size=100)
    return d.apply(tf.contrib.data.map_and_batch(
        decode, batch_size=params["batch_size"], drop_remainder=is_training))

  return input_fn


def model_fn(features, labels, mode, params):
  is_training = mode == tf.estimator.ModeKeys.TRAIN
  model = modeling.BertModel(
      config=modeling.BertConfig(vocab_size=8, hidden_size=16,
                                 num_hidden_layers=1, num_attention_heads=2,
                                 intermediate_size=16),
      is_training=is_training, input_ids=features["input_ids"])
  output_layer = tf.contrib.layers.layer_norm(
      inputs=model.get_pooled_output(), begin_norm_axis=-1,
      begin_params_axis=-1, scope="head")
  hidden_size = output_layer.shape[-1].value
  output_weights = tf.get_variable(
      "output_weights", [2, hidden_size],
      initializer=tf.contrib.layers.xavier_initializer())
  if is_training:
    output_layer = tf.nn.dropout(output_layer, keep_prob=0.9)
  logits = tf.matmul(output_layer, output_weights, transpose_b=True)
  loss = tf.losses.sparse_softmax_cross_entropy(features["label_ids"], logits)
  if is_training:
    train_op = optimization.create_optimizer(loss, 1e-2, 30, 0, False)
    return tf.contrib.tpu.TPUEstimatorSpec(
        mode=mode, loss=loss, train_op=train_op, scaffold_fn=None)

  def metric_fn(label_ids, logits):
    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {"eval_accuracy": tf.metrics.accuracy(label_ids, predictions)}

  return tf.contrib.tpu.TPUEstimatorSpec(
      mode=mode, loss=loss,
      eval_metrics=(metric_fn, [features["label_ids"], logits]))


def main(argv):
  tf.logging.set_verbosity(tf.logging.INFO)
  is_per_host = tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
  run_config = tf.contrib.tpu.RunConfig(
      cluster=None, model_dir=argv[1],
      tpu_config=tf.contrib.tpu.TPUConfig(
          iterations_per_loop=1000, num_shards=8,
          per_host_input_for_training=is_per_host))
  estimator = tf.contrib.tpu.TPUEstimator(
      use_tpu=False, model_fn=model_fn, config=run_config,
      train_batch_size=8, eval_batch_size=8)
  estimator.train(input_fn_builder(True), max_steps=30)
  result = estimator.evaluate(input_fn_builder(False))
  print(json.dumps({name: float(result[name]) for name in result}))


tf.app.run()
"""
PROGRAM = pathlib.Path(__file__).with_name("tensorflow_1_values.py")
EXPECTED = json.loads(PROGRAM.with_suffix(".json").read_text())


def test_a_script_trains_and_evaluates(tmp_path):
  done = commands.run_code(SCRIPT, tmp_path)
  assert done.returncode == 0, done.stderr[-4000:]
  assert done.stderr.count("Saving dict for global step 30") == 1
  result = json.loads(done.stdout)
  assert result["global_step"] == 30
  assert result["eval_accuracy"] == 1


def test_a_script_may_have_copies_of_the_libraries(tmp_path):
  for name in ("modeling", "optimization", "tokenization"):
    copy = "from bertlib import tensorflow_1 as tf\nFLAGS = tf.flags.FLAGS\n"
    (tmp_path / f"{name}.py").write_text(copy)
  code = "import tokenization, modeling, optimization; print(modeling.__file__)"
  done = commands.run_code(code, cwd=tmp_path)
  assert done.stdout == f"{tmp_path / 'modeling.py'}\n", done.stderr[-4000:]


NAMES = """
import importlib.machinery
import sys
import types

import numpy as np
import tensorflow

slim = sys.modules["tf_slim"] = types.ModuleType("tf_slim")
slim.__spec__ = importlib.machinery.ModuleSpec("tf_slim", None)
slim.fully_connected = slim.layer_norm = len

from bertlib import tensorflow_1 as tf

from tensorflow.contrib import tpu as contrib_tpu
from tensorflow.contrib.crf import viterbi_decode
from tensorflow.contrib.compiler import jit
import tensorflow.contrib.layers as contrib_layers
from tensorflow import estimator
from tensorflow.compat.v1 import estimator as estimator_v1
from tensorflow.python.estimator.estimator import Estimator
from tensorflow.python.estimator.model_fn import EstimatorSpec
from tensorflow.python.estimator.run_config import RunConfig
from tensorflow.python.estimator import model_fn
from tensorflow.python.estimator.canned import optimizers
import tensorflow_hub

# TensorFlow 2.15 has an `estimator` of its own.
assert estimator.RunConfig is estimator_v1.RunConfig is tf.estimator.RunConfig
assert estimator_v1.tpu.TPUEstimator is tf.estimator.tpu.TPUEstimator
assert Estimator is tf.estimator.Estimator
assert EstimatorSpec is model_fn.EstimatorSpec is tf.estimator.EstimatorSpec
assert RunConfig is tf.estimator.RunConfig
assert contrib_tpu is tf.contrib.tpu
assert viterbi_decode is tf.contrib.crf.viterbi_decode
assert jit.experimental_jit_scope and contrib_layers.layer_norm is not len
assert contrib_layers.fully_connected is tf.contrib.slim.layer_norm is len
try:
  tensorflow_hub.Module("no_folder")
except ValueError as error:
  assert type(error).__module__ == "bertlib.cli.errors", error
assert tf.compat.v1 is tf
assert tf.compat.v1.estimator.tpu.TPUEstimator
assert tf.compat.as_text(b"a") == "a"
assert tf.compat.v2.summary

# No name of TensorFlow is hidden.
names = {name for name in vars(tf) if not name.startswith("_")}
ours = {"compat", "contrib", "estimator", "pywrap_tensorflow"}
assert names == ours, names
assert tf.pywrap_tensorflow.NewCheckpointReader

import modeling

inputs = tf.constant(np.random.RandomState(0).randn(3, 5, 8) * 2, tf.float32)
outputs = [
  tf.contrib.layers.layer_norm(
    inputs, begin_norm_axis=-1, begin_params_axis=-1
  ),
  modeling.layer_norm(inputs, "reference"),
]
with tf.Session() as session:
  session.run(tf.global_variables_initializer())
  ours, reference = session.run(outputs)
np.testing.assert_allclose(ours, reference, atol=1e-6)
names = [variable.op.name for variable in tf.global_variables()]
assert names[:2] == ["LayerNorm/beta", "LayerNorm/gamma"], names

def use_an_unknown_name():
  tf.contrib.seq2seq

def import_an_unknown_name():
  from tensorflow.contrib import seq2seq

for use in use_an_unknown_name, import_an_unknown_name:
  try:
    use()
  except Exception as error:
    print(f"{type(error).__name__}: {error}")

print("\\n".join(name for name in vars(tf.contrib) if name[0] != "_"))
"""


@pytest.fixture(scope="module")
def lines():
  """What `NAMES` prints: two errors, then the names of `tf.contrib`."""
  done = commands.run_code(NAMES)
  assert done.returncode == 0, done.stderr[-4000:]
  return done.stdout.splitlines()


def test_names_and_modules_of_tensorflow_1_are_there_and_on_the_page(lines):
  text, names = PAGE.read_text(), lines[2:]
  assert names
  assert [name for name in names if f"`tf.contrib.{name}" not in text] == []


def test_what_contrib_lacks_is_refused_with_the_page(lines):
  name, imported = lines[:2]
  assert name.startswith("AttributeError: tf.contrib: ") and "'seq2seq'" in name
  assert imported.startswith("ImportError: cannot import name 'seq2seq'")
  for line in (name, imported):
    assert str(PAGE.relative_to(commands.ROOT)) in line


@pytest.fixture(scope="module")
def values(tmp_path_factory):
  folder = tmp_path_factory.mktemp("values")
  done = commands.run_code(PROGRAM.read_text(), cwd=folder)
  assert done.returncode == 0, done.stderr[-4000:]
  return json.loads((folder / "values.json").read_text())


@parametrize("name", *EXPECTED)
def test_names_compute_what_those_of_tensorflow_1_15_5_do(values, name):
  np.testing.assert_allclose(values[name], EXPECTED[name], rtol=1e-6, atol=1e-6)


def test_every_name_is_compared(values):
  assert values.keys() == EXPECTED.keys()


# Comments are the names that are listed.
SCRIPT_OF_UNKNOWN_NAMES = """
from bertlib import tensorflow_1 as tf
import tensorflow as not_changed
import helper
from tensorflow.python.ops import array_ops, variables
from tensorflow.contrib import rnn
from tensorflow.python.ops.nn import *
from package.inner import model
try:
  tf.contrib.summary.scalar("a", 1)
except AttributeError:
  pass
if hasattr(tf, "gfile2"):
  tf.gfile2.Open()
if tf.__version__ < "2":
  tf.version_1_only()
IS_TF2 = tf.executing_eagerly()
if IS_TF2:
  tf.only_there()
elif IS_TF2 and tf.neither:
  pass
print("started")
def train(rnn):
  variables = {}
  variables.update(a=rnn.what_it_has)
  tf.estimator.Estimator(train).unknown.attribute
  tf.flags.FLAGS.flag_of_the_script
  tf.contrib.metrics.f1_score, tf.contrib.tpu.RunConfig, array_ops.stack
  tf.known = tf
  tf.known.attribute
def evaluate():
  from tensorflow.contrib.crf import what  # tensorflow.contrib.crf.what
  from tensorflow.contrib import tensorrt as trt  # tensorflow.contrib.tensorrt
  tf.contrib.seq2seq.BasicDecoder()  # tf.contrib.seq2seq
  tf.contrib.seq2seq.BasicDecoder()
  tf.train.missing  # tf.train.missing
  not_changed.placeholder  # not_changed.placeholder
  array_ops.no_such  # array_ops.no_such
"""


@pytest.fixture
def project(tmp_path):
  files = {
    "script.py": SCRIPT_OF_UNKNOWN_NAMES,
    "helper.py": """
import tensorflow as tf
def later():
  import broken
  tf.placeholder
  tf.nothing  # tf.nothing
""",
    "broken.py": "print 1\n",
    "package/inner/model.py": "from .. import base\n",
    "package/base.py": "import tensorflow.compat.v1 as tf1\n"
    "def later(): tf1.nothing  # tf1.nothing\n",
    "unused.py": "import tensorflow as tf\ntf.not_imported\n",
  }
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
  return tmp_path


def marked(project):
  """Lines that name what the comments in the files of a project say."""
  return {
    f"{path}:{number}: {line.partition('  # ')[2]}"
    for path in project.rglob("*.py")
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if "  # " in line
  }


def run_python(*arguments, cwd):
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=cwd,
    capture_output=True,
    text=True,
    env=os.environ | {"PYTHONPATH": commands.ROOT},
  )


def test_names_that_do_not_exist_are_listed_without_running(project):
  done = run_python("-m", "bertlib.tensorflow_1", "script.py", cwd=project)
  assert (done.returncode, {*done.stdout.splitlines()}) == (1, marked(project))


def test_names_that_do_not_exist_are_a_warning_at_the_start(project):
  done = run_python("script.py", cwd=project)
  assert done.stdout.split()[0] == "started", done.stderr
  listed = {line.strip() for line in done.stderr.splitlines()}
  # Here `tf` of helper.py is TensorFlow 2, which has no `placeholder`.
  assert marked(project) | {f"{project}/helper.py:5: tf.placeholder"} <= listed
  assert "not_imported" not in done.stderr
