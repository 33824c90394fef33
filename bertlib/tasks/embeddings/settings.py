"""Settings of run_embeddings.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import beir
from bertlib.data.text_groups import Columns, kind_of
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.settings.common import (
  LongTextSettings,
  ModelSettings,
  TableSettings,
)
from bertlib.settings.embedding_spec import SCRIPT, VectorSettings
from bertlib.settings.training import RunSettings, TrainingSettings

# Keys of the table in `embedding_losses`, which imports TensorFlow.
LOSSES = (
  "infonce",
  "triplet",
  "cosine",
  "cosent",
  "supervised_contrastive",
  "distillation",
)

# Losses that a kind of data can train; the first is the default.
LOSSES_OF_KIND = {
  "pairs": ("infonce",),
  "triplets": ("infonce", "triplet"),
  "scored_pairs": ("cosent", "cosine"),
  "labeled_pairs": ("cosent", "cosine"),
  "labeled_texts": ("supervised_contrastive",),
  "texts": ("distillation",),
}


@dataclasses.dataclass(frozen=True)
class LossSettings(option.Group):
  """The training objective."""

  SECTION = "training"
  NEEDS = "do_train"

  loss: str | None = option.choice(
    None,
    LOSSES,
    "infonce: the positive among all texts of the batch, for pairs and"
    " triplets. triplet: a margin between positive and negatives. cosine:"
    " regression of the cosine to the score. cosent: order of the cosines, for"
    " pairs with scores. supervised_contrastive: texts of a label together."
    " distillation: the vectors of --teacher. If not given, infonce, cosent or"
    " supervised_contrastive, by the columns of the data.",
    basic=True,
  )
  temperature: float = option.number(
    0.05,
    "Divisor of the cosines in infonce, cosent and supervised_contrastive.",
    option.POSITIVE,
    needs="not loss=triplet, not loss=cosine, not loss=distillation",
  )
  margin: float | None = option.number(
    None,
    "With --loss=triplet: distance by which negatives must be farther than the"
    " positive. If not given, 0.5 for normalized vectors, else 5.",
    option.NOT_NEGATIVE,
    needs="loss=triplet",
  )
  teacher: str | None = option.path(
    None,
    "With --loss=distillation: .npy file with the vectors of the training"
    " texts, [N, D] in their order; or an --output_dir of run_embeddings.py, or"
    " the name of a published embedding model.",
  )


@dataclasses.dataclass(frozen=True)
class MiningSettings(option.Group):
  """Which texts are hard negatives."""

  SECTION = "evaluation"
  NEEDS = "do_predict"

  mine_negatives: int | None = option.integer(
    None,
    "Hard negatives to find for each row of --train_file: positives of others"
    " that are closest to its first text, or documents of the corpus of a"
    " folder. Those of NAME.tsv go to"
    " NAME_negatives.jsonl, to train with"
    " --text_columns=query,positive,negatives.",
    option.AT_LEAST_1,
  )
  range_min: int = option.integer(
    0,
    "Number of closest texts to skip, since they may be right.",
    option.NOT_NEGATIVE,
    needs="mine_negatives",
  )
  range_max: int | None = option.integer(
    None,
    "Number of closest texts to take negatives from. If not given, as many as"
    " are needed; with a margin, ten times as many.",
    option.AT_LEAST_1,
    needs="mine_negatives",
  )
  absolute_margin: float | None = option.number(
    None,
    "Least difference between the cosine of the farthest positive and that of a"
    " negative.",
    option.NOT_NEGATIVE,
    needs="mine_negatives",
  )
  relative_margin: float | None = option.number(
    None,
    "The same difference, as a fraction of the cosine of that positive.",
    option.NOT_NEGATIVE,
    needs="mine_negatives",
  )

  def depth(self, most_positives: int) -> int:
    """Texts to find for a query, its positives among them."""
    if self.range_max is not None:
      return self.range_max + most_positives
    margins = self.absolute_margin, self.relative_margin
    times = 1 if margins == (None, None) else 10
    return self.range_min + times * self.mine_negatives + 2 * most_positives

  def check(self) -> None:
    """Refuses a range that has not enough texts."""
    super().check()
    if self.mine_negatives and self.range_max is not None:
      least = self.range_min + self.mine_negatives
      if self.range_max < least:
        raise InputError(
          f"--range_max={self.range_max}: must be {least} or more, the sum of"
          " --range_min and --mine_negatives"
        )


@dataclasses.dataclass(frozen=True)
class EmbeddingSettings(TrainingSettings):
  """Flags of run_embeddings.py."""

  SCRIPT = SCRIPT
  WRITES = ("*.tf_record", "*_vectors.npy", "*_results.jsonl")
  WRITES += ("*_negatives.jsonl", "*_bad_rows.txt")
  NEEDS_OWN_MODEL = False  # any encoder has vectors
  KEPT_IN_TRAINING = (*TrainingSettings.KEPT_IN_TRAINING, "max_seq_length")
  EXAMPLE = (
    "python run_embeddings.py --train_file=train.tsv"
    " --text_columns=question,answer --do_train"
    " --init_checkpoint=all-MiniLM-L6-v2 --output_dir=output/search"
  )

  model: ModelSettings = option.group(
    ModelSettings,
    omit=["bert_hub_module_handle"],
    init_checkpoint={
      "help": "Checkpoint to start from: its path without .index, a folder with"
      " one, or the name of a published model (see docs/how_to/models.md)."
      " Config, vocabulary, pooling and prefixes are taken from its folder if"
      " they are there."
    },
    bert_config_file={
      "help": "JSON file with the sizes of the model. If not given, the one"
      " beside the checkpoint.",
      "basic": False,
    },
    vocab_file={
      "help": "Vocabulary file with one WordPiece per line. If not given, the"
      " one beside the checkpoint.",
      "basic": False,
    },
    do_lower_case={"basic": False},
  )
  vectors: VectorSettings = option.group(VectorSettings)
  objective: LossSettings = option.group(LossSettings)
  mining: MiningSettings = option.group(MiningSettings)
  flags: RunSettings = option.group(
    RunSettings,
    do_predict={
      "help": "Write the vectors of --predict_file, search --corpus_file for"
      " the lines of --query_file, or find --mine_negatives."
    },
    eval_batch_size={"default": 64, "help": "Texts per evaluation step."},
    predict_batch_size={"default": 64, "help": "Texts per prediction step."},
  )
  text: TableSettings = option.group(TableSettings)
  cutting: LongTextSettings = option.group(
    LongTextSettings, omit=["join_windows"], long_texts={"basic": False}
  )
  train_file: str | None = option.path(
    None,
    "Training set, a .tsv, .csv or .jsonl file with a header. For"
    " --mine_negatives also a folder in the layout of BEIR with"
    " qrels/train.tsv, or another file in its qrels/.",
    basic=True,
    needs="do_train or mine_negatives",
  )
  dev_file: str | None = option.path(
    None,
    "Dev set, a file like --train_file; or a folder in the layout of BEIR with"
    " corpus.jsonl, queries.jsonl and qrels/test.tsv, or another file in its"
    " qrels/.",
    basic=True,
    needs="do_eval or eval_steps",
  )
  text_columns: Sequence[str] | None = option.text_list(
    None,
    "Columns of the texts, by name or number from 1: anchor and positive, then"
    " any number of columns of hard negatives; or two texts with a score or a"
    " label; or one text with a label.",
    basic=True,
    kept=True,
  )
  score_column: str | None = option.text(
    None, "Column of the similarity of two texts.", basic=True, kept=True
  )
  label_column: str | None = option.text(
    None,
    "Column of the label: of a text, or 1 for two texts that belong together"
    " and 0 for others.",
    basic=True,
    kept=True,
  )
  max_score: float = option.number(
    1.0,
    "Score of equivalent texts, the highest. That of unrelated texts is 0.",
    option.POSITIVE,
    kept=True,
    needs="score_column or dev_score_column",
  )
  dev_text_columns: Sequence[str] | None = option.text_list(
    None,
    "Columns of the texts of --dev_file. If none of the --dev_*_column flags is"
    " given, the columns of --train_file.",
    section="evaluation",
    kept=True,
    needs="do_eval or eval_steps",
  )
  dev_score_column: str | None = option.text(
    None,
    "Column of the score in --dev_file.",
    section="evaluation",
    kept=True,
    needs="do_eval or eval_steps",
  )
  predict_file: str | None = option.path(
    None,
    "Texts to encode, one per line; - for standard input. A .csv file is a"
    " table, whose texts are in --text_columns. The vectors of NAME.txt go to"
    " NAME_vectors.npy, float32 [N, D].",
    basic=True,
    needs="do_predict",
  )
  prompt: str | None = option.text(
    None,
    "Name of the prefix of the texts of --predict_file, such as query or"
    " passage. If not given, the model's default.",
    needs="do_predict, predict_file",
  )
  corpus_file: str | None = option.path(
    None, "Texts to search, one per line.", basic=True, needs="do_predict"
  )
  query_file: str | None = option.path(
    None,
    "Queries, one per line; - for standard input. The lines found in"
    " --corpus_file for those of NAME.txt go to NAME_results.jsonl.",
    basic=True,
    needs="do_predict",
  )
  top_k: int = option.integer(
    10,
    "Number of lines to find for each query.",
    option.AT_LEAST_1,
    needs="do_predict, corpus_file",
  )

  @property
  def train_columns(self) -> Columns:
    """Columns of --train_file."""
    return Columns(
      self.text_columns or (), self.score_column, self.label_column
    )

  @property
  def dev_columns(self) -> Columns:
    """Columns of --dev_file: those of --train_file unless others are named."""
    if not self.names_dev_columns:
      return self.train_columns
    names = self.dev_text_columns or self.text_columns or ()
    return Columns(names, self.dev_score_column)

  @property
  def mines_folder(self) -> bool:
    """True if --train_file is a folder in the layout of BEIR."""
    mines = self.flags.do_predict and not self.flags.do_train
    mines = mines and self.mining.mine_negatives is not None
    return mines and beir.is_beir(self.train_file)

  @property
  def names_dev_columns(self) -> bool:
    """True if a column of --dev_file is named."""
    return bool(self.dev_text_columns or self.dev_score_column)

  def data_files(self):
    """See base class."""
    run, teacher = self.flags, self.objective.teacher or ""
    files: list[tuple[str | None, str | None]] = []
    if run.do_train or (run.do_predict and self.mining.mine_negatives):
      use = TRAINING_DATA if run.do_train else None
      paths = beir.data_files(self.train_file, "train")
      files += [(path, use) for path in paths]
    if run.do_train and teacher.endswith(".npy"):  # vectors, not a model
      files.append((teacher, "teacher"))
    if run.evaluates:
      files += [(path, DEV_DATA) for path in beir.data_files(self.dev_file)]
    if run.do_predict:
      paths = self.predict_file, self.corpus_file, self.query_file
      files += [(path, None) for path in paths]
    return [(path, use) for path, use in files if path]

  def check(self) -> None:
    """Refuses flags that do not go together."""
    super().check()
    flags, searches = self.flags, bool(self.corpus_file)
    self.need_sets()
    if self.mining.mine_negatives:
      self.need("train_file", "mine_negatives", flags.do_predict)
      kinds = ("pairs", "triplets")
      if not self.mines_folder and kind_of(self.train_columns) not in kinds:
        raise InputError(
          "--mine_negatives: --text_columns must name a query and its positive,"
          " without a score or label"
        )
    if flags.evaluates and self.names_dev_columns:
      kind_of(self.dev_columns)
    if searches != bool(self.query_file):
      missing = "query_file" if searches else "corpus_file"
      raise InputError(f"--{missing} is needed: a search has both files")
    has_work = self.predict_file or searches or self.mining.mine_negatives
    if flags.do_predict and not has_work:
      raise InputError(
        "--do_predict: name --predict_file, or --corpus_file and --query_file,"
        " or give --mine_negatives"
      )
    if bool(self.objective.teacher) != (self.objective.loss == "distillation"):
      raise InputError("--teacher and --loss=distillation need each other")
    if self.query_file == self.predict_file == "-":
      raise InputError("standard input cannot be both queries and texts")
    if flags.do_train:
      self._check_loss()

  def _check_loss(self) -> None:
    """Refuses a loss that the columns of the training data cannot train."""
    kind, loss = kind_of(self.train_columns), self.objective.loss
    if loss and loss not in LOSSES_OF_KIND[kind]:
      words = kind.replace("_", " ")
      raise InputError(
        f"--loss={loss}: {self.train_file} has {words}, which train"
        f" {' or '.join(LOSSES_OF_KIND[kind])}. Name other columns, or another"
        " loss"
      )
