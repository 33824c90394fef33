"""Predictions of texts in batches of similar length. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, NamedTuple, TypeVar

import numpy as np

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs, vocabulary
from bertlib.data.model_inputs import TOKEN_FEATURES
from bertlib.io import files, json_files, model_files, text_files
from bertlib.settings.common import LongTextSettings

# Texts that are encoded, sorted by length and decoded together.
_BLOCK_SIZE = 1024


Item = TypeVar("Item")
Result = TypeVar("Result")

_END = object()


class FileFormat(NamedTuple):
  """Format of a file of answers."""

  line: Callable[[Any, Any], bytes]  # of an example and its answer
  head: Callable[[int], bytes] = lambda num_answers: b""
  separator: bytes = b""  # between lines, beside their own ends
  tail: bytes = b""

  def lines(
    self, examples: Iterable[Any], answers: Iterable[Any]
  ) -> Iterator[bytes]:
    """Yields the lines of examples, with separators between them."""
    separator = b""
    for example, answer in zip(examples, answers):
      yield separator + self.line(example, answer)
      separator = self.separator


def json_line(value: Any) -> bytes:
  """A line of JSON Lines."""
  return _utf8(json_files.dumps(value, ensure_ascii=False) + "\n")


def write_files(
  path: str,  # without the endings
  formats: Mapping[str, FileFormat],  # by the ending
  examples: Sequence[Any],
  answers: Sequence[Any],  # as many
) -> None:
  """Writes a file of answers in each format."""
  with contextlib.ExitStack() as stack:
    for ending, form in formats.items():
      file = stack.enter_context(files.atomic_write(path + ending, "wb"))
      file.write(form.head(len(examples)))
      file.writelines(form.lines(examples, answers))
      file.write(form.tail)


def tsv_line(cells: Iterable[str]) -> bytes:
  """A line of a .tsv file, see `text_files`."""
  return _utf8(text_files.tsv_line(cells))


def _utf8(text: str) -> bytes:
  # As in all files, half of a character is written as an escape.
  return text.encode("utf-8", "backslashreplace")


class _Batches(list):
  """Rows as batches, each the indices of its rows and their inputs."""


class BatchPredictor:
  """A model that predicts for any number of texts.

  Base class of `LoadedModel` and `OnnxModel`, which compute, and of the class
  of each task, which adds `predict`.

  Attributes:
    description: contents of the model's `model.json`.
    config: contents of its `bert_config.json`.
    tokenizer: the model's tokenizer.
    features: names of the inputs of the model.
  """

  features: Sequence[str] = TOKEN_FEATURES
  # With more, hidden states no longer fit in the caches; with fewer, matrix
  # products are too small to be fast.
  tokens_per_batch = 2048
  # Whether the tokenizer finds masks in texts.
  finds_mask = False
  # Outputs of files that follow the main one, such as "logits".
  extra_outputs: Sequence[str] = ()
  # Flags of texts that are longer than the model.
  long_texts = LongTextSettings

  def __init__(
    self,
    model_dir: str,
    description: Mapping[str, Any],
    config: Mapping[str, Any],
    batch_size: int | None,  # None for about 2048 tokens per batch
    length_unit: int,  # batches are padded to a multiple of this length
    num_batches: int,  # that are computed at the same time
    checks_case: bool = True,  # of the vocabulary
  ):
    """Loads the tokenizer in the folder, and stores the arguments."""
    self.description, self.config = description, config
    self._batch_size, self._length_unit = batch_size, length_unit
    self._num_batches = num_batches
    self._model_dir, self._is_closed = model_dir, False
    self.tokenizer = vocabulary.tokenizer_of_model(
      model_files.path_of(model_dir, "vocab_file"),
      description,
      config,
      finds_mask=self.finds_mask,
      checks_case=checks_case,
    )

  @property
  def cutting(self) -> LongTextSettings:
    """Settings by which the model reads long texts."""
    return self.long_texts.of_model(self.description)

  def predict_blocks(
    self,
    texts: Iterable[Any],
    # A block of texts to (what `decode` needs of them, rows to compute).
    encode: Callable[[list[Any]], tuple[Any, Sequence[Mapping[str, Any]]]],
    # That and the outputs of the rows to a prediction per text.
    decode: Callable[[Any, list[np.ndarray]], Iterable[Any]],
  ) -> list[Any]:
    """Predictions of texts, in order: encodes, computes and decodes blocks."""
    sets = self.blocks(texts, _BLOCK_SIZE)
    first, second = next(sets, []), next(sets, None)
    if second is None:  # threads would only take time
      context, rows = encode(first)
      return list(decode(context, self.run(rows)))
    sets = itertools.chain([first, second], sets)
    predicted = self.map_blocks(sets, encode, decode)
    return [*itertools.chain.from_iterable(predicted)]

  def map_blocks(
    self,
    sets: Iterable[list[Any]],
    encode: Callable[[list[Any]], tuple[Any, Sequence[Mapping[str, Any]]]],
    decode: Callable[[Any, list[Any]], Iterable[Any]],
    reduce: Callable[[Mapping[str, Any], Any], Any] | None = None,
  ) -> Iterator[Iterable[Any]]:
    """Yields the predictions of each block; see `predict_blocks` and `run`."""

    def prepare(block):
      context, rows = encode(block)
      if not reduce:
        batches = self._batches(rows)
        rows = _Batches((batch, [*inputs]) for batch, inputs in batches)
      return context, rows

    def compute(prepared):
      context, rows = prepared
      return context, self.run(rows, reduce)

    # A thread computes a block while this one decodes the previous one, and
    # encodes the next one. Texts are read once, at most three blocks at a time,
    # and wait as arrays, which take less memory than lists.
    for computed in map_ahead(compute, map(prepare, sets)):
      yield decode(*computed)
      del computed  # before the next ones are there

  def encode_windows(
    self,
    texts: Iterable[Any],  # see `model_inputs.encode_windows`
  ) -> tuple[list[int], list[dict[str, Any]]]:
    """Numbers of windows of texts and pairs; their rows, without padding."""
    pairs = ((text, None) if is_text(text) else text for text in texts)
    length = self.description["max_seq_length"]
    num_windows, encoded = [], []
    for rows in model_inputs.encode_windows(
      self.tokenizer, pairs, length, self.cutting, pads=False
    ):
      num_windows.append(len(rows))
      encoded += [row._asdict() for row in rows]
    return num_windows, encoded

  def blocks(self, examples: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` examples; with windows, of about as many of these."""
    block: list[Item] = []
    num_rows, has_windows = 0, self.cutting.has_windows
    for number, example in enumerate(examples, start=1):
      block.append(example)
      count = 1
      if has_windows:
        (count,), _ = self.encode_windows([self.texts_of(example)])
        model_inputs.warn_of_many_windows(f"text {number}", count)
      num_rows += count
      if num_rows >= size:
        yield block
        block, num_rows = [], 0
    if block:
      yield block

  def texts_of(self, example: Any) -> Any:
    """Text or pair of an example of `read_file`, or of what is predicted."""
    return example

  def _compute(self, *arrays: np.ndarray) -> Iterable[np.ndarray]:
    """The output of each row of a batch, given its `features`."""
    raise NotImplementedError

  def run(
    self,
    rows: Sequence[Mapping[str, Sequence[int]]],
    # Of a row and its output, what is kept of the output; None for all.
    reduce: Callable[[Mapping[str, Any], Any], Any] | None = None,
  ) -> list[Any]:
    """Outputs of rows, in order; S is at least the length of the row."""
    # Batches of similar length, some at once.
    is_prepared = isinstance(rows, _Batches)
    batches = rows if is_prepared else [*self._batches(rows)]
    outputs: list[Any] = [None] * sum(len(batch) for batch, _ in batches)

    def compute(batch: Sequence[int], inputs: Iterable[np.ndarray]) -> None:
      if self._is_closed:
        raise InputError(
          f"{self._model_dir}: this predictor is closed. Open it again"
        )
      for index, output in zip(batch, self._compute(*inputs)):
        outputs[index] = reduce(rows[index], output) if reduce else output

    if len(batches) == 1:
      compute(*batches[0])
    elif batches:
      with ThreadPoolExecutor(self._num_batches) as threads:
        list(threads.map(compute, *zip(*batches)))  # raises their errors
    return outputs

  def _batches(
    self, rows: Sequence[Mapping[str, Sequence[int]]]
  ) -> Iterator[tuple[Sequence[int], Iterator[np.ndarray]]]:
    """Yields indices of rows and their inputs, the longest rows first."""
    lengths = [sum(row["input_mask"]) for row in rows]
    order = sorted(range(len(rows)), key=lambda index: -lengths[index])
    first = 0
    while first < len(order):
      longest, unit = lengths[order[first]], self._length_unit
      length = max(-(-longest // unit), 1) * unit
      max_length = self.config["max_position_embeddings"]
      max_length -= self.config.get("position_offset", 0)
      length = max(min(length, max_length), longest)
      size = self._batch_size or max(self.tokens_per_batch // length, 1)
      batch = order[first : first + size]
      yield batch, self._arrays(rows, batch, length)
      first += size

  def _arrays(self, rows, batch: Sequence[int], length: int):
    """Yields the inputs of a batch, int32 [B, S] each; of positions [B, P]."""
    for name in self.features:
      values = [rows[index][name] for index in batch]
      width = length if name in TOKEN_FEATURES else max(map(len, values))
      padded = [model_inputs.pad(value[:width], width) for value in values]
      yield np.array(padded, np.int32)

  # Files of examples

  record: Any = None  # the `TaskRecord`

  def file_settings(self, path: str, given: Mapping[str, Any]) -> Any:
    """Flags of the script that predicts for a file: given, or the model's."""
    settings = self.record and self.record.settings
    if not settings:
      raise InputError(
        f"{self._model_dir}: is an encoder, or its RECORD has no settings, so"
        " there is no way to read a file for it. Predict from Python"
      )
    if unknown := given.keys() - dict(option.declarations(settings)).keys():
      raise InputError(
        f"--{min(unknown)}: {self.record.script}.py has no such flag. Leave it"
        " out"
      )
    made = option.make(settings, predict_file=path)
    return option.fill(made, made.entries_as_flags(self.description) | given)

  def read_file(self, settings: Any, bad: list[str]) -> Iterable[Any]:
    """Examples of the --predict_file of settings, one at a time.

    They print as all that their answers depend on. `bad` receives the messages
    of rows that are skipped.
    """
    return text_files.read_pairs(settings.predict_file, settings.text.codec)

  def answer_blocks(self, sets: Iterable[list[Any]]) -> Iterator[Iterable[Any]]:
    """Yields the answers to each block of examples of `read_file`."""
    for examples in sets:
      yield self.predict([a if b is None else (a, b) for a, b in examples])

  def file_formats(self, examples: Sequence[Any]) -> dict[str, FileFormat]:
    """Formats of answers by the ending of their file, given first examples."""
    return {".jsonl": FileFormat(lambda _, answer: json_line(answer))}

  def close(self) -> None:
    """Ends the use of the model; later calls raise InputError."""
    self._is_closed = True

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()


# Texts to predict


def validated(
  texts: Iterable[Any],
  is_valid: Callable[[Any], bool],
  expected: str,  # what is valid, for messages
  name: str = "texts",  # the argument, for messages
) -> Iterator[Any]:
  """Yields the texts, pairs or lists to predict, after a check of each."""
  if isinstance(texts, (str, bytes)) or getattr(texts, "shape", None) == ():
    raise TypeError(f"predict: takes a list of {name}, not one text")
  # Tables are iterated over by the names of their columns, or by columns.
  if isinstance(texts, Mapping) or hasattr(texts, "columns"):
    raise TypeError(
      f"predict: takes a list of {name}, not a {type(texts).__name__}: give its"
      " column"
    )
  for index, text in enumerate(texts):
    if not is_valid(text):
      raise InputError(
        f"{name}[{index}]: is {reprlib.repr(text)}. Give {expected}"
      )
    yield text


def is_text(value: Any) -> bool:
  """True for a str."""
  return isinstance(value, str)


def is_list(value: Any) -> bool:
  """True for a sequence or array, but not for a text."""
  if isinstance(value, np.ndarray):
    return value.ndim > 0
  return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def is_pair(value: Any) -> bool:
  """True for two texts."""
  return is_list(value) and len(value) == 2 and all(map(is_text, value))


def is_text_or_pair(value: Any) -> bool:
  """True for a text, and for two of which the second may be None."""
  if is_list(value) and len(value) == 2 and value[1] is None:
    value = value[0]
  return is_text(value) or is_pair(value)


def map_ahead(
  function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
  """Results, in order, of a thread that is one item behind the iterator."""
  iterator, pending, error = iter(items), None, None
  with ThreadPoolExecutor(1) as thread:
    while True:
      try:
        item = next(iterator, _END)
      except Exception as raised:  # after the results of the items before it
        item, error = _END, raised
      ahead = None if item is _END else thread.submit(function, item)
      del item  # which may take much memory
      if pending:
        yield pending.result()
      pending = ahead
      if not pending:
        break
  if error:
    raise error


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
  """Lists of `size` items; the last one may be shorter."""
  iterator = iter(items)
  while block := list(itertools.islice(iterator, size)):
    yield block
