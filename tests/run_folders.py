"""Output folders of runs, written by hand."""

import json

from bertlib.io import result_files
from bertlib.reporting import comparison

DATA = {"train_file": "a" * 64, "dev_file": "b" * 64}


def read(*folders):
  """Reads the runs of some folders, as report.py does."""
  return comparison.find_runs(list(map(str, folders)))


def data_file(path, flags, sha256, num_bytes=9):
  """The entry of a data file in a receipt."""
  return {
    "what": "data",
    "flags": flags,
    "path": str(path),
    "bytes": num_bytes,
    "sha256": sha256,
    "hashed": "all",
  }


def receipt(folder, flags=None, given=None, data=None, **changed):
  """A receipt as a run leaves it.

  Args:
    folder: folder of the run.
    flags: flags that differ from those of the other receipts.
    given: names of the flags on the command line; None for all in `flags`.
    data: hashes of data files by flag; None for `DATA`.
    **changed: entries to replace.
  """
  flags = flags or {}
  data = DATA if data is None else data
  values = {
    "do_train": True,
    "seed": 1,
    "seeds": 0,
    "learning_rate": 1e-4,
    "best_metric": "accuracy",
    "output_dir": str(folder),
    **{flag: f"data/{flag}.tsv" for flag in data},
    **flags,
  }
  names = flags if given is None else given
  return {
    "script": "run_classifier.py",
    "given": [f"--{name}={values[name]}" for name in names],
    "started": "2026-01-31T23:00:00+00:00",
    "ended": "2026-02-01T00:00:05+00:00",
    "flags": values,
    "versions": {"python": "3.11.7"},
    "device": {"cpu": "a CPU", "gpus": []},
    "files": [
      data_file(f"data/{flag}.tsv", [flag], sha256)
      for flag, sha256 in data.items()
    ],
    "results": {"eval_accuracy": 0.5},
    **changed,
  }


def write(folder, *receipts, predictions=()):
  """Writes a folder of a run, with its last receipt first; returns its path."""
  folder.mkdir(parents=True)
  names = ["run.json"]
  names += [f"run-{n}.json" for n in range(len(receipts) - 1, 0, -1)]
  for name, content in zip(names, receipts):
    (folder / name).write_text(json.dumps(content))
  if predictions:
    lines = "".join(json.dumps(row) + "\n" for row in predictions)
    (folder / "eval_predictions.jsonl").write_text(lines)
  return str(folder)


def write_run(folder, predictions=(), **changed):
  """Writes the folder of one run; see `write` and `receipt`."""
  one = receipt(folder, **changed)
  path = write(folder, one, predictions=predictions)
  if one["results"]:
    results = folder / "eval_results.txt"
    result_files.write_results(str(results), one["results"])
  return path
