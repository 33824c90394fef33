"""Tests of exported sentence embeddings against `run_embeddings.Predictor`."""

import numpy as np
import pytest
import signatures_test
from signatures_test import ODD, TEXTS, assert_equal, call

import run_embeddings

pytestmark = pytest.mark.train

PROMPTS = {"query": "the cat: ", "passage": "résumé "}
SPECS = {
  "mean": {"pooling": "mean", "normalize": True, "prompts": PROMPTS}
  | {"default_prompt": "passage"},
  "cls": {"pooling": "cls", "normalize": False, "projection_dim": 12}
  | {"projection_activation": "tanh"},
  "max": {"pooling": "max", "normalize": False},
}
MANY = [*TEXTS, *signatures_test.random_texts(60, 20, ODD, seed=5)]


def make_model(folder, spec="mean", **description):
  return signatures_test.make_model(
    folder, "run_embeddings", embedding=SPECS[spec], **description
  )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
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
