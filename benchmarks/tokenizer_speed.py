"""Benchmark of our tokenizers against the Rust package `tokenizers`.

Both tokenize the same lines, alternating in one process on one thread, and give
the same as Python lists: the ids of each line, and its tokens with offsets.
`tokenizers` makes ids by `encode_batch_fast`, which computes no offsets, and
tokens with offsets by `encode_batch`. Each pass has a new tokenizer, whose
construction is not timed. Before, the results are compared: they have to be
equal.

    python -m benchmarks.tokenizer_speed \
        --vocab_file=uncased/vocab.txt --text_file=sentences.txt.gz

A tokenizer.json as `--vocab_file` is run by the package on both sides: what our
batches add to it is timed, for lists of words too.

Processor time is compared, which depends less on other load of the machine.
"""

from __future__ import annotations

import gc
import gzip
import operator
import os
import time
from typing import Any, Callable, NamedTuple

import tokenization
from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.cli.errors import InputError, needs_package
from bertlib.data import subword_tokenizer


class Side(NamedTuple):
  """A library: its tokenizers and what they do."""

  name: str
  make: Callable[[str], Any]  # from the kind of result to a tokenizer
  functions: dict[str, Callable]  # of a tokenizer and lines, by kind


def main(_: list[str]) -> None:
  """Compares the results of both, and times them."""
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  opener = gzip.open if FLAGS.text_file.endswith(".gz") else open
  with opener(FLAGS.text_file, "rt", encoding="utf-8") as file:
    lines = [line.rstrip("\n") for line in file if line.strip()]
  name = os.path.basename(FLAGS.text_file)
  kinds = ["ids", "tokens with offsets"]
  work = f"{len(lines):,} lines of {name}"
  if is_json():
    kinds = ["ids", "ids with words", "ids with offsets"]
    is_unigram = own_tokenizer(kinds[0]).is_unigram
    model = "Unigram" if is_unigram else "Byte-level BPE"
    work = f"{model}, {len(lines):,} lines, {name}"
  print("; ".join(check_equal(kind, lines) for kind in kinds), flush=True)

  def seconds_per_line(side):
    for kind in kinds:
      tokenizer = side.make(kind)
      gc.collect()
      start = time.process_time()
      result = side.functions[kind](tokenizer, lines)
      seconds = time.process_time() - start
      del result  # freed after the time is taken
      yield {kind: seconds / len(lines)}

  values = side_by_side.alternate(SIDES, FLAGS.passes, seconds_per_line)
  answer = {"description": "", "versions": side_by_side.versions()}
  answers = {side.name: answer for side in SIDES}
  side_by_side.report(work, answers, values, threads=1)


def is_json() -> bool:
  """True if the vocabulary is a tokenizer.json."""
  return FLAGS.vocab_file.endswith(".json")


def own_tokenizer(_: str) -> tokenization.Tokenizer:
  """Our tokenizer, with an empty cache, or prepared for texts and words."""
  if not is_json():
    return tokenization.FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
  own = subword_tokenizer.load(FLAGS.vocab_file)
  list(own.encode_words([["word"]]))
  return own


def peer_tokenizer(kind: str) -> Any:
  """The tokenizer of the package `tokenizers`, for texts or words."""
  with needs_package(
    "the package tokenizers is missing: pip install tokenizers"
  ):
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers
  if is_json():
    tokenizer = tokenizers.Tokenizer.from_file(FLAGS.vocab_file)
    is_bytes = isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel)
    if kind == "ids with words" and is_bytes:
      tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer
  vocab = tokenization.load_vocab(FLAGS.vocab_file)
  tokenizer = tokenizers.Tokenizer(
    models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=200)
  )
  tokenizer.normalizer = normalizers.BertNormalizer(
    lowercase=FLAGS.do_lower_case
  )
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return tokenizer


OURS = {
  "ids": lambda own, lines: [*own.encode_batch(lines)],
  "tokens with offsets": lambda own, lines: [
    own.tokenize_with_offsets(line) for line in lines
  ],
  "ids with words": lambda own, lines: [
    *own.encode_words(map(str.split, lines))
  ],
  "ids with offsets": lambda own, lines: [*own.encode_with_offsets(lines)],
}
PEER = {
  "ids": lambda other, lines: [
    encoding.ids
    for encoding in other.encode_batch_fast(lines, add_special_tokens=False)
  ],
  "tokens with offsets": lambda other, lines: [
    (encoding.tokens, encoding.offsets)
    for encoding in other.encode_batch(lines, add_special_tokens=False)
  ],
  "ids with words": lambda other, lines: [
    (encoding.ids, encoding.word_ids)
    for encoding in other.encode_batch(
      [*map(str.split, lines)], is_pretokenized=True, add_special_tokens=False
    )
  ],
  "ids with offsets": lambda other, lines: [
    (encoding.ids, encoding.offsets)
    for encoding in other.encode_batch(lines, add_special_tokens=False)
  ],
}
SIDES = (
  Side("ours", own_tokenizer, OURS),
  Side("tokenizers", peer_tokenizer, PEER),
)


def check_equal(kind: str, lines: list[str]) -> str:
  """Compares both libraries; returns what is equal, in words."""
  own, other = (side.functions[kind](side.make(kind), lines) for side in SIDES)
  for line, one, two in zip(lines, own, other):
    if kind != "ids":
      one, two = one[0], two[0]
    if one != two:
      raise InputError(f"{FLAGS.text_file}: {kind} differ for {line!r}")
  num_equal = sum(map(operator.eq, own, other))
  return f"{kind} of {num_equal} of {len(lines)} lines equal"


if __name__ == "__main__":
  side_by_side.run(
    main,
    passes=7,
    vocab_file="Vocabulary, or tokenizer.json.",
    text_file="UTF-8 text, one text per line; may be gzipped.",
    do_lower_case=(True, "Lower-case the text."),
  )
