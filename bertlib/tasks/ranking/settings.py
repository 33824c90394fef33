"""Settings of run_reranker.py."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import beir
from bertlib.data.text_groups import Columns
from bertlib.io.receipt_file import TRAINING_DATA
from bertlib.settings.common import (
  LongDocumentSettings,
  ModelSettings,
  TableSettings,
)
from bertlib.settings.training import (
  OptimizerSettings,
  RunSettings,
  TrainingSettings,
)

# Keys of the table in run_reranker.py, which imports TensorFlow.
LOSSES = ("bce", "listwise", "margin_mse")


@dataclasses.dataclass(frozen=True)
class LossSettings(option.Group):
  """The training objective."""

  SECTION = "training"
  NEEDS = "do_train"

  loss: str | None = option.choice(
    None,
    LOSSES,
    "bce: binary cross-entropy of each pair, for labels or scores from 0 to 1."
    " listwise: cross-entropy of a softmax over the documents of a query, whose"
    " target are their labels, divided by their sum. margin_mse: squared"
    " difference between the margins of positive and negatives and those of a"
    " teacher. If not given, margin_mse with a teacher, else listwise where"
    " rows have negatives, else bce.",
    basic=True,
  )
  teacher_scores_column: str | None = option.text(
    None,
    "Column with a list of a teacher's scores for margin_mse: of the positive"
    " and of each negative, as --mine_negatives writes.",
  )
  teacher: str | None = option.path(
    None,
    "Teacher of margin_mse: the --output_dir of a reranker. Its logits are"
    " computed once, before training, and kept in --output_dir.",
  )

  def check(self) -> None:
    """Refuses a teacher that is not used, and two of them."""
    super().check()
    teachers = bool(self.teacher) + bool(self.teacher_scores_column)
    if teachers > 1 or (self.loss and teachers != (self.loss == "margin_mse")):
      raise InputError(
        "--loss=margin_mse needs --teacher or --teacher_scores_column, and"
        " other losses have none. Give one of them, or another --loss"
      )


@dataclasses.dataclass(frozen=True)
class RankingSettings(TrainingSettings):
  """Flags of run_reranker.py."""

  SCRIPT = "run_reranker"
  WRITES = ("*.tf_record", "*_predictions.*", "*_run.trec", "teacher_*.npy")
  WRITES += ("candidates_*.json", "*_bad_rows.txt")
  EXAMPLE = (
    "python run_reranker.py --train_file=train_negatives.jsonl"
    " --text_columns=query,positive,negatives --do_train"
    " --init_checkpoint=bert-base-uncased --output_dir=output/reranker"
  )

  model: ModelSettings = option.group(
    ModelSettings,
    omit=["bert_hub_module_handle"],
    bert_config_file={"basic": False},
    vocab_file={"basic": False},
    do_lower_case={"basic": False},
    max_seq_length={
      "default": 512,
      "help": "Maximum length of a query with a document in tokens, including"
      " [CLS] and [SEP].",
    },
  )
  objective: LossSettings = option.group(LossSettings)
  # Without it the first steps are several times as large, and a new scorer of
  # pairs may not leave the loss of a guess.
  optimizer: OptimizerSettings = option.group(
    OptimizerSettings, bias_correction={"default": True}
  )
  flags: RunSettings = option.group(
    RunSettings,
    do_predict={"help": "Write the scores of --predict_file."},
    eval_batch_size={"default": 64, "help": "Pairs per evaluation step."},
    predict_batch_size={"default": 64, "help": "Pairs per prediction step."},
  )
  text: TableSettings = option.group(TableSettings)
  cutting: LongDocumentSettings = option.group(
    LongDocumentSettings, omit=["join_windows"], long_texts={"basic": False}
  )
  train_file: str | None = option.path(
    None,
    "Training set: a .tsv, .csv or .jsonl file; or a folder in the layout of"
    " BEIR with corpus.jsonl, queries.jsonl and qrels/train.tsv, or another"
    " file in its qrels/.",
    basic=True,
    needs="do_train",
  )
  dev_file: str | None = option.path(
    None,
    "Dev set: a file like --train_file, where each query's own documents are"
    " ranked; or a folder in the layout of BEIR, whose --candidates are judged"
    " by qrels/test.tsv, or another file in its qrels/.",
    basic=True,
    needs="do_eval or eval_steps",
  )
  candidates: str | None = option.path(
    None,
    "Documents to rank for each query of a folder in the layout of BEIR: a run"
    " file of TREC, or an --output_dir of run_embeddings.py, which searches the"
    " whole corpus.",
    basic=True,
  )
  top_k: int = option.integer(
    100,
    "Number of best --candidates to rank for each query; the others are left"
    " out.",
    option.AT_LEAST_1,
    needs="candidates",
  )
  text_columns: Sequence[str] | None = option.text_list(
    None,
    "Columns of the texts, by name or number from 1: query and document with a"
    " label or score; or query and positive, then any number of columns of"
    " negatives, each a text or, in JSON Lines, a list.",
    basic=True,
  )
  score_column: str | None = option.text(
    None, "Column of the relevance, a number from 0.", basic=True
  )
  label_column: str | None = option.text(
    None,
    "Column of the label: 1 for a relevant document, 0 for another.",
    basic=True,
  )
  max_score: float = option.number(
    1.0,
    "Highest score of --score_column with --loss=bce.",
    option.POSITIVE,
    needs="score_column",
  )
  predict_file: str | None = option.path(
    None,
    "Pairs of query and document to score, one per line with a tab between"
    " them, or JSON Lines with these keys, or a table, whose columns"
    " --text_columns names where nothing is trained; - for standard input."
    " Scores of NAME.tsv go to NAME_predictions.jsonl and .tsv. Or a folder in"
    " the layout of BEIR, whose --candidates are ranked: NAME_run.trec and"
    " NAME_predictions.jsonl.",
    basic=True,
    needs="do_predict",
  )

  @property
  def columns(self) -> Columns:
    """Columns of --dev_file, and of --train_file without a teacher's scores."""
    return Columns(
      self.text_columns or (), self.score_column, self.label_column
    )

  def data_files(self):
    """See base class; of a folder in the layout of BEIR, those in it."""
    found, candidates = [], self.candidates
    for path, use in super().data_files():
      split = "train" if use == TRAINING_DATA else "test"
      found += [(part, use) for part in beir.data_files(path, split)]
    if candidates and not os.path.isdir(candidates):
      found.append((candidates, None))
    return found

  def check(self) -> None:
    """Refuses flags that do not go together."""
    super().check()
    self.need_sets()
    self.need("predict_file", "do_predict", self.flags.do_predict)
