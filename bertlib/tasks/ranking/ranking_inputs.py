"""Inputs of run_reranker.py: groups to train on, documents to rank."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bertlib.cli.errors import InputError
from bertlib.data import beir, example_checks, tables
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.settings import model_description
from bertlib.tasks.ranking import ranking_examples, rankings
from bertlib.tasks.ranking.ranking_examples import Groups
from bertlib.tasks.ranking.rankings import Search
from bertlib.tasks.ranking.settings import RankingSettings
from bertlib.training import runs, step_plan
from bertlib.training.runs import Run


class Data(NamedTuple):
  """Data of the splits that the run uses."""

  train: Groups | None
  dev: Search | None
  # Pairs to score, or documents to rank.
  predict: Sequence[tuple[str, str]] | Search | None
  bad_rows: Mapping[str, Sequence[str]]  # messages of the skipped rows, by file


def find_loss(settings: RankingSettings) -> str | None:
  """The training objective; None without training."""
  flags, path = settings.objective, settings.train_file
  if not settings.flags.do_train:
    return None
  if flags.loss or flags.teacher or flags.teacher_scores_column:
    return flags.loss or "margin_mse"
  has_lists = ranking_examples.has_lists(path, settings.columns)
  return "listwise" if has_lists else "bce"


def describe(settings: RankingSettings, loss: str | None) -> dict[str, str]:
  """Entries of `model.json`: those of the model, and the loss's activation."""
  found = model_description.load(settings.model.folder or "")
  names = {"activation", "query_prefix"} & found.keys()
  entries = {"activation": "sigmoid"} | {name: found[name] for name in names}
  if loss:
    entries["activation"] = "sigmoid" if loss == "bce" else "identity"
  return entries


def read_data(settings: RankingSettings, loss: str | None) -> Data:
  """Reads or checks the files that the run uses."""
  flags, path = settings.flags, settings.predict_file
  train = dev = predict = None
  bad_rows: dict[str, list[str]] = {}
  if loss:
    train = ranking_examples.open_groups(settings, loss, bad_rows)
    step_plan.count_steps(flags, len(train), "queries")
  if flags.evaluates and beir.is_beir(settings.dev_file):
    dev = rankings.of_folder(settings, "dev_file", is_judged=True)
  elif flags.evaluates:
    dev = rankings.of_table(settings, bad_rows)
  if flags.do_predict and beir.is_beir(path):
    predict = rankings.of_folder(settings, "predict_file", is_judged=False)
  elif flags.do_predict:
    predict = tables.collect_examples(
      path,
      *ranking_examples.pair_rows(settings),
      settings.text.bad_rows == "skip",
      bad_rows,
    )
  has_folder = any(
    isinstance(s, Search) and s.is_ordered for s in (dev, predict)
  )
  if settings.candidates and not has_folder:
    raise InputError(
      f"--candidates={settings.candidates}: are those of a folder in the layout"
      " of BEIR. Name one as --dev_file or --predict_file"
    )
  return Data(train, dev, predict, bad_rows)


def data_files(settings: RankingSettings) -> list[tuple[str, str | None]]:
  """Paths of the data files of the run, with their uses."""
  run, found = settings.flags, []
  for path, use, split in (
    (run.do_train and settings.train_file, TRAINING_DATA, "train"),
    (run.evaluates and settings.dev_file, DEV_DATA, "test"),
    (run.do_predict and settings.predict_file, None, "test"),
  ):
    if path:
      found += [(path, use) for path in beir.data_files(path, split)]
  candidates = settings.candidates
  if candidates and not os.path.isdir(candidates):
    found.append((candidates, None))
  return found


# Of a dry run


def check_pairs(run: Run, data: Data) -> example_checks.LengthSummary:
  """Encodes some of the pairs."""
  groups, pairs = [], data.predict or data.dev
  if isinstance(pairs, Search):
    pairs = [*pairs.pairs()]
  if data.train:
    step = len(data.train) // 2000 + 1
    groups = [*itertools.islice(data.train, 0, None, step)]
    pairs = [(g.query, text) for g in groups for text in g.documents]
  sample = example_checks.sample(pairs)
  num_examples = len(data.train or pairs)
  return runs.check_sample(run, sample, num_examples, len(groups or sample))
