"""Tests of reading and writing folders of sentence-transformers.

`golden/sentence_transformers` has folders that the package wrote, in the file
formats of two releases, and its vectors of some texts.
"""

import json
import os
import shutil

import commands
import numpy as np
import pytest
import reference_data
import run_outputs
from safetensors.numpy import load_file

import run_embeddings
from bertlib.checkpoints import records
from bertlib.cli.errors import InputError
from bertlib.exchange import from_huggingface, to_huggingface

pytestmark = pytest.mark.graph

OLD, NEW = RELEASES = ("5.1.2", "6.2.0")

VOCAB_HASH = "0d8d38322db37b7503d38d7feaa9b4a96302a0df179e073646723efec80a996c"

# `model.json` of each folder.
DESCRIPTION = {
  "script": "run_embeddings",
  "max_seq_length": 24,
  "do_lower_case": True,
  "max_input_chars_per_word": 100,
  "vocab_sha256": VOCAB_HASH,
}
DESCRIPTIONS = {
  OLD: {
    **DESCRIPTION,
    "embedding": {
      "pooling": "cls",
      "normalize": True,
      "projection_dim": 6,
      "projection_activation": "tanh",
      "prompts": {"query": "query: ", "document": "", "passage": "passage: "},
      "default_prompt": "passage",
      "matryoshka_dims": [],
    },
  },
  NEW: {
    **DESCRIPTION,
    "embedding": {
      "pooling": "mean",
      "normalize": False,
      "projection_dim": 6,
      "projection_activation": "linear",
      "prompts": {"query": "", "document": ""},
      "default_prompt": None,
      "matryoshka_dims": [],
    },
  },
}


def published(release):
  return os.path.dirname(
    reference_data.golden("sentence_transformers", release, "modules.json")
  )


@pytest.fixture
def source(tmp_path):
  """Copies the folder of a release, to be changed."""

  def copy(release):
    return shutil.copytree(published(release), tmp_path / "source")

  return copy


def edit(path, **values):
  """Changes values in a JSON file; None removes a key."""
  content = run_outputs.read_json(path) | values
  content = {key: v for key, v in content.items() if v is not None}
  path.write_text(json.dumps(content))


def read(folder, tmp_path):
  target = tmp_path / "ours"
  from_huggingface.convert(str(folder), str(target))
  return target


def write(folder, tmp_path):
  target = tmp_path / "theirs"
  to_huggingface.convert(
    f"{folder}/bert_model.ckpt",
    f"{folder}/bert_config.json",
    f"{folder}/vocab.txt",
    str(target),
    find_task=records.find,
  )
  return target


def vectors_of(folder, texts, prompt=None):
  """Vectors of a folder of ours."""
  predictor = run_embeddings.Predictor(str(folder), precision="float32")
  return predictor.encode(texts, prompt)


# Reading


@pytest.mark.parametrize("release", RELEASES)
def test_vectors_equal_those_of_sentence_transformers(release, tmp_path):
  expected = run_outputs.read_json(f"{published(release)}/vectors.json")
  folder = read(published(release), tmp_path)
  for prompt, vectors in expected["vectors"].items():
    np.testing.assert_allclose(
      vectors_of(folder, expected["texts"], prompt or None),
      vectors,
      rtol=0,
      atol=1e-5,
    )


def test_the_encoder_can_be_in_a_folder_of_its_own(source, tmp_path):
  folder = source(OLD)
  encoder = folder / "0_Transformer"
  encoder.mkdir()
  for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
    os.rename(folder / name, encoder / name)
  for name in ("config.json", "sentence_bert_config.json"):
    os.rename(folder / name, encoder / name)
  (folder / "config.json").write_text('{"__version__": "0.4.1"}')
  modules = run_outputs.read_json(folder / "modules.json")
  modules[0]["path"] = "0_Transformer"
  (folder / "modules.json").write_text(json.dumps(modules))
  target = read(folder, tmp_path)
  description = run_outputs.read_json(target / "model.json")
  assert description == DESCRIPTIONS[OLD]


