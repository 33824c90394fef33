"""Inputs of run_squad.py: questions, windows and steps; --audit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.data import example_checks, labeled_examples, vocabulary
from bertlib.exchange import resolve
from bertlib.io import processes
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.tasks.squad import squad_files, squad_windows
from bertlib.tasks.squad.settings import SquadSettings
from bertlib.tasks.squad.squad_files import SquadExample
from bertlib.tasks.squad.squad_windows import Windows, WindowSettings
from bertlib.training import step_plan
from bertlib.training.runs import Run


class SquadData(NamedTuple):
  """The questions that a run uses; empty if the flags do not need them."""

  train: Sequence[SquadExample] = ()
  predict: Sequence[SquadExample] = ()  # to answer
  questions: Sequence[squad_files.Question] = ()  # the same, with gold answers
  # Of `make_windows`.
  train_windows: Windows | None = None
  windows: Windows | None = None  # of `predict`
  logits: np.ndarray | None = None  # of --from_logits
  num_train_steps: int = 0

  @property
  def num_questions(self) -> dict[str, int]:
    """Number of questions of each split, by its name."""
    return {
      "training questions": len(self.train),
      "dev questions": len(self.predict),
    }


def read_data(run: Run) -> SquadData:
  """Reads the questions of the splits that the run uses."""
  settings, eval_steps = run.settings, run.selection.eval_steps
  has_negative = settings.answers.version_2_with_negative
  train, predict, to_train_on, to_evaluate = (), (), (), ()
  if run.flags.do_train:
    to_train_on = squad_files.read_questions(settings.train_file)
    train, skipped = squad_files.make_examples(
      to_train_on, settings.train_file, True, has_negative
    )
    if all(example.is_impossible for example in train):
      raise InputError(
        f"{settings.train_file}: none of its {len(train)} questions has an"
        " answer, so that there is none to learn. Give the whole training set"
      )
    if settings.verbose_logging:
      for question in skipped:
        logging.info(
          "question %(id)s: its answer is %(answer)r, but %(found)r is at its"
          " answer_start",
          question,
        )
  if settings.answers_questions or eval_steps:
    questions = squad_files.read_questions(settings.predict_file)
    predict, _ = squad_files.make_examples(
      questions, settings.predict_file, False, has_negative
    )
    if run.flags.do_eval or eval_steps:
      if not has_negative:
        squad_files.check_gold_answers(questions, settings.predict_file)
      to_evaluate = questions
  warn_of_faults(to_train_on, to_evaluate)
  return SquadData(train, predict, to_evaluate)


def warn_of_faults(
  train: Iterable[squad_files.Question], dev: Iterable[squad_files.Question]
) -> None:
  """Warns of faults of questions and contexts, see `labeled_examples`."""
  train, dev = (
    [
      labeled_examples.Labeled(
        (question.text, question.context),
        tuple(sorted({answer.text for answer in question.answers})),
        f"question {question.id}",
      )
      for question in questions
    ]
    for questions in (train, dev)
  )
  labeled_examples.warn_of_faults(train, {"the dev set": dev})


def data_files(
  settings: SquadSettings, data: SquadData
) -> list[tuple[str, str]]:
  """Paths of the files that were read, with their uses."""
  files = (
    (settings.train_file, TRAINING_DATA),
    (settings.predict_file, DEV_DATA),
  )
  return [file for file, used in zip(files, data) if used]


# Windows


def make_windows(run: Run, data: SquadData) -> SquadData:
  """The data with windows and --from_logits; counts the training steps."""
  settings = run.settings
  windows = _windows_of(run, data.predict, settings.predict_file, False)
  data = data._replace(windows=windows)
  if settings.from_logits:
    logits = squad_windows.load_logits(settings.from_logits, windows)
    data = data._replace(logits=logits)
  if not data.train:
    return data
  windows = _windows_of(run, data.train, settings.train_file, True)
  num_steps = step_plan.count_steps(run.flags, len(data.train), "questions")
  # As in google-research/bert, an epoch is as many steps as the questions need;
  # a long paragraph has several windows per question.
  logging.info(
    "%g epochs of %d questions are %d steps, which are %.2f epochs of %d"
    " windows",
    run.flags.num_train_epochs,
    len(data.train),
    num_steps,
    num_steps * run.flags.train_batch_size / len(windows.length),
    len(windows.length),
  )
  return data._replace(train_windows=windows, num_train_steps=num_steps)


def _windows_of(
  run: Run, examples: Sequence[SquadExample], path: str, is_training: bool
) -> Windows:
  """The windows of a file's questions; logs what they lost."""
  settings = run.settings
  # Starting a process takes as long as converting some thousand questions.
  num_workers = settings.num_workers or min(
    settings.devices.num_threads or processes.usable_cores(),
    len(examples) // 5000,
  )
  windows = squad_windows.convert_examples_to_windows(
    examples,
    run.tokenizer,
    WindowSettings(
      settings.model.max_seq_length,
      settings.doc_stride,
      settings.max_query_length,
      is_training,
    ),
    num_workers,
    show_progress=bool(examples),
  )
  truncated, lost = squad_windows.find_incomplete_questions(windows)
  if examples:
    logging.log(
      logging.WARNING
      if max(len(truncated), len(lost)) > len(examples) / 20
      else logging.INFO,
      "%s: %d questions in %d windows; %d questions truncated to %d tokens, %d"
      " answers in no window",
      path,
      len(examples),
      len(windows.length),
      len(truncated),
      settings.max_query_length,
      len(lost),
    )
  if settings.verbose_logging:
    for note, indices in (
      ("truncated", truncated),
      ("answer in no window", lost),
    ):
      for index in indices:
        logging.info("question %s: %s", examples[index].qas_id, note)
  return windows


# Values of --max_seq_length and --doc_stride that --audit tries.
_AUDITED_LENGTHS = (128, 256, 384, 512)
_AUDITED_STRIDES = (64, 128)


def print_audit(settings: SquadSettings) -> None:
  """Prints what each length and stride would lose of --train_file."""
  model = resolve.complete(settings).model
  # It needs neither a model nor --output_dir.
  if not model.vocab_file:
    raise InputError("--vocab_file is needed with --audit")
  tokenizer = vocabulary.load_tokenizer(
    model.vocab_file,
    model.do_lower_case,
    init_checkpoint=model.init_checkpoint,
    max_input_chars_per_word=model.max_input_chars_per_word,
  )
  examples, unaligned = squad_files.make_examples(
    squad_files.read_questions(settings.train_file),
    settings.train_file,
    True,
    settings.answers.version_2_with_negative,
  )
  rows = squad_windows.audit(
    examples,
    tokenizer,
    _AUDITED_LENGTHS,
    _AUDITED_STRIDES,
    settings.max_query_length,
  )
  terminal.print_table(
    [row | {"unaligned answers": len(unaligned)} for row in rows]
  )


# Of a dry run


def check_lengths(run: Run, data: SquadData) -> example_checks.LengthSummary:
  """Checks a sample of the windows; returns their number and mean length."""
  windows = data.train_windows if data.train else data.windows
  examples = example_checks.sample(data.train or data.predict)
  ends = np.cumsum(windows.length).tolist()
  bounds = [*zip([0, *ends], ends)]
  return example_checks.check_encoded(
    (
      example_checks.Encoded(windows.ids[start:end].tolist(), end - start)
      for start, end in example_checks.sample(bounds)
    ),
    run.config.vocab_size,
    len(bounds),
    run.tokenizer,
    dict.fromkeys(example.context for example in examples),
  )
