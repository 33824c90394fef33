"""Tests of checkpoints as Hugging Face folders, and of round trips."""

import sys
import types

import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_huggingface as tiny
from parametrize import parametrize
from refused import assert_refused
from safetensors.numpy import load_file
from tiny_huggingface import CHOICE, ENCODER, LABELS, NEXT_SENTENCE, POOLER

from bertlib.cli.errors import InputError

pytestmark = pytest.mark.graph

CLASSIFIER = "BertForSequenceClassification"


def there_and_back(tmp_path, weights=None, **config):
  """Folders of a model of Hugging Face, as ours, and written back."""
  source = tiny.write_folder(tmp_path / "source", weights, **config)
  checkpoint, _ = tiny.convert(source, tmp_path / "ours")
  tiny.convert_back(checkpoint, tmp_path / "back")
  return tmp_path / "ours", tmp_path / "back"


def write(tmp_path, parts, description=None, more=(), **config):
  """Writes a checkpoint with parts as a folder; returns what was done."""
  shapes = tiny.variable_shapes(*parts) | dict(more)
  checkpoint = tiny.write_checkpoint(
    tmp_path / "run", shapes, description, **config
  )
  return tiny.convert_back(checkpoint, tmp_path / "theirs")


@parametrize("architecture", *tiny.ARCHITECTURES)
def test_a_round_trip_is_bitwise_exact(architecture, tmp_path):
  weights = tiny.random_bits(architecture)
  _, back = there_and_back(tmp_path, weights, architectures=[architecture])
  run_outputs.assert_same_bits(load_file(back / "model.safetensors"), weights)
  config = run_outputs.read_json(back / "config.json")
  assert config["architectures"] == [architecture]
  assert (back / "vocab.txt").read_text().split() == tiny.WORDS


@parametrize("dtype", "float16", "bfloat16")
def test_16_bits_are_widened_and_written_back(dtype, tmp_path):
  numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
  weights = {n: t.astype(numpy_dtype) for n, t in tiny.tensors().items()}
  classes = ["BertModel"]
  source = tiny.write_folder(tmp_path / "a", weights, architectures=classes)
  checkpoint, lines = tiny.convert(source, tmp_path / "ours")
  assert any(f"--dtype={dtype} writes them back" in line for line in lines)
  wide = run_outputs.read_variables(checkpoint).values()
  assert {value.dtype for value in wide} == {np.dtype(np.float32)}
  tiny.convert_back(checkpoint, tmp_path / "back", dtype=dtype)
  written = load_file(tmp_path / "back" / "model.safetensors")
  run_outputs.assert_same_bits(written, weights)


@parametrize(
  "theirs, ours",
  ("gelu_pytorch_tanh", "gelu_tanh"),
  *((name, name) for name in ("gelu", "gelu_new", "relu", "tanh", "linear")),
)
def test_keys_of_the_config_survive_a_round_trip(theirs, ours, tmp_path):
  keys = {
    "hidden_act": theirs,
    "layer_norm_eps": 1e-5,
    "problem_type": "multi_label_classification",
    "label2id": {"nein": 0, "vielleicht": 1, "ja": 2},
    "architectures": [CLASSIFIER],
    **tiny.name("nein", "vielleicht", "ja"),
  }
  given, weights = keys | {"torch_dtype": "float16"}, tiny.tensors(CLASSIFIER)
  here, back = there_and_back(tmp_path, weights, **given)
  assert run_outputs.read_json(here / "bert_config.json")["hidden_act"] == ours
  assert run_outputs.read_json(back / "config.json") == tiny.CONFIG | keys


_CUTS = dict(zip("xyz", (0.3, 0.5, 0.9)))
_ANSWERS = {"version_2_with_negative": True, "null_score_diff_threshold": -1.5}
_WINDOWS = {"doc_stride": 32, "max_query_length": 9}


@parametrize(
  "script, architecture, entries",
  (
    "run_classifier",
    CLASSIFIER,
    {"kind": "multi_label", "labels": [*"xyz"], "thresholds": _CUTS},
  ),
  (
    "run_classifier",
    "BertForMultipleChoice",
    {"kind": "multiple_choice", "labels": ["A", "B"]},
  ),
  ("run_squad", "BertForQuestionAnswering", _ANSWERS | _WINDOWS),
)
def test_a_description_survives(script, architecture, entries, tmp_path):
  description = {
    "script": script,
    "max_seq_length": 64,
    "do_lower_case": False,
    "max_input_chars_per_word": 100,
    **entries,
  }
  lines = write(tmp_path, [tiny.ARCHITECTURES[architecture]], description)
  assert f"architecture: {architecture}" in lines
  assert any("task_specific_params" in line for line in lines)
  assert tiny.read(tmp_path / "theirs").description == description
  tokenizer = run_outputs.read_json(tmp_path / "theirs/tokenizer_config.json")
  assert tokenizer["do_lower_case"] is False


def of_class(name):
  return {"architectures": [name]}


def with_activation(name):
  return {"sentence_transformers": {"activation_fn": name}}


TAGGER, CHOOSER = "BertForTokenClassification", "BertForMultipleChoice"
_ABC, _XYZ = tiny.name("a", "b", "c"), tiny.name("x", "y", "z")
_TAGS = ["O", "B-PER", "I-PER"]
_OF_TAGS = {"script": "run_ner", "labels": _TAGS}
_DEFAULT = ["LABEL_0", "LABEL_1", "LABEL_2"]


