"""Runs of one command with several seeds, and their statistics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bertlib import files, json_files
from bertlib.checkpoints import checkpoint_writer, finding
from bertlib.errors import InputError
from bertlib.files import atomic_write
from bertlib.metrics import dev_scores, result_files
from bertlib.training import child_run

SEEDS_FILE = "seeds.json"


def train_seeds(
  output_dir: str,
  seeds: Sequence[int],
  metric: str,
  extra_flags: Sequence[str] = (),
) -> None:
  """Runs this command once per seed and keeps the best model as `best`.

  Each run is a subprocess with its own folder `seed_N`; a finished one is not
  trained again. Statistics go to `seeds.json` and the log.

  Args:
    output_dir: folder of all runs.
    seeds: one seed per run.
    metric: name in `eval_results.txt` of the metric to compare.
    extra_flags: further flags of each run.

  Raises:
    InputError: a run failed, or did not report the metric.
    SystemExit: see `child_run.run`.
  """
  results = {}
  for count, seed in enumerate(seeds, start=1):
    folder = os.path.join(output_dir, f"seed_{seed}")
    logging.info("Seed %d (%d of %d) in %s", seed, count, len(seeds), folder)
    child_run.run(folder, [f"--seed={seed}", "--seeds=0", *extra_flags])
    results[seed] = result_files.read_results(
      os.path.join(folder, "eval_results.txt")
    )
  report = summarize_seeds(metric, results)
  with atomic_write(os.path.join(output_dir, SEEDS_FILE)) as file:
    file.write(json.dumps(report, indent=2) + "\n")
  for seed, score in zip(seeds, report["scores"]):
    collapsed = seed in report["collapsed"]
    note = "  collapsed: all predictions are equal" if collapsed else ""
    logging.info("  seed %d: %s %.4f%s", seed, metric, score, note)
  logging.info(
    "  median %.4f, mean %.4f, standard deviation %.4f, 95%% confidence"
    " interval of the mean %.4f to %.4f",
    *(report[name] for name in ("median", "mean", "standard_deviation")),
    *report["confidence_interval"],
  )
  best = os.path.join(output_dir, f"seed_{report['best_seed']}")
  logging.info("  the best model, of seed %d, is kept", report["best_seed"])
  checkpoint_writer.save_best(output_dir, finding.trained_checkpoint(best))


def summarize_seeds(
  metric: str, results: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
  """Statistics of a metric over seeds.

  Args:
    metric: name of the metric, without `eval_`.
    results: contents of `eval_results.txt` by seed.

  Returns:
    The scores, their median, mean, sample standard deviation and 95% confidence
    interval (Student's t), the seeds that collapsed, and the best seed.

  Raises:
    InputError: a run did not report the metric.
  """
  import numpy as np
  from scipy import stats

  scores = []
  for seed, values in results.items():
    plain = {
      dev_scores.plain_name(name): value for name, value in values.items()
    }
    if metric not in plain:
      raise InputError(
        f"seed {seed}: the run has no metric {metric!r}; there are"
        f" {', '.join(sorted(plain))}. Give one as --best_metric"
      )
    scores.append(float(plain[metric]))
  mean, deviation = float(np.mean(scores)), float(np.std(scores, ddof=1))
  margin = stats.t.ppf(0.975, len(scores) - 1) * deviation / len(scores) ** 0.5
  best = 0
  for index, score in enumerate(scores):
    if dev_scores.is_better(metric, score, scores[best]):
      best = index
  return {
    "metric": metric,
    "seeds": list(results),
    "scores": scores,
    "median": float(np.median(scores)),
    "mean": mean,
    "standard_deviation": deviation,
    "confidence_interval": [mean - margin, mean + margin],
    "collapsed": [seed for seed in results if has_collapsed(results[seed])],
    "best_seed": list(results)[best],
  }


def read_statistics(output_dir: str) -> dict[str, Any] | None:
  """Reads the statistics that `train_seeds` wrote; None if there are none.

  Raises:
    InputError: the file is invalid.
  """
  path = os.path.join(output_dir, SEEDS_FILE)
  if not files.exists(path):
    return None
  return json_files.read(
    path,
    {
      "metric": str,
      "seeds": [int],
      "scores": [float],
      "median": float,
      "mean": float,
      "standard_deviation": float,
      "confidence_interval": [float],
      "collapsed": [int],
      "best_seed": int,
    },
    "Remove it, or repeat the run",
  )


def has_collapsed(results: Mapping[str, Any]) -> bool:
  """True if the model predicts the same for every example.

  Its confusion matrix then has a single nonzero column. Without one, an F1 or
  Matthews correlation of 0 shows it: no entity found, no label predicted, or
  always the same.

  Args:
    results: contents of `eval_results.txt`.
  """
  matrix = results.get("confusion_matrix")
  if matrix:
    return sum(any(column) for column in zip(*matrix)) == 1
  names = ("f1", "micro_f1", "matthews")
  return any(results.get(f"eval_{name}") == 0 for name in names)
