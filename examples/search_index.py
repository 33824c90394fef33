"""Search in the lines of a file, with an index that stays on disk.

  python -m examples.search_index --model_dir=output/search \
    --corpus_file=lines.txt --index_file=output/lines.usearch \
    --query="How do I resume a run?"

The first call encodes the lines and writes the index. Later calls map the index
into memory and encode the query alone.

`run_embeddings.py --corpus_file` compares a query with every line, which is
exact. An index is for collections where that takes too long: it is a graph of
neighboring vectors (HNSW, Malkov and Yashunin 2016), which is searched in
logarithmic time and may miss a line. The library is usearch. It has wheels of
2 MB for every Python that this project supports, reads an index without loading
it, and brings no BLAS and no OpenMP that would compete with TensorFlow for the
cores, as faiss does. Install it with `pip install -e '.[search]'`.
"""

from __future__ import annotations

import os

import numpy as np
from absl import flags

import run_embeddings
from bertlib.cli import app, terminal
from bertlib.cli.errors import InputError
from bertlib.io import files, text_files

FLAGS = flags.FLAGS

# Lines that are encoded and indexed at a time.
_BLOCK_SIZE = 10_000


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string(
    "model_dir", None, "Folder of a sentence-embedding model.", required=True
  )
  flags.DEFINE_string(
    "corpus_file", None, "Text file; each line is a document.", required=True
  )
  flags.DEFINE_string(
    "index_file",
    None,
    "The index, written if it is missing. Remove it after changing the model"
    " or the corpus.",
    required=True,
  )
  flags.DEFINE_multi_string("query", None, "Text to search for.", required=True)
  flags.DEFINE_integer("top_k", 5, "Results per query.", lower_bound=1)


def main(_) -> None:
  """Prints the similarity and the text of the lines that a query finds."""
  index_class = import_index_class()
  model = run_embeddings.Predictor(FLAGS.model_dir)
  lines = [line.strip() for line in text_files.read_lines(FLAGS.corpus_file)]
  if not os.path.exists(FLAGS.index_file):
    build_index(index_class, model, lines, FLAGS.index_file)
  queries = model.encode(FLAGS.query, prompt=prompt(model, "query"))
  index = load_index(index_class, FLAGS.index_file, queries.shape[1], lines)
  for query, vector in zip(FLAGS.query, queries):
    terminal.show(query)
    found = index.search(vector, FLAGS.top_k)
    for number, distance in zip(found.keys, found.distances):
      terminal.show(f"{1 - distance:.3f}", lines[number])


def prompt(model: run_embeddings.Predictor, name: str) -> str | None:
  """`name` if the model has a prompt with this name, otherwise None."""
  return name if name in model.spec.prompts else None


def build_index(index_class, model, lines: list[str], path: str) -> None:
  """Writes an index of the lines that are not empty, by line number."""
  numbers = [number for number, line in enumerate(lines) if line]
  if not numbers:
    raise InputError(f"{FLAGS.corpus_file}: has no text. Add lines to search")
  index = None
  for start in range(0, len(numbers), _BLOCK_SIZE):
    block = numbers[start : start + _BLOCK_SIZE]
    texts = [lines[number] for number in block]
    vectors = model.encode(texts, prompt=prompt(model, "passage"))
    index = index or index_class(ndim=vectors.shape[1], dtype="f32")
    index.add(np.array(block), vectors)
  with files.atomic_write(path, "wb") as file:
    file.write(index.save())


def load_index(index_class, path: str, width: int, lines: list[str]):
  """Maps an index into memory.

  Raises:
    InputError: it is not an index of vectors of this width, of these lines.
  """
  fix = "Remove it to build it again"
  try:
    index = index_class.restore(path, view=True)
  except (RuntimeError, ValueError) as error:
    raise InputError(f"{path}: is not an index. {fix}") from error
  num_texts = sum(map(bool, lines))
  if (len(index), index.ndim) != (num_texts, width):
    raise InputError(
      f"{path}: has {len(index)} vectors of {index.ndim} values, but there are"
      f" {num_texts} lines, and the model's vectors have {width}. {fix}"
    )
  return index


def import_index_class() -> type:
  """The class `usearch.index.Index`.

  Raises:
    InputError: the package is not installed.
  """
  try:
    from usearch.index import Index
  except ModuleNotFoundError as error:
    raise InputError(
      "the index needs the package usearch: pip install -e '.[search]'"
    ) from error
  return Index


if __name__ == "__main__":
  define_flags()
  app.run(main)
