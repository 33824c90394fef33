"""Tests of ELECTRA's two networks: as folders, and by the names of Google."""

import functools
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_huggingface
from model_types_test import INPUTS, MODELS, TOLERANCE, load, write_folder
from refused import refusal
from safetensors.numpy import load_file, save_file

import modeling
from bertlib.checkpoints import checkpoint_files, electra_weights
from bertlib.checkpoints.foreign_checkpoint import ForeignCheckpoint
from bertlib.exchange import initial_model, rewrite, zoo
from bertlib.tasks.pretraining import electra, objectives
from bertlib.tasks.pretraining.objectives import ELECTRA

pytestmark = pytest.mark.graph

SIZES = {
  "embedding_size": 6,
  "generator_hidden_size": 0.5,
  "hidden_size": 8,
  "num_attention_heads": 2,
}


CONFIG = modeling.BertConfig.from_dict(
  tiny_huggingface.CONFIG | SIZES | {"model_type": "electra"}
)


@functools.cache
def shapes_of_both():
  """Shapes by name of the weights of both networks."""
  with tf.Graph().as_default():
    ids = tf.zeros([1, 2], tf.int32)
    model = electra.Networks(
      CONFIG, ELECTRA, None, is_training=False, input_ids=ids
    )
    model.replaced_token_logits(ids)
    modeling.masked_lm_logits(
      CONFIG, model.get_sequence_output(), model.get_embedding_table()
    )
    return {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}


@pytest.fixture(name="pretrained")
def pretrained_model(tmp_path):
  """A checkpoint of both networks, beside its config and vocabulary."""
  described = {"script": "run_pretraining", **ELECTRA.description}
  described |= {"do_lower_case": True, "max_seq_length": 16}
  folder, shapes = tmp_path / "pretrained", shapes_of_both()
  return tiny_huggingface.write_checkpoint(
    folder, shapes, described, **vars(CONFIG)
  )


def assert_equal(path, other):
  found, expected = (rewrite.read_weights(each) for each in (path, other))
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, name)


def test_two_folders_are_one_pretraining_again(pretrained, tmp_path):
  folder = tmp_path / "theirs"
  lines = tiny_huggingface.convert_back(pretrained, folder)
  names = [line.split()[1] for line in lines if line.startswith("archi")]
  assert names == ["ElectraForPreTraining", "ElectraForMaskedLM"]
  config = json.loads((folder / "generator" / "config.json").read_text())
  assert (config["hidden_size"], config["intermediate_size"]) == (4, 16)
  assert initial_model.is_huggingface(str(folder))
  path, _ = tiny_huggingface.convert(folder, tmp_path / "back")
  assert_equal(path, pretrained)
  description = json.loads((tmp_path / "back" / "model.json").read_text())
  assert objectives.of_model(description) == ELECTRA


def test_networks_with_other_tables_are_refused(pretrained, tmp_path):
  folder = tmp_path / "theirs"
  tiny_huggingface.convert_back(pretrained, folder)
  path = folder / "generator" / "model.safetensors"
  tensors = load_file(path)
  tensors["electra.embeddings.position_embeddings.weight"][3, 1] += 1.0
  save_file(tensors, path, {"format": "pt"})
  message = refusal(tiny_huggingface.read, folder)
  assert "theirs: bert/embeddings/position_embeddings of the gen" in message


def test_names_of_google_are_read_with_sizes_by_their_shapes(
  pretrained, tmp_path, monkeypatch
):
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  google, ours = str(tmp_path / "google"), str(tmp_path / "ours")
  renames = [  # what makes names of Google's of ours, as the docs say
    "^bert/=>electra/",
    "^cls/predictions/(transform/)?=>generator_predictions/",
    "/dense_prediction/=>/dense_1/",
  ]
  rewrite.rewrite([pretrained], google, renames=renames)
  path = f"{google}/model.ckpt-7"
  names = checkpoint_files.shapes_of(path)
  assert "electra/embeddings_project/kernel" in names
  assert "generator_predictions/output_bias" in names
  (tmp_path / "google" / "bert_config.json").unlink()
  rewrite.rewrite([path], ours)
  assert_equal(f"{ours}/model.ckpt-7", pretrained)
  found = json.loads((tmp_path / "ours" / "bert_config.json").read_text())
  assert found == found | SIZES | {"num_attention_heads": 1}
  # As --init_checkpoint.
  assert checkpoint_files.has_other_names(path)
  assert_equal(zoo.convert_objects(path), pretrained)


