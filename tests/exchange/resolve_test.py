"""Tests of finding a model's files from its flags."""

import dataclasses
import json
import os

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow as tf
import tiny_huggingface
from parametrize import parametrize
from refused import assert_refused

import modeling
from bertlib.checkpoints import checkpoint_files, keras_files, model_folder
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import initial_model, resolve, rewrite, tfhub, zoo
from bertlib.settings.common import ModelSettings
from bertlib.settings.export import ExportSettings
from bertlib.settings.feature_extraction import FeatureSettings
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.tasks.embeddings.settings import EmbeddingSettings
from bertlib.tasks.ner.settings import NerSettings
from bertlib.tasks.pretraining.settings import PretrainingSettings
from bertlib.tasks.squad.settings import SquadSettings

pytestmark = pytest.mark.unit

CONFIG = modeling.BertConfig(vocab_size=8)


def test_no_vocabulary_is_no_fault_where_none_is_needed(tmp_path, monkeypatch):
  folder = folder_of(tmp_path / "m")
  (tmp_path / "m" / "vocab.txt").unlink()
  monkeypatch.setattr(tfhub, "convert", lambda _: folder)
  flags = {"do_predict": True, "predict_file": "-"}
  flags["bert_hub_module_handle"] = "encoder"
  asked = option.make(PretrainingSettings, **flags)
  model = resolve.complete(asked).model
  assert model.init_checkpoint == f"{folder}/model.ckpt-1"
  assert not model_folder.tokenizer_of(model, CONFIG, needs_vocabulary=False)
  with pytest.raises(InputError, match=r"^encoder: has no vocabulary; name it"):
    model_folder.tokenizer_of(model, CONFIG)


def test_a_vocabulary_that_is_named_empty_is_refused_by_its_flag():
  model = ModelSettings(bert_hub_module_handle="encoder", vocab_file="")
  with pytest.raises(InputError, match=r"^--vocab_file is empty; name a vocab"):
    model_folder.tokenizer_of(model, CONFIG)


def folder_of(folder, **description):
  """A folder with the files of a model, with this `model.json`."""
  folder.mkdir()
  for name in ("vocab.txt", "bert_config.json"):
    (folder / name).write_text("{}")
  (folder / "model.json").write_text(json.dumps(description))
  checkpoint, step = str(folder / "model.ckpt-1"), {"global_step": np.int64(1)}
  checkpoint_files.write_variables(checkpoint, step)
  return str(folder)


CLASSIFIER = {
  "script": "run_classifier",
  "task": "tsv",
  "kind": "multi_label",
  "labels": ["a", "b"],
  "max_seq_length": 32,
  "do_lower_case": False,
}


def completed(settings, **flags):
  """Settings without a command line, completed by the folder of a model."""
  return option.make(settings, **flags).completed()


_BRIEF = {"max_seq_length": 32, "do_lower_case": False}
# What versions 0.10 to 0.18 wrote of other tasks than `CLASSIFIER`.
WINDOWS = {"doc_stride": 9, "max_query_length": 8}
ANSWERS = _BRIEF | WINDOWS | {"version_2_with_negative": True}
SQUAD = ANSWERS | {"script": "run_squad"}
NER = _BRIEF | {"script": "run_ner", "labels": ["O", "B-X"]}
PRETRAINING = _BRIEF | {"script": "run_pretraining"}
VECTORS = {"pooling": "cls", "normalize": False}
EMBEDDINGS = _BRIEF | {"script": "run_embeddings", "embedding": VECTORS}
PREDICTS = "output_dir", {"do_predict": True}
STARTS = "init_checkpoint", {}
LABELED = {"task_name": "tsv", "labels": ["a", "b"]}
COLUMNS = {"text_a_column": "text", "label_delimiter": "|"}

