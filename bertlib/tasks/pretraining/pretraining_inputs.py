"""Inputs of run_pretraining.py: records, lines to fill, and vocabulary."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from absl import logging

from bertlib.checkpoints import loading
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import prefetch, record_check, tf_records
from bertlib.io.files import find_files, split_names
from bertlib.reporting import doctor
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.tasks.pretraining import fill_mask, pretraining_records
from bertlib.training.task import Run

# Records, over all files, that are checked before the run writes anything.
_NUM_CHECKED = 2000


def record_layout(run: Run, files: Sequence[str]) -> tf_records.Layout:
  """Layout of files of pretraining records, of which the first decides."""
  settings = run.settings
  return pretraining_records.limited_layout(
    run.config,
    settings.model.max_seq_length,
    settings.max_predictions_per_seq,
    settings.objective,
    pretraining_records.sequences_per_row(files[0]),
  )


class Stage(NamedTuple):
  """Steps with batches of one size."""

  first_step: int
  batch_size: int
  first_record: int  # counted over all epochs

  def records_before(self, step: int) -> int:
    """Number of records of all steps before one of this stage."""
    return self.first_record + (step - self.first_step) * self.batch_size


class BatchSizes(NamedTuple):
  """Records per step, which may grow, by multiples of the first size."""

  first: int
  last: int
  num_steps: int = 0  # until the last size

  def stages(self) -> list[Stage]:
    """The stages in order; the last one has no end."""
    stages = [Stage(0, self.first, 0)]
    count = self.last // self.first
    for number in range(1, count):
      start = self.num_steps * number // (count - 1)
      before = stages[-1].records_before(start)
      stages.append(Stage(start, self.first * (number + 1), before))
    return stages

  def stage_of(self, step: int) -> Stage:
    """The stage of a step, counted from 0."""
    return [s for s in self.stages() if s.first_step <= step][-1]

  def stages_from(self, step: int) -> Iterator[tuple[Stage, int | None]]:
    """Yields each stage from that of `step` on, and the step that ends it."""
    stages = self.stages()
    ends = [stage.first_step for stage in stages[1:]] + [None]
    for stage, end in zip(stages, ends):
      if end is None or end > max(step, stage.first_step):
        yield stage, end

  def count_steps(self, num_records: float) -> int:
    """Steps for a number of records."""
    stage = [s for s in self.stages() if s.first_record <= num_records][-1]
    left = num_records - stage.first_record
    return stage.first_step + math.ceil(left / stage.batch_size)


def batch_sizes(settings: PretrainingSettings) -> BatchSizes:
  """Records per step, as the flags have them."""
  size = settings.run.train_batch_size
  return BatchSizes(
    size,
    settings.train_batch_size_end or size,
    settings.batch_size_warmup_steps,
  )


class Data(NamedTuple):
  """Data that the run uses."""

  train_files: Sequence[str]
  eval_files: Sequence[str]
  lines: Sequence[fill_mask.Line]  # with masks to fill
  num_records: Mapping[str, int]  # by file

  def count(self, paths: Sequence[str]) -> int:
    """Number of records in some of the files."""
    return sum(self.num_records[path] for path in paths)


def count(settings: PretrainingSettings, data: Data) -> dict[str, int]:
  """Number of records of the training set and the dev set, by their names."""
  counts = {"training records": data.count(data.train_files)}
  if settings.run.do_eval:
    counts["dev records"] = data.count(data.eval_files)
  return counts


def bad_record_finder(
  run: Run, files: Sequence[str], max_records: int | None = None
) -> record_check.FindBadRecord:
  """Returns a function that searches files, see `record_check.find`."""
  return functools.partial(
    record_check.find, files, record_layout(run, files), max_records
  )


def data_files(settings: PretrainingSettings, data: Data) -> list[str]:
  """Paths of the files that were read."""
  predicted = [settings.predict_file] if data.lines else []
  return [*data.num_records, *predicted]


def find_data(run: Run) -> Data:
  """Finds the files that the run uses, counts and checks their records."""
  settings = run.settings
  train_files, eval_files, lines = [], [], []
  if settings.run.do_train:
    train_files = find_files(split_names(settings.input_file))
  if run.flags.evaluates:
    eval_files = find_files(
      split_names(settings.eval_input_file or settings.input_file)
    )
    if not settings.eval_input_file:
      logging.warning(
        "Evaluating on --input_file, which is training data: metrics include"
        " memorized text. Name held-out records with --eval_input_file"
      )
  if settings.run.do_predict:
    lines = read_lines(run)
  num_records = check_files(run, train_files)
  others = [path for path in eval_files if path not in num_records]
  num_records |= check_files(run, others)
  return Data(train_files, eval_files, lines, num_records)


def check_packing(run: Run, data: Data) -> None:
  """Refuses --pack of packed records, or on a TPU."""
  settings = run.settings
  if not (settings.pack and data.train_files):
    return
  if run.on_tpu:
    raise InputError(
      "--pack: runs Python in the input pipeline, which a TPU's host does not."
      " Make packed records by create_pretraining_data.py --pack"
    )
  path = data.train_files[0]
  if pretraining_records.sequences_per_row(path) is not None:
    raise InputError(
      f"--pack: {path} has packed records. Leave out --pack, or name records of"
      " single sequences"
    )


def check_files(run: Run, paths: Sequence[str]) -> dict[str, int]:
  """Counts the records of each file, and checks the first ones."""
  if not paths:
    return {}
  settings = run.settings
  num_per_file = -(-_NUM_CHECKED // len(paths))

  def count(path: str) -> int:
    return pretraining_records.count_records(
      path,
      settings.model.max_seq_length,
      settings.max_predictions_per_seq,
      run.tokenizer and run.tokenizer.vocab,
      settings.objective,
    )

  def check(path: str) -> None:
    if pretraining_records.sequences_per_row(path) != packing:
      raise InputError(
        f"{path}: its records are packed in another way than those of"
        f" {paths[0]}. Read files of one --pack and --max_sequences_per_row"
      )
    problem = find_in(path, num_per_file)
    if problem:
      raise InputError(problem)

  counts = dict(zip(paths, prefetch.map_in_threads(count, paths)))
  packing = pretraining_records.sequences_per_row(paths[0])
  with record_check.finder(record_layout(run, paths)) as find_in:
    for _ in prefetch.map_in_threads(check, paths):
      pass
  return counts


def read_lines(run: Run) -> list[fill_mask.Line]:
  """Reads the lines of --predict_file, whose masks are to be filled."""
  settings, config = run.settings, run.config
  if settings.top_k > config.vocab_size:
    raise InputError(
      f"--top_k={settings.top_k}: more than the {config.vocab_size} entries"
      " of the vocabulary. Give fewer"
    )
  lines = fill_mask.read_lines(
    settings.predict_file,
    run.tokenizer,
    settings.model.max_seq_length,
    settings.text.codec,
  )
  if any(max(line.encoded.segment_ids) for line in lines):
    loading.check_has_segments(config, settings.model.bert_config_file)
  return lines


def check_vocabulary(run: Run) -> None:
  """Refuses --remask and --do_predict without [MASK] in the vocabulary."""
  values = option.values_of(run.settings)
  uses = [name for name in ("remask", "do_predict") if values[name]]
  if not uses:
    return
  if not run.tokenizer:
    raise InputError(f"--vocab_file is needed with --{uses[0]}")
  if "[MASK]" not in run.tokenizer.vocab:
    vocab_file = run.settings.model.vocab_file
    raise InputError(
      f"{vocab_file}: has no [MASK], which --{uses[0]} needs. Give another"
      " --vocab_file"
    )


# Of a dry run


def check_records(run: Run, data: Data) -> doctor.LengthSummary:
  """Checks some of the records; returns their count and mean length."""
  num_per_file = -(-_NUM_CHECKED // max(len(data.num_records), 1))

  def encoded():
    for path in data.num_records:
      records = pretraining_records.read_records(path)
      for record in itertools.islice(records, num_per_file):
        yield doctor.Encoded(
          record["input_ids"].int64_list.value,
          sum(record["input_mask"].int64_list.value),
        )

  total = data.count(data.train_files)
  return doctor.check_encoded(encoded(), run.config.vocab_size, total)
