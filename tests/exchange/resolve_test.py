"""Tests of finding a model's files from its flags."""

import json

import numpy as np
import pytest

import modeling
from bertlib.checkpoints import checkpoint_writer
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import resolve, tfhub, zoo
from bertlib.settings.classifier import ClassifierSettings
from bertlib.settings.common import ModelSettings
from bertlib.settings.ner import NerSettings
from bertlib.tasks.classification.record import RECORD

pytestmark = pytest.mark.unit

CONFIG = modeling.BertConfig(vocab_size=8)


@pytest.fixture
def encoder(monkeypatch):
  """A Hub module, and a published model, without a vocabulary."""
  brought = {"bert_config_file": "config.json", "init_checkpoint": "model"}
  monkeypatch.setattr(tfhub, "flags_for", lambda _: brought)
  monkeypatch.setattr(zoo, "flags_for", lambda _: brought)


def test_an_encoder_without_vocabulary_is_one_where_none_is_needed(encoder):
  model = ModelSettings(bert_hub_module_handle="encoder")
  model = resolve.fetch_model(NerSettings(model=model))
  assert model.init_checkpoint == "model"
  assert resolve.load_tokenizer(model, CONFIG, needs_vocabulary=False) is None
  with pytest.raises(InputError, match=r"^encoder: has no vocabulary; name it"):
    resolve.load_tokenizer(model, CONFIG)


def test_a_vocabulary_that_is_named_empty_is_refused_by_its_flag(encoder):
  model = ModelSettings(
    init_checkpoint="bert-base-uncased",
    vocab_file="",
    given=frozenset({"vocab_file"}),
  )
  with pytest.raises(InputError, match=r"^--vocab_file is empty; name a vocab"):
    resolve.load_tokenizer(
      resolve.fetch_model(NerSettings(model=model)), CONFIG
    )


@pytest.mark.parametrize("flag", ["init_checkpoint", "bert_hub_module_handle"])
def test_describing_a_model_downloads_nothing(monkeypatch, tmp_path, flag):
  for module in (tfhub, zoo):
    monkeypatch.setattr(module, "flags_for", lambda _: pytest.fail("fetched"))
  settings = option.make(
    ClassifierSettings,
    output_dir=str(tmp_path),
    **{flag: "bert-base-uncased"},
  )
  description, folder = resolve.find_description(settings, RECORD)
  assert (description, folder) == ({}, "bert-base-uncased")


def test_a_trained_model_is_described_whatever_it_started_from(tmp_path):
  (tmp_path / "model.json").write_text(json.dumps({"script": "x"}))
  checkpoint_writer.write_variables(
    str(tmp_path / "model.ckpt-1"), {"global_step": np.int64(1)}
  )
  settings = option.make(
    ClassifierSettings,
    output_dir=str(tmp_path),
    init_checkpoint="bert-base-uncased",
  )
  description, folder = resolve.find_description(settings, RECORD)
  assert description["script"] == "x"
  assert folder == str(tmp_path)
