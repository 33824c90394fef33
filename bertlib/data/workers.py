"""Worker processes of data making. Imports no TensorFlow.

New processes are started by `spawn`, and what they are given is pickled.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import glob
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable

from absl import logging

from bertlib import app, json_files, text_files
from bertlib.data import pretraining_text, tf_records
from bertlib.errors import InputError
from bertlib.files import exists, is_remote, open_any, write_whole

# Text in blocks

# Creates the records of each pass over a block: takes a recipe, its tokenizer,
# the block's number and lines, and a counter; gives lists of serialized ones.
CreateRecords = Callable[..., Iterator[list[bytes]]]

# Of text, in a block. A pair of stretches that do not belong together is taken
# from one block; a process holds one at a time, in some ten times its size.
BLOCK_BYTES = 2**21


def count_blocks(sizes: Mapping[str, int], num_outputs: int) -> int:
  """How many blocks a corpus is dealt into.

  Args:
    sizes: bytes of each input file; of a gzip file, the text is guessed to be
      three times as long.
    num_outputs: output files.

  Returns:
    A multiple of `num_outputs`.
  """
  text = sum(n * 3 if p.endswith(".gz") else n for p, n in sizes.items())
  return num_outputs * max(1, -(-text // (BLOCK_BYTES * num_outputs)))


def deal_documents(
  lines: Iterable[bytes], file_number: int, num_blocks: int, seed: int
) -> Iterator[tuple[int, bytes]]:
  """Deals the documents of a file to blocks, like cards to players.

  Which block gets a document depends on these arguments alone. The next file
  begins at the next player, so that files of one document are dealt evenly too.

  Args:
    lines: of the file.
    file_number: its place among the input files.
    num_blocks: how many there are.
    seed: a number.

  Yields:
    A block's number and a document, its lines with a blank one at the end.
  """
  players = list(range(num_blocks))
  random.Random(seed).shuffle(players)
  for turn, document in enumerate(_raw_documents(lines), file_number):
    yield players[turn % num_blocks], document


def _raw_documents(lines: Iterable[bytes]) -> Iterator[bytes]:
  """Documents as they are; one that is longer than a block comes in parts."""
  document: list[bytes] = []
  size = 0
  for line in lines:
    if line.strip():
      document.append(line.strip())
      size += len(line)
    if document and (not line.strip() or size >= BLOCK_BYTES):
      yield b"\n".join([*document, b"\n"])
      document, size = [], 0
  if document:
    yield b"\n".join([*document, b"\n"])


# What is noted of a run with workers, see `json_files`.
_NOTED = {
  "recipe": dict,
  "input": list,
  "output": [str],
  "files": dict,
}


class BlockRun:
  """Makes the records of a corpus block by block, in several processes.

  The text of each block, and then its records, wait in a folder beside the
  first output file. Output files take the blocks in turn; each is written when
  all of its blocks are there, and noted in a receipt, so that a run that was
  stopped does the others alone.
  """

  def __init__(
    self,
    recipe: pretraining_text.Recipe,
    input_files: Sequence[str],
    output_files: list[str],
    create_records: CreateRecords,
  ):
    """Finds out what is left to do.

    Args:
      recipe: what to do.
      input_files: the text.
      output_files: get the records.
      create_records: creates those of a block; can be pickled.
    """
    self._recipe = recipe
    self._create_records = create_records
    self._input_files = input_files
    self._output_files = output_files
    sizes = {path: _text_bytes(path, recipe) for path in input_files}
    self._num_blocks = count_blocks(sizes, len(output_files))
    self._receipt_file = hidden_beside(output_files[0], ".receipt.json")
    self._receipt = self._read_receipt()
    self._blocks_of = {
      path: range(place, self._num_blocks, len(output_files))
      for place, path in enumerate(output_files)
      if path not in self._receipt["files"]
    }

  def run(self, num_workers: int) -> collections.Counter[str]:
    """Makes what is left.

    Args:
      num_workers: how many processes; what is made does not depend on it.

    Returns:
      Counts of what was read and created, over all output files.

    Raises:
      InputError: there is too little text, or a process died.
    """
    kept = len(self._output_files) - len(self._blocks_of)
    if kept:
      logging.info(
        "%d of %d output files are there already, made by the same flags from"
        " the same text",
        kept,
        len(self._output_files),
      )
    with self._scratch_folder() as folder:
      if self._blocks_of:
        num_bytes = self._deal(folder)
        self._make(folder, num_workers, num_bytes)
    counts: collections.Counter[str] = collections.Counter()
    for state in self._receipt["files"].values():
      counts.update(state["counts"])
    return counts

  def _read_receipt(self) -> dict:
    with open_any(self._recipe.vocab_file, "rb") as file:
      vocab = hashlib.sha256(file.read()).hexdigest()
    wanted = {
      "recipe": dataclasses.asdict(self._recipe) | {"vocab_file": vocab},
      "input": [[path, *file_state(path)] for path in self._input_files],
      "output": self._output_files,
    }
    receipt = {"files": {}}
    with contextlib.suppress(ValueError):  # empty, after a power failure
      if exists(self._receipt_file):
        receipt = json_files.read(self._receipt_file, _NOTED, "")
    files = receipt.pop("files")
    if receipt != wanted:
      files = {}
    return wanted | {
      "files": {
        path: state
        for path, state in files.items()
        if exists(path) and file_state(path)[0] == state["bytes"]
      }
    }

  @contextlib.contextmanager
  def _scratch_folder(self) -> Iterator[str]:
    """A folder for blocks; what a killed run left behind is removed."""
    first = self._output_files[0]
    folder = hidden_beside(first, ".blocks")
    if is_remote(first):
      folder = os.path.join(tempfile.gettempdir(), folder.replace("/", "_"))
    shutil.rmtree(folder, ignore_errors=True)
    for path in [*self._output_files, self._receipt_file]:
      for half_written in glob.glob(glob.escape(path) + ".*.tmp"):
        os.remove(half_written)
    os.makedirs(folder)
    try:
      yield folder
    finally:
      shutil.rmtree(folder, ignore_errors=True)

  def _deal(self, folder: str) -> int:
    """Writes the text of each block that is left; gives its bytes in all."""
    wanted = {b for blocks in self._blocks_of.values() for b in blocks}
    waiting: dict[int, list[bytes]] = collections.defaultdict(list)
    waiting_bytes = total_bytes = 0
    num_outputs = len(self._output_files)
    documents_of: collections.Counter[int] = collections.Counter()  # an output

    def flush():
      for block, documents in waiting.items():
        path = _text_file(folder, block)
        try:
          with open(path, "ab") as file:
            file.writelines(documents)
        except OSError as error:
          error.filename = path
          raise
      waiting.clear()

    for block in wanted:
      open(_text_file(folder, block), "wb").close()

    with app.progress(len(self._input_files), "files") as bar:
      for number, path in enumerate(self._input_files):
        for block, document in deal_documents(
          text_files.read_utf8_lines(path, self._recipe.text_encoding),
          number,
          self._num_blocks,
          self._recipe.random_seed,
        ):
          documents_of[block % num_outputs] += 1
          if block in wanted:
            waiting[block].append(document)
            waiting_bytes += len(document)
            total_bytes += len(document)
          if waiting_bytes > 2**26:
            flush()
            waiting_bytes = 0
        bar.update()
    flush()
    if len(documents_of) < num_outputs:
      raise InputError(
        f"--input_file: {sum(documents_of.values())} documents are too few for"
        f" {num_outputs} output files; name fewer, or put a blank line after"
        " each document"
      )
    return total_bytes

  def _make(self, folder: str, num_workers: int, num_bytes: int) -> None:
    """Makes all blocks that are left, and of them the output files."""
    context = multiprocessing.get_context("spawn")
    # Without locks, which a worker that is killed would never give back.
    bytes_done = context.RawArray("q", self._num_blocks)
    stop = context.RawValue("b", False)
    pool = concurrent.futures.ProcessPoolExecutor(
      num_workers, context, _start_worker, (bytes_done, stop)
    )
    unmade = {path: len(blocks) for path, blocks in self._blocks_of.items()}
    counts = {path: collections.Counter() for path in unmade}
    try:
      with app.progress(
        num_bytes * self._recipe.dupe_factor, "bytes", unit_scale=True
      ) as bar:
        file_of = {
          pool.submit(
            _make_block, self._create_records, self._recipe, folder, block
          ): path
          for path, blocks in self._blocks_of.items()
          for block in blocks
        }
        pending = set(file_of)
        while pending:
          finished, pending = concurrent.futures.wait(
            pending, 1, concurrent.futures.FIRST_COMPLETED
          )
          bar.update(sum(bytes_done) - bar.n)
          for future in finished:
            path = file_of[future]
            counts[path].update(future.result())
            unmade[path] -= 1
            if not unmade[path]:
              self._finish(path, folder, counts[path])
    except BrokenProcessPool as error:
      raise InputError(
        "a worker died (killed, or out of memory). Run the same command"
        " again, with fewer --num_workers if memory was short; output files"
        " that are whole are kept"
      ) from error
    finally:
      stop.value = True
      pool.shutdown(cancel_futures=True)

  def _finish(self, path: str, folder: str, counts) -> None:
    """Joins the blocks of an output file, and notes it in the receipt."""
    with write_whole(path, "wb") as file:
      for block in self._blocks_of[path]:
        with open(_records_file(folder, block), "rb") as records:
          shutil.copyfileobj(records, file)
        os.remove(_records_file(folder, block))
    self._receipt["files"][path] = {
      "bytes": file_state(path)[0],
      "counts": dict(counts),
    }
    with write_whole(self._receipt_file) as file:
      file.write(json.dumps(self._receipt, indent=1) + "\n")


def hidden_beside(path: str, ending: str) -> str:
  """A name that wildcards for the files beside `path` do not match."""
  folder, name = os.path.split(path)
  return os.path.join(folder, f".{name}{ending}")


def file_state(path: str) -> tuple[int, int]:
  """Bytes of a file and, if it is local, when it was changed."""
  if is_remote(path):
    from tensorflow.io import gfile

    return gfile.stat(path).length, 0
  state = os.stat(path)
  return state.st_size, state.st_mtime_ns


def _text_bytes(path: str, recipe: pretraining_text.Recipe) -> int:
  """Bytes of a file, for `count_blocks`: the same ones in every encoding."""
  if recipe.encoding == "utf-8" or path.endswith(".gz"):
    return file_state(path)[0]
  return sum(map(len, text_files.read_utf8_lines(path, recipe.text_encoding)))


def _text_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.txt")


def _records_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.tfrecord")


# In a worker: what it shares with the process that started it.
_shared: tuple[Any, ...] = ()


def _start_worker(*shared: Any) -> None:
  global _shared
  _shared = shared
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
  parent = multiprocessing.parent_process()

  def die_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=die_with_parent, daemon=True).start()


def _make_block(
  create_records: CreateRecords,
  recipe: pretraining_text.Recipe,
  folder: str,
  block: int,
) -> dict[str, int]:
  """Makes the records of a block in the folder; gives the counts."""
  bytes_done, stop = _shared
  counts: collections.Counter[str] = collections.Counter()
  text_file = _text_file(folder, block)

  def records():
    with open(text_file, "rb") as lines:
      for one_pass in create_records(
        recipe, pretraining_text.load_tokenizer(recipe), block, lines, counts
      ):
        yield from one_pass
        bytes_done[block] += os.path.getsize(text_file)
        if stop.value:
          raise InterruptedError

  tf_records.write_serialized(_records_file(folder, block), records())
  os.remove(text_file)
  return dict(counts)


@contextlib.contextmanager
def map_in_workers(
  function: Callable[..., Any],
  items: Iterable[tuple],
  num_workers: int,
  *arguments: Any,
) -> Iterator[Iterator[Any]]:
  """Calls a function in several processes, which do not import the script.

  Args:
    function: of a module that imports no TensorFlow.
    items: last arguments of each call.
    num_workers: how many processes.
    *arguments: first arguments of every call.

  Yields:
    An iterator over the results, in the order of `items`.

  Raises:
    InputError: a process died.
  """
  pool = concurrent.futures.ProcessPoolExecutor(
    num_workers,
    multiprocessing.get_context("spawn"),
    _start_worker,
    (function, *arguments),
  )
  # A new process imports the main module again; the script's would bring
  # TensorFlow, so this one poses as it while they start.
  main = sys.modules["__main__"]
  sys.modules["__main__"] = sys.modules[__name__]
  try:
    made = pool.map(_call, items)
  finally:
    sys.modules["__main__"] = main
  try:
    yield made
  except BrokenProcessPool as error:
    raise InputError(
      "a worker died (killed, or out of memory). Run the same command again,"
      " with fewer --num_workers if memory was short"
    ) from error
  finally:
    pool.shutdown(cancel_futures=True)


def _call(item: tuple) -> Any:
  function, *arguments = _shared
  return function(*arguments, *item)
