"""Runs of one command with several seeds, and their statistics."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bertlib.checkpoints import finding
from bertlib.cli.errors import InputError
from bertlib.io import files, folder_lock, json_files, result_files
from bertlib.io.files import atomic_write
from bertlib.training import checkpoint_hook, dev_scores

SEEDS_FILE = "seeds.json"


def train_seeds(
  output_dir: str,
  seeds: Sequence[int],
  metric: str,
  extra_flags: Sequence[str] = (),
) -> None:
  """Runs this command once per seed and keeps the best model as `best`."""
  results, collapsed = {}, []
  for count, seed in enumerate(seeds, start=1):
    folder = os.path.join(output_dir, f"seed_{seed}")
    logging.info("Seed %d (%d of %d) in %s", seed, count, len(seeds), folder)
    # A finished run returns at once: it is at its last step.
    run_again(folder, [f"--seed={seed}", "--seeds=0", *extra_flags])
    results[seed] = result_files.read_results(
      os.path.join(folder, "eval_results.txt")
    )
    if has_collapsed(folder):
      collapsed.append(seed)
  report = summarize_seeds(metric, results) | {"collapsed": collapsed}
  with atomic_write(os.path.join(output_dir, SEEDS_FILE)) as file:
    file.write(json_files.dumps(report, indent=2) + "\n")
  for seed, score in zip(seeds, report["scores"]):
    note = "  collapsed: all predictions are equal" * (seed in collapsed)
    logging.info("  seed %d: %s %.4f%s", seed, metric, score, note)
  logging.info(
    "  median %.4f, mean %.4f, standard deviation %.4f, 95%% confidence"
    " interval of the mean %.4f to %.4f",
    *(report[name] for name in ("median", "mean", "standard_deviation")),
    *report["confidence_interval"],
  )
  best = os.path.join(output_dir, f"seed_{report['best_seed']}")
  logging.info("  the best model, of seed %d, is kept", report["best_seed"])
  finding.save_best(output_dir, finding.trained_checkpoint(best))


def run_again(output_dir: str, flags: Sequence[str]) -> None:
  """Runs this command with more flags; a signal to this one stops both."""
  # `flags` come last, and so take precedence over those of this command.
  script, *arguments = [*sys.argv, *flags, f"--output_dir={output_dir}"]
  module = sys.modules["__main__"].__spec__
  is_module = module and module.origin == script  # `python -m MODULE`
  program = ["-m", module.name] if is_module else [script]
  command = [sys.executable, *program, *arguments]
  with (
    checkpoint_hook.StopRequest() as stop,
    # The locks of this process are held until both processes have ended.
    subprocess.Popen(command, pass_fds=folder_lock.held_files()) as process,
  ):
    while process.poll() is None and not stop.requested:
      time.sleep(0.1)
    if stop.requested:
      process.terminate()
  status = process.returncode
  if status < 0:  # the signal came before its handler was set
    status = 128 - status
  if stop.requested or status in checkpoint_hook.STOPPED_STATUSES:
    logging.warning(
      "%s: stopped. Re-run the same command to resume", output_dir
    )
    sys.exit(stop.status if stop.requested else status)
  if process.returncode:
    raise InputError(
      f"{output_dir}: the run failed, see the error above. Re-run the same"
      " command to resume"
    )


def summarize_seeds(
  metric: str, results: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
  """Statistics of a metric, given without `eval_`, over seeds."""
  # Imported here: a single run needs no SciPy.
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
  # Student's t.
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
    "best_seed": list(results)[best],
  }


def read_statistics(output_dir: str) -> dict[str, Any]:
  """Reads the statistics that `train_seeds` wrote."""
  path = os.path.join(output_dir, SEEDS_FILE)
  return json_files.with_nan(json_files.read(path, dict))


def has_collapsed(folder: str) -> bool:
  """True if the model of a run predicts the same for every dev example."""
  path = os.path.join(folder, f"{result_files.DEV_PREDICTIONS}.jsonl")
  if files.exists(path):
    predictions = result_files.read_dev_predictions(path)
    return result_files.are_all_equal(
      *result_files.answers_to_compare(predictions)
    )
  path = os.path.join(folder, "predictions.json")
  if files.exists(path):
    return result_files.are_all_equal([*json_files.read(path, dict).values()])
  return False
