"""Tests of the package `bert` that `pip install .` installs.

It is installed into an environment with what it requires, and nothing else, and
is used in a folder whose own modules have the names of those of the checkout.
"""

import ast
import collections
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from importlib import metadata

import commands
import pytest
import wrong_input_world
from packaging.requirements import Requirement

pytestmark = pytest.mark.process

ROOT = pathlib.Path(commands.ROOT)
COMMANDS = sorted(
  path.stem for path in ROOT.glob("*.py") if "app.run" in path.read_text()
)
# Names that only the checkout may give to modules.
NAMES = ["bertlib", *COMMANDS, "modeling", "optimization", "tokenization"]


def install(python, wheel, *options):
  """Installs a wheel; fails if something that it requires is not there."""
  pip = [sys.executable, "-m", "pip", "--python", python]
  subprocess.run(
    [*pip, "install", "--no-index", *options, wheel],
    stdout=subprocess.DEVNULL,
    check=True,
  )


def build(folder, hook="build_wheel", root=ROOT):
  program = f"from setuptools import build_meta; build_meta.{hook}('{folder}')"
  with tempfile.TemporaryDirectory() as source:
    # A copy of what pip reads: a build writes beside it.
    for path in root.glob("[!.]*"):
      if path.is_file():
        shutil.copy(path, source)
    if root == ROOT:
      shutil.copytree(ROOT / "bertlib", f"{source}/bertlib")
    subprocess.run(
      [sys.executable, "-c", program],
      cwd=source,
      stdout=subprocess.DEVNULL,
      check=True,
    )


@pytest.fixture(scope="session")
def wheel(once, tmp_path_factory):
  folder = once.copy("wheel", build, tmp_path_factory.mktemp("wheel"))
  (path,) = folder.glob("*.whl")
  return path


def new_environment(folder):
  """Creates an empty environment; returns its Python and its packages."""
  venv.create(folder, symlinks=True)
  (packages,) = folder.glob("lib/python*/site-packages")
  return folder / "bin" / "python", packages


def required(waiting):
  """Installed distributions that a list of requirements needs, all of them."""
  found = {}
  while waiting:
    requirement = waiting.pop()
    if str(requirement) in found:
      continue
    distribution = metadata.distribution(requirement.name)
    found[str(requirement)] = distribution
    waiting += needs(distribution, *requirement.extras)
  return found.values()


def needs(distribution, *extras):
  return [
    needed
    for needed in map(Requirement, distribution.requires or ())
    if not needed.marker
    or any(needed.marker.evaluate({"extra": name}) for name in ("", *extras))
  ]


@functools.cache
def shared_folders():
  """Folders of packages in which several distributions have files."""
  owners = collections.Counter(
    name
    for distribution in metadata.distributions()
    for name in {file.parts[0] for file in distribution.files or ()}
  )
  return {name for name, number in owners.items() if number > 1}


def with_requirements(wheel, folder):
  """Python of an environment with a wheel and what that requires."""
  python, packages = new_environment(folder)
  (distribution,) = metadata.distributions(path=[str(wheel)])
  for other in required(needs(distribution)):
    for file in other.files:
      # A whole folder has the compiled modules, too.
      is_shared = file.parts[0] in shared_folders()
      path = file if is_shared else pathlib.Path(file.parts[0])
      link = packages / path
      if ".." not in file.parts and not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(other.locate_file(path))
  install(python, wheel)
  return python


