"""Tests of `tensorflow_hub.Module` for BERT."""

import functools
import json
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import wrong_input_world
from parametrize import parametrize
from refused import assert_refused

import tokenization
from bertlib.checkpoints import checkpoint_files
from bertlib.cli import option, terminal
from bertlib.exchange import resolve, tfhub, zoo
from bertlib.exchange.hub_module import Module
from bertlib.settings.feature_extraction import FeatureSettings

pytestmark = pytest.mark.graph

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
SIZE = len(WORDS)
SIZES = {
  "vocab_size": SIZE,
  "num_hidden_layers": 1,
  "max_position_embeddings": 8,
}
MASKED_LM = {
  name: shape
  for name, shape in wrong_input_world.PRETRAINING_HEADS.items()
  if name.startswith("cls/predictions/transform/")
}
HANDLE = "https://tfhub.dev/google/bert_cased_L-12_H-768_A-12/1"


@functools.cache
def weights():
  """Weights by name, whose numbers depend on that."""
  heads = MASKED_LM | {"cls/predictions/output_bias": [SIZE]}
  found = wrong_input_world.weights(SIZES, **heads)
  for name, value in found.items():
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    found[name] = rng.normal(0, 0.3, value.shape).astype(np.float32)
  return found


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def module_dir(tmp_path):
  """A module of TensorFlow 1; of its graph, the operation of its GELU."""
  folder = tmp_path / "bert_uncased_L-1_H-8_A-2"
  for name in ("assets", "variables"):
    (folder / name).mkdir(parents=True)
  (folder / "tfhub_module.pb").write_bytes(b"\x08\x03")
  (folder / "saved_model.pb").write_bytes(b"\x12\x04Tanh")
  (folder / "assets" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  checkpoint_files.write_variables(
    str(folder / "variables" / "variables"), weights()
  )
  return str(folder)


INPUTS = {
  "input_ids": [[2, 5, 4, 7, 3], [2, 6, 3, 0, 0]],
  "input_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]],
  "segment_ids": [[0, 0, 0, 1, 1]] * 2,
}


# Numbers of tensorflow-hub 0.12.0 and google-research/bert's modeling.py, from
# bert-tensorflow 1.0.1, in TensorFlow 1.15.5, with these weights.
def test_outputs_are_those_of_tensorflow_1(module_dir):
  with tf.Graph().as_default(), tf.Session() as session:
    module = Module(module_dir, trainable=True)
    tokens = module(INPUTS, signature="tokens", as_dict=True)
    masks = {**INPUTS, "mlm_positions": [[2], [1]]}
    mlm = module(masks, signature="mlm", as_dict=True)
    session.run(tf.global_variables_initializer())
    tokens, mlm = session.run([tokens, mlm])
  pooled = [
    [0.3702692, -0.6140293, 0.42346802],
    [0.37252027, -0.638827, 0.43226194],
  ]
  np.testing.assert_allclose(tokens["pooled_output"][:, :3], pooled, atol=2e-6)
  states = [0.67611074, 0.73855054, 0.68186903, 0.69838476, 0.6982832]
  found = tokens["sequence_output"][0, :, 0]
  np.testing.assert_allclose(found, states, atol=2e-6)
  logits = [
    [-0.57972175, -0.36907798, 0.20429277],
    [-0.5713517, -0.37843382, 0.19968237],
  ]
  assert mlm["mlm_logits"].shape == (2, 1, SIZE)
  np.testing.assert_allclose(mlm["mlm_logits"][:, 0, :3], logits, atol=2e-6)
  np.testing.assert_array_equal(mlm["pooled_output"], tokens["pooled_output"])


@parametrize("operation, act", ("Erf", "gelu"), ("Tanh", "gelu_tanh"))
def test_the_graph_says_which_gelu_it_computes(module_dir, operation, act):
  size = bytes([len(operation)])
  with open(f"{module_dir}/saved_model.pb", "wb") as file:
    file.write(b"\x12" + size + operation.encode())
  with open(f"{tfhub.convert(module_dir)}/bert_config.json") as file:
    assert json.load(file)["hidden_act"] == act


def test_the_vocabulary_of_a_module_is_in_its_graph(module_dir):
  with tf.Graph().as_default(), tf.Session() as session:
    info = Module(module_dir)(signature="tokenization_info", as_dict=True)
    path, lowercases = session.run([info["vocab_file"], info["do_lower_case"]])
  tokenizer = tokenization.FullTokenizer(path, lowercases)
  assert tokenizer.tokenize("A b") == ["a", "b"]


def test_variables_have_the_names_and_scopes_of_tensorflow_1(module_dir):
  with tf.Graph().as_default():
    with tf.variable_scope("model"):
      frozen = Module(module_dir)
    assert tf.trainable_variables() == []
    trained = Module(module_dir, trainable=True, name="bert_hub")
    again = Module(module_dir, name="bert_hub")
    names = weights().keys()
    assert frozen.variable_map.keys() == trained.variable_map.keys() == names
    expected = [f"bert_hub/{name}" for name in sorted(names)]
    assert [v.op.name for v in trained.variables] == expected
    assert {*trained.variables} == {*tf.trainable_variables()}
    first = "bert/embeddings/LayerNorm/beta"
    assert frozen.variables[0].op.name == f"model/module/{first}"
    assert again.variables[0].op.name == f"bert_hub_1/{first}"


def test_the_tag_train_brings_dropout(module_dir):
  with tf.Graph().as_default(), tf.Session() as session:
    trains = Module(module_dir, tags={"train"})(INPUTS)
    infers = Module(module_dir)(INPUTS)
    session.run(tf.global_variables_initializer())
    for output, is_equal in ((trains, False), (infers, True)):
      one, other = session.run(output), session.run(output)
      assert np.array_equal(one, other) == is_equal


@parametrize(
  "inputs, signature, message",
  (INPUTS, "default", "is not one of mlm, tokenization_info, tokens"),
  (INPUTS, "mlm", "'mlm' takes input_ids, input_mask, segment_ids, mlm_pos"),
  (None, "tokens", "inputs: none, but 'tokens' takes"),
)
def test_wrong_calls_are_refused(module_dir, inputs, signature, message):
  with tf.Graph().as_default():
    module = Module(module_dir)
    with pytest.raises(ValueError, match=message):
      module(inputs, signature=signature)


def test_heads_are_of_64_if_the_name_says_nothing(module_dir, tmp_path, caplog):
  other = tmp_path / "module"
  (tmp_path / "bert_uncased_L-1_H-8_A-2").rename(other)
  assert_refused("num_attention_heads", Module, str(other))  # 8 // 64
  assert "assuming 0 attention heads, of size 64" in caplog.text


def test_a_handle_of_tfhub_is_the_published_model(module_dir, monkeypatch):
  folder = tfhub.convert(module_dir)
  asked = []
  monkeypatch.setattr(zoo, "fetch", lambda name: asked.append(name) or folder)
  with tf.Graph().as_default():
    Module(HANDLE)
  flags = {"bert_hub_module_handle": HANDLE, "input_file": "a"}
  settings = option.make(FeatureSettings, output_file="b", **flags)
  with terminal.at_end:
    model = resolve.complete(settings).model
  assert asked == ["cased_L-12_H-768_A-12"] * 2
  assert model.init_checkpoint == f"{folder}/bert_model.ckpt"


@parametrize(
  "handle",
  "small_bert/bert_uncased_L-2_H-128_A-2",
  "bert_multi_cased_L-12_H-768_A-12",
  "bert_chinese_L-12_H-768_A-12",
)
def test_modules_of_tensorflow_1_have_a_published_name(handle):
  found = tfhub.published_name(f"https://tfhub.dev/google/{handle}/1")
  assert found == handle.split("bert_")[-1]


@parametrize("handle", HANDLE[:-1] + "2", "bert-base-cased", "google/elmo/1")
def test_other_handles_have_none(handle):
  assert tfhub.published_name(handle) is None
