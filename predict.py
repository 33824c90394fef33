"""Predicts for the texts of a file with an exported model.

  python predict.py --model=exported/mrpc --input=pairs.tsv --output=labels.tsv

The model is a folder of `export_model.py --format=onnx`. Files are read and
written as by --do_predict of the script that trained it, without TensorFlow, in
blocks: memory does not grow with a file, and what a run that ended early has
computed is not computed again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertlib.cli import app, option
from bertlib.cli.absl import logging
from bertlib.cli.command_line import as_installed
from bertlib.cli.errors import InputError
from bertlib.data.batch_predictor import FileFormat
from bertlib.export import onnx_folder
from bertlib.export.onnx_model import OnnxModel
from bertlib.io import files, folder_lock, model_files, processes, result_files
from bertlib.io.output_folders import folders_for
from bertlib.settings import model_description
from bertlib.settings.common import TableSettings
from bertlib.task import task_record

# Rows that are sorted by length, computed and kept together.
BLOCK_SIZE = 8192

# Name of a kept block: its number, and a hash of all that decides its answers.
_BLOCK = re.compile(r"\d{6}-[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class PredictSettings(option.CommandSettings):
  """Flags of predict.py."""

  REQUIRED = ("model", "input", "output")
  EXAMPLE = (
    "python predict.py --model=exported/mrpc --input=pairs.tsv"
    " --output=labels.tsv"
  )
  SECTION = "model"

  model: str | None = option.path(
    None, "Folder of export_model.py --format=onnx.", basic=True
  )
  task_module: str | None = option.text(
    None,
    "Module of a task of your own, such as examples.two_heads. Its RECORD says"
    " how its models predict.",
  )
  input: str | None = option.path(
    None,
    "File as --predict_file of the script that trained the model; - for"
    " standard input. For multiple choice, a table as of SWAG or an article of"
    " RACE.",
    section="data",
    basic=True,
  )
  text: TableSettings = option.group(TableSettings)
  output: str | None = option.path(
    None,
    "File to write, in the format of its ending: .jsonl; also .tsv for labels,"
    " .conll for tags, .json for answers to questions, .npy for vectors. - for"
    " JSON Lines to standard output, block by block.",
    section="output",
    basic=True,
    is_output=True,
  )
  engine: str = option.choice(
    "auto",
    ["auto", "onnxruntime", "openvino"],
    "Package that computes. auto is the faster one on this processor, if both"
    " are installed.",
    section="devices",
    basic=True,
  )
  num_threads: int = option.integer(
    0,
    "Number of threads that compute. 0 uses all cores.",
    option.PARALLEL,
    section="devices",
    basic=True,
  )
  given: frozenset[str] = frozenset()  # flags on the command line


def define_flags() -> None:
  """Defines the flags."""
  option.define(PredictSettings)


def main(_) -> None:
  """Writes the answers to the rows of --input."""
  settings = option.from_flags(PredictSettings)
  files.check_outputs([settings.output], [settings.input])
  with open_model(settings) as model:
    predict_file(model, settings)


def predict_file(model: OnnxModel, settings: PredictSettings) -> None:
  """Writes the answers of a model to the rows of a file."""
  path, output = settings.input, settings.output
  given = {"encoding", "delimiter", "bad_rows"} & settings.given
  flags = {name: getattr(settings.text, name) for name in given}
  bad: list[str] = []  # messages of rows that are skipped
  before = state_of(path)
  examples = model.read_file(model.file_settings(path, flags), bad)
  blocks = model.blocks(examples, BLOCK_SIZE)
  first = next(blocks, None)
  if not first:
    skipped = f"; skipped: {len(bad)}, the first: {bad[0]}" if bad else ""
    raise InputError(f"{path}: has no rows to predict for{skipped}")
  blocks, formats = itertools.chain([first], blocks), model.file_formats(first)
  if not files.is_plain(output):
    write_stream(model, blocks, formats[".jsonl"], output)
    if bad:
      logging.warning("bad rows skipped: %d, the first: %s", len(bad), bad[0])
    return
  form = formats.get(os.path.splitext(output)[1])
  if not form:
    raise InputError(
      f"--output={output}: is in no known format. Let its name end in"
      f" {' or '.join(formats)}"
    )
  del first
  with folders_for([output]), folder_lock.lock_files([output], "output"):
    kept = KeptBlocks(output, model.fingerprint())
    total = len(examples) if isinstance(examples, list) else count_rows(path)
    num_rows = compute(model, blocks, form, kept, total)
    if state_of(path) != before:
      raise InputError(
        f"{path}: has changed while it was read. Give the command again: only"
        " blocks of rows that are others are computed again"
      )
    join(kept, form, num_rows, output)
    result_files.write_bad_rows(os.path.dirname(output), {path: bad})


def state_of(path: str) -> tuple[int, int] | None:
  """Size and time of a file; None for standard input and pipes."""
  return files.size_and_mtime(path) if os.path.isfile(path) else None


# The model


def open_model(settings: PredictSettings) -> OnnxModel:
  """Loads the model; InputError with the command that exports a trained one."""
  folder, task = settings.model.rstrip("/"), None
  if not os.path.isdir(folder):
    fix = files.did_you_mean(folder, "Name the --export_dir of an export")
    raise InputError(f"--model={folder}: no such folder. {fix}")
  is_export = os.path.exists(onnx_folder.find(folder))
  if not is_export and model_description.has_checkpoint(folder):
    export = as_installed(
      f"python export_model.py --format=onnx --model_dir={folder}"
      f" --export_dir={folder}_onnx"
    )
    raise InputError(
      f"--model={folder}: is a training, not an export. Give"
      f" --model={folder}_onnx after: {export}"
    )
  if settings.task_module:
    task = task_record.load(settings.task_module)
  threads = settings.num_threads or None
  model = OnnxModel(
    folder,
    settings.engine,
    num_threads=threads,
    num_batches=threads or processes.usable_cores(),
    task=task,
  )
  warn_if_outdated(model)
  return model


def trained_step(folder: str) -> int | None:
  """Step of the best or else the last checkpoint of a training, if known."""
  for part in (model_files.BEST, ""):
    path = os.path.join(folder, part, "checkpoint")  # TensorFlow's text file
    if files.exists(path):
      with files.open_any(path) as file:
        found = re.search(r'^model_c\S+: ".*-(\d+)"', file.read(), re.M)
      return int(found[1]) if found else None
  return None


def warn_if_outdated(model: OnnxModel) -> None:
  """Warns if the training would export another checkpoint by now."""
  trained = model.description.get("trained", {})
  folder, step = trained.get("folder", ""), trained.get("step")
  now = trained_step(folder) if os.path.isdir(folder) else None
  if now not in (None, step):
    logging.warning(
      "--model: was exported from step %s of %s, which has step %s now. Export"
      " it again for its answers",
      step,
      folder,
      now,
    )


# Answers


def answers_of(
  model: OnnxModel, blocks: Iterable[Any], form: FileFormat
) -> Iterator[tuple[int, Iterator[bytes]]]:
  """Yields the number of rows of each block, and the lines of its answers."""
  waiting: collections.deque = collections.deque()

  def examples():
    for block in blocks:
      waiting.append(block)
      yield block

  # No block is held while the next one is computed.
  for answers in model.answer_blocks(examples()):
    yield len(waiting[0]), form.lines(waiting.popleft(), answers)
    del answers


def write_stream(
  model: OnnxModel, blocks: Iterable[Any], form: FileFormat, path: str
) -> None:
  """Writes answers to a pipe or device, each block when it is computed."""
  with contextlib.ExitStack() as stack:
    file = sys.stdout.buffer
    if path != "-":
      file = stack.enter_context(open(path, "wb"))
    try:
      for _, lines in answers_of(model, blocks, form):
        file.writelines(lines)
        file.flush()
        del lines
    except BrokenPipeError:  # as by `| head`
      os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def compute(
  model: OnnxModel,
  blocks: Iterable[Any],
  form: FileFormat,
  kept: KeptBlocks,
  total: int | None,  # rows, or about as many
) -> int:
  """Computes the blocks that are not kept yet; returns the number of rows."""
  num_kept, num_computed, start = 0, 0, time.monotonic()

  def missing():
    nonlocal num_kept
    for block in blocks:
      if kept.has_next(block):
        num_kept += len(block)
      else:
        yield block

  computed = answers_of(model, missing(), form)
  for number, (num_rows, lines) in enumerate(computed, start=1):
    kept.write_next(lines)
    del lines
    num_computed += num_rows
    rate, left = num_computed / (time.monotonic() - start), ""
    if number > 1 and total:
      seconds = max(total - num_kept - num_computed, 0) / rate
      left = f", about {seconds:.0f} s left"
    logging.info("%d rows, %.0f rows/s%s", num_computed, rate, left)
  return num_kept + num_computed


def count_rows(path: str) -> int | None:
  """About the number of rows; None for a pipe and packed files."""
  packed = (".gz", ".xlsx", ".xls", ".parquet", ".feather")
  if path.endswith(packed) or not os.path.isfile(path):
    return None
  num_lines = num_blank = 0
  with open(path, "rb") as file:
    while part := file.read(2**20):
      num_lines += part.count(b"\n")
      num_blank += part.count(b"\n\n")
  # Sentences with a word per line have a blank line between them.
  return num_blank if 50 * num_blank > num_lines else num_lines


def join(
  kept: KeptBlocks, form: FileFormat, num_rows: int, output: str
) -> None:
  """Writes the output from its blocks, and removes these."""
  with files.atomic_write(output, "wb") as file:
    file.write(form.head(num_rows))
    for number, path in enumerate(kept.paths):
      file.write(form.separator if number else b"")
      with open(path, "rb") as block:
        shutil.copyfileobj(block, file)
    file.write(form.tail)
  kept.remove()
  logging.info("%d answers in %s", num_rows, output)


class KeptBlocks:
  """Answers to the blocks of rows, in a hidden folder beside the output."""

  def __init__(self, output: str, fingerprint: str):
    """Finds the blocks of an earlier run."""
    folder, name = os.path.split(output)
    self._folder = os.path.join(folder, f".{name}.blocks")
    files.make_folder(self._folder)
    self._names = set(filter(_BLOCK.fullmatch, os.listdir(self._folder)))
    self._fingerprint = fingerprint.encode()
    self.paths: list[str] = []  # in the order of the rows
    self._missing: collections.deque = collections.deque()

  def has_next(self, examples: Sequence[Any]) -> bool:
    """True if the answers to the next block are kept."""
    rows = hashlib.sha256(self._fingerprint)
    for example in examples:
      rows.update(repr(example).encode("utf-8", "surrogatepass"))
    number = f"{len(self.paths):06}"
    name = f"{number}-{rows.hexdigest()[:32]}"
    path = os.path.join(self._folder, name)
    self.paths.append(path)
    if name in self._names:
      return True
    self._missing.append(path)
    if any(other.startswith(number) for other in self._names):
      logging.info(
        "block %d is computed again: its rows, the model or the engine are"
        " others than before",
        len(self.paths),
      )
    return False

  def write_next(self, lines: Iterable[bytes]) -> None:
    """Keeps the answers to the next block that was missing."""
    with files.atomic_write(self._missing.popleft(), "wb") as file:
      file.writelines(lines)

  def remove(self) -> None:
    """Removes the blocks, and nothing else."""
    for name in filter(_BLOCK.fullmatch, os.listdir(self._folder)):
      os.remove(os.path.join(self._folder, name))
    with contextlib.suppress(OSError):  # it has other files
      os.rmdir(self._folder)


if __name__ == "__main__":
  app.parse_flags(PredictSettings)
  app.run(main)
