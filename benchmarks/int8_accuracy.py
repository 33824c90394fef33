"""Metrics of trained models in float32, bfloat16 and int8, side by side.

Runs an evaluation command once per model and precision, and prints the metrics
of each model and their mean. The command follows `--`, without --precision,
--output_dir, --vocab_file and --bert_config_file:

    python -m benchmarks.int8_accuracy --model_dir=output/mrpc-1 \
      --model_dir=output/mrpc-2 -- run_classifier.py --do_eval \
      --task_name=MRPC --data_dir=glue/MRPC

The models are output folders of the command, trained with several seeds for
example. They are copied first, so that nothing in them changes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence

from absl import app, flags

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.io import model_files, result_files

PRECISIONS = ("float32", "bfloat16", "int8")


def main(argv: Sequence[str]) -> None:
  """Evaluates each model in each precision and prints the metrics."""
  command = argv[1:]
  if not command:
    raise app.UsageError("Give the evaluation command after the flags")
  results = [evaluate(folder, command) for folder in FLAGS.model_dir]
  means = [
    {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
    for rows in zip(*results)
  ]
  for name, columns in zip([*FLAGS.model_dir, "mean"], [*results, means]):
    print(f"{name:28}", *(f"{p:>10}" for p in PRECISIONS))
    for key in columns[0]:
      print(f"  {key:26}", *(f"{column[key]:10.4f}" for column in columns))


def evaluate(model_dir: str, command: Sequence[str]) -> list[dict[str, float]]:
  """Metrics of a model in each precision, by key of `eval_results.txt`."""
  results = []
  with tempfile.TemporaryDirectory() as temporary:
    folder = os.path.join(temporary, "model")
    unneeded = shutil.ignore_patterns("events.*", "*.tf_record", "*.meta")
    shutil.copytree(model_dir, folder, ignore=unneeded)
    for precision in PRECISIONS:
      side_by_side.run_python(
        *command,
        precision=precision,
        output_dir=folder,
        vocab_file=os.path.join(folder, model_files.VOCAB),
        bert_config_file=os.path.join(folder, model_files.CONFIG),
      )
      path = os.path.join(folder, "eval_results.txt")
      found = result_files.read_results(path).items()
      found = {k: v for k, v in found if isinstance(v, (int, float))}
      found.pop("global_step", None)
      results.append(found)
  return results


if __name__ == "__main__":
  flags.DEFINE_multi_string(
    "model_dir", None, "Output folder of a trained model.", required=True
  )
  app.run(main)
