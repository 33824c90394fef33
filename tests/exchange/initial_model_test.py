"""Tests of models that --init_checkpoint converts, and of new heads."""

import os

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow as tf
import tiny_huggingface

from bertlib.checkpoints import rewrite
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import resolve
from bertlib.settings.feature_extraction import FeatureSettings

pytestmark = pytest.mark.graph


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """Folder of the models that are converted."""
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  return tmp_path / "cache" / "local"


def resolved(path, **more):
  """The settings of a model by --init_checkpoint."""
  asked = option.make(
    FeatureSettings,
    init_checkpoint=str(path),
    input_file="-",
    output_file="-",
    **more,
  )
  return resolve.complete(asked.completed()).model


# The path of a checkpoint brings no files.
FILES = {"vocab_file": "vocab.txt", "bert_config_file": "bert_config.json"}


def num_converted(log):
  return sum("read: " in line for line in log)


def test_a_folder_is_converted_once_until_it_changes(tmp_path, cache, log):
  folder = tmp_path / "theirs"
  tiny_huggingface.write_folder(folder)
  model = resolved(folder)
  assert resolved(folder) == model
  assert num_converted(log) == 1
  (converted,) = (path for path in cache.iterdir() if path.is_dir())
  assert model.init_checkpoint == f"{converted}/bert_model.ckpt"
  assert model.vocab_file == f"{converted}/vocab.txt"
  (folder / "vocab.txt").write_text("\n".join(tiny_huggingface.WORDS[:-1]))
  changed = resolved(folder)
  assert num_converted(log) == 2
  assert changed.init_checkpoint != model.init_checkpoint
  with open(changed.vocab_file) as file:
    assert file.read().split() == tiny_huggingface.WORDS[:-1]


# Names, shapes and our names and shapes in tensorflow/models' BERT encoder.
_QUERY = "_attention_layer/_query_dense", "attention/self/query"
_OUTPUT = "_attention_layer/_output_dense", "attention/output/dense"
OBJECTS = {
  "layer_with_weights-0/embeddings": ("embeddings/word_embeddings", [9, 6]),
  "layer_with_weights-1/embeddings": ("embeddings/position_embeddings", [7, 6]),
  "layer_with_weights-2/embeddings": (
    "embeddings/token_type_embeddings",
    [2, 6],
  ),
  "layer_with_weights-3/gamma": ("embeddings/LayerNorm/gamma", [6]),
  "layer_with_weights-6/kernel": ("pooler/dense/kernel", [6, 6]),
}
for layer in range(2):
  theirs, ours = f"layer_with_weights-{layer + 4}", f"encoder/layer_{layer}"
  OBJECTS |= {
    f"{theirs}/{_QUERY[0]}/kernel": (f"{ours}/{_QUERY[1]}/kernel", [6, 2, 3]),
    f"{theirs}/{_QUERY[0]}/bias": (f"{ours}/{_QUERY[1]}/bias", [2, 3]),
    f"{theirs}/{_OUTPUT[0]}/kernel": (f"{ours}/{_OUTPUT[1]}/kernel", [2, 3, 6]),
    f"{theirs}/_output_layer_norm/beta": (f"{ours}/output/LayerNorm/beta", [6]),
  }


def write_objects(prefix, values):
  """Writes a checkpoint of nested objects, by the paths of variables."""
  root = tf.train.Checkpoint()
  for path, value in values.items():
    *scope, last = path.split("/")
    node = root
    for name in scope:
      if not hasattr(node, name):
        setattr(node, name, tf.train.Checkpoint())
      node = getattr(node, name)
    setattr(node, last, tf.Variable(value))
  return root.write(str(prefix))


def test_objects_of_tensorflow_models_are_converted_once(tmp_path, cache):
  rng = np.random.default_rng(0)
  values = {n: rng.normal(size=shape) for n, (_, shape) in OBJECTS.items()}
  others = {"masked_lm/dense/kernel": np.zeros([6, 6])}
  path = write_objects(
    tmp_path / "bert_model.ckpt-1",
    {f"encoder/{name}": value for name, value in values.items()} | others,
  )
  found = {resolved(path, **FILES).init_checkpoint for _ in range(2)}
  assert len(found) == len(list(cache.glob("*/bert_model.ckpt.index"))) == 1
  variables = run_outputs.read_variables(found.pop())
  assert variables.keys() == {f"bert/{ours}" for ours, _ in OBJECTS.values()}
  for name, (ours, _) in OBJECTS.items():
    found = variables[f"bert/{ours}"]
    np.testing.assert_array_equal(found, values[name].reshape(found.shape))
  assert variables["bert/encoder/layer_1/attention/self/query/kernel"].ndim == 2


def test_other_objects_are_refused_in_one_line(tmp_path):
  path = write_objects(tmp_path / "model", {"weight": np.ones(3)})
  with pytest.raises(InputError, match="object-based checkpoint"):
    rewrite.read_weights(path)
  with pytest.raises(InputError, match="object-based checkpoint"):
    resolved(path, **FILES)


# The head of another task


@pytest.mark.train
@pytest.mark.parametrize("labels", [("yes", "no"), ("on", "off")])
def test_the_head_of_other_labels_is_left_out(labels, world, tmp_path):
  rows = [f"the cat sat\t{label}\n" for label in labels]
  (tmp_path / "train.tsv").write_text("".join(rows))
  done = commands.succeed(
    "run_classifier.py",
    *("--do_train", "--task_name=tsv", f"--data_dir={tmp_path}"),
    f"--init_checkpoint={world}/trained",
    *("--train_batch_size=2", "--num_train_epochs=1", "--max_seq_length=8"),
    f"--output_dir={tmp_path / 'out'}",
  )
  warning = "(output_bias, output_weights) is that of another task"
  assert (warning in done.stderr) == (labels != ("yes", "no"))
  assert os.path.exists(tmp_path / "out" / "checkpoint")