# By settings and what is shown: `model.json`, the flag that names the folder
# and others; and expected values of flags.
BROUGHT = {
  ClassifierSettings: {
    "its own": (
      CLASSIFIER | COLUMNS,
      PREDICTS,
      LABELED | COLUMNS | {"problem_type": "multi_label"},
    ),
    "its own of 0.10": (
      CLASSIFIER | {"has_pairs": True, "precision": "float32", "xla": "off"},
      PREDICTS,
      LABELED | {"problem_type": "multi_label"},
    ),
    "its own of 0.19": (
      CLASSIFIER | {"columns": {"text_a": "one", "text_b": "two"}},
      ("output_dir", {"do_eval": True}),
      {"text_a_column": "one", "text_b_column": "two"},
    ),
    "a converted one": (
      {k: v for k, v in CLASSIFIER.items() if k != "task"},
      ("init_checkpoint", {"do_eval": True}),
      LABELED,
    ),
    "casing alone to a training": (
      CLASSIFIER,
      ("init_checkpoint", {"output_dir": "o", "do_train": True}),
      {"task_name": None, "max_seq_length": 128, "do_lower_case": False},
    ),
  },
  SquadSettings: {"its own of 0.10": (SQUAD, PREDICTS, ANSWERS)},
  NerSettings: {"its own of 0.10": (NER, PREDICTS, _BRIEF)},
  PretrainingSettings: {
    "its own of 0.16": (PRETRAINING, PREDICTS, _BRIEF),
    "the objective too to a training": (
      PRETRAINING | {"objective": "electra"},
      ("init_checkpoint", {"do_train": True}),
      {"objective": "electra", "max_seq_length": 128},
    ),
  },
  EmbeddingSettings: {
    "its own of 0.16": (EMBEDDINGS, PREDICTS, _BRIEF),
    "a classifier": (CLASSIFIER, STARTS, _BRIEF),
    "the length too to a training": (
      EMBEDDINGS,
      ("init_checkpoint", {"do_train": True}),
      {"max_seq_length": 32},
    ),
  },
  FeatureSettings: {"a classifier": (CLASSIFIER, STARTS, _BRIEF)},
  ExportSettings: {
    "a converted one": (
      EMBEDDINGS | {"max_input_chars_per_word": 100},
      ("model_dir", {}),
      {"do_lower_case": False},
    )
  },
}


@parametrize(
  "settings, case",
  *([(settings, case) for settings in BROUGHT for case in BROUGHT[settings]]),
)
def test_a_folder_brings(settings, case, tmp_path):
  entries, (flag, more), expected = BROUGHT[settings][case]
  folder = folder_of(tmp_path / "m", **entries)
  found = option.values_of(completed(settings, **{flag: folder}, **more))
  expected = expected | {
    "vocab_file": f"{folder}/vocab.txt",
    "bert_config_file": f"{folder}/bert_config.json",
  }
  assert {name: found[name] for name in expected} == expected


@parametrize(
  "settings, missing",
  (ClassifierSettings, "--task_name, --vocab_file and --bert_config_file"),
  (SquadSettings, "--vocab_file and --bert_config_file must"),
  (NerSettings, "--vocab_file and --bert_config_file must"),
  (PretrainingSettings, "--bert_config_file must"),
)
def test_a_folder_of_the_original_needs_flags(settings, missing, tmp_path):
  path = folder_of(tmp_path / "m")
  for name in ("vocab.txt", "bert_config.json", "model.json"):
    (tmp_path / "m" / name).unlink()
  made = completed(settings, output_dir=path, do_predict=True)
  assert_refused(f"^{missing}", initial_model.check, made)


def test_flags_that_are_given_win(tmp_path):
  folder = folder_of(tmp_path / "m", **CLASSIFIER)
  given = frozenset({"max_seq_length", "labels"})
  model = ModelSettings(max_seq_length=64, given=given)
  made = option.make(ClassifierSettings, output_dir=folder, labels=["c"])
  made = dataclasses.replace(made, model=model).completed()
  assert (made.model.max_seq_length, made.labels) == (64, ["c"])


