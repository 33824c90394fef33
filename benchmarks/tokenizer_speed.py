"""Benchmark of our tokenizers against the Rust package `tokenizers`.

Both tokenize the same lines, alternating in one process on one thread, and give
the same as Python lists: the ids of each line, and its tokens with offsets.
`tokenizers` makes ids by `encode_batch_fast`, which computes no offsets, and
tokens with offsets by `encode_batch`. Each pass has a new tokenizer, whose
construction is not timed. Before, the results are compared: they have to be
equal.

    python -m benchmarks.tokenizer_speed \
        --vocab_file=uncased/vocab.txt --text_file=sentences.txt.gz

For WordPiece the peak memory of our tokenizer's cache is measured afterwards:
for these lines, and for lines with shuffled characters, in which no chunk
repeats. A tokenizer.json as `--vocab_file` is run by the package on both sides:
what our batches add to it is timed, for lists of words too.

Processor time is compared, which depends less on other load of the machine.
"""

from __future__ import annotations

import gc
import gzip
import math
import operator
import os
import random
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Callable

import tokenization
from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.cli.errors import InputError, needs_package
from bertlib.data import subword_tokenizer


def main(_: list[str]) -> None:
  """Compares the results of both, times them and measures the cache."""
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  opener = gzip.open if FLAGS.text_file.endswith(".gz") else open
  with opener(FLAGS.text_file, "rt", encoding="utf-8") as file:
    lines = [line.rstrip("\n") for line in file if line.strip()]
  is_json = FLAGS.vocab_file.endswith(".json")
  makers, kinds = (
    (SUBWORD_MAKERS, SUBWORD_KINDS) if is_json else (MAKERS, KINDS)
  )
  print(check_equal(makers, kinds, lines), flush=True)

  def seconds_per_line(side):
    for kind, functions in kinds.items():
      tokenizer = makers[side.name]()
      gc.collect()
      start = time.process_time()
      result = functions[side.name](tokenizer, lines)
      seconds = time.process_time() - start
      del result  # freed after the time is taken
      yield {kind: seconds / len(lines)}

  sides = [SimpleNamespace(name=name) for name in makers]
  values = side_by_side.alternate(sides, FLAGS.passes, seconds_per_line)
  answer = {"description": "", "versions": side_by_side.versions()}
  name = os.path.basename(FLAGS.text_file)
  work = f"{len(lines):,} lines of {name}"
  if is_json:
    kind = "Unigram" if makers["ours"]().is_unigram else "Byte-level BPE"
    work = f"{kind}, {len(lines):,} lines, {name}"
  side_by_side.report(work, dict.fromkeys(makers, answer), values, threads=1)
  if is_json:
    return
  for kind in KINDS:
    print(f"cache of {kind} for this text: {cache_peak(kind, lines)}")
    peak = cache_peak(kind, shuffled(lines), most_chunks=300_000)
    print(f"cache of {kind} for shuffled characters: {peak}", flush=True)


def ours() -> tokenization.FullTokenizer:
  """Our tokenizer, with an empty cache."""
  return tokenization.FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)


def peer() -> Any:
  """BERT's tokenizer of the package `tokenizers`."""
  with needs_package(
    "the package tokenizers is missing: pip install tokenizers"
  ):
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers
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


def subword_tokenizers() -> tuple[Any, Any]:
  """The package's tokenizer of a tokenizer.json, of texts and of words."""
  import tokenizers
  from tokenizers import pre_tokenizers

  of_texts, of_words = (
    tokenizers.Tokenizer.from_file(FLAGS.vocab_file) for _ in range(2)
  )
  if isinstance(of_words.pre_tokenizer, pre_tokenizers.ByteLevel):
    of_words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
  return of_texts, of_words


def own_subword_tokenizer() -> subword_tokenizer.SubwordTokenizer:
  """Our tokenizer of a tokenizer.json, prepared for texts and words."""
  own = subword_tokenizer.load(FLAGS.vocab_file)
  list(own.encode_words([["word"]]))
  return own


SUBWORD_MAKERS = {
  "ours": own_subword_tokenizer,
  "tokenizers": subword_tokenizers,
}
SUBWORD_KINDS = {
  "ids": {
    "ours": lambda own, lines: [*own.encode_batch(lines)],
    "tokenizers": lambda others, lines: KINDS["ids"]["tokenizers"](
      others[0], lines
    ),
  },
  "ids with words": {
    "ours": lambda own, lines: [*own.encode_words(map(str.split, lines))],
    "tokenizers": lambda others, lines: [
      (encoding.ids, encoding.word_ids)
      for encoding in others[1].encode_batch(
        [*map(str.split, lines)],
        is_pretokenized=True,
        add_special_tokens=False,
      )
    ],
  },
  "ids with offsets": {
    "ours": lambda own, lines: [*own.encode_with_offsets(lines)],
    "tokenizers": lambda others, lines: [
      (encoding.ids, encoding.offsets)
      for encoding in others[0].encode_batch(lines, add_special_tokens=False)
    ],
  },
}


def check_equal(
  makers: dict[str, Callable], kinds: dict[str, Any], lines: list[str]
) -> str:
  """Compares both tokenizers; returns what is equal, in words."""
  tokenizers = {side: make() for side, make in makers.items()}
  equal = []
  for kind, sides in kinds.items():
    own, other = (sides[side](tokenizers[side], lines) for side in tokenizers)
    for line, (one, two) in zip(lines, zip(own, other)):
      if kind != "ids":
        one, two = one[0], two[0]
      if one != two:
        raise InputError(f"{FLAGS.text_file}: {kind} differ for {line!r}")
    num_equal = sum(map(operator.eq, own, other))
    equal.append(f"{kind} of {num_equal} of {len(lines)} lines equal")
  return "; ".join(equal)


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
  side_by_side.run(
    main,
    passes=7,
    vocab_file="Vocabulary, or tokenizer.json.",
    text_file="UTF-8 text, one text per line; may be gzipped.",
    do_lower_case=(True, "Lower-case the text."),
  )
