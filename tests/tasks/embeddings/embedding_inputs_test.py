"""Tests of the inputs of run_embeddings.py."""

import json

import pytest
from refused import refusal

from bertlib.cli import option
from bertlib.tasks.embeddings import embedding_inputs
from bertlib.tasks.embeddings.settings import EmbeddingSettings

pytestmark = pytest.mark.unit


def data_files(**flags):
  settings = option.make(EmbeddingSettings, **flags)
  return [path for path, _ in settings.data_files()]


def test_files_of_a_run_are_those_that_it_reads(tmp_path):
  flags = {"train_file": "train.tsv", "dev_file": "dev.tsv"}
  flags |= {"teacher": "vectors.npy", "corpus_file": "corpus.txt"}
  flags["query_file"] = "queries.txt"
  assert data_files(do_train=True, **flags) == ["train.tsv", "vectors.npy"]
  assert data_files(do_eval=True, **flags) == ["dev.tsv"]
  assert data_files(do_predict=True, **flags) == ["corpus.txt", "queries.txt"]
  flags |= {"dev_file": str(tmp_path), "teacher": "model"}
  names = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
  found = data_files(do_train=True, eval_steps=5, **flags)
  assert found == ["train.tsv", *(f"{tmp_path}/{name}" for name in names)]


def read_pairs(tmp_path, *rows):
  """The dev set of a file with these pairs."""
  path = tmp_path / "pairs.tsv"
  path.write_text("\n".join(["x\ty", *rows]))
  flags = {"do_eval": True, "dev_file": str(path), "text_columns": ["x", "y"]}
  return embedding_inputs.read_data(option.make(EmbeddingSettings, **flags)).dev


def test_a_pair_of_equal_texts_only_adds_to_the_corpus(tmp_path):
  found = read_pairs(tmp_path, "a\ta", "b\tc").retrieval
  assert [*found.queries.values()] == ["b"]
  assert [text for _, text in found.corpus] == ["a", "c"]
  message = refusal(read_pairs, tmp_path, "a\ta")
  assert message.startswith("--dev_file: each pair has two equal texts")


def test_what_only_earlier_versions_could_set_is_read_from_the_model(tmp_path):
  embedding = {"pooling": "cls", "normalize": False, "projection_dim": 4}
  embedding["projection_activation"] = "tanh"
  entries = {"script": "run_embeddings", "embedding": embedding}
  entries |= {"min_score": -1.0, "dev_label_column": "label"}
  (tmp_path / "model.json").write_text(json.dumps(entries))
  (tmp_path / "model.ckpt-1.index").touch()
  settings = option.make(EmbeddingSettings, init_checkpoint=str(tmp_path))
  spec = embedding_inputs.find_spec(settings.completed())
  assert (spec.pooling, spec.projection_activation) == ("cls", "tanh")
