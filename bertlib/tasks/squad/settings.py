"""Settings of run_squad.py and squad_metrics.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings.common import ModelSettings, check_window
from bertlib.settings.training import RunSettings, TrainingSettings


@dataclasses.dataclass(frozen=True)
class AnswerSettings(option.Group):
  """Flags of finding and evaluating answers."""

  SECTION = "evaluation"

  n_best_size: int = option.integer(
    20,
    "Number of start and end positions to consider per window, and of answers"
    " to list per question in nbest_predictions.json.",
    option.AT_LEAST_1,
    kept=True,
    needs="do_predict or from_logits or eval_steps",
  )
  max_answer_length: int = option.integer(
    30,
    "Maximum length of an answer in tokens.",
    option.AT_LEAST_1,
    kept=True,
    needs="do_predict or from_logits or eval_steps",
  )
  version_2_with_negative: bool = option.boolean(
    False,
    "Allow questions without an answer, as in SQuAD 2.0.",
    section="data",
    basic=True,
    kept=True,
  )
  null_score_diff_threshold: float = option.number(
    0.0,
    "SQuAD 2.0: predict no answer if its score exceeds that of the best answer"
    " by more than this. --do_eval stores the value with the highest F1 in"
    " model.json, for Predictor and exports.",
    option.FINITE,
    basic=True,
    kept=True,
    needs="version_2_with_negative",
  )
  eval_metric: str = option.choice(
    "squad",
    ["squad", "chinese"],
    "Metrics of the evaluation: squad compares words; chinese compares"
    " characters, as for CMRC 2018 and DRCD.",
    kept=True,
  )


@dataclasses.dataclass(frozen=True)
class SquadSettings(TrainingSettings):
  """Flags of run_squad.py."""

  REQUIRED_UNLESS = "audit"
  SCRIPT = "run_squad"
  WRITES = ("*.tf_record", "*predictions.json", "null_odds.json")
  ACTIONS = ("do_train", "do_predict", "audit", "from_logits")
  EXAMPLE = (
    "python run_squad.py --train_file=train-v1.1.json --do_train"
    " --init_checkpoint=bert-base-uncased --output_dir=output/squad"
  )

  model: ModelSettings = option.group(ModelSettings, max_seq_length=384)
  flags: RunSettings = option.group(
    RunSettings,
    omit=["eval_batch_size"],
    do_eval={
      "help": "Evaluate the answers to --predict_file, which needs their gold"
      " answers."
    },
    do_predict={"help": "Answer the questions of --predict_file."},
    train_batch_size={"help": "Windows per training step, over all devices."},
    predict_batch_size={
      "help": "Windows per prediction step.",
      "needs": "do_predict or eval_steps",
    },
  )
  train_file: str | None = option.path(
    None,
    "File to train on: JSON in SQuAD format, such as train-v1.1.json, or a"
    " table (.csv, .tsv, .jsonl) with columns document, question and answer.",
    basic=True,
    needs="do_train or audit",
  )
  predict_file: str | None = option.path(
    None,
    "File with the questions to answer, in the form of --train_file; answers"
    " are needed to evaluate.",
    basic=True,
    needs="do_predict or from_logits or eval_steps",
  )
  doc_stride: int = option.integer(
    128,
    "Stride between overlapping windows of a long paragraph, in tokens.",
    option.AT_LEAST_1,
    basic=True,
    kept=True,
  )
  max_query_length: int = option.integer(
    64,
    "Maximum length of a question in tokens; longer ones are truncated.",
    option.AT_LEAST_1,
    kept=True,
  )
  mask_padding: bool = option.boolean(
    False,
    "Exclude padding from the start and end positions, in training too, so"
    " that padding need not be computed. Faster; google-research/bert includes"
    " padding.",
    section="model",
    kept=True,
  )
  answers: AnswerSettings = option.group(AnswerSettings)
  verbose_logging: bool = option.boolean(
    False,
    "Log each question that is skipped or truncated, and each answer that is in"
    " no window.",
    section="output",
  )
  save_logits: str | None = option.path(
    None,
    "File to save the start and end logits to, for --from_logits.",
    section="evaluation",
    is_output=True,
    needs="do_predict or from_logits",
  )
  from_logits: str | None = option.path(
    None,
    "File of --save_logits to compute answers from instead of running the"
    " model; takes seconds.",
    section="evaluation",
  )
  audit: bool = option.boolean(
    False,
    "Print how many questions of --train_file are truncated and how many"
    " answers are in no window, for several values of --max_seq_length and"
    " --doc_stride, and exit.",
  )
  num_workers: int = option.integer(
    0,
    "Number of processes that convert questions to windows; 0 for one per CPU"
    " core.",
    option.PARALLEL,
    section="devices",
  )

  def check(self) -> None:
    """Refuses an action without its file, and windows without room for text."""
    super().check()
    flags = self.flags
    self.need(
      "train_file", "do_train and --audit", flags.do_train or self.audit
    )
    self.need("predict_file", "do_predict", self.answers_questions)
    self.need("predict_file", "eval_steps", flags.do_train and flags.eval_steps)
    if flags.do_eval and not self.answers_questions:
      raise InputError("there are no answers to evaluate; add --do_predict")
    check_window(self.model.max_seq_length, self.max_query_length)

  def warnings(self) -> Iterator[str]:
    """Yields a warning if the windows of a document do not overlap."""
    length = self.model.max_seq_length
    if self.doc_stride > length - 3:
      yield (
        f"--doc_stride={self.doc_stride} is longer than the text in a window of"
        f" --max_seq_length={length}: windows do not overlap, so an answer that"
        " crosses a window boundary is in no window"
      )

  @property
  def answers_questions(self) -> bool:
    """True if the questions of --predict_file are answered."""
    return bool(self.flags.do_predict or self.from_logits)


@dataclasses.dataclass(frozen=True)
class SquadMetricsSettings(option.CommandSettings):
  """Flags of squad_metrics.py."""

  TAKES_ARGUMENTS = True
  SECTION = "evaluation"
  EXAMPLE = (
    "python squad_metrics.py dev-v2.0.json predictions.json"
    " --na-prob-file=null_odds.json"
  )

  metric: str = option.choice(
    "auto",
    ["auto", "1.1", "2.0", "chinese"],
    "Metrics to compute: those of SQuAD 1.1 or 2.0, or chinese for comparison"
    " by characters. auto is 2.0 if the data has is_impossible, or if only some"
    " questions have answers, otherwise 1.1.",
    basic=True,
  )
  out_file: str | None = option.path(
    None,
    "File to write the metrics to instead of standard output.",
    short_name="o",
    name="out-file",
    section="output",
    basic=True,
    is_output=True,
  )
  na_prob_file: str | None = option.path(
    None,
    "SQuAD 2.0: JSON file with the probability or score of no answer per"
    " question, such as null_odds.json. Adds the best threshold to the output.",
    short_name="n",
    name="na-prob-file",
    basic=True,
    needs="not metric=1.1, not metric=chinese",
  )
  na_prob_thresh: float = option.number(
    1.0,
    "SQuAD 2.0: questions whose value in --na-prob-file is above this count as"
    " answered by no answer, whatever is predicted.",
    option.FINITE,
    short_name="t",
    name="na-prob-thresh",
    basic=True,
    needs="na-prob-file",
  )
