"""Tests of the benchmark of sentence embeddings: its files and a small run."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import reference_data
from safetensors.numpy import load_file

from benchmarks import embeddings, results


@pytest.fixture
def published():
  """A small folder of sentence-transformers."""
  return os.path.dirname(
    reference_data.golden("sentence_transformers", "6.2.0", "modules.json")
  )


@pytest.mark.unit
@pytest.mark.parametrize("num_layers", [0, 1])
def test_only_the_upper_layers_become_random(published, tmp_path, num_layers):
  embeddings.reinitialize(published, str(tmp_path / "a"), num_layers)
  embeddings.reinitialize(published, str(tmp_path / "b"), num_layers)
  before, a, b = (
    load_file(os.path.join(folder, "model.safetensors"))
    for folder in (published, tmp_path / "a", tmp_path / "b")
  )
  assert a.keys() == before.keys()
  with open(os.path.join(published, "config.json")) as file:
    total = json.load(file)["num_hidden_layers"]
  scopes = {f"encoder.layer.{total - n}." for n in range(1, num_layers + 1)}
  for name, tensor in a.items():
    np.testing.assert_array_equal(tensor, b[name])  # the same seed
    if tensor.ndim == 2:
      is_kept = not any(scope in name for scope in scopes)
      assert np.array_equal(tensor, before[name]) == is_kept, name


@pytest.mark.slow
def test_a_small_model_is_trained(published, tmp_path):
  lines = ["sentence1\tsentence2\tscore"]
  lines += [f"text {a}\ttext {b}\t{a % 6}" for a in range(8) for b in range(2)]
  for name in ("train.tsv", "dev.tsv"):
    (tmp_path / name).write_text("\n".join(lines) + "\n")
  json_file = tmp_path / "results.jsonl"
  process = subprocess.run(
    [
      *[sys.executable, "-m", "benchmarks.embeddings", "--peer_python="],
      f"--sentence_transformers_dir={published}",
      *[f"--stsb_dir={tmp_path}", "--reinitialize_layers=1", "--passes=1"],
      *["--train_batch_size=4", "--num_train_epochs=1", "--max_seq_length=16"],
      *["--precision=float32", f"--json_file={json_file}"],
    ],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, process.stderr
  assert "before training: spearman" in process.stdout
  (result,) = results.read(json_file)
  for name in ("training", "whole command", "spearman"):
    assert len(result.values[name]["ours"]) == 1
