"""create_pretraining_data.py on many machines, as an Apache Beam pipeline.

    python create_pretraining_data_beam.py --input_file=... --output_file=... \
        --num_shards=500 --vocab_file=vocab.txt -- --runner=FlinkRunner ...

What stands after `--` is Beam's: any of its runners by its own options; without
them the pipeline runs here. It makes the files that `--num_workers` makes of
the same flags, byte for byte. Workers on other machines need this checkout on
their PYTHONPATH and google-crc32c; not TensorFlow. An output file has to fit a
worker's memory, so let there be many.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.pretraining_data import PretrainingDataSettings

  app.parse_flags(PretrainingDataSettings)

import collections
import contextlib
import dataclasses
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator

from absl import logging

import create_pretraining_data
from bertlib import app, files, folder_lock, text_files
from bertlib.data import pretraining_blocks, pretraining_text, tf_records
from bertlib.errors import InputError
from bertlib.files import open_any
from bertlib.reporting import doctor
from bertlib.settings import option
from bertlib.settings.pretraining_data import PretrainingDataSettings

try:
  import apache_beam as beam
  from apache_beam.io.filesystem import CompressionTypes
  from apache_beam.io.filesystems import FileSystems
  from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
  raise SystemExit(
    "create_pretraining_data_beam.py needs Apache Beam: pip install -e .[beam]"
  ) from error


COUNTS = "counts"  # the namespace of the pipeline's counters


def build(
  pipeline: beam.Pipeline,
  recipe: pretraining_text.Recipe,
  vocab: bytes,
  input_files: Iterable[str],
  output_files: list[str],
  num_blocks: int,
) -> None:
  """Adds the making of records to a pipeline.

  Args:
    pipeline: gets it.
    recipe: what to do.
    vocab: what is in its vocabulary's file, which may not be elsewhere.
    input_files: the text.
    output_files: get the records.
    num_blocks: into how many blocks the documents are dealt.
  """
  _ = (
    pipeline
    | "Files" >> beam.Create(list(enumerate(input_files)))
    | "Spread" >> beam.Reshuffle()
    | "Deal" >> beam.FlatMap(_deal, recipe, num_blocks)
    | "Blocks" >> beam.GroupByKey()
    | "Make" >> beam.ParDo(_MakeBlock(recipe, vocab, len(output_files)))
    | "Outputs" >> beam.GroupByKey()
    | "Write" >> beam.Map(_write, output_files)
  )


def _deal(
  file: tuple[int, str],
  recipe: pretraining_text.Recipe,
  num_blocks: int,
) -> Iterator[tuple[int, tuple[int, int, bytes]]]:
  """Gives each document of a file its block, and its place in the corpus."""
  file_number, path = file
  lines = text_files.read_utf8_lines(path, recipe.text_encoding, _open)
  dealt = pretraining_blocks.deal_documents(
    lines, file_number, num_blocks, recipe.random_seed
  )
  for document_number, (block, document) in enumerate(dealt):
    yield block, (file_number, document_number, document)


def _open(path: str, mode: str):
  del mode  # for reading bytes
  return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


class _MakeBlock(beam.DoFn):
  """From the documents of a block to its part of an output file."""

  def __init__(self, recipe, vocab: bytes, num_outputs: int):
    self._recipe = recipe
    self._vocab = vocab
    self._num_outputs = num_outputs

  def setup(self):
    with tempfile.TemporaryDirectory() as folder:
      vocab_file = os.path.join(folder, "vocab.txt")
      with open(vocab_file, "wb") as file:
        file.write(self._vocab)
      recipe = dataclasses.replace(self._recipe, vocab_file=vocab_file)
      self._tokenizer = pretraining_text.load_tokenizer(recipe)

  def process(self, element):
    block, documents = element
    counts = collections.Counter()
    lines = io.BytesIO(b"".join(text for *_, text in sorted(documents)))
    passes = pretraining_blocks.create_block_records(
      self._recipe, self._tokenizer, block, lines, counts
    )
    content = b"".join(
      tf_records.framed(record) for records in passes for record in records
    )
    for name, count in counts.items():
      beam.metrics.Metrics.counter(COUNTS, name).inc(count)
    yield block % self._num_outputs, (block, content)


def _write(
  output: tuple[int, Iterable[tuple[int, bytes]]], output_files: list[str]
) -> None:
  """Writes an output file, whole or not at all."""
  number, parts = output
  path = output_files[number]
  with FileSystems.create(
    path + ".tmp", compression_type=CompressionTypes.UNCOMPRESSED
  ) as file:
    for _, content in sorted(parts):
      file.write(content)
  FileSystems.rename([path + ".tmp"], [path])


def find_files(patterns: Iterable[str]) -> dict[str, int]:
  """The files of names and wildcards on any of Beam's file systems.

  Args:
    patterns: names, `*` and `?` allowed.

  Returns:
    The bytes of each file, in the order of `create_pretraining_data`.

  Raises:
    InputError: a pattern matches nothing.
  """
  found = {}
  for pattern in patterns:
    files = FileSystems.match([pattern])[0].metadata_list
    if not files:
      raise InputError(f"{pattern}: no such file")
    for file in sorted(files, key=lambda file: file.path):
      found[file.path] = file.size_in_bytes
  return found


@contextlib.contextmanager
def _input_errors() -> Iterator[None]:
  """Raises an InputError of a worker as one of this process.

  Beam puts it, with its traceback, into the text of an error of its own.
  """
  try:
    yield
  except Exception as error:
    found = re.search(r"(?m)\bInputError: (.*)", f"InputError: {error}")
    if not isinstance(error, InputError):
      found = re.search(r"(?m)\bInputError: (.*)", str(error))
    if not found:
      raise
    message = found[1].partition(" [while running")[0]
    raise InputError(message) from error


def define_flags() -> None:
  """Defines the flags."""
  option.define(PretrainingDataSettings)


def main(argv: list[str]) -> None:
  """Makes the records of --input_file."""
  settings = option.from_flags(PretrainingDataSettings)
  if settings.receipt.doctor:
    doctor.diagnose(settings, create_pretraining_data.examine)
    return
  recipe = create_pretraining_data.make_recipe(settings)
  pretraining_text.load_tokenizer(recipe)  # refuses a bad vocabulary
  outputs = create_pretraining_data.output_paths(settings)
  sizes = find_files(files.split_names(settings.input_file))
  create_pretraining_data.check_overwriting(
    settings, recipe, list(sizes), outputs
  )
  num_blocks = pretraining_blocks.count_blocks(
    sizes, len(outputs), recipe.text_encoding, _open
  )
  with open_any(recipe.vocab_file, "rb") as file:
    vocab = file.read()
  pipeline = beam.Pipeline(options=PipelineOptions(argv[1:]))
  build(pipeline, recipe, vocab, list(sizes), outputs, num_blocks)
  with (
    create_pretraining_data.folders_for(outputs),
    folder_lock.lock_files(outputs),
    _input_errors(),
  ):
    result = pipeline.run()
    result.wait_until_finish()
  counts = collections.Counter(
    {
      counter.key.metric.name: counter.result
      for counter in result.metrics().query()["counters"]
      if counter.key.metric.namespace == COUNTS
    }
  )
  create_pretraining_data.report(counts)
  missing = [path for path in outputs if not FileSystems.exists(path)]
  if missing:
    raise InputError(
      f"--input_file: {counts['documents']} documents are too few for"
      f" {len(outputs)} output files; {missing[0]} got none"
    )
  logging.info("%d records in %d files", counts["records"], len(outputs))


if __name__ == "__main__":
  app.run(main)
