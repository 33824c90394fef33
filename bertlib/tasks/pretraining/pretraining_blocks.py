"""Creates pretraining data block by block, in any number of processes.

The documents of a corpus are dealt into blocks. Each block has its own random
stream, so that its records depend neither on other blocks nor on the number of
workers. Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import glob
import hashlib
import itertools
import multiprocessing
import os
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import logging

from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.data import tf_records, workers
from bertlib.io import document_files, files, json_files, text_files
from bertlib.io.files import atomic_write, exists, open_any, size_and_mtime
from bertlib.tasks.pretraining import pretraining_instances, pretraining_text
from bertlib.tasks.pretraining.recipe import Recipe

# Bytes of text per block. A process holds one block at a time, in about ten
# times as much memory. Random next sentences come from the same block.
BLOCK_BYTES = 2**21


# Dealing documents into blocks


def count_blocks(
  input_files: Iterable[str],
  num_outputs: int,
  encoding: text_files.Encoding = text_files.UTF8,
  file_system: Any = files,
) -> int:
  """Counts the blocks of a corpus, a multiple of `num_outputs`."""
  # Bytes of UTF-8: the number is the same in every encoding.
  text_bytes = 0
  for path in input_files:
    if path.endswith(".gz"):
      # Text is assumed to be three times as large as its gzip file.
      text_bytes += 3 * file_system.size_and_mtime(path)[0]
    elif encoding.name == "utf-8":
      text_bytes += file_system.size_and_mtime(path)[0]
    else:
      lines = document_files.read_lines(path, encoding, file_system.open_any)
      text_bytes += sum(map(len, lines))
  return num_outputs * max(1, -(-text_bytes // (BLOCK_BYTES * num_outputs)))


def deal_documents(
  lines: Iterable[bytes], file_number: int, num_blocks: int, seed: int
) -> Iterator[tuple[int, bytes]]:
  """Deals documents into blocks, round robin; yields (block, document)."""
  # The block of a document depends on these arguments only.
  blocks = list(range(num_blocks))
  random.Random(seed).shuffle(blocks)
  # Each file starts at another block, so that files of one document are dealt
  # evenly too.
  for turn, document in enumerate(_raw_documents(lines), file_number):
    yield blocks[turn % num_blocks], document


def _raw_documents(lines: Iterable[bytes]) -> Iterator[bytes]:
  """Yields untokenized documents; one larger than a block is split."""
  document: list[bytes] = []
  size = 0
  for line in itertools.chain(lines, [b""]):
    if line.strip():
      document.append(line.strip())
      size += len(line)
    if document and (not line.strip() or size >= BLOCK_BYTES):
      yield b"\n".join([*document, b"\n"])
      document, size = [], 0


# Records of a block


def create_block_records(
  recipe: Recipe,
  tokenizer,
  block: int,
  lines: Iterable[bytes],
  counts: collections.Counter[str],
) -> Iterator[list[bytes]]:
  """Creates the shuffled records of each pass over a block."""
  # A random stream of the block: its records do not depend on others.
  rng = random.Random(f"{recipe.random_seed} {block}")
  for records in pretraining_instances.create_records(
    recipe, tokenizer, lines, rng, counts
  ):
    rng.shuffle(records)
    yield records


# A run


# Fields of the receipt of finished files and their types, see `json_files`.
_RECEIPT = {"recipe": dict, "input": list, "output": [str], "files": dict}


class BlockRun:
  """Creates the records of a corpus block by block, in several processes."""

  # A folder beside the first output file holds the text of each block, and then
  # its records. Blocks are assigned to output files in turn. A file is written
  # when all of its blocks are complete, and listed in a hidden receipt, so that
  # a stopped run resumes with the missing files. It has the first pass over all
  # of its text, then the second, so that copies of a text are far apart.
  def __init__(
    self,
    recipe: Recipe,
    input_files: Sequence[str],
    output_files: list[str],
  ):
    """Finds the unfinished output files."""
    self._recipe = recipe
    self._input_files = input_files
    self._output_files = output_files
    self._num_blocks = count_blocks(
      input_files, len(output_files), recipe.codec
    )
    self._receipt_file = receipt_file(output_files)
    self._receipt = self._read_receipt()
    self._blocks_of = {
      path: range(index, self._num_blocks, len(output_files))
      for index, path in enumerate(output_files)
      if path not in self._receipt["files"]
    }

  def run(self, num_workers: int) -> collections.Counter[str]:
    """Writes the unfinished files; returns the counts of all files."""
    # The files do not depend on the number of workers.
    num_finished = len(self._output_files) - len(self._blocks_of)
    if num_finished:
      logging.info(
        "%d of %d output files already exist, made with the same flags from"
        " the same text",
        num_finished,
        len(self._output_files),
      )
    with self._scratch_folder() as folder:
      if self._blocks_of:
        self._write_texts(folder)
        self._write_outputs(folder, num_workers)
    counts: collections.Counter[str] = collections.Counter()
    for state in self._receipt["files"].values():
      counts.update(state["counts"])
    return counts

  def _read_receipt(self) -> dict:
    """The receipt of this run, with the finished output files."""
    with open_any(self._recipe.vocab_file, "rb") as file:
      vocab = hashlib.sha256(file.read()).hexdigest()
    recipe = dataclasses.asdict(self._recipe) | {"vocab_file": vocab}
    wanted = {
      "recipe": recipe | {"mask_split": [*self._recipe.mask_split]},
      "input": [[path, *size_and_mtime(path)] for path in self._input_files],
      "output": self._output_files,
    }
    receipt = {"files": {}}
    with contextlib.suppress(ValueError):  # empty, after a power failure
      if exists(self._receipt_file):
        receipt = json_files.read(self._receipt_file, _RECEIPT, "")
    finished = receipt.pop("files")
    if receipt != wanted:
      finished = {}
    return wanted | {
      "files": {
        path: state
        for path, state in finished.items()
        if exists(path) and size_and_mtime(path)[0] == state["bytes"]
      }
    }

  @contextlib.contextmanager
  def _scratch_folder(self) -> Iterator[str]:
    """Creates the folder of blocks; removes leftovers of a killed run."""
    blocks = f"{self._output_files[0]}.blocks"
    if files.is_remote(blocks):
      blocks = os.path.join(tempfile.gettempdir(), blocks.replace("/", "_"))
    folder = files.temporary_name(blocks)
    for path in [*self._output_files, self._receipt_file, blocks]:
      files.remove_stale_files(glob.escape(path))
    os.makedirs(folder)
    try:
      yield folder
    finally:
      shutil.rmtree(folder, ignore_errors=True)

  def _write_texts(self, folder: str) -> None:
    """Writes the text of each unfinished block."""
    wanted = {b for blocks in self._blocks_of.values() for b in blocks}
    waiting: dict[int, list[bytes]] = collections.defaultdict(list)
    waiting_bytes = 0
    num_outputs = len(self._output_files)
    num_documents: collections.Counter[int] = collections.Counter()

    def flush():
      for block, documents in waiting.items():
        with open(_text_file(folder, block), "ab") as file:
          file.writelines(documents)
      waiting.clear()

    for block in wanted:
      open(_text_file(folder, block), "wb").close()

    with terminal.progress(len(self._input_files), "files") as bar:
      for number, path in enumerate(self._input_files):
        for block, document in deal_documents(
          document_files.read_lines(path, self._recipe.codec),
          number,
          self._num_blocks,
          self._recipe.random_seed,
        ):
          num_documents[block % num_outputs] += 1
          if block in wanted:
            waiting[block].append(document)
            waiting_bytes += len(document)
          # Bounds the memory of a run: 64 MiB of text wait to be written.
          if waiting_bytes > 2**26:
            flush()
            waiting_bytes = 0
        bar.update()
    flush()
    if len(num_documents) < num_outputs:
      raise InputError(
        f"--input_file: {sum(num_documents.values())} documents are too few for"
        f" {num_outputs} output files. Ask for fewer files, or put a blank"
        " line after each document"
      )

  def _write_outputs(self, folder: str, num_workers: int) -> None:
    """Creates the records of the unfinished blocks; joins them in files."""
    # No lock: a killed worker would never release it.
    stop = multiprocessing.RawValue("b", False)
    num_pending = {
      path: len(blocks) for path, blocks in self._blocks_of.items()
    }
    counts = {path: collections.Counter() for path in num_pending}
    sizes: dict[int, list[int]] = {}
    with workers.worker_pool(
      min(num_workers, sum(num_pending.values())),
      _make_block,
      self._recipe,
      folder,
      stop,
      kept="; complete output files are kept",
    ) as submit:
      try:
        jobs = {
          submit(block): (path, block)
          for path, blocks in self._blocks_of.items()
          for block in blocks
        }
        with terminal.progress(len(jobs), "blocks") as bar:
          for future in concurrent.futures.as_completed(jobs):
            path, block = jobs[future]
            block_counts, sizes[block] = future.result()
            counts[path].update(block_counts)
            num_pending[path] -= 1
            if not num_pending[path]:
              self._finish(path, folder, counts[path], sizes)
            bar.update()
      finally:
        stop.value = True

  def _finish(self, path: str, folder: str, counts, sizes) -> None:
    """Joins the blocks of an output file; adds the file to the receipt."""
    blocks = self._blocks_of[path]
    with atomic_write(path, "wb") as file:
      for number in range(self._recipe.dupe_factor):
        for block in blocks:
          with open(_records_file(folder, block), "rb") as records:
            records.seek(sum(sizes[block][:number]))
            file.write(records.read(sizes[block][number]))
    for block in blocks:
      os.remove(_records_file(folder, block))
    self._receipt["files"][path] = {
      "bytes": size_and_mtime(path)[0],
      "counts": dict(counts),
    }
    with atomic_write(self._receipt_file) as file:
      file.write(json_files.dumps(self._receipt, indent=1) + "\n")


def receipt_file(output_files: Sequence[str]) -> str:
  """Path of the hidden receipt that lists the finished output files."""
  folder, name = os.path.split(output_files[0])
  return os.path.join(folder, f".{name}.receipt.json")


def _text_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.txt")


def _records_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.tfrecord")


# In a worker


def _make_block(
  recipe: Recipe, folder: str, stop, block: int
) -> tuple[dict[str, int], list[int]]:
  """Writes a block's records; returns counts, and bytes of each pass."""
  # `stop` is shared, and set when the run ends early.
  counts: collections.Counter[str] = collections.Counter()
  sizes: list[int] = []
  text_file = _text_file(folder, block)

  def records():
    with open(text_file, "rb") as lines:
      for one_pass in create_block_records(
        recipe, pretraining_text.load_tokenizer(recipe), block, lines, counts
      ):
        sizes.append(sum(map(tf_records.framed_bytes, one_pass)))
        yield from one_pass
        if stop.value:
          raise InterruptedError

  tf_records.write_serialized(_records_file(folder, block), records())
  os.remove(text_file)
  return dict(counts), sizes
