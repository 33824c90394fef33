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
from typing import Any, Callable

from absl import flags

import tokenization
from benchmarks import results, side_by_side
from bertlib.cli import app
from bertlib.cli.errors import InputError

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
  side_by_side.define_flags(passes=7)
  flags.adopt_module_key_flags(side_by_side)


def main(_: list[str]) -> None:
  """Compares the results of both, times them and measures the cache."""
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  lines = read_lines(FLAGS.text_file)
  print(check_equal(lines), flush=True)
  values = {kind: {side: [] for side in sides} for kind, sides in KINDS.items()}
  for number in range(FLAGS.passes):
    for kind, sides in KINDS.items():
      for side in list(sides)[:: -1 if number % 2 else 1]:
        seconds = processor_seconds(sides[side], MAKERS[side](), lines)
        values[kind][side].append(seconds / len(lines))
    results.show_pass(number + 1, values)
  side_by_side.report(
    f"{len(lines):,} lines of {os.path.basename(FLAGS.text_file)}",
    {
      side: {"description": "", "versions": side_by_side.versions()}
      for side in MAKERS
    },
    values,
    threads=1,
  )
  for kind in KINDS:
    print(f"cache of {kind} for this text: {cache_peak(kind, lines)}")
    peak = cache_peak(kind, shuffled(lines), most_chunks=300_000)
    print(f"cache of {kind} for shuffled characters: {peak}", flush=True)


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


def our_ids(
  tokenizer: tokenization.FullTokenizer, lines: Iterable[str]
) -> list[list[int]]:
  """Ids of each line."""
  return [tokenizer.encode(line) for line in lines]


def our_offsets(
  tokenizer: tokenization.FullTokenizer, lines: Iterable[str]
) -> list[tuple[list[str], list[tuple[int, int]]]]:
  """Tokens of each line, and their ranges."""
  return [tokenizer.tokenize_with_offsets(line) for line in lines]


def peer_ids(tokenizer: Any, lines: list[str]) -> list[list[int]]:
  """Ids of each line, by `tokenizers`."""
  encodings = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
  return [encoding.ids for encoding in encodings]


def peer_offsets(
  tokenizer: Any, lines: list[str]
) -> list[tuple[list[str], list[tuple[int, int]]]]:
  """Tokens of each line, and their ranges, by `tokenizers`."""
  encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
  return [(encoding.tokens, encoding.offsets) for encoding in encodings]


MAKERS = {"ours": ours, "tokenizers": peer}
KINDS = {
  "ids": {"ours": our_ids, "tokenizers": peer_ids},
  "tokens with offsets": {"ours": our_offsets, "tokenizers": peer_offsets},
}


def check_equal(lines: list[str]) -> str:
  """Compares both tokenizers; returns what is equal, in words."""
  own, other = ours(), peer()
  num_equal = 0
  for line in lines:
    [(our_tokens, our_ranges)] = our_offsets(own, [line])
    [(peer_tokens, peer_ranges)] = peer_offsets(other, [line])
    same_ids = our_ids(own, [line]) == peer_ids(other, [line])
    if not same_ids or our_tokens != peer_tokens:
      raise InputError(f"{FLAGS.text_file}: ids differ for the line {line!r}")
    num_equal += our_ranges == peer_ranges
  return (
    f"ids and tokens of {len(lines)} lines equal, offsets of {num_equal} lines"
  )


def processor_seconds(
  function: Callable[[Any, list[str]], Any], tokenizer: Any, lines: list[str]
) -> float:
  """Processor seconds of a call."""
  gc.collect()
  start = time.process_time()
  result = function(tokenizer, lines)
  seconds = time.process_time() - start
  del result  # freed after the time is taken
  return seconds


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
  define_flags()
  app.run(main)
