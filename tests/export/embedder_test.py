"""Tests of exported sentence embeddings against `run_embeddings.Predictor`."""

import commands
import numpy as np
import pytest
import signatures_test
from signatures_test import ODD, TEXTS, assert_equal, call

import export_model
import run_embeddings
from bertlib.compute import onednn
from bertlib.export.exported_model import ExportedModel

pytestmark = pytest.mark.train

PROMPTS = {"query": "the cat: ", "passage": "résumé "}
SPECS = {
  "mean": {"pooling": "mean", "normalize": True, "prompts": PROMPTS}
  | {"default_prompt": "passage"},
  "cls": {"pooling": "cls", "normalize": False, "projection_dim": 12}
  | {"projection_activation": "tanh"},
  "max": {"pooling": "max", "normalize": True},
}
MANY = [*TEXTS, *signatures_test.random_texts(60, 20, ODD, seed=5)]


def make_model(folder, spec="mean", **description):
  return signatures_test.make_model(
    folder, "run_embeddings", embedding=SPECS[spec], **description
  )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Folder of a trained model."""
  return make_model(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def model(folder):
  return signatures_test.unsaved(signatures_test.source_of(folder))


@pytest.fixture(scope="module")
def host(folder):
  with run_embeddings.Predictor(str(folder)) as predictor:
    yield predictor


@pytest.mark.parametrize(
  ("signature", "prompt"),
  [("embed", None), ("embed_query", "query"), ("embed_passage", "passage")],
)
def test_texts_are_encoded_with_a_prompt(model, host, signature, prompt):
  vectors = call(model, signature, text=MANY)["vectors"]
  assert vectors.dtype == np.float32
  assert_equal(vectors, host.encode(MANY, prompt))


def test_prompts_give_different_vectors(host):
  query, passage = (host.encode(["cat"], prompt) for prompt in PROMPTS)
  assert np.abs(query - passage).max() > 0.01


def test_ids_of_texts_are_those_of_the_predictor(model, host):
  prefix = PROMPTS["passage"]
  ids = signatures_test.encode(host, [(prefix + text, None) for text in MANY])
  assert_equal(call(model, "ids", **ids)["vectors"], host.encode(MANY))
  tokens = call(model, "tokenize", text=[prefix + text for text in MANY])
  length = tokens["input_ids"].shape[1]
  for name, values in tokens.items():
    np.testing.assert_array_equal(values, ids[name][:, :length])
    assert not ids["input_mask"][:, length:].any()


@pytest.mark.parametrize("spec", ["cls", "max"])
def test_other_vectors_are_those_of_the_predictor(tmp_path, spec):
  folder = make_model(tmp_path / "model", spec)
  model = signatures_test.unsaved(signatures_test.source_of(folder))
  assert set(model.signatures) == {"ids", "embed", "tokenize"}
  with run_embeddings.Predictor(str(folder)) as host:
    expected = host.encode(MANY)
  assert_equal(call(model, "embed", text=MANY)["vectors"], expected)


def cosines(vectors, others):
  """Cosines of the vectors in equal rows, which have length 1."""
  return np.sum(vectors * others, axis=1)


def test_bfloat16_is_close(folder, host):
  source = signatures_test.source_of(folder)
  rounded = signatures_test.unsaved(source, precision="bfloat16")
  vectors = call(rounded, "embed", text=MANY)["vectors"]
  assert vectors.dtype == np.float32
  expected = host.encode(MANY)
  assert np.abs(vectors - expected).max() > 1e-5
  assert cosines(vectors, expected).min() > 0.999


@pytest.fixture(scope="module")
def main():
  """Runs export_model.py in this process."""
  with commands.in_process(export_model) as main:
    yield main


def test_an_exported_model_encodes_texts(main, folder, host, tmp_path):
  path = tmp_path / "exported"
  main(f"--model_dir={folder}", f"--export_dir={path}")
  model = ExportedModel(str(path))
  assert_equal(model(text=MANY)["vectors"], host.encode(MANY))
  vectors = model("embed_query", text=MANY)["vectors"]
  assert_equal(vectors, host.encode(MANY, "query"))


@pytest.mark.skipif(
  not onednn.has_int8_matmul(), reason="no 8-bit products in this TensorFlow"
)
def test_int8_is_close(main, folder, host, tmp_path):
  path = tmp_path / "texts.txt"
  # A file with lines of null bytes is no text.
  texts = [" ".join(text.replace("\0", "").split()) for text in MANY]
  path.write_text("".join(f"{text}.\n" for text in texts))
  main(
    f"--model_dir={folder}",
    f"--export_dir={tmp_path / 'exported'}",
    "--quantize=int8",
    f"--calibration_file={path}",
  )
  model = ExportedModel(str(tmp_path / "exported"))
  vectors, expected = model(text=MANY)["vectors"], host.encode(MANY)
  assert np.abs(vectors - expected).max() > 1e-5
  assert cosines(vectors, expected).min() > 0.98
