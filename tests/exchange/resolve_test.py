"""Tests of finding a model's files from its flags."""

import json

import numpy as np
import pytest

import modeling
from bertlib.checkpoints import checkpoint_writer
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import initial_model, resolve, tfhub, zoo
from bertlib.settings.classifier import ClassifierSettings
from bertlib.settings.common import ModelSettings
from bertlib.settings.embeddings import EmbeddingSettings
from bertlib.settings.feature_extraction import FeatureSettings
from bertlib.settings.ner import NerSettings
from bertlib.settings.pretraining import PretrainingSettings

pytestmark = pytest.mark.unit

CONFIG = modeling.BertConfig(vocab_size=8)


@pytest.fixture
def encoder(monkeypatch):
  """A Hub module, and a published model, without a vocabulary."""
  brought = {"bert_config_file": "config.json", "init_checkpoint": "model"}
  monkeypatch.setattr(tfhub, "flags_for", lambda _: brought)
  monkeypatch.setattr(zoo, "flags_for", lambda _: brought)


def test_an_encoder_without_vocabulary_is_one_where_none_is_needed(encoder):
  asked = option.make(
    PretrainingSettings,
    bert_hub_module_handle="encoder",
    do_predict=True,
    predict_file="-",
  )
  model = resolve.complete(asked).model
  assert model.init_checkpoint == "model"
  assert resolve.load_tokenizer(model, CONFIG, needs_vocabulary=False) is None
  with pytest.raises(InputError, match=r"^encoder: has no vocabulary; name it"):
    resolve.load_tokenizer(model, CONFIG)


def test_a_vocabulary_that_is_named_empty_is_refused_by_its_flag(encoder):
  model = ModelSettings(bert_hub_module_handle="encoder", vocab_file="")
  with pytest.raises(InputError, match=r"^--vocab_file is empty; name a vocab"):
    resolve.load_tokenizer(model, CONFIG)


def model_folder(folder, **description):
  """A folder with the files of a model, with this `model.json`."""
  folder.mkdir()
  for name in ("vocab.txt", "bert_config.json"):
    (folder / name).write_text("{}")
  (folder / "model.json").write_text(json.dumps(description))
  checkpoint_writer.write_variables(
    str(folder / "model.ckpt-1"), {"global_step": np.int64(1)}
  )
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


def test_a_trained_folder_is_enough(tmp_path):
  folder = model_folder(
    tmp_path / "m", **CLASSIFIER, text_a_column="text", label_delimiter="|"
  )
  made = completed(ClassifierSettings, output_dir=folder, do_predict=True)
  assert (made.task_name, made.problem_type) == ("tsv", "multi_label")
  assert made.labels == ["a", "b"]
  assert (made.text_a_column, made.label_delimiter) == ("text", "|")
  assert (made.model.max_seq_length, made.model.do_lower_case) == (32, False)
  assert made.model.vocab_file == f"{folder}/vocab.txt"
  assert made.model.bert_config_file == f"{folder}/bert_config.json"


def test_columns_of_earlier_versions_are_read(tmp_path):
  columns = {"text_a": "one", "text_b": "two"}
  folder = model_folder(tmp_path / "m", **CLASSIFIER, columns=columns)
  made = completed(ClassifierSettings, output_dir=folder, do_eval=True)
  assert (made.text_a_column, made.text_b_column) == ("one", "two")


def test_a_converted_model_needs_no_name_of_a_task(tmp_path):
  entries = {k: v for k, v in CLASSIFIER.items() if k != "task"}
  folder = model_folder(tmp_path / "m", **entries)
  made = completed(ClassifierSettings, init_checkpoint=folder, do_eval=True)
  assert (made.task, made.labels) == ("tsv", ["a", "b"])


def test_flags_that_are_given_win(tmp_path):
  folder = model_folder(tmp_path / "m", **CLASSIFIER)
  model = ModelSettings(
    max_seq_length=64, given=frozenset({"max_seq_length", "labels"})
  )
  made = option.make(ClassifierSettings, output_dir=folder, labels=["c"])
  made = option.fill(made, {"model": model}).completed()
  assert (made.model.max_seq_length, made.labels) == (64, ["c"])


