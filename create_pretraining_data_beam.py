"""create_pretraining_data.py on many machines, as an Apache Beam pipeline.

    python create_pretraining_data_beam.py --input_file=... --output_file=... \
        --num_shards=500 --vocab_file=vocab.txt -- --runner=FlinkRunner ...

Arguments after `--` go to Beam: any of its runners, with options; without them
the pipeline runs in this process. The files equal those of `--num_workers` with
the same flags, byte for byte. Workers on other machines need this checkout on
their PYTHONPATH and google-crc32c, but not TensorFlow. Each output file must
fit into the memory of a worker.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.tasks.pretraining.settings import BeamDataSettings

  app.parse_flags(BeamDataSettings)

import collections
import contextlib
import dataclasses
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import create_pretraining_data
from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.data import tf_records
from bertlib.io import document_files, files
from bertlib.tasks.pretraining import pretraining_blocks, pretraining_text
from bertlib.tasks.pretraining.recipe import Recipe
from bertlib.tasks.pretraining.settings import BeamDataSettings

try:
  import apache_beam as beam
  from apache_beam.options.pipeline_options import PipelineOptions

  from bertlib.tasks.pretraining import beam_files
except ImportError as error:
  raise SystemExit(
    "create_pretraining_data_beam.py needs Apache Beam: pip install apache-beam"
  ) from error


COUNTS = "counts"  # the namespace of the pipeline's counters


# Run


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(BeamDataSettings, required=required)


def main(argv: list[str]) -> None:
  """Creates the records of --input_file."""
  settings = option.from_flags(BeamDataSettings)

  def make_records(*arguments):
    pipeline = make_pipeline(argv[1:])
    build(pipeline, *arguments)
    return run(pipeline)

  create_pretraining_data.create(__file__, settings, make_records, beam_files)


def make_pipeline(arguments: Sequence[str]) -> beam.Pipeline:
  """An empty pipeline with the options after `--`."""
  try:
    return beam.Pipeline(options=PipelineOptions(arguments))
  except (AttributeError, ImportError, ValueError) as error:
    line, *_ = str(error).splitlines()
    raise InputError(
      f"-- {' '.join(arguments)}: {line.rstrip('.')}. Name a runner of Apache"
      " Beam, and install the packages that it needs"
    ) from error


def run(pipeline: beam.Pipeline) -> collections.Counter[str]:
  """Runs a pipeline to its end; returns its counters."""
  with _input_errors():
    result = pipeline.run()
    result.wait_until_finish()
  try:
    counters = result.metrics().query()["counters"]
  except NotImplementedError:  # the DaskRunner has none
    counters = []
  return collections.Counter(
    {
      counter.key.metric.name: counter.result
      for counter in counters
      if counter.key.metric.namespace == COUNTS
    }
  )


@contextlib.contextmanager
def _input_errors() -> Iterator[None]:
  """Re-raises an InputError of a worker with its original message."""
  # Beam appends to the message, or quotes it in the message of another error.
  try:
    yield
  except Exception as error:
    text = str(error)
    if not isinstance(error, InputError):
      quoted = re.search(r"\bInputError: (.*)", text)
      if not quoted:
        raise
      text = quoted[1]
    line, *_ = text.splitlines()
    raise InputError(line.partition(" [while running")[0]) from error


# The pipeline


def build(
  pipeline: beam.Pipeline,
  recipe: Recipe,
  input_files: Sequence[str],
  output_files: Sequence[str],
) -> None:
  """Adds the creation of records to a pipeline."""
  num_blocks = pretraining_blocks.count_blocks(
    input_files, len(output_files), recipe.codec, beam_files
  )
  with files.open_any(recipe.vocab_file, "rb") as file:
    # Part of the pipeline, since the file may not exist on workers.
    vocab = file.read()
  _ = (
    pipeline
    | "Files" >> beam.Create(list(enumerate(input_files)))
    | "Spread" >> beam.Reshuffle()
    | "Deal" >> beam.FlatMap(_deal, recipe, num_blocks)
    | "Blocks" >> beam.GroupByKey()
    | "Make" >> beam.ParDo(_MakeBlock(recipe, vocab, len(output_files)))
    | "Outputs" >> beam.GroupByKey()
    | "Write" >> beam.Map(_write, output_files)
    | "Written" >> beam.combiners.ToList()
    | "Check" >> beam.Map(_check_written, output_files)
  )


def _deal(
  file: tuple[int, str], recipe: Recipe, num_blocks: int
) -> Iterator[tuple[int, tuple[int, int, bytes]]]:
  """Yields the documents of a file with their blocks and positions."""
  file_number, path = file
  lines = document_files.read_lines(path, recipe.codec, beam_files.open_any)
  dealt = pretraining_blocks.deal_documents(
    lines, file_number, num_blocks, recipe.random_seed
  )
  for document_number, (block, document) in enumerate(dealt):
    yield block, (file_number, document_number, document)


class _MakeBlock(beam.DoFn):
  """Creates the records of a block, which are part of an output file."""

  def __init__(self, recipe: Recipe, vocab: bytes, num_outputs: int):
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
    for number, records in enumerate(passes):
      content = b"".join(map(tf_records.frame_record, records))
      num_documents = 0 if number else counts["documents"]
      yield block % self._num_outputs, (number, block, content, num_documents)
    for name, count in counts.items():
      beam.metrics.Metrics.counter(COUNTS, name).inc(count)


def _write(
  output: tuple[int, Iterable[tuple[int, int, bytes, int]]],
  output_files: Sequence[str],
) -> tuple[str, int]:
  """Writes a file atomically; returns it and its number of documents."""
  number, parts = output
  num_documents = 0
  with beam_files.atomic_write(output_files[number], "wb") as file:
    # Numbers of the pass and of the block, the records, and the number of
    # documents that no other pass counts.
    for *_, content, num_counted in sorted(parts):
      file.write(content)
      num_documents += num_counted
  return output_files[number], num_documents


def _check_written(
  written: Sequence[tuple[str, int]], output_files: Sequence[str]
) -> None:
  """Refuses a run that has not written all of its files."""
  # What an earlier run has written does not count.
  documents = dict(written)
  for path in output_files:
    if path not in documents:
      raise InputError(
        f"--input_file: {sum(documents.values())} documents are too few for"
        f" {len(output_files)} output files; {path} got none. Ask for fewer"
        " files, or put a blank line after each document"
      )


if __name__ == "__main__":
  app.run(main)
