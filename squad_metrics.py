"""Evaluates answers to questions: exact match and F1 of SQuAD 1.1 and 2.0.

Takes the arguments of the official evaluators and prints JSON:

    squad_metrics.py dev-v1.1.json predictions.json
    squad_metrics.py dev-v2.0.json predictions.json -n null_odds.json

`--metric=chinese` evaluates Chinese, which has no spaces between words, by
characters, as for CMRC 2018 and DRCD (Cui et al. 2019).
"""

from __future__ import annotations

from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.io import files, json_files
from bertlib.io.files import atomic_write
from bertlib.tasks.squad import squad_files, squad_scores
from bertlib.tasks.squad.settings import SquadMetricsSettings

# The command line


def define_flags() -> None:
  """Defines the flags."""
  option.define(SquadMetricsSettings)


def main(argv: list[str]) -> None:
  """Evaluates the answers in one JSON file to the questions in another."""
  if len(argv) != 3:
    raise InputError(
      "two files are needed: the data set, and the answers by question id"
    )
  settings = option.from_flags(SquadMetricsSettings)
  inputs = [*argv[1:], settings.na_prob_file]
  if settings.out_file:
    files.check_outputs([settings.out_file], inputs)
  questions = squad_files.read_questions(argv[1])
  predictions = squad_files.read_by_id(argv[2], str)
  is_v2 = any(question.is_impossible is not None for question in questions)
  is_v2 |= len({bool(question.answers) for question in questions}) > 1
  metric = settings.metric
  if metric == "auto":
    metric = "2.0" if is_v2 else "1.1"
  if metric == "2.0":
    na_probs = None
    if settings.na_prob_file:
      na_probs = squad_files.read_by_id(settings.na_prob_file, float)
    results = squad_scores.evaluate_v2(
      questions, predictions, na_probs, settings.na_prob_thresh
    )
  else:
    squad_files.check_gold_answers(questions, argv[1])
    score = squad_scores.scorer(metric)
    results = squad_scores.evaluate_v1(questions, predictions, score)
  line = json_files.dumps(results, indent=2 if metric == "2.0" else None)
  if settings.out_file:
    with atomic_write(settings.out_file) as file:
      file.write(line)
  else:
    print(line)


if __name__ == "__main__":
  app.parse_flags(SquadMetricsSettings)
  app.run(main)
