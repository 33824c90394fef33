"""Tests of the inputs of run_embeddings.py."""

import pytest

from bertlib.cli import option
from bertlib.tasks.embeddings import embedding_inputs
from bertlib.tasks.embeddings.settings import EmbeddingSettings

pytestmark = pytest.mark.unit


def data_files(**flags):
  return embedding_inputs.data_files(option.make(EmbeddingSettings, **flags))


def test_files_of_a_run_are_those_that_it_reads(tmp_path):
  flags = {"train_file": "train.tsv", "dev_file": "dev.tsv"}
  flags |= {"teacher": "vectors.npy", "corpus_file": "corpus.txt"}
  flags["query_file"] = "queries.txt"
  assert data_files(do_train=True, **flags) == ["train.tsv", "vectors.npy"]
  assert data_files(do_eval=True, **flags) == ["dev.tsv"]
  assert data_files(do_predict=True, **flags) == ["corpus.txt", "queries.txt"]
  flags |= {"dev_file": str(tmp_path), "beir_split": "dev", "teacher": "model"}
  names = ("corpus.jsonl", "queries.jsonl", "qrels/dev.tsv")
  found = data_files(do_train=True, eval_steps=5, **flags)
  assert found == ["train.tsv", *(f"{tmp_path}/{name}" for name in names)]
