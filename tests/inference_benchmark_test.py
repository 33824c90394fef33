"""Tests of the benchmark of inference: its texts, ratios and a small run."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import tiny_model

from benchmarks import inference, inference_works, results


@pytest.mark.unit
def test_ratios_are_to_each_peer_at_its_best():
  values = {
    "batches": {
      "predictor-float32": [2.0, 2.0, 4.0],
      "transformers-float32": [9.0, 9.0, 9.0],
      "transformers-int8": [6.0, 4.0, 4.0],
    }
  }
  pairs = list(inference.pairs_of(values))
  assert pairs == [("batches", "predictor-float32", "transformers-int8")]


@pytest.mark.unit
@pytest.mark.parametrize("batch_size", [2, None])
def test_batches_are_sorted_and_outputs_are_in_order(batch_size, monkeypatch):
  monkeypatch.setattr(inference_works, "_TOKENS_PER_BATCH", 18)
  batches = []

  def run(batch):
    batches.append(batch)
    return [10 * row for row in batch]

  settings = SimpleNamespace(batch_size=batch_size)
  outputs = inference_works.in_sorted_batches(settings, [1, 9, 5], run)
  assert outputs == [0, 10, 20]
  assert batches == [[1, 2], [0]]


@pytest.mark.slow
def test_a_small_model_is_timed(tmp_path):
  vocab_file = tmp_path / "vocab.txt"
  vocab = [*tiny_model.SPECIAL, "##s", "1", "one", "two"]
  vocab_file.write_text("\n".join(vocab) + "\n")
  json_file = tmp_path / "results.jsonl"
  process = subprocess.run(
    [
      *[sys.executable, "-m", "benchmarks.inference", "--models=tiny"],
      "--sides=predictor-float32",
      *["--works=tokens,tokens-one", f"--vocab_file={vocab_file}"],
      *["--max_texts=2", "--latency_runs=2", "--passes=1"],
      *["--peer_python=", f"--json_file={json_file}"],
    ],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, process.stderr
  batches, alone = results.read(json_file)
  assert set(batches.values) == {"batches", "processor time"}
  assert set(alone.values) == {"median", "99th percentile", "processor time"}
  for result in (batches, alone):
    assert result.sides["predictor-float32"]["versions"]["tensorflow"]
    for by_side in result.values.values():
      assert by_side["predictor-float32"][0] > 0
