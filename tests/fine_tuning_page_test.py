"""The page of results says what the receipts say."""

import json
import shutil

import pytest

from website import fine_tuning

pytestmark = pytest.mark.unit

RUN = {
  "seed": 1,
  "date": "2026-01-02",
  "processor_seconds": 75.4,
  "precision": "bfloat16",
  "device": {"cpu": "Example CPU", "cores": 2, "gpus": []},
  "versions": {"project": "1.2.0", "commit": "0123456789abcdef"},
  "metrics": {"eval_accuracy": 0.75},
}


@pytest.fixture
def page(tmp_path, monkeypatch):
  def make(ours, peer=()):
    (tmp_path / "fine_tuning").mkdir()
    receipt = {
      "task": "MRPC",
      "model": "some-encoder",
      "data": {},
      "ours": {"commands": ["python run.py --flag"], "runs": ours},
      "peer": {
        "commands": ["python -m benchmarks.finetune_transformers"],
        "runs": list(peer),
      },
    }
    path = tmp_path / "fine_tuning" / "MRPC.json"
    path.write_text(json.dumps(receipt))
    published = {
      "sources": {"paper": {"text": "A paper", "url": "https://example.org"}},
      "tasks": {"MRPC": {"source": "paper", "eval_accuracy": 84.07}},
    }
    (tmp_path / "published.json").write_text(json.dumps(published))
    shutil.copy(fine_tuning.FOLDER / "lockstep.jsonl", tmp_path)
    monkeypatch.setattr(fine_tuning, "FOLDER", tmp_path)
    return fine_tuning.page()

  return make


def with_accuracy(value, **more):
  return {**RUN, "metrics": {"eval_accuracy": value}, **more}


# Welch's interval of the first row: a difference of 10 with a standard error of
# the square root of 7.0711**2 and 14.1421**2, each divided by 2, and
# (25 + 100)**2 / (25**2 + 100**2) degrees of freedom.
@pytest.mark.parametrize(
  ("ours", "peer", "shown"),
  [
    ([0.8, 0.9], [0.65, 0.85], "none shown: −59.19 to +79.19"),
    ([0.80, 0.81, 0.82], [0.70, 0.71, 0.72], "higher: +7.73 to +12.27"),
    ([0.70, 0.71, 0.72], [0.80, 0.81, 0.82], "lower: −12.27 to −7.73"),
    ([0.8, 0.9], [0.7], "unknown, one seed"),
    ([0.8], [0.7, 0.9], "unknown, one seed"),
    ([0.8, 0.8], [0.7, 0.7], "unknown"),
    ([0.8, 0.9], [], "–"),
  ],
)
def test_difference_is_an_interval(page, ours, peer, shown):
  found = page(*([*map(with_accuracy, side)] for side in (ours, peer)))
  row = next(line for line in found.splitlines() if "| accuracy |" in line)
  assert f" {len(ours)} / {len(peer)} | {shown} |" in row


def test_score_is_mean_and_deviation_of_the_newest_version_alone(page):
  scores = ("0.9.0", 0.1), ("0.10.0", 0.8), ("0.10.0", 0.9)
  runs = [
    with_accuracy(score, versions={"project": version})
    for version, score in scores
  ]
  found = page(runs)
  assert "| accuracy | 85.00\N{NBSP}±\N{NBSP}7.07 | – | 2 / 0 |" in found
  assert "0.9.0" not in found
