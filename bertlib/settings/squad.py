"""Settings of run_squad.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from bertlib.errors import InputError
from bertlib.settings import option
from bertlib.settings.common import ModelSettings, RunSettings, TrainingSettings
from bertlib.settings.ranges import AT_LEAST_1, COUNT, FINITE, SEQ_LENGTH


@dataclasses.dataclass(frozen=True)
class SquadSettings(TrainingSettings):
  """Flags of run_squad.py."""

  REQUIRED: ClassVar[Sequence[str]] = (
    "vocab_file",
    "bert_config_file",
    "output_dir",
  )
  REQUIRED_UNLESS: ClassVar[str] = "audit"
  EXAMPLE: ClassVar[str] = (
    "python run_squad.py --train_file=train-v1.1.json --do_train"
    " --init_checkpoint=bert-base-uncased --output_dir=output/squad"
  )

  model: ModelSettings = option.group(ModelSettings, max_seq_length=384)
  run: RunSettings = option.group(
    RunSettings,
    omit=["eval_batch_size"],
    do_eval=option.boolean(
      False, "Whether to score the answers, by --predict_file."
    ),
    do_predict=option.boolean(False, "Whether to answer questions."),
    train_batch_size=option.integer(
      32, "Windows a step of training.", AT_LEAST_1
    ),
    predict_batch_size=option.integer(
      8, "Windows a step of answering.", AT_LEAST_1
    ),
  )
  train_file: str | None = option.text(
    None, "JSON to learn from, such as train."
  )
  predict_file: str | None = option.text(
    None, "JSON with the questions to answer."
  )
  steps_from: str = option.choice(
    "questions",
    ["questions", "windows"],
    "Of what an epoch is one pass. Long paragraphs make several windows a"
    " question, and the reference counts questions.",
  )
  doc_stride: int = option.integer(
    128, "Word pieces from one window to the next.", AT_LEAST_1
  )
  max_query_length: int = option.integer(
    64, "Word pieces of a question; what is longer is cut.", AT_LEAST_1
  )
  mask_padding: bool = option.boolean(
    False,
    "Whether answers are looked for, in training too, among the tokens alone"
    " and not in the padding after them. Batches are then trimmed, which is"
    " faster.",
  )
  n_best_size: int = option.integer(
    20,
    "Tokens of a window that are tried as start and as end, and answers listed"
    " in nbest_predictions.json.",
    AT_LEAST_1,
  )
  max_answer_length: int = option.integer(
    30, "Word pieces of an answer.", AT_LEAST_1
  )
  version_2_with_negative: bool = option.boolean(
    False, "Whether there are questions without an answer, as in SQuAD 2.0."
  )
  null_score_diff_threshold: float = option.number(
    0.0,
    "2.0: there is no answer where that scores better than the best answer by"
    " more than this.",
    FINITE,
  )
  verbose_logging: bool = option.boolean(
    False,
    "Whether the log names each question that was cut, and each answer that is"
    " in no window.",
  )
  eval_metric: str = option.choice(
    "squad",
    ["squad", "chinese"],
    "Scores of SQuAD, by words; or of CMRC 2018 and DRCD, by characters.",
  )
  save_logits: str | None = option.text(
    None, "File to keep the model's scores in."
  )
  from_logits: str | None = option.text(
    None, "Such a file, to answer by in place of the model; it takes seconds."
  )
  sweep_n_best_size: Sequence[str] | None = option.text_list(
    None,
    "Several tokens to answer with, all combinations; prints their scores.",
    AT_LEAST_1,
  )
  sweep_max_answer_length: Sequence[str] | None = option.text_list(
    None,
    "Several lengths to answer with, all combinations; prints their scores.",
    AT_LEAST_1,
  )
  sweep_null_threshold: Sequence[str] | None = option.text_list(
    None,
    "Several thresholds to answer with, all combinations; prints their scores.",
    FINITE,
  )
  audit: bool = option.boolean(
    False,
    "Whether to print what each of the next two would cut off --train_file,"
    " and do nothing else.",
  )
  audit_max_seq_lengths: Sequence[str] = option.text_list(
    ["128", "256", "384", "512"], "Lengths to try.", SEQ_LENGTH
  )
  audit_doc_strides: Sequence[str] = option.text_list(
    ["64", "128"], "Strides to try.", AT_LEAST_1
  )
  interactive: bool = option.boolean(
    False, "Whether to answer questions from standard input, one a line."
  )
  passage_file: str | None = option.text(
    None,
    "For --interactive: the text that they are about. If not given, it comes"
    " first in standard input, and a blank line ends it.",
  )
  cache_dir: str | None = option.text(
    None, "Folder for made windows; --output_dir if not given."
  )
  num_workers: int = option.integer(
    0, "Processes that make windows; 0 for one a core.", COUNT
  )

  @property
  def answers_questions(self) -> bool:
    """Whether --predict_file is to be answered."""
    return bool(self.run.do_predict or self.from_logits)

  @property
  def sweeps(self) -> bool:
    """Whether several settings are to be tried."""
    return bool(
      self.numbers("sweep_n_best_size")
      or self.numbers("sweep_max_answer_length")
      or self.numbers("sweep_null_threshold", float)
    )

  def numbers(self, flag: str, kind: type = int) -> list[Any]:
    """The numbers of a list flag.

    Args:
      flag: its name.
      kind: int or float.

    Returns:
      The numbers; none if the flag is not given.

    Raises:
      InputError: one is none, or an integer below 1.
    """
    values = getattr(self, flag) or []
    try:
      read = [kind(value) for value in values]
    except ValueError:
      read = [None]
    if None in read or (kind is int and any(value < 1 for value in read)):
      raise InputError(
        f"--{flag}={','.join(values)}: give numbers with commas between"
      )
    return read
