"""Tests of the schema of `bert_config.json`."""

import json

import pytest
import reference_data
import wrong_input_world
from parametrize import parametrize
from refused import assert_refused

import modeling
from bertlib.checkpoints import model_folder
from bertlib.cli.errors import InputError

pytestmark = pytest.mark.unit


@parametrize(
  "name",
  "chinese_L-12_H-768_A-12",
  "multi_cased_L-12_H-768_A-12",
  "uncased_L-24_H-1024_A-16",
)
def test_published_configs_are_accepted(name, caplog):
  path = reference_data.data("bert", "config", f"{name}.json")
  with open(path) as file:
    assert model_folder.load_config(path).to_dict() == json.load(file)
  assert not caplog.messages


def test_keys_that_change_nothing_are_not_logged(tmp_path, caplog):
  path = tmp_path / "config.json"
  others = {
    "architectures": ["BertForSequenceClassification"],
    "classifier_dropout": None,
    "do_lower_case": True,
    "dtype": "float32",
    "id2label": {"0": "no", "1": "yes"},
    "model_type": "bert",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "transformers_version": "5.0.0",
    "use_cache": True,
  }
  path.write_text(wrong_input_world.config(**others))
  assert model_folder.load_config(str(path)).id2label == others["id2label"]
  assert not caplog.messages


def test_keys_that_a_reader_would_miss_are_logged_once(tmp_path, caplog):
  path = tmp_path / "config.json"
  relative = {"position_embedding_type": "relative_key", "pooler": [1]}
  path.write_text(wrong_input_world.config(is_decoder=False, **relative))
  for _ in range(2):
    config = model_folder.load_config(str(path))
  assert config.pooler == [1]
  ignored = 'pooler ([1]), position_embedding_type ("relative_key")'
  assert caplog.messages == [f"{path}: ignored keys: {ignored}"]


def test_a_new_model_has_an_embedding_for_each_entry(tmp_path):
  values = json.loads(wrong_input_world.config())
  del values["vocab_size"]
  (tmp_path / "config.json").write_text(json.dumps(values))
  (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n\n")
  paths = [str(tmp_path / name) for name in ("config.json", "vocab.txt")]
  assert model_folder.load_config(*paths).vocab_size == 3
  assert_refused("has no vocab_size", model_folder.load_config, paths[0])


def test_optional_keys_have_defaults(tmp_path):
  path = tmp_path / "config.json"
  rates = wrong_input_world.CONFIG.keys() - set(model_folder.SIZES)
  path.write_text(wrong_input_world.config(**dict.fromkeys(rates, ...)))
  config = model_folder.load_config(str(path))
  assert (config.hidden_act, config.hidden_dropout_prob) == ("gelu", 0.1)


@parametrize("value", 0, 0.0, 0.5)
def test_rates_may_be_integers(value):
  values = wrong_input_world.CONFIG | {"hidden_dropout_prob": value}
  model_folder.check_config("config", values)


def test_bert_config_accepts_any_values():
  values = {"vocab_size": 7, "num_hiden_layers": 2.0, "hidden_size": None}
  config = modeling.BertConfig.from_dict(values)
  assert (config.num_hidden_layers, config.num_hiden_layers) == (12, 2.0)


def with_one_edit(key):
  """Texts with one letter more, less, another or moved by one, for a key."""
  for i in range(len(key) + 1):
    before, after = key[:i], key[i:]
    yield before + "x" + after
    if after:
      yield before + after[1:]
      yield before + "x" + after[1:]
      yield before + after[1:2] + after[0] + after[2:]


@parametrize("key", *model_folder.SIZES, "layer_norm_eps")
def test_misspelled_keys_are_refused(key):
  for misspelled in {*with_one_edit(key)} - {key}:
    with pytest.raises(InputError, match=f"unknown key {misspelled}"):
      model_folder.check_config("c.json", {misspelled: 1}, [])
  for misspelled in (key[1:-1], f"{key[:3]}_x{key[3:]}", key.upper()):
    with pytest.raises(InputError, match=f"Rename it to {key}"):
      model_folder.check_config("c.json", {misspelled: 1}, [])


# Of BERT, ALBERT, ELECTRA and DistilBERT at Hugging Face.
OTHER_KEYS = """
  _name_or_path architectures attention_dropout dim
  directionality dropout embedding_size gradient_checkpointing hidden_dim
  id2label initializer_factor inner_group_num label2id layer_norm_epsilon
  model_type n_heads n_layers net_structure_type num_hidden_groups pad_token_id
  pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
  pooler_size_per_head pooler_type position_embedding_type summary_activation
  tie_word_embeddings torch_dtype transformers_version use_cache
"""


def test_keys_of_published_configs_are_not_taken_for_misspelled_ones():
  model_folder.check_config("c.json", dict.fromkeys(OTHER_KEYS.split(), 1), [])