def test_training_takes_the_casing_alone(tmp_path):
  folder = model_folder(tmp_path / "m", **CLASSIFIER)
  made = completed(
    ClassifierSettings, init_checkpoint=folder, output_dir="o", do_train=True
  )
  assert (made.task_name, made.model.max_seq_length) == (None, 128)
  assert not made.model.do_lower_case
  assert made.model.vocab_file == f"{folder}/vocab.txt"


def test_training_of_embeddings_takes_the_length_too(tmp_path):
  entries = {"script": "run_embeddings", "max_seq_length": 32}
  folder = model_folder(tmp_path / "m", **entries)
  made = completed(EmbeddingSettings, init_checkpoint=folder, do_train=True)
  assert made.model.max_seq_length == 32


def test_of_two_trained_folders_that_of_the_checkpoint_is_read(tmp_path):
  own = model_folder(tmp_path / "own", **CLASSIFIER)
  entries = CLASSIFIER | {"labels": ["c", "d"]}
  other = model_folder(tmp_path / "other", **entries)
  flags = {"output_dir": own, "do_predict": True}
  made = completed(ClassifierSettings, init_checkpoint=other, **flags)
  assert (made.model.folder, made.labels) == (other, ["c", "d"])
  # The path of a checkpoint is where the training started, as in the original.
  path = f"{other}/model.ckpt-1"
  made = completed(ClassifierSettings, init_checkpoint=path, **flags)
  assert (made.model.folder, made.labels) == (own, ["a", "b"])


def test_a_checkpoint_by_its_path_brings_no_files(tmp_path):
  folder = model_folder(tmp_path / "m", **CLASSIFIER)
  made = completed(FeatureSettings, init_checkpoint=f"{folder}/model.ckpt-1")
  assert made.model.vocab_file is None
  assert (made.model.max_seq_length, made.model.do_lower_case) == (32, False)


def test_any_encoder_gives_features_and_vectors(tmp_path):
  folder = model_folder(tmp_path / "m", **CLASSIFIER)
  for settings in (FeatureSettings, EmbeddingSettings):
    made = completed(settings, init_checkpoint=folder)
    assert made.model.max_seq_length == 32


@pytest.mark.parametrize(
  ("entries", "message"),
  [
    (CLASSIFIER, "m: has a model of run_classifier.py. Name the folder of a"),
    ({"script": "run_ner", "word_column": 0}, "word_column is 0, not an"),
    (
      {"script": "run_ner", "format": 2},
      "format, 2, is of a newer version",
    ),
  ],
)
def test_a_folder_that_is_not_of_the_task_is_one_line(
  tmp_path, entries, message
):
  folder = model_folder(tmp_path / "m", **entries)
  with pytest.raises(InputError, match=message):
    completed(NerSettings, output_dir=folder, do_predict=True)


def test_another_casing_than_that_of_the_model_is_refused(tmp_path):
  folder = model_folder(tmp_path / "m", **CLASSIFIER)
  made = completed(FeatureSettings, init_checkpoint=folder)
  made = option.fill(made, {"do_lower_case": True})
  with pytest.raises(InputError, match=r"^--do_lower_case=true: .* with false"):
    resolve.check_model_files(made)


def test_completing_downloads_nothing(monkeypatch):
  monkeypatch.setattr(zoo, "flags_for", lambda _: pytest.fail("fetched"))
  made = completed(ClassifierSettings, init_checkpoint="bert-base-uncased")
  assert made.model.folder is None


# Folders that are no model


def test_a_folder_with_two_models_is_refused(tmp_path):
  folder = model_folder(tmp_path / "m", **CLASSIFIER)
  (tmp_path / "m" / "model.safetensors").write_bytes(b"")
  with pytest.raises(
    InputError,
    match=r"m: has two models, model\.ckpt-1\.index and model\.safetensors",
  ):
    initial_model.is_huggingface(folder)


@pytest.mark.parametrize(
  ("file", "message"),
  [
    ("vocab.txt", "--vocab_file must be given, which .*m does not bring"),
    ("model.ckpt-1.index", "m: holds no trained model; add --do_train"),
  ],
)
def test_a_trained_folder_without_a_file_is_named(tmp_path, file, message):
  folder = model_folder(tmp_path / "m", **CLASSIFIER)
  (tmp_path / "m" / file).unlink()
  made = completed(ClassifierSettings, output_dir=folder, do_predict=True)
  with pytest.raises(InputError, match=message):
    initial_model.check(made)