def test_of_two_trained_folders_that_of_the_checkpoint_is_read(tmp_path):
  own = folder_of(tmp_path / "own", **CLASSIFIER)
  other = folder_of(tmp_path / "other", **CLASSIFIER | {"labels": ["c", "d"]})
  flags = {"output_dir": own, "do_predict": True}
  made = completed(ClassifierSettings, init_checkpoint=other, **flags)
  assert (made.model.folder, made.labels) == (other, ["c", "d"])
  # The path of a checkpoint is where the training started, as in the original.
  path = f"{other}/model.ckpt-1"
  made = completed(ClassifierSettings, init_checkpoint=path, **flags)
  assert (made.model.folder, made.labels) == (own, ["a", "b"])


def test_a_checkpoint_by_its_path_brings_no_files(tmp_path):
  folder = folder_of(tmp_path / "m", **CLASSIFIER)
  made = completed(FeatureSettings, init_checkpoint=f"{folder}/model.ckpt-1")
  assert made.model.vocab_file is None
  assert (made.model.max_seq_length, made.model.do_lower_case) == (32, False)


@parametrize(
  "entries, message",
  (CLASSIFIER, "m: has a model of run_classifier.py. Name the folder of a"),
  ({"script": "run_ner", "word_column": 0}, "word_column is 0, not an"),
  ({"script": "run_ner", "format": 2}, "format, 2, is of a newer version"),
)
def test_a_folder_that_is_not_of_a_task_is_one_line(tmp_path, entries, message):
  folder = folder_of(tmp_path / "m", **entries)
  with pytest.raises(InputError, match=message):
    completed(NerSettings, output_dir=folder, do_predict=True)


def test_another_casing_than_that_of_the_model_is_refused(tmp_path):
  folder = folder_of(tmp_path / "m", **CLASSIFIER)
  made = completed(FeatureSettings, init_checkpoint=folder)
  made = option.fill(made, {"do_lower_case": True})
  with pytest.raises(InputError, match=r"^--do_lower_case=true: .* with false"):
    resolve.check_model_files(made)


def test_completing_downloads_nothing(monkeypatch):
  monkeypatch.setattr(zoo, "flags_for", lambda _: pytest.fail("fetched"))
  made = completed(ClassifierSettings, init_checkpoint="bert-base-uncased")
  assert made.model.folder is None


def test_a_folder_without_its_checkpoint_is_named(tmp_path):
  folder = folder_of(tmp_path / "m", **CLASSIFIER)
  (tmp_path / "m" / "model.ckpt-1.index").unlink()
  made = completed(ClassifierSettings, output_dir=folder, do_predict=True)
  assert_refused("m: holds no trained model", initial_model.check, made)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """Folder of the models that are converted."""
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  return tmp_path / "cache" / "local"


def resolved(path, **more):
  """The settings of a model by --init_checkpoint."""
  flags = {"init_checkpoint": str(path), "input_file": "-", "output_file": "-"}
  asked = option.make(FeatureSettings, **flags, **more)
  return resolve.complete(asked.completed()).model


# The path of a checkpoint brings no files.
FILES = {"vocab_file": "vocab.txt", "bert_config_file": "bert_config.json"}


def num_converted(log):
  return sum("read: " in line for line in log)


@pytest.mark.graph
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
    setattr(node, last.replace("|", "/"), tf.Variable(value))
  return root.write(str(prefix))


@pytest.mark.graph
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


# As the trainer of tf-models-official 2.20 saves `bert/pretraining`.
HEADS = {
  "masked_lm/embedding_table": ("bert/embeddings/word_embeddings", [9, 6]),
  "masked_lm/dense/bias": ("cls/predictions/transform/dense/bias", [6]),
  "masked_lm/layer_norm/beta": (
    "cls/predictions/transform/LayerNorm/beta",
    [6],
  ),
  "masked_lm/output_bias|bias": ("cls/predictions/output_bias", [9]),
  "next_sentence.pooler_dense/kernel": ("bert/pooler/dense/kernel", [6, 6]),
  "model/classification_heads/0/out_proj/kernel": (
    "cls/seq_relationship/output_weights",
    [6, 2],
  ),
}