@pytest.mark.parametrize(
  ("length", "expected"), [(int(1e30), 40), (20.0, 20), (float("nan"), None)]
)
def test_a_length_of_the_tokenizer_counts(source, tmp_path, length, expected):
  folder = source(OLD)
  edit(folder / "sentence_bert_config.json", max_seq_length=None)
  edit(folder / "tokenizer_config.json", model_max_length=length)
  if not expected:
    with pytest.raises(InputError, match=r"tokenizer_config\.json: .* is NaN"):
      read(folder, tmp_path)
    return
  target = read(folder, tmp_path)
  found = run_outputs.read_json(target / "model.json")["max_seq_length"]
  assert json.dumps(found) == str(expected)


def test_the_dot_product_of_normalized_vectors_is_their_cosine(
  source, tmp_path
):
  folder = source(OLD)
  edit(folder / CONFIG, similarity_fn_name="dot")
  target = read(folder, tmp_path)
  description = run_outputs.read_json(target / "model.json")
  assert description == DESCRIPTIONS[OLD]


def test_lower_casing_of_the_transformer_module_counts(source, tmp_path):
  folder = source(OLD)
  edit(folder / "sentence_bert_config.json", do_lower_case=True)
  edit(folder / "tokenizer_config.json", do_lower_case=False)
  target = read(folder, tmp_path)
  assert run_outputs.read_json(target / "model.json")["do_lower_case"] is True


def test_missing_prompts_are_none(source, tmp_path):
  folder = source(OLD)
  (folder / "config_sentence_transformers.json").unlink()
  target = read(folder, tmp_path)
  embedding = run_outputs.read_json(target / "model.json")["embedding"]
  assert (embedding["prompts"], embedding["default_prompt"]) == ({}, None)


POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
CONFIG = "config_sentence_transformers.json"
ENCODER = "sentence_bert_config.json"