@parametrize(
  "head, config, description, expected",
  # Labels of the training, then of the config; of a head of this size.
  (
    LABELS,
    _XYZ,
    {"task": "tsv", "labels": [*"abc"]},
    _ABC | {"label2id": dict(zip("abc", range(3)))} | of_class(CLASSIFIER),
  ),
  (LABELS, _XYZ | {"torch_dtype": "float16"}, None, _XYZ),
  (LABELS, tiny.name("no", "yes"), None, tiny.name(*_DEFAULT)),
  # The class of the training, if any; one without the heads is outdated.
  (LABELS, of_class("BertModel"), None, of_class(CLASSIFIER)),
  (
    CHOICE,
    with_activation("of an earlier model"),
    {"script": "run_classifier", "kind": "regression"},
    with_activation("torch.nn.modules.linear.Identity"),
  ),
  (
    LABELS,
    {},
    _OF_TAGS,
    tiny.name(*_TAGS) | of_class(TAGGER) | {"problem_type": None},
  ),
  *(
    (
      head,
      {},
      {"script": "run_classifier", "kind": kind},
      of_class(name) | {"problem_type": problem_type},
    )
    for head, kind, name, problem_type in (
      (LABELS, "classification", CLASSIFIER, "single_label_classification"),
      (LABELS, "multi_label", CLASSIFIER, "multi_label_classification"),
      (CHOICE, "regression", CLASSIFIER, "regression"),
      (CHOICE, "multiple_choice", CHOOSER, None),
    )
  ),
)
def test_the_config_is_that_of_the_training(
  head, config, description, expected, tmp_path
):
  own = expected.get("architectures", [CLASSIFIER])
  others = [name for name in (TAGGER, CLASSIFIER, CHOOSER) if name not in own]
  stale = {"problem_type": "of an earlier model", "architectures": others}
  stale = stale if "script" in (description or {}) else {}
  write(tmp_path, [ENCODER, POOLER, head], description, **stale, **config)
  found = run_outputs.read_json(tmp_path / "theirs" / "config.json")
  assert {key: found.get(key) for key in expected} == expected
  assert "torch_dtype" not in found


@parametrize("last", "E-PER", "I-PER")
def test_what_transformers_makes_of_bioes_is_said(last, tmp_path):
  description = {"script": "run_ner", "labels": ["O", "B-PER", last]}
  lines = write(tmp_path, [ENCODER, LABELS], description)
  assert any("--scheme=BIO" in line for line in lines) == (last == "E-PER")


def test_optimizer_state_is_left_out_and_counted(tmp_path):
  kernel = "bert/pooler/dense/kernel"
  state = {f"{kernel}/adam_m": (4, 4), f"{kernel}/adam_v": (4, 4)}
  state |= {"loss_scale/scale": (), "global_step": ()}
  lines = write(tmp_path, [ENCODER, POOLER], more=state)
  assert "left out: 4 tensors of the optimizer's state" in lines
  written = load_file(tmp_path / "theirs" / "model.safetensors")
  assert len(written) == len(ENCODER | POOLER)


@parametrize(
  "parts, more, message",
  ([ENCODER, POOLER, NEXT_SENTENCE, LABELS], {}, "a label head and a"),
  ([ENCODER], {"bert/x/kernel": (4, 4)}, "not have: bert/x/kernel"),
)
def test_variables_of_no_class_are_refused(parts, more, message, tmp_path):
  assert_refused(message, write, tmp_path, parts, more=more)


def test_tokenizers_alone_reads_the_folder(checkpoint, tmp_path):
  tokenizers = pytest.importorskip("tokenizers", reason=".[vocab]")
  tiny.convert_back(checkpoint, tmp_path / "theirs", do_lower_case=True)
  path = tmp_path / "theirs" / "tokenizer.json"
  tokenizer = tokenizers.Tokenizer.from_file(str(path))
  texts = tokenizer.encode_batch(["The cats", "sat [SEP]" + " cat" * 999])
  assert texts[0].tokens == ["[CLS]", "the", "cat", "##s", "[SEP]"]
  assert texts[1].tokens[1:3] == ["sat", "[SEP]"]
  assert len(texts[1]) == 1003
  notes = tiny.read(str(tmp_path / "theirs")).notes
  assert not any("does not support" in note for note in notes)


@pytest.fixture
def checkpoint(tmp_path):
  shapes = tiny.variable_shapes(ENCODER, POOLER)
  return tiny.write_checkpoint(tmp_path / "run", shapes)


def test_pytorch_weights_are_those_of_safetensors(checkpoint, tmp_path):
  torch = pytest.importorskip("torch")
  tiny.convert_back(checkpoint, tmp_path / "torch", as_pytorch=True)
  assert not (tmp_path / "torch" / "model.safetensors").exists()
  tiny.convert_back(checkpoint, tmp_path / "safetensors")
  path = tmp_path / "torch" / "pytorch_model.bin"
  written = torch.load(path, weights_only=True)
  run_outputs.assert_same_bits(
    {n: tensor.numpy() for n, tensor in written.items()},
    load_file(tmp_path / "safetensors" / "model.safetensors"),
  )


def test_a_missing_pytorch_writes_no_file(checkpoint, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(InputError, match="can write it: pip install torch"):
    tiny.convert_back(checkpoint, tmp_path / "theirs", as_pytorch=True)
  assert not (tmp_path / "theirs").exists()


def test_pytorch_beside_others_is_refused(checkpoint, tmp_path, monkeypatch):
  target = tmp_path / "theirs"
  tiny.convert_back(checkpoint, target)
  before = (target / "model.safetensors").read_bytes()
  monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
  with pytest.raises(InputError, match="would read it instead of pytorch_mod"):
    tiny.convert_back(checkpoint, target, overwrite=True, as_pytorch=True)
  assert (target / "model.safetensors").read_bytes() == before
