"""Benchmark of tokenization.py against the Rust package `tokenizers`.

Both tokenize the same lines, alternating in one process on one thread, and give
the same as Python lists: the ids of each line, and its tokens with offsets.
`tokenizers` makes ids by `encode_batch_fast`, which computes no offsets, and
tokens with offsets by `encode_batch`. Each pass has a new tokenizer, whose
construction is not timed. Before, ids and tokens are compared: they have to be
equal. Afterwards the peak memory of our tokenizer's cache is measured: for
these lines, and for lines with shuffled characters, in which no chunk repeats.

    python -m benchmarks.tokenizer_speed \
        --vocab_file=uncased/vocab.txt --text_file=sentences.txt.gz

Processor time is compared, which depends less on other load of the machine.
"""

from __future__ import annotations

import gc
import gzip
import math
import os
import random
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

from absl import flags

import tokenization
from benchmarks import results, side_by_side
from bertlib.cli.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags(passes=7)
  side_by_side.require(
    vocab_file="Vocabulary.",
    text_file="UTF-8 text, one text per line; may be gzipped.",
  )
  side_by_side.define(do_lower_case=(True, "Lower-case the text."))


def main(_: list[str]) -> None:
  """Compares the results of both, times them and measures the cache."""
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  opener = gzip.open if FLAGS.text_file.endswith(".gz") else open
  with opener(FLAGS.text_file, "rt", encoding="utf-8") as file:
    lines = [line.rstrip("\n") for line in file if line.strip()]
  print(check_equal(lines), flush=True)
  values = {kind: {side: [] for side in sides} for kind, sides in KINDS.items()}
  for number in range(FLAGS.passes):
    for kind, sides in KINDS.items():
      for side in list(sides)[:: -1 if number % 2 else 1]:
        tokenizer = MAKERS[side]()
        gc.collect()
        start = time.process_time()
        result = sides[side](tokenizer, lines)
        seconds = time.process_time() - start
        del result  # freed after the time is taken
        values[kind][side].append(seconds / len(lines))
    results.show_pass(number + 1, values)
  answer = {"description": "", "versions": side_by_side.versions()}
  side_by_side.report(
    f"{len(lines):,} lines of {os.path.basename(FLAGS.text_file)}",
    dict.fromkeys(MAKERS, answer),
    values,
    threads=1,
  )
  for kind in KINDS:
    print(f"cache of {kind} for this text: {cache_peak(kind, lines)}")
    peak = cache_peak(kind, shuffled(lines), most_chunks=300_000)
    print(f"cache of {kind} for shuffled characters: {peak}", flush=True)


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


MAKERS = {"ours": ours, "tokenizers": peer}
# Functions of a tokenizer and lines.
KINDS = {
  "ids": {
    "ours": lambda own, lines: [own.encode(line) for line in lines],
    "tokenizers": lambda other, lines: [
      encoding.ids
      for encoding in other.encode_batch_fast(lines, add_special_tokens=False)
    ],
  },
  "tokens with offsets": {
    "ours": lambda own, lines: [
      own.tokenize_with_offsets(line) for line in lines
    ],
    "tokenizers": lambda other, lines: [
      (encoding.tokens, encoding.offsets)
      for encoding in other.encode_batch(lines, add_special_tokens=False)
    ],
  },
}


def check_equal(lines: list[str]) -> str:
  """Compares both tokenizers; returns what is equal, in words."""
  sides = {name: make() for name, make in MAKERS.items()}
  ids, tokens = KINDS.values()
  num_equal = 0
  for line in lines:
    own_ids, peer_ids = (ids[name](sides[name], [line]) for name in sides)
    [own], [other] = (tokens[name](sides[name], [line]) for name in sides)
    if own_ids != peer_ids or own[0] != other[0]:
      raise InputError(f"{FLAGS.text_file}: ids differ for the line {line!r}")
    num_equal += own[1] == other[1]
  return (
    f"ids and tokens of {len(lines)} lines equal, offsets of {num_equal} lines"
  )


def shuffled(lines: list[str]) -> Iterator[str]:
  """The lines repeatedly, each with its characters in random order."""
  rng = random.Random(1)
  while True:
    for line in lines:
      yield "".join(rng.sample(line, len(line)))


def cache_peak(
  kind: str, lines: Iterable[str], most_chunks: float = math.inf
) -> str:
  """Peak memory of the cache of a tokenizer, in words."""
  tokenizer = ours()
  tracemalloc.start()
  chunks = 0
  for line in lines:
    KINDS[kind]["ours"](tokenizer, [line])
    chunks += len(line.split())
    if chunks >= most_chunks:
      break
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  return f"peak {peak / 2**20:.1f} MiB after {chunks} chunks"


if __name__ == "__main__":
  side_by_side.run(main, define_flags)
