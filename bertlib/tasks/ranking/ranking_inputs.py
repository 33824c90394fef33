"""Inputs of run_reranker.py: groups to train on, documents to rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bertlib.data import beir, example_checks, model_inputs
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.settings import model_description
from bertlib.tasks.ranking import ranking_examples
from bertlib.tasks.ranking.ranking_examples import Groups
from bertlib.tasks.ranking.settings import RankingSettings
from bertlib.training import step_plan
from bertlib.training.runs import Run


class Data(NamedTuple):
  """Data of the splits that the run uses."""

  train: Groups | None
  pairs: Sequence[tuple[str, str]]  # to score
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


def activation_of(settings: RankingSettings, loss: str | None) -> str:
  """What makes scores of logits: that of the loss, or else of the model."""
  if loss:
    return "sigmoid" if loss == "bce" else "identity"
  description = model_description.load(settings.model.folder or "")
  return description.get("activation", "sigmoid")


def read_data(settings: RankingSettings, loss: str | None) -> Data:
  """Reads or checks the files that the run uses."""
  train, pairs = None, ()
  bad_rows: dict[str, list[str]] = {}
  if loss:
    train = ranking_examples.open_groups(
      settings.train_file,
      settings.columns,
      loss,
      settings.max_score,
      settings.text,
      bad_rows,
    )
    step_plan.count_steps(settings.flags, len(train), "queries")
  if settings.flags.do_predict:
    bad = bad_rows.setdefault(settings.predict_file, [])
    pairs = [*ranking_examples.read_pairs(settings, bad)]
  return Data(train, pairs, bad_rows)


def data_files(settings: RankingSettings) -> list[tuple[str, str | None]]:
  """Paths of the data files of the run, with their uses."""
  run, found = settings.flags, []
  for path, use, split in (
    (run.do_train and settings.train_file, TRAINING_DATA, "train"),
    (run.evaluates and settings.dev_file, DEV_DATA, "test"),
    (run.do_predict and settings.predict_file, None, "test"),
  ):
    if path:
      is_beir = path != "-" and beir.is_beir(path)
      paths = beir.data_files(path, split) if is_beir else [path]
      found += [(path, use) for path in paths]
  return found


# Of a dry run


def check_pairs(run: Run, data: Data) -> example_checks.LengthSummary:
  """Encodes some of the pairs."""
  pairs = data.pairs
  if data.train:
    groups = example_checks.sample([*data.train])
    pairs = [(g.query, text) for g in groups for text in g.documents]
  sample = example_checks.sample(pairs)
  encoded = (
    example_checks.Encoded(
      pair.input_ids, pair.num_tokens, pair.num_truncated_tokens
    )
    for pair in model_inputs.encode_pairs(
      run.tokenizer, sample, run.settings.model.max_seq_length, True
    )
  )
  return example_checks.check_encoded(
    encoded, run.config.vocab_size, len(pairs), run.tokenizer
  )
