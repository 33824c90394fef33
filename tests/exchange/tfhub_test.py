"""Tests of importing encoders from TensorFlow Hub."""

import re
from pathlib import Path

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow as tf_v2
import tensorflow.compat.v1 as tf
import wrong_input_world
from parametrize import parametrize
from refused import assert_refused

import export_model
import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.cli.errors import InputError
from bertlib.exchange import tfhub

pytestmark = pytest.mark.graph

CONFIG = wrong_input_world.CONFIG | {"hidden_act": "gelu_tanh"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocab") / "words.txt"
  path.write_text(wrong_input_world.vocab(*wrong_input_world.VOCAB))
  return path


def assert_imported(folder, weights, vocab_file, do_lower_case, **sizes):
  """Asserts that a SavedModel is imported with all that it has."""
  converted = Path(tfhub.convert(str(folder)))
  found = run_outputs.read_variables(converted / "bert_model.ckpt")
  run_outputs.assert_same_bits(found, weights)
  config = run_outputs.read_json(converted / "bert_config.json")
  assert config == config | CONFIG | sizes
  assert (converted / "vocab.txt").read_text() == vocab_file.read_text()
  description = run_outputs.read_json(converted / "model.json")
  assert description == {"do_lower_case": do_lower_case}


_GARDEN = (
  (r"^bert/", ""),
  (r"^embeddings/LayerNorm/", "embeddings/layer_norm/"),
  (r"^embeddings_project/", "embedding_projection/"),
  (r"^embeddings/word_embeddings$", "word_embeddings/embeddings"),
  (r"^embeddings/position_embeddings$", "position_embedding/embeddings"),
  (r"^embeddings/token_type_embeddings$", "type_embeddings/embeddings"),
  (r"^encoder/", "transformer/"),
  (r"/attention/self/", "/self_attention/"),
  (r"/attention/output/dense/", "/self_attention/attention_output/"),
  (r"/attention/output/LayerNorm/", "/self_attention_layer_norm/"),
  (r"/(intermediate|output)/dense/", r"/\1/"),
  (r"/output/LayerNorm/", "/output_layer_norm/"),
  (r"^pooler/dense/", "pooler_transform/"),
)


def garden_name(name):
  for pattern, replacement in _GARDEN:
    name = re.sub(pattern, replacement, name)
  return name


def garden_value(name, value):
  if "/attention/self/" in name:
    return value.reshape([*value.shape[:-1], 2, 4])
  if name.endswith("/attention/output/dense/kernel"):
    return value.reshape(2, 4, 8)
  return value


def save(folder, variables, **attributes):
  encoder = tf.train.Checkpoint()
  with tf.init_scope():
    encoder.variables = [
      tf.Variable(value, name=name, use_resource=True)
      for name, value in variables.items()
    ]
    for name, value in attributes.items():
      setattr(encoder, name, value())
  tf_v2.saved_model.save(encoder, str(folder))


@parametrize("embedding_size", 8, 6)  # 6: as ELECTRA
def test_an_encoder_of_the_model_garden_is_imported(
  tmp_path, vocab_file, embedding_size
):
  sizes = {"embedding_size": embedding_size}
  weights = wrong_input_world.weights(sizes)
  garden = {garden_name(n): garden_value(n, v) for n, v in weights.items()}
  save(
    tmp_path / "garden",
    garden,
    vocab_file=lambda: tf_v2.saved_model.Asset(str(vocab_file)),
    do_lower_case=lambda: tf_v2.Variable(False, trainable=False),
  )
  assert_imported(tmp_path / "garden", weights, vocab_file, False, **sizes)


@pytest.mark.train
def test_an_export_is_imported_bitwise(tmp_path, vocab_file):
  weights = wrong_input_world.weights()
  config = modeling.BertConfig.from_dict(CONFIG)
  checkpoint = str(tmp_path / "bert_model.ckpt")
  checkpoint_files.write_variables(checkpoint, weights)
  description = {"do_lower_case": True, "max_seq_length": 16}
  source = export_model.Source(description, config, checkpoint, str(vocab_file))
  export_model.export(source, str(tmp_path / "model"), encoder=True)
  assert_imported(tmp_path / "model", weights, vocab_file, True)


@pytest.mark.unit
@parametrize(
  "file, handle, message",
  ("other.pb", "", "not a SavedModel"),
  ("other.pb", "none", "none: cannot be downloaded"),
)
def test_other_handles_are_refused(tmp_path, file, handle, message):
  (tmp_path / file).write_bytes(b"")
  assert_refused(message, tfhub.convert, str(tmp_path / handle))


def test_a_saved_model_without_bert_encoder_is_refused(tmp_path):
  save(tmp_path / "other", {"dense/kernel": np.ones([2, 2], np.float32)})
  with pytest.raises(InputError, match="holds bert/dense/kernel"):
    tfhub.convert(str(tmp_path / "other"))


def test_a_handle_and_an_init_checkpoint_are_refused(tmp_path):
  error = commands.fail(
    *("run_classifier.py", "--task_name=tsv", "--do_train", "--output_dir=out"),
    f"--bert_hub_module_handle={tmp_path}",
    "--init_checkpoint=bert-base-uncased",
  )
  assert "give one of them" in error
