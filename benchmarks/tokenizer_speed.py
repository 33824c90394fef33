"""Benchmark of tokenization.py against the Rust package `tokenizers`.

Both tokenize the same lines, alternating in one process on one thread. Each
pass has a new tokenizer, whose construction is not timed. The ids have to be
equal. Then, untimed, the peak memory of our tokenizer's cache: for these lines,
and for lines with shuffled characters, in which no chunk repeats.

    python -m benchmarks.tokenizer_speed \
        --vocab_file=uncased/vocab.txt --text_file=sentences.txt.gz

Processor time is compared, which depends less on other load of the machine.
"""

from __future__ import annotations

import gzip
import math
import os
import random
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from absl import flags

import tokenization
from benchmarks import results, side_by_side
from bertlib import app
from bertlib.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string("vocab_file", None, "Vocabulary.", required=True)
  flags.DEFINE_string(
    "text_file",
    None,
    "UTF-8 text, one text per line; may be gzipped.",
    required=True,
  )
  flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
  side_by_side.define_run_flags()
  flags.adopt_module_key_flags(side_by_side)


def main(_: list[str]) -> None:
  """Times both, compares their ids and measures the cache."""
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  lines = read_lines(FLAGS.text_file)
  values: dict[str, list[float]] = {"ours": [], "tokenizers": []}
  for number in range(FLAGS.passes):
    theirs, encodings = timed(peer().encode_batch, lines, False, False)
    own, ids = timed(encode_each, ours(), lines)
    for line, our_ids, encoding in zip(lines, ids, encodings):
      if our_ids != encoding.ids:
        raise InputError(f"{FLAGS.text_file}: ids differ for the line {line!r}")
    values["ours"].append(own / len(lines))
    values["tokenizers"].append(theirs / len(lines))
    results.show_pass(number + 1, {"tokenization": values})
  print(f"ids of {len(lines)} lines equal")
  side_by_side.report(
    f"{len(lines):,} lines of {os.path.basename(FLAGS.text_file)}",
    {
      name: {"description": "", "versions": side_by_side.versions()}
      for name in values
    },
    {"tokenization": values},
    threads=1,
  )
  print(f"cache for this text: {cache_peak(lines)}")
  peak = cache_peak(shuffled(lines), most_chunks=300_000)
  print(f"cache for shuffled characters: {peak}")


def read_lines(path: str) -> list[str]:
  """Non-empty lines of a text file, without line ends."""
  opener = gzip.open if path.endswith(".gz") else open
  with opener(path, "rt", encoding="utf-8") as file:
    return [line.rstrip("\n") for line in file if line.strip()]


def ours() -> tokenization.FullTokenizer:
  """Our tokenizer, with an empty cache."""
  return tokenization.FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)


def peer() -> Any:
  """BERT's tokenizer of the package `tokenizers`."""
  try:
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers
  except ImportError as error:
    raise InputError(
      "the package tokenizers is missing: pip install tokenizers"
    ) from error
  vocab = tokenization.load_vocab(FLAGS.vocab_file)
  tokenizer = tokenizers.Tokenizer(
    models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=200)
  )
  tokenizer.normalizer = normalizers.BertNormalizer(
    lowercase=FLAGS.do_lower_case
  )
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return tokenizer


def encode_each(
  tokenizer: tokenization.FullTokenizer, lines: Iterable[str]
) -> list[list[int]]:
  """Ids of each line."""
  return [tokenizer.encode(line) for line in lines]


def timed(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Processor seconds of a call, and its result."""
  start = time.process_time()
  result = function(*args)
  return time.process_time() - start, result


def shuffled(lines: list[str]) -> Iterator[str]:
  """The lines repeatedly, each with its characters in random order."""
  rng = random.Random(1)
  while True:
    for line in lines:
      yield "".join(rng.sample(line, len(line)))


def cache_peak(lines: Iterable[str], most_chunks: float = math.inf) -> str:
  """Peak memory of the cache of a tokenizer that encodes the lines."""
  tokenizer = ours()
  tracemalloc.start()
  chunks = 0
  for line in lines:
    tokenizer.encode(line)
    chunks += len(line.split())
    if chunks >= most_chunks:
      break
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  return f"peak {peak / 2**20:.1f} MiB after {chunks} chunks"


if __name__ == "__main__":
  define_flags()
  app.run(main)