@pytest.fixture(scope="session")
def python(wheel, tmp_path_factory):
  return with_requirements(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture
def run(python, tmp_path):
  """Runs Python in a folder whose modules must not be imported."""
  for name in NAMES:
    (tmp_path / f"{name}.py").write_text("raise AssertionError(__name__)\n")

  def run(*arguments, python=python):
    done = subprocess.run(
      [python, *arguments],
      cwd=tmp_path,
      env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

  return run


@pytest.fixture(scope="session")
def editable_python(tmp_path_factory):
  """Python of an environment with what `pip install -e` installs."""
  folder = tmp_path_factory.mktemp("editable_wheel")
  build(folder, "build_editable")
  (wheel,) = folder.glob("*.whl")
  python, _ = new_environment(tmp_path_factory.mktemp("editable"))
  install(python, wheel, "--no-deps")
  return python


def test_the_wheel_has_license_citation_and_tables(wheel):
  with zipfile.ZipFile(wheel) as file:
    names = {
      name.partition("dist-info/")[2] or name for name in file.namelist()
    }
    assert (
      file.read("bert/CITATION.cff") == (ROOT / "CITATION.cff").read_bytes()
    )
  assert {
    "licenses/LICENSE",
    "bert/bertlib/exchange/models.json",
    "bert/bertlib/export/released.json",
  } <= names
  assert "bert/setup.py" not in names


def test_the_wheel_imports_its_modules_from_bert(wheel):
  with zipfile.ZipFile(wheel) as file:
    sources = {
      name: file.read(name) for name in file.namelist() if name.endswith(".py")
    }
  checkout = [*ROOT.glob("*.py"), *ROOT.glob("bertlib/**/*.py")]
  expected = {f"bert/{path.relative_to(ROOT)}" for path in checkout}
  assert {*sources} == expected - {"bert/setup.py"}
  for name, source in sources.items():
    for node in ast.walk(ast.parse(source)):
      if isinstance(node, ast.Import):
        imported = {alias.name.split(".")[0] for alias in node.names}
        assert not imported & {*NAMES}, name
      elif isinstance(node, ast.ImportFrom) and not node.level:
        assert node.module.split(".")[0] not in NAMES, name


@pytest.mark.parametrize("files", [["__init__.py"], []])
@pytest.mark.parametrize("installed", ["python", "editable_python"])
def test_a_folder_named_bert_earlier_on_the_path_comes_first(
  run, request, tmp_path, files, installed
):
  (tmp_path / "bert").mkdir()
  for name in (*files, "modeling.py"):
    (tmp_path / "bert" / name).touch()
  program = "from bert import modeling; print(modeling.__file__)"
  found = run("-c", program, python=request.getfixturevalue(installed))
  assert found == f"{tmp_path}/bert/modeling.py\n"


def test_an_editable_installation_has_no_module(run, editable_python):
  program = "import sys; from importlib.util import find_spec as find\n"
  program += "print([*filter(find, sys.argv[1:])])"
  # Not where the names are those of other modules.
  isolated = run("-I", "-c", program, "bert", *NAMES, python=editable_python)
  assert isolated == "[]\n"


# Steps of predicting_movie_reviews_with_bert_on_tf_hub.ipynb. In place of the
# published model a new one lies in the cache.
NOTEBOOK = """
import os
import sys

from bert.bertlib import tensorflow_1 as tf
import tensorflow_hub as hub
import bert
from bert import modeling, optimization, run_classifier, tokenization

WORDS = "a the good great fine bad dull poor film story cast".split()
LABELS, LENGTH, STEPS = [0, 1], 8, 60
HANDLE = "https://tfhub.dev/google/bert_uncased_L-12_H-768_A-12/1"
os.environ["BERT_CACHE_DIR"] = os.path.abspath("cache")
folder = "cache/uncased_L-12_H-768_A-12"
os.makedirs(folder)
with open(f"{folder}/vocab.txt", "w") as file:
  file.write("\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
config = modeling.BertConfig(
  16, 16, 1, 2, 16, max_position_embeddings=LENGTH, initializer_range=0.2
)
with open(f"{folder}/bert_config.json", "w") as file:
  file.write(config.to_json_string())
with tf.Graph().as_default(), tf.Session() as session:
  tf.set_random_seed(1)
  modeling.BertModel(config, False, tf.zeros([1, 2], tf.int32))
  session.run(tf.global_variables_initializer())
  saved = tf.train.Saver().save(session, f"{folder}/bert_model.ckpt")
os.remove(f"{saved}.meta")

with tf.Graph().as_default(), tf.Session() as session:
  info = hub.Module(HANDLE)(signature="tokenization_info", as_dict=True)
  path, lowercases = session.run([info["vocab_file"], info["do_lower_case"]])
tokenizer = tokenization.FullTokenizer(path, do_lower_case=lowercases)
reviews = [
  run_classifier.InputExample(None, f"The {word} {what}", None, polarity)
  for polarity, words in enumerate((WORDS[5:8], WORDS[2:5]))
  for word in words
  for what in WORDS[8:]
]
features_of_reviews = bert.run_classifier.convert_examples_to_features(
  reviews, LABELS, LENGTH, tokenizer
)


def input_fn(is_training):
  return bert.run_classifier.input_fn_builder(
    features_of_reviews, LENGTH, is_training, drop_remainder=False
  )


def model_fn(features, labels, mode, params):
  names = "input_ids", "input_mask", "segment_ids"
  module = hub.Module(HANDLE, trainable=True)
  pooled = module(
    inputs={name: features[name] for name in names},
    signature="tokens",
    as_dict=True,
  )["pooled_output"]
  weights = tf.get_variable("weights", [len(LABELS), pooled.shape[-1].value])
  log_probs = tf.nn.log_softmax(tf.matmul(pooled, weights, transpose_b=True))
  if mode == tf.estimator.ModeKeys.PREDICT:
    predicted = tf.argmax(log_probs, axis=-1)
    return tf.estimator.EstimatorSpec(mode, predictions={"labels": predicted})
  labels = features["label_ids"]
  gold = tf.one_hot(labels, len(LABELS))
  loss = -tf.reduce_mean(tf.reduce_sum(gold * log_probs, axis=-1))
  predicted = tf.argmax(log_probs, axis=-1, output_type=tf.int32)
  train_op = optimization.create_optimizer(
    loss, params["learning_rate"], STEPS, STEPS // 10, use_tpu=False
  )
  f1 = tf.contrib.metrics.f1_score(labels, predicted)
  return tf.estimator.EstimatorSpec(
    mode, loss=loss, train_op=train_op, eval_metric_ops={"f1_score": f1}
  )


estimator = tf.estimator.Estimator(
  model_fn=model_fn,
  config=tf.estimator.RunConfig(model_dir="model", tf_random_seed=1),
  params={"batch_size": 9, "learning_rate": 1e-2},
)
estimator.train(input_fn=input_fn(True), max_steps=STEPS)
assert estimator.evaluate(input_fn(False))["f1_score"] > 0.9
predicted = [answer["labels"] for answer in estimator.predict(input_fn(False))]
assert not {*sys.argv[1:]} & {*sys.modules}
print(sum(p == r.label for p, r in zip(predicted, reviews)) / len(reviews))
"""


def test_the_steps_of_the_notebook_of_movie_reviews_run(run):
  assert float(run("-c", NOTEBOOK, *NAMES).splitlines()[-1]) > 0.9


# Estimators of TensorFlow 1 that have nothing to do with BERT, as its samples
# used them.
INCOME = """
from tf1_estimator import tensorflow_1 as tf

tf.logging.set_verbosity(tf.logging.ERROR)
WORK = ["Private", "State", "Self"]
with open("income.csv", "w") as file:
  for i in range(240):
    age, work = 20 + i % 40, WORK[i % 3]
    file.write("%d,%s,%s\\n" % (age, work, ">50K" if age > 40 else "<=50K"))


def parse(line):
  age, work, income = tf.decode_csv(line, [[0.0], [""], [""]])
  return {"age": age, "work": work}, income


def input_fn():
  lines = tf.data.TextLineDataset("income.csv").map(parse).repeat(20).batch(40)
  features, income = lines.make_one_shot_iterator().get_next()
  labels = tf.contrib.lookup.index_table_from_tensor(["<=50K", ">50K"])
  return features, labels.lookup(income)


def serving_input_fn():
  line = tf.placeholder(tf.string, [None])
  features, _ = parse(line)
  return tf.estimator.export.ServingInputReceiver(features, {"line": line})


column = tf.feature_column
age = column.numeric_column("age", normalizer_fn=lambda x: (x - 40) / 10)
ages = column.bucketized_column(column.numeric_column("age"), [30, 41, 50])
work = column.categorical_column_with_vocabulary_list("work", WORK)
crossed = column.crossed_column([ages, "work"], hash_bucket_size=100)
estimator = tf.estimator.DNNLinearCombinedClassifier(
  config=tf.estimator.RunConfig(model_dir="model", tf_random_seed=1),
  linear_feature_columns=[ages, work, crossed],
  dnn_feature_columns=[age, column.embedding_column(work, 2)],
  dnn_hidden_units=[8, 4],
  linear_optimizer=tf.train.FtrlOptimizer(0.5),
  dnn_optimizer=tf.train.AdamOptimizer(0.05),
)
exporter = tf.estimator.FinalExporter("income", serving_input_fn)
result, (exported,) = tf.estimator.train_and_evaluate(
  estimator,
  tf.estimator.TrainSpec(input_fn, max_steps=100),
  tf.estimator.EvalSpec(input_fn, steps=6, exporters=[exporter]),
)
predict = tf.contrib.predictor.from_saved_model(
  exported.decode(), signature_def_key="predict"
)
classes = predict({"line": ["25,State,", "55,Private,"]})["class_ids"]
assert classes.ravel().tolist() == [0, 1], classes
print(result["accuracy"])
"""
FLOWERS = """
import sys

import numpy as np

from tf1_estimator import tensorflow_1 as tf

def main(argv):
  x = {"length": np.arange(90.0) % 3, "width": np.ones(90)}
  y = x["length"].astype(int)
  classifier = tf.estimator.DNNClassifier(
    feature_columns=[tf.feature_column.numeric_column(name) for name in x],
    hidden_units=[10, 10], n_classes=3,
    optimizer=tf.train.AdamOptimizer(0.05),
    config=tf.estimator.RunConfig(tf_random_seed=1))
  input_fn = tf.estimator.inputs.numpy_input_fn
  classifier.train(input_fn(x, y, shuffle=True, num_epochs=None), steps=60)
  result = classifier.evaluate(input_fn(x, y, shuffle=False))
  predicted = classifier.predict(input_fn(x, shuffle=False))
  assert [row["class_ids"][0] for row in predicted][:3] == [0, 1, 2]
  assert not {name.split(".")[0] for name in sys.modules} & {"bert", "bertlib"}
  print(result["accuracy"])

tf.app.run(main)
"""


@pytest.fixture(scope="session")
def python_of_compat(tmp_path_factory):
  folder = tmp_path_factory.mktemp("compat_wheel")
  build(folder, root=ROOT / "bertlib" / "compat")
  (wheel,) = folder.glob("*.whl")
  return with_requirements(wheel, tmp_path_factory.mktemp("compat"))


def test_estimators_run_with_the_package_of_compat_alone(run, python_of_compat):
  printed = run("-c", INCOME + FLOWERS, python=python_of_compat)
  assert [float(accuracy) > 0.95 for accuracy in printed.split()] == [True] * 2


def test_the_package_of_compat_lists_names(run, python_of_compat, tmp_path):
  (tmp_path / "income.py").write_text(INCOME)
  given = "-m", "tf1_estimator.tensorflow_1", "income.py"
  listed = run(*given, python=python_of_compat)
  assert listed == "All names of TensorFlow were found.\n"


IMPORTS = """
import importlib.util
import pkgutil
import sys

import bert

assert not importlib.util.find_spec("pytest")  # only what is required is here

# Needs a package that the wheel does not require.
skipped = {
  "bert.create_pretraining_data_beam",
  "bert.bertlib.tasks.pretraining.beam_files",
}
modules = pkgutil.walk_packages(bert.__path__, "bert.")
found = {module.name for module in modules}
for name in sorted(found - skipped):
  importlib.import_module(name)
assert not {*sys.argv[1:]} & {*sys.modules}
print(len(found))
"""


def test_every_module_can_be_imported(run):
  assert int(run("-c", IMPORTS, *NAMES)) > 100


OF_NAMES = """
import sys

sys.path.insert(0, "library")
from bert import create_vocab

# A module that is executed when it is used.
print(create_vocab.rewrite.WORD_EMBEDDINGS)
"""


def test_what_finds_modules_by_name_finds_those_of_the_package(
  run, wheel, tmp_path
):
  with zipfile.ZipFile(wheel) as file:
    file.extractall(tmp_path / "library")
  printed = run("-c", OF_NAMES, python=sys.executable)
  assert printed.strip() == "bert/embeddings/word_embeddings"


def test_a_command_shows_how_it_is_typed(run):
  help_text = run("-m", "bert.run_ner", "--help")
  assert "  python -m bert.run_ner" in help_text


@pytest.fixture
def run_command(run, world, tmp_path):
  """Runs a command as a module of the package; returns its output folder."""

  def run_command(command, *more):
    given = (*wrong_input_world.COMMANDS[command], *more)
    out = tmp_path / "out"
    flags = (text.format(world=world, out=out) for text in given)
    run("-m", f"bert.{command}", *flags)
    return out

  return run_command


def test_a_command_and_its_workers_run_as_a_module(run_command):
  out = run_command("create_pretraining_data", "--num_workers=2")
  assert (out / "records.tfrecord").stat().st_size


@pytest.mark.slow
def test_runs_in_subprocesses_and_their_reports_are_of_the_package(run_command):
  out = run_command("run_classifier", "--do_eval", "--seed=1", "--seeds=2")
  report = (out / "seed_2" / "report.html").read_text()
  assert "python -m bert.run_classifier" in report
  receipt = json.loads((out / "seed_2" / "run.json").read_text())
  versions = receipt["training"]["versions"]
  citation = (ROOT / "CITATION.cff").read_text()
  assert f"\nversion: {versions['project']}\n" in citation