def test_output_layers_of_google_are_refused(pretrained, tmp_path):
  weights = rewrite.read_weights(pretrained)
  weights["electra/embeddings/word_embeddings"] = np.zeros([2, 2])
  weights["task_specific/squad/answer_class/kernel"] = np.zeros([2, 2])
  path = str(tmp_path / "fine_tuned.ckpt")
  checkpoint_files.write_variables(path, weights)
  message = refusal(ForeignCheckpoint, path)
  assert "has task_specific/squad/answer_class/kernel, an output" in message


def test_disentangled_tables_are_added_up(pretrained, tmp_path):
  weights = rewrite.read_weights(pretrained)
  table = "bert/embeddings/word_embeddings"
  expected = weights[table] + 1.0
  for name in [name for name in weights if name.startswith("bert/embeddings/")]:
    value = weights.pop(name)
    weights[name.replace("bert/", "generator/")] = value
    added = np.ones_like(value)
    weights[name.replace("embeddings/", "embeddings_added/")] = added
  path = str(tmp_path / "disentangled.ckpt")
  checkpoint_files.write_variables(path, weights)
  assert checkpoint_files.has_other_names(path)
  found = rewrite.read_weights(path)
  np.testing.assert_array_equal(found[table], expected)
  assert not [name for name in found if "_added" in name]


def test_sizes_of_the_generator():
  config = {"hidden_size": 768, "num_hidden_layers": 12}
  changed = config | {"generator_hidden_size": 1 / 3, "generator_layers": 0.5}
  found = electra_weights.generator_config(changed)
  names = "hidden_size", "num_attention_heads", "intermediate_size"
  assert [found[name] for name in names] == [256, 4, 1024]
  assert (found["num_hidden_layers"], found["embedding_size"]) == (6, 768)
  config["hidden_size"] = 524
  message = refusal(electra_weights.generator_config, config)
  assert message.startswith("generator_hidden_size: makes the generator 131")


def test_logits_and_loss_are_those_of_transformers(tmp_path):
  name = "ElectraForPreTraining"
  tensors = write_folder(tmp_path / "a", name)
  path, _ = tiny_huggingface.convert(tmp_path / "a", tmp_path / "b")
  model, task, weights = load(tmp_path / "b")
  assert task is None  # an encoder, without its generator
  with tf.Graph().as_default(), tf.Session() as session:
    ids, mask = (
      tf.constant(INPUTS[key], tf.int32) for key in ("input_ids", "input_mask")
    )
    batch = {"replaced_ids": ids, "disc_labels": ids % 2, "disc_weights": mask}
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
      inputs = {"input_ids": ids, "input_mask": mask}
      networks = electra.Networks(
        model.config, ELECTRA, None, is_training=False, **inputs
      )
      logits = networks.replaced_token_logits(ids)
      loss, *_ = electra.disc_loss(model.config, networks, batch)
    session.run(tf.global_variables_initializer())
    for variable in tf.global_variables():
      if variable.op.name in weights:
        variable.load(weights[variable.op.name], session)
    found, loss = session.run([logits, loss])
  assert loss == pytest.approx(MODELS[name]["loss"], abs=TOLERANCE)
  (expected,) = MODELS[name]["outputs"]
  is_token = INPUTS["input_mask"] > 0
  np.testing.assert_allclose(
    found[is_token], np.array(expected)[is_token], atol=TOLERANCE
  )
  lines = tiny_huggingface.convert_back(path, tmp_path / "c")
  assert f"architecture: {name}" in lines
  back = load_file(tmp_path / "c" / "model.safetensors")
  assert back.keys() == tensors.keys()
