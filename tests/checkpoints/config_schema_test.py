"""Tests of the schema of `bert_config.json`."""

import json

import pytest
import reference_data
import wrong_input_world

import modeling
from bertlib.checkpoints import config_schema, loading
from bertlib.errors import InputError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
  "name",
  [
    "cased_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
    "multi_cased_L-12_H-768_A-12",
    "uncased_L-2_H-128_A-2",
    "uncased_L-24_H-1024_A-16",
  ],
)
def test_published_configs_are_accepted(name):
  path = reference_data.data("bert", "config", f"{name}.json")
  with open(path) as file:
    assert loading.load_config(path).to_dict() == json.load(file)


def test_unknown_keys_are_kept_and_logged(tmp_path, log):
  path = tmp_path / "config.json"
  path.write_text(wrong_input_world.config(directionality="bidi", pooler=[1]))
  config = loading.load_config(str(path))
  assert (config.directionality, config.pooler) == ("bidi", [1])
  assert "directionality, pooler" in log[0]


def test_a_byte_order_mark_is_accepted(tmp_path):
  path = tmp_path / "config.json"
  path.write_text(wrong_input_world.config(), encoding="utf-8-sig")
  assert config_schema.read(str(path)) == wrong_input_world.CONFIG


def test_optional_keys_have_defaults(tmp_path):
  path = tmp_path / "config.json"
  rates = wrong_input_world.CONFIG.keys() - set(config_schema.SIZES)
  path.write_text(wrong_input_world.config(**dict.fromkeys(rates, ...)))
  config = loading.load_config(str(path))
  assert (config.hidden_act, config.hidden_dropout_prob) == ("gelu", 0.1)


@pytest.mark.parametrize("value", [0, 0.0, 0.5])
def test_rates_may_be_integers(value):
  values = wrong_input_world.CONFIG | {"hidden_dropout_prob": value}
  config_schema.check("config", values)


@pytest.mark.parametrize(
  ("key", "is_near"),
  [
    ("vocab_siz", True),
    ("vocabsize", True),
    ("vocab_szie", True),
    ("size_vocab", False),
    ("pooler_num_attention_heads", False),
    ("embedding_size", False),
  ],
)
def test_a_key_within_two_edits_of_a_known_key_is_refused(key, is_near):
  values = wrong_input_world.CONFIG | {key: 1}
  if not is_near:
    config_schema.check("config", values)
    return
  with pytest.raises(InputError, match=f"{key}.*vocab_size"):
    config_schema.check("config", values)


def test_bert_config_accepts_any_values():
  values = {"vocab_size": 7, "num_hiden_layers": 2.0, "hidden_size": None}
  config = modeling.BertConfig.from_dict(values)
  assert (config.num_hidden_layers, config.num_hiden_layers) == (12, 2.0)
