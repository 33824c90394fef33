"""Tests of reading and writing folders of sentence-transformers.

`golden/sentence_transformers` has folders that the package wrote, in the file
formats of two releases, and its vectors of some texts.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import reference_data
import run_outputs
import tiny_huggingface
from parametrize import parametrize
from refused import assert_refused, refusal
from run_outputs import edit_json
from safetensors.numpy import load_file

import run_embeddings
from bertlib.cli.errors import InputError
from bertlib.settings import embedding_spec

pytestmark = pytest.mark.graph

OLD, NEW = RELEASES = ("5.1.2", "6.2.0")
POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
CONFIG = "config_sentence_transformers.json"
ENCODER = "sentence_bert_config.json"

VOCAB_HASH = "0d8d38322db37b7503d38d7feaa9b4a96302a0df179e073646723efec80a996c"
_PROJECTION = {"projection_dim": 6, "matryoshka_dims": []}
EMBEDDINGS = {
  OLD: _PROJECTION
  | {
    "pooling": "cls",
    "normalize": True,
    "projection_activation": "tanh",
    "prompts": {"query": "query: ", "document": "", "passage": "passage: "},
    "default_prompt": "passage",
  },
  NEW: _PROJECTION
  | {
    "pooling": "mean",
    "normalize": False,
    "projection_activation": "linear",
    "prompts": {"query": "", "document": ""},
    "default_prompt": None,
  },
}
# `model.json` of each folder.
DESCRIPTIONS = {
  release: {
    "script": "run_embeddings",
    "max_seq_length": 24,
    "do_lower_case": True,
    "max_input_chars_per_word": 100,
    "vocab_sha256": VOCAB_HASH,
    "embedding": embedding,
  }
  for release, embedding in EMBEDDINGS.items()
}


def published(release):
  return Path(reference_data.golden("sentence_transformers", release))


@pytest.fixture
def source(tmp_path):
  """Copies the folder of a release, to be changed."""

  def copy(release=OLD):
    return shutil.copytree(published(release), tmp_path / "source")

  return copy


def edit_modules(folder, change):
  """Replaces the modules of a folder by what a function makes of them."""
  modules = run_outputs.read_json(folder / "modules.json")
  (folder / "modules.json").write_text(json.dumps(change(modules)))


def read(folder, tmp_path):
  tiny_huggingface.convert(folder, tmp_path / "ours")
  return tmp_path / "ours"


def description_of(folder, tmp_path):
  """`model.json` of a folder as converted."""
  return run_outputs.read_json(read(folder, tmp_path) / "model.json")


def write(folder, tmp_path):
  target = tmp_path / "theirs"
  tiny_huggingface.convert_back(f"{folder}/bert_model.ckpt", target)
  return target


@parametrize("release", *RELEASES)
def test_vectors_equal_those_of_sentence_transformers(release, tmp_path):
  expected = run_outputs.read_json(published(release) / "vectors.json")
  folder = str(read(published(release), tmp_path))
  predictor = run_embeddings.Predictor(folder, precision="float32")
  for prompt, vectors in expected["vectors"].items():
    found = predictor.encode(expected["texts"], prompt or None)
    np.testing.assert_allclose(found, vectors, rtol=0, atol=1e-5)


def test_the_encoder_can_be_in_a_folder_of_its_own(source, tmp_path):
  folder = source()
  (folder / "0_Transformer").mkdir()
  for path in [*folder.glob("*.json"), folder / "model.safetensors"]:
    if path.name not in ("modules.json", CONFIG):
      path.rename(folder / "0_Transformer" / path.name)
  (folder / "config.json").write_text('{"__version__": "0.4.1"}')
  edit_modules(folder, lambda m: [m[0] | {"path": "0_Transformer"}, *m[1:]])
  assert description_of(folder, tmp_path) == DESCRIPTIONS[OLD]


@parametrize(
  "length, expected", (int(1e30), 40), (20.0, 20), (float("nan"), 40)
)
@parametrize("key", "model_max_length", "max_len")
def test_lengths_of_a_tokenizer_count(source, tmp_path, key, length, expected):
  folder = source()
  edit_json(folder / ENCODER, max_seq_length=...)
  lengths = {"model_max_length": ...} | {key: length}
  edit_json(folder / "tokenizer_config.json", **lengths)
  found = description_of(folder, tmp_path)["max_seq_length"]
  assert json.dumps(found) == str(expected)


def test_the_dot_product_of_normalized_vectors_is_cosine(source, tmp_path):
  folder = source()
  edit_json(folder / CONFIG, similarity_fn_name="dot")
  assert description_of(folder, tmp_path) == DESCRIPTIONS[OLD]


def test_lower_casing_of_the_transformer_module_counts(source, tmp_path):
  folder = source()
  edit_json(folder / ENCODER, do_lower_case=True)
  edit_json(folder / "tokenizer_config.json", do_lower_case=False)
  assert description_of(folder, tmp_path)["do_lower_case"] is True


@parametrize("kind", "roberta", "distilbert", "camembert", "xlm-roberta")
def test_an_encoder_config_may_have_the_name_of_its_kind(
  kind, source, tmp_path
):
  folder = source()
  edit_json(folder / ENCODER, max_seq_length=7)
  (folder / ENCODER).rename(folder / f"sentence_{kind}_config.json")
  assert description_of(folder, tmp_path)["max_seq_length"] == 7


def test_missing_prompts_are_none(source, tmp_path):
  folder = source()
  (folder / CONFIG).unlink()
  embedding = description_of(folder, tmp_path)["embedding"]
  assert (embedding["prompts"], embedding["default_prompt"]) == ({}, None)


@pytest.mark.parametrize(
  ("release", "file", "values", "message"),
  [
    (NEW, POOLING, {"pooling_mode": "lasttoken"}, "its pooling is lasttoken"),
    (OLD, POOLING, {"pooling_mode_max_tokens": True}, "is cls and max; only"),
    (OLD, POOLING, {"include_prompt": False}, "include_prompt is false; only"),
    (OLD, DENSE, {"activation_function": "torch.nn.GELU"}, "is torch.nn.GELU"),
    (OLD, DENSE, {"in_features": 7}, "in_features is 7; only 16 can be"),
    (OLD, DENSE, {"out_features": 7}, "by its config"),
    (NEW, DENSE, {"use_residual": True}, "use_residual is true; only false"),
    (OLD, CONFIG, {"default_prompt_name": "x"}, "is 'x', which is no prompt"),
    (OLD, CONFIG, {"prompts": {"x": 3}}, "prompts.x is 3, not text"),
    (OLD, CONFIG, {"model_type": "SparseEncoder"}, "model_type is \"Sparse"),
    (NEW, CONFIG, {"similarity_fn_name": "dot"}, "similarity_fn_name is dot"),
    (NEW, ENCODER, {"transformer_task": "fill-mask"}, "transformer_task is"),
    (NEW, ENCODER, {"query_length": 3}, "query_length cannot be converted"),
    (OLD, "config.json", {"model_type": "mpnet"}, 'is "mpnet"; only "bert"'),
    (OLD, ENCODER, {"max_seq_length": -5}, "max_seq_length is -5, not an inte"),
    (OLD, ENCODER, {"max_seq_length": 24.5}, "is 24.5, not an integer from 3"),
    (OLD, ENCODER, {"max_seq_length": float("nan")}, "is NaN, not an integer"),
  ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused(
  release, file, values, message, source, tmp_path
):
  folder = source(release)
  edit_json(folder / file, **values)
  found = refusal(read, folder, tmp_path)
  found = found.replace("2_Dense/model.safetensors", DENSE)
  assert f"{folder / file}: " in found and message in found


@parametrize(
  "change",
  lambda modules: [modules[0], modules[-1], *modules[1:-1]],
  lambda modules: [*modules[:3], *modules[2:]],
  lambda modules: [modules[0], *modules[2:]],
  lambda modules: [modules[0] | {"type": "custom.Module"}, *modules[1:]],
  ids=["another order", "two Dense", "no Pooling", "a class of its own"],
)
def test_other_modules_and_orders_are_refused(change, source, tmp_path):
  folder = source()
  edit_modules(folder, change)
  with pytest.raises(InputError, match=r"modules\.json: its modules are .* at"):
    read(folder, tmp_path)


def test_modules_outside_the_folder_are_refused(source, tmp_path):
  folder = source()
  edit_modules(folder, lambda m: [m[0], m[1] | {"path": "../x"}, *m[2:]])
  assert_refused(r"which is outside its folder", read, folder, tmp_path)


def test_files_are_those_of_sentence_transformers(tmp_path):
  folder = write(read(published(OLD), tmp_path), tmp_path)
  for file in ("modules.json", CONFIG, ENCODER, POOLING, DENSE):
    expected = run_outputs.read_json(published(OLD) / file)
    if file == CONFIG:
      del expected["__version__"]
      # The package has added an empty prompt that comes before "passage".
      expected["prompts"]["document"] = "passage: "
    assert run_outputs.read_json(folder / file) == expected
  tokenizer = run_outputs.read_json(folder / "tokenizer_config.json")
  assert tokenizer["model_max_length"] == 24
  for file in ("model", "2_Dense/model"):
    run_outputs.assert_same_bits(
      load_file(folder / f"{file}.safetensors"),
      load_file(f"{published(OLD)}/{file}.safetensors"),
    )


@parametrize("release", *RELEASES)
def test_what_is_written_can_be_read_back(release, tmp_path):
  ours = read(published(release), tmp_path)
  again = read(write(ours, tmp_path), tmp_path / "again")
  for converted in (ours, again):
    description = run_outputs.read_json(converted / "model.json")
    prompts = description["embedding"]["prompts"]
    if release == OLD and converted is again:
      assert prompts["document"] == prompts["passage"]
      prompts["document"] = ""
    assert description == DESCRIPTIONS[release]
  run_outputs.assert_same_bits(
    run_outputs.read_variables(again / "bert_model.ckpt"),
    run_outputs.read_variables(ours / "bert_model.ckpt"),
  )


@parametrize(
  "prompts, default, query, passage",
  ({"query": "q: "}, "query", "q: ", ""),
  ({"document": "d: ", "passage": "p: "}, None, "", "d: "),
  ({"document": "", "passage": "p: "}, None, "", "p: "),
  ({"corpus": "c: ", "x": "x: "}, "x", "", "c: "),
)
def test_prompts_are_those_of_encode_query_and_encode_document(
  prompts, default, query, passage, source, tmp_path
):
  folder = source()
  edit_json(folder / CONFIG, prompts=prompts, default_prompt_name=default)
  ours = read(folder, tmp_path)
  described = run_outputs.read_json(ours / "model.json")
  spec = embedding_spec.from_json(described["embedding"])
  assert (spec.query_prefix, spec.passage_prefix) == (query, passage)
  written = run_outputs.read_json(write(ours, tmp_path) / CONFIG)["prompts"]
  assert written.get("document", "") == passage


def test_truncate_dim_is_named_and_kept(source, tmp_path):
  folder = source()
  edit_json(folder / CONFIG, truncate_dim=4)
  _, lines = tiny_huggingface.convert(folder, tmp_path / "ours")
  assert any("encode(texts, dim=4) gives as many" in n for n in lines)
  back = write(tmp_path / "ours", tmp_path)
  assert run_outputs.read_json(back / CONFIG)["truncate_dim"] == 4


@parametrize("width", 7, None)
def test_another_projection_than_described_is_refused(width, tmp_path):
  ours = read(published(OLD), tmp_path)
  embedding = EMBEDDINGS[OLD] | {"projection_dim": width}
  edit_json(ours / "model.json", embedding=embedding)
  message = rf"of width \[6\], but by model.json {width}"
  assert_refused(message, write, ours, tmp_path)
