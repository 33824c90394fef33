"""Tests of GGUF files: llama.cpp computes what the Predictor computes."""

import json

import commands
import numpy as np
import pytest
import signatures_test
from parametrize import parametrize
from refused import assert_refused

import export_model
import run_embeddings

pytestmark = pytest.mark.train

gguf = pytest.importorskip("gguf")
TEXTS = ["the cat sat", "The DOG ran home!", "is it good? (bad, good) " * 2]
TEXTS += ["Résumé cafés", "中文 the中", "zebra", "catsly"]


@pytest.fixture(scope="module")
def export():
  """Exports the model of a folder; returns the path of the file."""
  with commands.in_process(export_model) as main:

    def export(folder, *flags):
      exported = folder / "exported"
      given = f"--model_dir={folder}", f"--export_dir={exported}"
      main(*given, "--format=gguf", *flags)
      return exported / "model.gguf"

    yield export


def make_model(folder, pooling, **description):
  description["embedding"] = {"pooling": pooling, "normalize": True}
  return signatures_test.make_model(folder, "run_embeddings", **description)


def encode(path, texts):
  """Vectors of texts from llama.cpp."""
  xllamacpp = pytest.importorskip("xllamacpp")
  params = xllamacpp.CommonParams()
  params.model.path = str(path)
  params.embedding = True
  params.warmup = False
  params.n_parallel = 1
  params.n_ctx = params.n_batch = params.n_ubatch = 40
  server = xllamacpp.Server(params)
  values = {"input": texts, "encoding_format": "float"}
  answer = server.handle_embeddings(values)
  answer = json.loads(answer) if isinstance(answer, str) else answer
  return np.array([row["embedding"] for row in answer["data"]], np.float32)


@parametrize(
  "pooling, do_lower_case, flags, lowest_cosine",
  ("mean", True, [], 0.99999),
  ("cls", False, [], 0.99999),
  ("mean", True, ["--precision=float16"], 0.9999),
  ("mean", True, ["--quantize=int8"], 0.999),
)
def test_vectors_are_those_of_the_predictor(
  export, tmp_path, pooling, do_lower_case, flags, lowest_cosine
):
  folder = make_model(tmp_path, pooling, do_lower_case=do_lower_case)
  vectors = encode(export(folder, *flags), TEXTS)
  with run_embeddings.Predictor(str(folder)) as predictor:
    expected = predictor.encode(TEXTS)
  assert np.sum(vectors * expected, axis=1).min() > lowest_cosine


@parametrize("do_lower_case", True, False)
def test_scripts_that_lose_their_vowels_are_named(
  export, tmp_path, monkeypatch, caplog, do_lower_case
):
  # What is left of a syllable, and what is lost.
  korean = ["\u1112", "##\u1161"]
  rows = [*signatures_test.VOCAB, *korean]
  monkeypatch.setattr(signatures_test, "VOCAB", rows)
  folder = make_model(tmp_path, "mean", do_lower_case=do_lower_case)
  path = export(folder)
  assert ("lose their vowels in Hangul" in caplog.text) == do_lower_case
  if do_lower_case:
    with run_embeddings.Predictor(str(folder)) as predictor:
      expected = predictor.encode(["\ud558", "\u1112"])
    assert encode(path, ["\ud558"])[0] @ expected[1] > 0.99999
    assert expected[0] @ expected[1] < 0.99


def test_q8_0_is_for_matrices_whose_rows_it_divides(export, tmp_path):
  path = export(make_model(tmp_path, "mean"), "--quantize=int8")
  reader = gguf.GGUFReader(path)
  types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
  assert types["blk.0.attn_q.weight"] == "Q8_0"
  # Its rows have 48 values, a block has 32.
  assert types["blk.0.ffn_down.weight"] == "F32"
  assert types["blk.0.attn_q.bias"] == types["position_embd.weight"] == "F32"


def test_the_encoder_of_a_task_has_no_pooling(export, tmp_path):
  folder = signatures_test.make_model(tmp_path, **signatures_test.MODELS["ner"])
  assert_refused("output layer of this task", export, folder)
  reader = gguf.GGUFReader(export(folder, "--encoder"))
  assert "bert.pooling_type" not in reader.fields


@parametrize("pooling", "cls", "max")
def test_what_llama_cpp_does_not_compute_is_refused(export, tmp_path, pooling):
  model = signatures_test.MODELS[f"embeddings, {pooling}"]
  folder = signatures_test.make_model(tmp_path, **model)
  assert_refused("does not compute", export, folder)
  assert not (tmp_path / "exported").exists()