@pytest.mark.parametrize(
  ("release", "file", "values", "message"),
  [
    (NEW, POOLING, {"pooling_mode": "lasttoken"}, "its pooling is lasttoken"),
    (NEW, POOLING, {"pooling_mode": ["cls", "max"]}, "is cls and max; only"),
    (OLD, POOLING, {"pooling_mode_max_tokens": True}, "is cls and max; only"),
    (OLD, POOLING, {"include_prompt": False}, "include_prompt is false; only"),
    (OLD, DENSE, {"activation_function": "torch.nn.GELU"}, "is torch.nn.GELU"),
    (OLD, DENSE, {"in_features": 7}, "in_features is 7; only 16 can be"),
    (OLD, DENSE, {"out_features": 7}, "by its config"),
    (NEW, DENSE, {"use_residual": True}, "use_residual is true; only false"),
    (NEW, DENSE, {"module_input_name": "x"}, 'module_input_name is "x"; only'),
    (OLD, CONFIG, {"default_prompt_name": "x"}, "is x, which is not in its pr"),
    (OLD, CONFIG, {"prompts": {"x": 3}}, "the prompt x is not text"),
    (OLD, CONFIG, {"model_type": "SparseEncoder"}, "model_type is \"Sparse"),
    (NEW, CONFIG, {"similarity_fn_name": "dot"}, "similarity_fn_name is dot"),
    (OLD, CONFIG, {"similarity_fn_name": "euclidean"}, "name is euclidean"),
    (NEW, ENCODER, {"transformer_task": "fill-mask"}, "transformer_task is"),
    (NEW, ENCODER, {"query_length": 3}, "query_length cannot be converted"),
    (OLD, "config.json", {"model_type": "mpnet"}, 'is "mpnet"; only "bert"'),
    (OLD, ENCODER, {"max_seq_length": -5}, "maximum length is -5, not an inte"),
    (OLD, ENCODER, {"max_seq_length": 2}, "is 2, not an integer of 3 or more"),
    (OLD, ENCODER, {"max_seq_length": 24.5}, "is 24.5, not an integer of 3"),
    (OLD, ENCODER, {"max_seq_length": float("nan")}, "is NaN, not an integer"),
    (OLD, ENCODER, {"max_seq_length": "24"}, 'max_seq_length is "24", not an'),
  ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused(
  release, file, values, message, source, tmp_path
):
  folder = source(release)
  edit(folder / file, **values)
  with pytest.raises(InputError) as error:
    read(folder, tmp_path)
  assert f"{folder / file}: " in str(error.value).replace(
    "2_Dense/model.safetensors", DENSE
  )
  assert message in str(error.value)


@pytest.mark.parametrize(
  "change",
  [
    lambda modules: [modules[0], modules[-1], *modules[1:-1]],
    lambda modules: [*modules[:3], *modules[2:]],
    lambda modules: [modules[0], *modules[2:]],
    lambda modules: [
      {**modules[0], "type": "custom.Transformer"},
      *modules[1:],
    ],
  ],
  ids=["another order", "two Dense", "no Pooling", "a class of its own"],
)
def test_other_modules_and_orders_are_refused(change, source, tmp_path):
  folder = source(OLD)
  modules = run_outputs.read_json(folder / "modules.json")
  (folder / "modules.json").write_text(json.dumps(change(modules)))
  with pytest.raises(InputError, match=r"modules\.json: its modules are .* at"):
    read(folder, tmp_path)


def test_modules_outside_the_folder_are_refused(source, tmp_path):
  folder = source(OLD)
  modules = run_outputs.read_json(folder / "modules.json")
  modules[1]["path"] = "../1_Pooling"
  (folder / "modules.json").write_text(json.dumps(modules))
  with pytest.raises(InputError, match=r"which is outside its folder"):
    read(folder, tmp_path)


# Writing


def test_files_are_those_of_sentence_transformers(tmp_path):
  folder = write(read(published(OLD), tmp_path), tmp_path)
  for file in ("modules.json", CONFIG, ENCODER, POOLING, DENSE):
    expected = run_outputs.read_json(f"{published(OLD)}/{file}")
    if file == CONFIG:
      del expected["__version__"]
    assert run_outputs.read_json(folder / file) == expected
  tokenizer = run_outputs.read_json(folder / "tokenizer_config.json")
  assert tokenizer["model_max_length"] == 24
  for file in ("model", "2_Dense/model"):
    run_outputs.assert_same_bits(
      load_file(folder / f"{file}.safetensors"),
      load_file(f"{published(OLD)}/{file}.safetensors"),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_written_can_be_read_back(release, tmp_path):
  ours = read(published(release), tmp_path)
  folder = write(ours, tmp_path)
  again = read(folder, tmp_path / "again")
  assert (
    run_outputs.read_json(again / "model.json")
    == run_outputs.read_json(ours / "model.json")
    == DESCRIPTIONS[release]
  )
  run_outputs.assert_same_bits(
    run_outputs.read_variables(again / "bert_model.ckpt"),
    run_outputs.read_variables(ours / "bert_model.ckpt"),
  )


@pytest.mark.parametrize("width", [7, None])
def test_another_projection_than_described_is_refused(width, tmp_path):
  ours = read(published(OLD), tmp_path)
  description = run_outputs.read_json(ours / "model.json")
  description["embedding"]["projection_dim"] = width
  (ours / "model.json").write_text(json.dumps(description))
  message = rf"of width \[6\], but by model.json {width}"
  with pytest.raises(InputError, match=message):
    write(ours, tmp_path)


def test_the_command_reports_the_sentence_vectors(tmp_path):
  done = commands.succeed(
    "convert_checkpoint.py",
    f"--input={published(OLD)}",
    f"--output={tmp_path / 'ours'}",
  )
  assert done.stdout.splitlines()[-2] == (
    "sentence vectors: cls pooling, projection to 6, normalized, at most 24"
    " tokens, prompt 'query', prompt 'passage'"
  )
