"""Makes the records that BERT is pretrained on, from plain text.

The text has a sentence a line and a blank line between documents. A record is
a pair of stretches of text, of which the second follows the first or is of
another place, with some tokens masked (Devlin et al. 2019, section 3.1 and
appendix A.2).

By default all text is held in memory and one stream of random numbers makes
what google-research/bert makes of the same flags, record for record. With
`--num_workers` the text is dealt into blocks, each a stream of its own, so
that a corpus of any size is worked on by any number of processes, with the
same result. TensorFlow is not imported.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import glob
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool

from absl import flags, logging

import command_line
import features
import preflight
import tokenization
from command_line import InputError, open_any, write_whole

FLAGS = flags.FLAGS

# A piece is its id, or ~id where it continues a word.
Sentence = list  # of pieces
Document = list  # of sentences, none of them empty


@dataclasses.dataclass(frozen=True)
class Recipe:
  """All that fixes the records of a text.

  Attributes:
    vocab_file: the vocabulary.
    do_lower_case: whether it is of an uncased model.
    max_seq_length: tokens a record, [CLS] and both [SEP] included.
    max_predictions_per_seq: most tokens masked in a record.
    masked_lm_prob: share of the tokens that is masked.
    short_seq_prob: share of documents cut into stretches shorter than fit.
    dupe_factor: how often the text is gone through, with other masks.
    random_seed: of all draws.
    do_whole_word_mask: whether the pieces of a word are masked together.
    whole_word_draw: "piece" if each piece of a masked word is drawn to become
      [MASK], another or itself; "word" if that is drawn once for all of them.
    word_boundaries: "pieces" if a word is a piece and the ## pieces after it;
      "spaces" if it is what stands between spaces, in text segmented before.
    truncate_prob: share of the sentences that are cut at a random place.
    split_sentences: language of running text whose lines have yet to be cut
      into sentences ("en"); "" for none.
  """

  vocab_file: str
  do_lower_case: bool = True
  max_seq_length: int = 128
  max_predictions_per_seq: int = 20
  masked_lm_prob: float = 0.15
  short_seq_prob: float = 0.1
  dupe_factor: int = 10
  random_seed: int = 12345
  do_whole_word_mask: bool = False
  whole_word_draw: str = "piece"
  word_boundaries: str = "pieces"
  truncate_prob: float = 0.0
  split_sentences: str = ""


class RecordMaker:
  """Makes records by a recipe, and counts what it does.

  Attributes:
    counts: what was met and made, by name.
  """

  def __init__(self, recipe: Recipe):
    """Loads the vocabulary.

    Args:
      recipe: what to do.

    Raises:
      InputError: that is no vocabulary, it has no [MASK], or the package that
        splits sentences is missing.
    """
    self.recipe = recipe
    self.counts: collections.Counter[str] = collections.Counter()
    self._tokenizer = _load_tokenizer(recipe.vocab_file, recipe.do_lower_case)
    vocab = self._tokenizer.vocab
    if recipe.split_sentences:
      _sentence_splitter()
    self._cls, self._sep = vocab["[CLS]"], vocab["[SEP]"]
    self._mask = vocab["[MASK]"]
    self._ids = list(vocab.values())
    self._pieces = list(range(max(self._ids) + 1))
    if recipe.do_whole_word_mask:
      for entry, index in vocab.items():
        if entry.startswith("##"):
          self._pieces[index] = ~index
    self._encode_record = features.record_encoder(
      features.pretraining_layout(
        recipe.max_seq_length, recipe.max_predictions_per_seq
      )
    )

  # Text to pieces

  def read_documents(
    self, lines: Iterable[bytes], rng: random.Random
  ) -> list[Document]:
    """Tokenizes text.

    Args:
      lines: UTF-8, what is not is left out; a blank line ends a document.
      rng: draws what is truncated.

    Returns:
      The documents that have tokens.
    """
    documents: list[Document] = [[]]
    for line in lines:
      text = tokenization.convert_to_unicode(line).strip()
      if not text:
        documents.append([])
      for sentence in self._split(text):
        pieces = self._tokenize(sentence)
        if self.recipe.truncate_prob:
          pieces = self._truncate(pieces, rng)
        if pieces:
          documents[-1].append(pieces)
    documents = [document for document in documents if document]
    self.counts["documents"] += len(documents)
    self.counts["sentences"] += sum(map(len, documents))
    self.counts["documents of one sentence"] += sum(
      len(document) == 1 for document in documents
    )
    return documents

  def _split(self, text: str) -> Iterable[str]:
    if not self.recipe.split_sentences:
      return [text]
    return _sentence_splitter()(self.recipe.split_sentences, text)

  def _tokenize(self, text: str) -> Sentence:
    encode, pieces = self._tokenizer.encode, self._pieces
    if not self.recipe.do_whole_word_mask:
      return encode(text)
    if self.recipe.word_boundaries == "pieces":
      return [pieces[index] for index in encode(text)]
    words = map(encode, text.split())
    return [
      ~i if place else i for word in words for place, i in enumerate(word)
    ]

  def _truncate(self, pieces: Sentence, rng: random.Random) -> Sentence:
    if len(pieces) < 2 or rng.random() >= self.recipe.truncate_prob:
      return pieces
    self.counts["sentences truncated"] += 1
    return pieces[: rng.randint(1, len(pieces) - 1)]

  # Pieces to records

  def make_passes(
    self, documents: Sequence[Document], rng: random.Random
  ) -> Iterator[list[bytes]]:
    """Goes through the documents `dupe_factor` times.

    Args:
      documents: from which a second stretch of "another place" is also taken.
      rng: draws everything.

    Yields:
      The serialized records of each pass, in the order of the documents.
    """
    for _ in range(self.recipe.dupe_factor):
      yield [
        self._make_record(first, second, is_random_next, rng)
        for index in range(len(documents))
        for first, second, is_random_next in self._pairs(documents, index, rng)
      ]

  def _pairs(
    self, documents: Sequence[Document], index: int, rng: random.Random
  ) -> Iterator[tuple[Sentence, Sentence, bool]]:
    """Cuts a document into pairs of stretches that fit a record together.

    Sentences are gathered until they fill a record, and divided between two
    sentences at random. One time in two the second part is put back, and
    sentences of another document stand in for it.
    """
    document = documents[index]
    most = self.recipe.max_seq_length - 3  # [CLS], [SEP] and [SEP]
    target = most
    if rng.random() < self.recipe.short_seq_prob:
      target = rng.randint(2, most)
    chunk: list[Sentence] = []
    length = place = 0
    while place < len(document):
      chunk.append(document[place])
      length += len(document[place])
      place += 1
      if length < target and place < len(document):
        continue
      end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
      first = [piece for sentence in chunk[:end] for piece in sentence]
      is_random_next = len(chunk) == 1 or rng.random() < 0.5
      if is_random_next:
        room = target - len(first)
        second = self._elsewhere(documents, index, room, rng)
        place -= len(chunk) - end
      else:
        second = [piece for sentence in chunk[end:] for piece in sentence]
      yield (*_fit(first, second, most, rng), is_random_next)
      chunk, length = [], 0

  def _elsewhere(
    self,
    documents: Sequence[Document],
    index: int,
    length: int,
    rng: random.Random,
  ) -> Sentence:
    """Sentences, some `length` tokens, from a place in another document."""
    for _ in range(10):
      other = rng.randint(0, len(documents) - 1)
      if other != index:
        break
    self.counts["second parts from the same document"] += other == index
    document = documents[other]
    pieces: Sentence = []
    for place in range(rng.randint(0, len(document) - 1), len(document)):
      pieces += document[place]
      if len(pieces) >= length:
        break
    return pieces

  def _make_record(
    self,
    first: Sentence,
    second: Sentence,
    is_random_next: bool,
    rng: random.Random,
  ) -> bytes:
    recipe = self.recipe
    pieces = [self._cls, *first, self._sep, *second, self._sep]
    words: list[list[int]] = []
    for start, part in ((1, first), (len(first) + 2, second)):
      for position, piece in enumerate(part, start):
        if piece < 0 and words:
          words[-1].append(position)
        else:
          words.append([position])
    ids = [piece if piece >= 0 else ~piece for piece in pieces]
    masked = self._draw_masks(ids, words, rng)
    positions = sorted(masked)
    used, num_masked = len(ids), len(positions)
    padding = [0] * (recipe.max_seq_length - used)
    no_prediction = [0] * (recipe.max_predictions_per_seq - num_masked)
    self.counts["records"] += 1
    self.counts["tokens"] += used
    self.counts["masked tokens"] += num_masked
    self.counts["random next sentences"] += is_random_next
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    labels = [ids[position] for position in positions]
    for position, replacement in masked.items():
      ids[position] = replacement
    return self._encode_record(
      {
        "input_ids": ids + padding,
        "input_mask": [1] * used + padding,
        "segment_ids": segments + padding,
        "masked_lm_positions": positions + no_prediction,
        "masked_lm_ids": labels + no_prediction,
        "masked_lm_weights": [1.0] * num_masked + no_prediction,
        "next_sentence_labels": [int(is_random_next)],
      }
    )

  def _draw_masks(
    self, ids: list[int], words: list[list[int]], rng: random.Random
  ) -> dict[int, int]:
    """Draws which words are masked, and what stands in their place.

    Args:
      ids: the record's tokens.
      words: positions of the tokens of each word; comes back shuffled.
      rng: draws.

    Returns:
      By position of a masked token, the id to put there: of eight in ten
      [MASK], of one any entry of the vocabulary, of one the token itself.
    """
    recipe = self.recipe
    uniform = rng.random
    wanted = max(1, round(len(ids) * recipe.masked_lm_prob))
    wanted = min(wanted, recipe.max_predictions_per_seq)
    draw_each = recipe.whole_word_draw == "piece"
    masked: dict[int, int] = {}
    shuffle(words, rng)
    for word in words:
      if len(masked) >= wanted:
        break
      if len(masked) + len(word) > wanted:
        continue
      for position in word:
        if draw_each or position == word[0]:
          is_mask = uniform() < 0.8
          is_kept = not is_mask and uniform() < 0.5
        if is_mask:
          masked[position] = self._mask
        elif is_kept:
          masked[position] = ids[position]
        else:
          masked[position] = self._ids[rng.randint(0, len(self._ids) - 1)]
    return masked


def _fit(
  first: Sentence, second: Sentence, most: int, rng: random.Random
) -> tuple[Sentence, Sentence]:
  """Takes pieces off the longer part, at either end, until both fit."""
  starts, ends = [0, 0], [len(first), len(second)]
  length_a, length_b = ends
  while length_a + length_b > most:
    longer = 0 if length_a > length_b else 1
    if rng.random() < 0.5:
      starts[longer] += 1
    else:
      ends[longer] -= 1
    if longer:
      length_b -= 1
    else:
      length_a -= 1
  return first[starts[0] : ends[0]], second[starts[1] : ends[1]]


@functools.lru_cache(maxsize=1024)
def _shuffle_steps(length: int) -> list[tuple[int, int]]:
  return [(i, (i + 1).bit_length()) for i in range(length - 1, 0, -1)]


def shuffle(items: list, rng: random.Random) -> None:
  """What `rng.shuffle` does, draw for draw, in less than half its time.

  For short lists: the steps of each length are remembered.
  """
  getrandbits = rng.getrandbits
  for i, num_bits in _shuffle_steps(len(items)):
    j = getrandbits(num_bits)
    while j > i:
      j = getrandbits(num_bits)
    items[i], items[j] = items[j], items[i]


@functools.lru_cache(maxsize=1)
def _load_tokenizer(
  vocab_file: str, do_lower_case: bool
) -> tokenization.FullTokenizer:
  try:
    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case)
    tokenization.check_vocab(tokenizer.vocab)
  except UnicodeDecodeError as error:
    raise InputError(f"{vocab_file}: not a vocabulary in UTF-8") from error
  except ValueError as error:
    raise InputError(f"{vocab_file}: {error}") from error
  if "[MASK]" not in tokenizer.vocab:
    raise InputError(
      f"{vocab_file}: has no [MASK], which pretraining needs; name a vocab.txt"
      " that has one"
    )
  return tokenizer


@functools.lru_cache(maxsize=1)
def _sentence_splitter():
  try:
    from sentencex import segment
  except ImportError as error:
    raise InputError(
      "--split_sentences needs the package sentencex: pip install -e"
      " .[sentences]"
    ) from error
  return segment


# All text in memory


def write_in_memory(
  recipe: Recipe, input_files: Iterable[str], output_files: Sequence[str]
) -> collections.Counter[str]:
  """Makes the records of a corpus by one stream of random numbers.

  Args:
    recipe: what to do.
    input_files: the text; a document may go on in the next file.
    output_files: get a record each in turn.

  Returns:
    The counts of `RecordMaker`.

  Raises:
    InputError: there is no text, or it cannot be read.
  """
  maker = RecordMaker(recipe)
  rng = random.Random(recipe.random_seed)
  lines = (
    line for path in input_files for line in command_line.read_lines(path)
  )
  documents = maker.read_documents(lines, rng)
  if not documents:
    raise InputError("--input_file: there is no text in it")
  rng.shuffle(documents)
  records: list[bytes] = []
  with command_line.progress(recipe.dupe_factor, "passes") as bar:
    for one_pass in maker.make_passes(documents, rng):
      records += one_pass
      bar.update()
  rng.shuffle(records)
  for place, path in enumerate(output_files):
    features.write_serialized(path, records[place :: len(output_files)])
  return maker.counts


# Text in blocks

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


def make_block(
  maker: RecordMaker, number: int, lines: Iterable[bytes]
) -> Iterator[list[bytes]]:
  """Makes the records of a block by a stream of random numbers of its own.

  Args:
    maker: makes them.
    number: of the block.
    lines: its text.

  Yields:
    The records of each pass, shuffled.
  """
  rng = random.Random(f"{maker.recipe.random_seed} {number}")
  documents = maker.read_documents(lines, rng)
  rng.shuffle(documents)
  for records in maker.make_passes(documents, rng):
    rng.shuffle(records)
    yield records


class BlockRun:
  """Makes the records of a corpus block by block, in several processes.

  The text of each block, and then its records, wait in a folder beside the
  first output file. Output files take the blocks in turn; each is written when
  all of its blocks are there, and noted in a receipt, so that a run that was
  stopped does the others alone.
  """

  def __init__(
    self, recipe: Recipe, input_files: Sequence[str], output_files: list[str]
  ):
    """Finds out what is left to do.

    Args:
      recipe: what to do.
      input_files: the text.
      output_files: get the records.
    """
    self._recipe = recipe
    self._input_files = input_files
    self._output_files = output_files
    sizes = {path: _file_state(path)[0] for path in input_files}
    self._num_blocks = count_blocks(sizes, len(output_files))
    self._receipt_file = _hidden_beside(output_files[0], ".receipt.json")
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
      The counts of `RecordMaker` over all output files.

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
      "input": [[path, *_file_state(path)] for path in self._input_files],
      "output": self._output_files,
    }
    receipt = {"files": {}}
    with contextlib.suppress(ValueError):  # empty, after a power failure
      if _exists(self._receipt_file):
        with open_any(self._receipt_file) as file:
          receipt = json.load(file)
    files = receipt.pop("files")
    if receipt != wanted:
      files = {}
    return wanted | {
      "files": {
        path: state
        for path, state in files.items()
        if _exists(path) and _file_state(path)[0] == state["bytes"]
      }
    }

  @contextlib.contextmanager
  def _scratch_folder(self) -> Iterator[str]:
    """A folder for blocks; what a killed run left behind is removed."""
    first = self._output_files[0]
    folder = _hidden_beside(first, ".blocks")
    if "://" in first:
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

    with command_line.progress(len(self._input_files), "files") as bar:
      for number, path in enumerate(self._input_files):
        for block, document in deal_documents(
          command_line.read_lines(path),
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
      with command_line.progress(
        num_bytes * self._recipe.dupe_factor, "bytes", unit_scale=True
      ) as bar:
        file_of = {
          pool.submit(_work, self._recipe, folder, block): path
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
      "bytes": _file_state(path)[0],
      "counts": dict(counts),
    }
    with write_whole(self._receipt_file) as file:
      file.write(json.dumps(self._receipt, indent=1) + "\n")


def _hidden_beside(path: str, ending: str) -> str:
  """A name that wildcards for the files beside `path` do not match."""
  folder, name = os.path.split(path)
  return os.path.join(folder, f".{name}{ending}")


def _exists(path: str) -> bool:
  if "://" in path:
    from tensorflow.io import gfile

    return gfile.exists(path)
  return os.path.exists(path)


def _file_state(path: str) -> tuple[int, int]:
  """Bytes of a file and, if it is local, when it was changed."""
  if "://" in path:
    from tensorflow.io import gfile

    return gfile.stat(path).length, 0
  state = os.stat(path)
  return state.st_size, state.st_mtime_ns


def _text_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.txt")


def _records_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.tfrecord")


# In a worker: what it shares with the process that started it.
_shared: tuple = ()


def _start_worker(bytes_done, stop) -> None:
  global _shared
  _shared = bytes_done, stop
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
  parent = multiprocessing.parent_process()

  def die_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=die_with_parent, daemon=True).start()


def _work(recipe: Recipe, folder: str, block: int) -> dict[str, int]:
  """Makes the records of a block in the folder; gives the counts."""
  bytes_done, stop = _shared
  maker = RecordMaker(recipe)
  text_file = _text_file(folder, block)

  def records():
    with open(text_file, "rb") as lines:
      for one_pass in make_block(maker, block, lines):
        yield from one_pass
        bytes_done[block] += os.path.getsize(text_file)
        if stop.value:
          raise InterruptedError

  features.write_serialized(_records_file(folder, block), records())
  os.remove(text_file)
  return dict(maker.counts)


# The command line


def define_flags() -> None:
  """Defines the command line."""
  flags.DEFINE_list(
    "input_file",
    None,
    "Text files, names and wildcards with commas between; .gz is unpacked. A"
    " sentence a line, a blank line between documents.",
    required=True,
  )
  flags.DEFINE_list(
    "output_file",
    None,
    "TFRecord files to write, with commas between.",
    required=True,
  )
  flags.DEFINE_integer(
    "num_shards",
    0,
    "Makes of one --output_file that many: NAME-00000-of-00010 and so on.",
  )
  flags.DEFINE_string(
    "vocab_file", None, "Vocabulary, one word piece a line.", required=True
  )
  flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Whether text is lower-cased and loses its accents: true for uncased"
    " models, false for cased ones.",
  )
  flags.DEFINE_alias("do_lower", "do_lower_case")
  flags.DEFINE_integer("max_seq_length", 128, "Tokens a record.")
  flags.DEFINE_integer(
    "max_predictions_per_seq", 20, "Most masked tokens a record."
  )
  flags.DEFINE_float(
    "masked_lm_prob", 0.15, "Share of the tokens that is masked."
  )
  flags.DEFINE_float(
    "short_seq_prob",
    0.1,
    "Share of the documents cut into shorter stretches than fit.",
  )
  flags.DEFINE_integer(
    "dupe_factor",
    10,
    "How often the text is gone through, each time with other masks.",
  )
  flags.DEFINE_integer("random_seed", 12345, "Fixes all draws.")
  flags.DEFINE_bool(
    "do_whole_word_mask",
    False,
    "Whether the pieces of a word are masked together.",
  )
  flags.DEFINE_enum(
    "whole_word_draw",
    "piece",
    ["piece", "word"],
    "Of a masked word, whether each piece is drawn to become [MASK], another"
    " or itself, or all of them by one draw.",
  )
  flags.DEFINE_enum(
    "word_boundaries",
    "pieces",
    ["pieces", "spaces"],
    "What a whole word is: a piece and the ## pieces after it; or what stands"
    " between spaces, in text segmented beforehand, as Chinese has to be.",
  )
  flags.DEFINE_float(
    "truncate_prob",
    0.0,
    "Share of the sentences cut at a random place, for a model that is to read"
    " more than whole sentences; 0.02 is enough.",
  )
  flags.DEFINE_string(
    "split_sentences",
    "",
    "Language (en, de, zh, ...) of running text, a paragraph a line, that has"
    " yet to be cut into sentences.",
  )
  flags.DEFINE_integer(
    "num_workers",
    0,
    "Processes that work on blocks of the text, of any size in all; the result"
    " is the same for any number. 0: one process, all text in memory, and the"
    " records of google-research/bert.",
  )
  preflight.define_flags()
  flags.adopt_module_key_flags(preflight)  # so that --help shows them


def recipe_of_flags() -> Recipe:
  """The recipe that the flags ask for.

  Raises:
    InputError: flags contradict each other.
  """
  fields = [field.name for field in dataclasses.fields(Recipe)]
  recipe = Recipe(**{name: FLAGS[name].value for name in fields})
  for name in ("word_boundaries", "whole_word_draw"):
    if not FLAGS[name].using_default_value and not recipe.do_whole_word_mask:
      raise InputError(
        f"--{name} is about whole words: give --do_whole_word_mask too"
      )
  return recipe


def output_files() -> list[str]:
  """The files that `--output_file` and `--num_shards` name.

  Raises:
    InputError: no file, the same one twice, or several and `--num_shards`.
  """
  names = FLAGS.output_file
  if not all(names or [""]):
    raise InputError("--output_file: names no file, or an empty name")
  if FLAGS.num_shards:
    if len(names) > 1:
      raise InputError("--num_shards goes with one --output_file")
    number = FLAGS.num_shards
    names = [f"{names[0]}-{i:05}-of-{number:05}" for i in range(number)]
  if len(set(map(os.path.normpath, names))) < len(names):
    raise InputError("--output_file: names a file twice")
  return names


def make_folders(paths: Iterable[str]) -> None:
  """Makes the folders that files need and that are not there."""
  for folder in filter(None, map(os.path.dirname, paths)):
    if "://" not in folder:
      os.makedirs(folder, exist_ok=True)


def report(counts: collections.Counter[str]) -> None:
  """Logs what was made, and what of the text defeats its purpose.

  Args:
    counts: of `RecordMaker`.
  """
  for name, count in counts.items():
    logging.info("  %s: %d", name, count)
  same = counts["second parts from the same document"]
  if same > counts["random next sentences"] / 10:
    logging.warning(
      "%d of %d random next sentences come from the same document, so that"
      " they tell little: is there a blank line between documents?",
      same,
      counts["random next sentences"],
    )
  alone = counts["documents of one sentence"]
  if alone > counts["documents"] / 2:
    logging.warning(
      "%d of %d documents have one sentence, for which no next sentence is ever"
      " the true one: is there a blank line after every sentence?",
      alone,
      counts["documents"],
    )


def main(_) -> None:
  """Makes the records of --input_file."""
  if FLAGS.doctor:
    preflight.diagnose(examine)
    return
  receipt = preflight.begin(__file__)
  recipe, _, inputs, outputs = prepare(preflight.simply)
  receipt.start(inputs)
  make_folders(outputs)
  logging.info("Text from %d files: %s", len(inputs), ", ".join(inputs[:10]))
  if FLAGS.num_workers:
    counts = BlockRun(recipe, inputs, outputs).run(FLAGS.num_workers)
  else:
    counts = write_in_memory(recipe, inputs, outputs)
  report(counts)
  logging.info("%d records in %s", counts["records"], ", ".join(outputs[:10]))
  hashes = [preflight.fingerprint(path)["sha256"] for path in outputs]
  receipt.finish({**counts, "sha256": hashes})


# What is asked for, and whether it can be


def prepare(check: preflight.Check):
  """Checks all that a run needs but the text itself.

  Args:
    check: makes each check.

  Returns:
    The recipe, what it is followed by, the files of the text and those of the
    records.
  """
  recipe = check("flags", recipe_of_flags)
  maker = check("vocabulary", RecordMaker, recipe)
  inputs = check("input", command_line.find_files, FLAGS.input_file)
  outputs = check("output", output_files)
  return recipe, maker, inputs, outputs


def examine(doctor: preflight.Doctor) -> None:
  """Makes the checks of a run, and some more.

  Args:
    doctor: makes each check.
  """
  recipe, maker, inputs, outputs = prepare(doctor.check)
  num_bytes = doctor.check("text", check_text, maker, inputs)
  doctor.check("disk", check_disk, recipe, num_bytes, outputs)


def check_text(
  maker: RecordMaker, inputs: Sequence[str], most: int = 2**27
) -> int:
  """Reads text; warns of what defeats its purpose.

  Args:
    maker: cuts it into pieces.
    inputs: the files.
    most: of the text, in bytes, that is read.

  Returns:
    How much text there is, in bytes.

  Raises:
    InputError: there is none, or it cannot be read.
  """
  some: list[bytes] = []
  num_read = 0
  for line in itertools.chain.from_iterable(
    map(command_line.read_lines, inputs)
  ):
    num_read += len(line)
    if len(some) < 5000:
      some.append(line)
    if num_read > most:
      break
  documents = maker.read_documents(some, random.Random(0))
  if not documents:
    raise InputError("--input_file: there is no text in it")
  logging.info(
    "%.1f MB read; of %d lines, %d documents",
    num_read / 1e6,
    len(some),
    len(documents),
  )
  alone = sum(len(document) == 1 for document in documents)
  if alone > len(documents) / 2:
    logging.warning(
      "%d of them have one sentence: is there a blank line after every one?",
      alone,
    )
  if len(documents) == 1:
    logging.warning("is there a blank line between documents?")
  sizes = [_file_state(path)[0] for path in inputs]
  return max(num_read, sum(sizes))


def check_disk(recipe: Recipe, num_bytes: int, outputs: Sequence[str]) -> None:
  """Refuses a place that has too little room for the records.

  Args:
    recipe: how they are made.
    num_bytes: of the text.
    outputs: the files.
  """
  # A token is some four characters of text, and five bytes of a record.
  of_record = 5 * recipe.max_seq_length + 10 * recipe.max_predictions_per_seq
  num_records = recipe.dupe_factor * num_bytes / 4 / recipe.max_seq_length
  preflight.check_disk(
    os.path.dirname(outputs[0]) or ".", int(num_records * of_record)
  )


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