@pytest.mark.graph
def test_heads_of_pretraining_are_read_with_the_pooler_they_train(tmp_path):
  rng = np.random.default_rng(0)
  stored = {
    f"encoder/{name}": rng.normal(size=shape)
    for name, (_, shape) in OBJECTS.items()
    if name != "layer_with_weights-0/embeddings"
  }
  heads = {name: rng.normal(size=shape) for name, (_, shape) in HEADS.items()}
  path = write_objects(tmp_path / "ckpt-4", stored | heads)
  variables = rewrite.read_weights(path)
  assert len(variables) == len(OBJECTS) + 4
  for name, (ours, _) in HEADS.items():
    value = heads[name].T if ours.endswith("_weights") else heads[name]
    np.testing.assert_array_equal(variables[ours], value)


@pytest.mark.graph
@parametrize("own_table", True, False)
def test_of_two_encoders_that_of_the_discriminator_is_read(tmp_path, own_table):
  stored = {}
  for value, scope in enumerate(["model/generator_network", "encoder"]):
    for name, (_, shape) in OBJECTS.items():
      if "-0/emb" not in name or own_table == (scope == "encoder"):
        stored[f"{scope}/{name}"] = np.full(shape, value)
  others = {"model/masked_lm/dense/kernel": np.zeros([6, 6])}
  path = write_objects(tmp_path / "ckpt-4", stored | others)
  variables = rewrite.read_weights(path)
  assert len(variables) == len(OBJECTS)
  table = variables.pop("bert/embeddings/word_embeddings")
  assert np.all(table == own_table)
  assert all(np.all(value == 1) for value in variables.values())


def test_averages_of_an_optimizer_are_named(caplog):
  stored = {f"encoder/{n}": np.ones(shape) for n, (_, shape) in OBJECTS.items()}
  # as official.modeling.optimization.ema_optimizer saves them
  weight = "encoder/layer_with_weights-3/gamma"
  stored[f"{weight}/.OPTIMIZER_SLOT/optimizer/average"] = np.zeros([6])
  stored = {f"{n}/.ATTRIBUTES/VARIABLE_VALUE": v for n, v in stored.items()}
  found = keras_files.read_objects(stored, stored.get, "averages")
  assert np.all(found["bert/embeddings/LayerNorm/gamma"] == 1)
  assert "averages: has averages of weights in its optimizer" in caplog.text


@pytest.mark.graph
@parametrize(
  "scopes, more, words",
  ([], "weight", "object-based checkpoint"),
  (["a", "b"], "weight", "several encoders, a/, b/"),
  (["a"], "a/_embedding_projection/kernel", "has _embedding_proj"),
  (["a"], "a/layer_with_weights-7/kernel", "another embedding_size"),
)
def test_other_objects_are_refused_in_one_line(tmp_path, scopes, more, words):
  values = {
    f"{scope}/{name}": np.ones(shape)
    for scope in scopes
    for name, (_, shape) in OBJECTS.items()
  }
  path = write_objects(tmp_path / "model", values | {more: np.ones(3)})
  assert_refused(words, rewrite.read_weights, path)
  assert_refused(words, resolved, path, **FILES)


@pytest.mark.train
@parametrize("labels", ("yes", "no"), ("on", "off"))
def test_the_head_of_other_labels_is_left_out(labels, world, tmp_path):
  rows = [f"the cat sat\t{label}\n" for label in labels]
  (tmp_path / "train.tsv").write_text("".join(rows))
  done = commands.succeed(
    "run_classifier.py",
    *("--do_train", "--task_name=tsv", f"--data_dir={tmp_path}", "--xla=off"),
    f"--init_checkpoint={world}/trained",
    *("--train_batch_size=2", "--num_train_epochs=1", "--max_seq_length=8"),
    f"--output_dir={tmp_path / 'out'}",
  )
  warning = "(output_bias, output_weights) is that of another task"
  assert (warning in done.stderr) == (labels != ("yes", "no"))
  assert os.path.exists(tmp_path / "out" / "checkpoint")
