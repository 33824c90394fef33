"""Learns a WordPiece vocabulary from text, or adds words to one.

  python create_vocab.py --input_file='text/*.gz' --output_file=vocab.txt
  python create_vocab.py --add_words=words.txt --vocab_file=vocab.txt \\
    --output_file=larger_vocab.txt

Text is split into words by `tokenization.BasicTokenizer`, as it will be for the
model, so that every entry can occur. The library `tokenizers` then learns the
pieces: starting from single characters, it joins the most frequent pair of
neighbors until the vocabulary is full.

An added word replaces an [unusedN] entry; with --grow, further words are
appended. In a checkpoint, the embedding of a new word is the mean of those of
its previous pieces. The same input gives the same files, bit for bit.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from absl import logging

import tokenization
from bertlib.cli import app, lazy_module, option, terminal
from bertlib.cli.errors import InputError, needs_package
from bertlib.data import vocabulary
from bertlib.io import (
  document_files,
  files,
  folder_lock,
  json_files,
  model_files,
)
from bertlib.io.files import atomic_write
from bertlib.io.output_folders import check_new, folders_for
from bertlib.io.text_files import Encoding
from bertlib.settings.common import TextSettings, lower_case_flag
from tokenization import BasicTokenizer, WordpieceTokenizer

# Imports TensorFlow, which is needed only to add words to a checkpoint.
rewrite = lazy_module.load("bertlib.exchange.rewrite")

# Text to words

# Maximum number of distinct chunks of text to hold unsplit; about 20 MiB.
_MAX_CHUNKS = 2**17


def read_text(
  files: Sequence[str], encoding: Encoding | None = None
) -> Iterator[str]:
  """Reads text line by line, with a progress bar."""
  with terminal.progress(len(files), "files") as bar:
    for path in files:
      for line in document_files.read_lines(path, encoding):
        yield line.decode().rstrip("\n")
      bar.update()


def count_words(lines: Iterable[str], do_lower_case: bool) -> Counter[str]:
  """Counts the words of a text, split by `BasicTokenizer`."""
  tokenizer = BasicTokenizer(do_lower_case)
  words: Counter[str] = Counter()
  # Memory grows with the number of distinct words, not with the text.
  chunks: Counter[str] = Counter()

  def split_chunks():
    for chunk, count in chunks.items():
      for word in tokenizer.tokenize(chunk):
        words[word] += count
    chunks.clear()

  for line in lines:
    chunks.update(tokenization.split_chunks(line))
    if len(chunks) > _MAX_CHUNKS:
      split_chunks()
  split_chunks()
  return words


# Words to a vocabulary

# Minimum number of occurrences of a character or piece.
MIN_FREQUENCY = 2

# The library counts pairs of neighbors in 32 bits, which overflow silently
# (huggingface/tokenizers, issue 437).
_MAX_PAIRS = 2**31 - 1


def learn_vocab(
  words: Mapping[str, int],
  vocab_size: int,
  min_frequency: int = MIN_FREQUENCY,
  # Number of characters to keep, the most frequent; None for all.
  limit_alphabet: int | None = None,
) -> list[str]:
  """Learns a WordPiece vocabulary; entries are in the order learned."""
  # Any word made of the alphabet's characters can be split into entries: each
  # character has an entry for the beginning of a word and, unless it is always
  # a word of its own, one for the inside ("##x").
  tokenizers = _import_tokenizers()
  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  alphabet = _alphabet(words, min_frequency, limit_alphabet)
  if not alphabet:
    raise InputError(
      f"--input_file: no character of the text occurs {min_frequency} times."
      " Give more text"
    )
  if len(special + alphabet) > vocab_size:
    raise InputError(
      f"--vocab_size={vocab_size} is too small: the special entries are"
      f" {len(special)}, the characters of the text {len(alphabet)}. Give"
      f" {len(special + alphabet)} or more"
    )
  # A word with other characters is [UNK] as a whole: do not learn from it.
  split = WordpieceTokenizer(dict.fromkeys(alphabet, 0)).tokenize
  total = sum(words.values())
  words = {w: count for w, count in words.items() if split(w) != ["[UNK]"]}
  logging.info(
    "%.3f%% of the words become [UNK]", 100 - 100 * sum(words.values()) / total
  )
  scale = 1 + sum((len(w) - 1) * n for w, n in words.items()) // _MAX_PAIRS
  if scale > 1:
    logging.info("Counts are divided by %d, to fit into 32 bits", scale)

  def copies():
    for word, count in words.items():
      for done in range(0, count // scale, 1000):
        yield f"{word} " * min(1000, count // scale - done)

  learner = tokenizers.Tokenizer(tokenizers.models.WordPiece())
  learner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  trainer = tokenizers.trainers.WordPieceTrainer(
    vocab_size=vocab_size,
    min_frequency=max(min_frequency // scale, 1),
    # Of equally frequent pairs the one with the smallest ids is joined first.
    # Without given ids, the library numbers characters differently in each run.
    special_tokens=special + alphabet,
    show_progress=sys.stderr.isatty(),
  )
  learner.train_from_iterator(copies(), trainer)
  ids = learner.get_vocab(with_added_tokens=False)
  return sorted(ids, key=ids.get)


def _import_tokenizers():
  with needs_package(
    "learning a vocabulary needs the package tokenizers, below 1.0: pip install"
    " 'tokenizers<1'"
  ):
    import tokenizers
    import tokenizers.trainers  # not in release candidates of 1.0
  return tokenizers


def _alphabet(
  words: Mapping[str, int], min_frequency: int, limit: int | None
) -> list[str]:
  """Entries of single characters, in the order of code points."""
  counts: Counter[str] = Counter()
  for word, count in words.items():
    for char in word:
      counts[char] += count
  chars = [char for char, count in counts.items() if count >= min_frequency]
  chars = sorted(sorted(chars, key=lambda c: (-counts[c], c))[:limit])
  split = BasicTokenizer(do_lower_case=False).tokenize
  return chars + [f"##{char}" for char in chars if len(split(2 * char)) == 1]


# Adding words to a vocabulary

_UNUSED = re.compile(r"\[unused\d+\]")


def read_vocab(
  path: str, do_lower_case: bool, vocab_size: int | None = None
) -> dict[str, int]:
  """Reads a vocabulary to which words can be added, without duplicates."""
  vocab = vocabulary.load(path)
  vocabulary.check(path, vocab, vocab_size)
  if list(vocab.values()) != list(range(len(vocab))):
    raise InputError(f"{path}: has an entry twice; make each line different")
  if do_lower_case:
    vocabulary.check_case(path, vocab, do_lower_case, min_words=0)
  return vocab


def normalize_words(
  lines: Iterable[str], do_lower_case: bool
) -> tuple[list[str], list[str]]:
  """Distinct words by `BasicTokenizer`, and lines that are not one word."""
  tokenizer = BasicTokenizer(do_lower_case)
  max_length = WordpieceTokenizer({}).max_input_chars_per_word
  words, rejected = {}, []
  for line in map(str.strip, lines):
    split = tokenizer.tokenize(line)
    if len(split) == 1 and len(split[0]) <= max_length:
      words[split[0]] = None
    # Not a single word, or too long for `WordpieceTokenizer`.
    elif line:
      rejected.append(line)
  return list(words), rejected


def insert_words(
  vocab: Mapping[str, int], words: Iterable[str], grow: bool
) -> tuple[list[str], dict[int, list[int]]]:
  """Replaces [unusedN] entries by new words, in order, then appends words."""
  # The ids of all other entries stay the same. Also returns the ids of the
  # pieces that `vocab` splits each new word into, by its id.
  new = [word for word in words if word not in vocab]
  ids = [index for entry, index in vocab.items() if _UNUSED.fullmatch(entry)]
  missing = len(new) - len(ids)
  if missing > 0 and not grow:
    raise InputError(
      f"--add_words: {len(new)} words are new, and the vocabulary has"
      f" {len(ids)} [unusedN] entries. Leave out {missing} words, or add"
      " --grow to append them"
    )
  entries = [*vocab, *[""] * missing]
  ids += range(len(vocab), len(entries))
  split = WordpieceTokenizer(vocab).tokenize
  pieces = {}
  for index, word in zip(ids, new):
    entries[index] = word
    pieces[index] = [vocab[piece] for piece in split(word)]
  return entries, pieces


# The command line

# Flags of adding words, and those of them that come together.
_MODEL_FLAGS = ("init_checkpoint", "output_checkpoint", "bert_config_file")
_ADD_FLAGS = ("vocab_file", "grow", *_MODEL_FLAGS)


@dataclasses.dataclass(frozen=True)
class VocabularySettings(option.CommandSettings):
  """Flags of create_vocab.py."""

  REQUIRED = ("output_file",)
  EXAMPLE = (
    "python create_vocab.py --input_file=text.txt --output_file=vocab.txt"
  )
  SECTION = "data"

  input_file: str | None = option.path(
    None,
    "Text files to train the vocabulary on, plain or .gz: names or glob"
    " patterns, separated by commas.",
    basic=True,
  )
  output_file: str | None = option.path(
    None,
    "Vocabulary file to write.",
    section="output",
    basic=True,
    is_output=True,
  )
  overwrite: bool = option.boolean(
    False,
    "Replace existing files: --output_file, --output_checkpoint and the"
    " bert_config.json beside it.",
    section="output",
    basic=True,
  )
  do_lower_case: bool = lower_case_flag()
  vocab_size: int = option.integer(
    30522,
    "Maximum number of vocabulary entries.",
    option.AT_LEAST_1,
    section="training",
    basic=True,
  )
  add_words: str | None = option.path(
    None,
    "File with words, one per line, to add to --vocab_file. They replace its"
    " [unusedN] entries.",
    basic=True,
  )
  vocab_file: str | None = option.path(
    None,
    "Existing vocabulary that --add_words extends.",
    section="model",
    basic=True,
  )
  grow: bool = option.boolean(
    False,
    "Append the words of --add_words for which no [unusedN] entry is left.",
    basic=True,
  )
  init_checkpoint: str | None = option.path(
    None,
    "Checkpoint of the model of --vocab_file, to add embeddings of the new"
    " words to. Each is the mean of the embeddings of its old pieces, with"
    " Adam moments of 0; all other values are copied.",
    section="model",
    basic=True,
  )
  output_checkpoint: str | None = option.path(
    None,
    "Checkpoint to write, with the embeddings of the new words. Its config,"
    " bert_config.json, is written into the same folder.",
    section="output",
    basic=True,
    is_output=True,
  )
  bert_config_file: str | None = option.path(
    None, "Config of --init_checkpoint.", section="model", basic=True
  )
  text: TextSettings = option.group(TextSettings)
  given: frozenset[str] = frozenset()  # flags on the command line

  @property
  def output_config(self) -> str | None:
    """The config to write beside --output_checkpoint."""
    if not self.output_checkpoint:
      return None
    folder = os.path.dirname(self.output_checkpoint)
    return os.path.join(folder, model_files.CONFIG)

  def check(self) -> None:
    """Refuses flags of the other mode, and a part of those of a model."""
    learns = self.input_file is not None
    if learns != (self.add_words is None):
      raise InputError(
        "give either --input_file, to learn a vocabulary from, or --add_words,"
        " to add to one"
      )
    unused, mode = ("vocab_size",), "input_file"
    if learns:
      unused, mode = _ADD_FLAGS, "add_words"
    for name in unused:
      if name in self.given:
        raise InputError(f"--{name} goes with --{mode}; leave it out")
    if not learns and self.vocab_file is None:
      raise InputError("--add_words needs --vocab_file, to add them to")
    missing = [name for name in _MODEL_FLAGS if not getattr(self, name)]
    if missing and len(missing) < len(_MODEL_FLAGS):
      raise InputError(f"to add to a model, give --{', --'.join(missing)} too")


def define_flags() -> None:
  """Defines the flags."""
  option.define(VocabularySettings)


def main(_) -> None:
  """Learns from --input_file, or adds --add_words to --vocab_file."""
  settings = option.from_flags(VocabularySettings)
  outputs = output_files(settings).values()
  with folders_for(outputs), folder_lock.lock_files(outputs):
    make, names = _add, [settings.add_words]
    if settings.input_file is not None:
      _import_tokenizers()  # fails before the text is read
      make, names = _learn, files.split_names(settings.input_file)
    paths = files.find_files(names)
    check_outputs(settings, paths)
    make(settings, read_text(paths, settings.text.codec))


def output_files(settings: VocabularySettings) -> dict[str, str]:
  """Files to write by flag; of a checkpoint, its index."""
  checkpoint = settings.output_checkpoint
  found = {
    "output_file": settings.output_file,
    "output_config": settings.output_config,
    "output_checkpoint": checkpoint and f"{checkpoint}.index",
  }
  return {flag: path for flag, path in found.items() if path}


def check_outputs(
  settings: VocabularySettings, text_paths: Sequence[str]
) -> None:
  """Refuses outputs that are inputs and, without --overwrite, existing ones."""
  outputs = output_files(settings)
  files.check_outputs(
    [*outputs.values(), *files.checkpoint_files(settings.output_checkpoint)],
    [
      *text_paths,
      settings.vocab_file,
      settings.bert_config_file,
      *files.checkpoint_files(settings.init_checkpoint),
    ],
  )
  for flag, path in outputs.items():
    check_new(flag, path, settings.overwrite)


def _learn(settings: VocabularySettings, lines: Iterable[str]) -> None:
  words = count_words(lines, settings.do_lower_case)
  if not words:
    raise InputError(f"{settings.input_file}: has no words")
  entries = learn_vocab(words, settings.vocab_size)
  with atomic_write(settings.output_file) as file:
    file.write("".join(f"{entry}\n" for entry in entries))
  logging.info("%s: %d entries", settings.output_file, len(entries))
  if len(entries) < settings.vocab_size:
    logging.warning(
      "No more pieces occur %d times: the model's vocab_size must be %d, not"
      " %d",
      MIN_FREQUENCY,
      len(entries),
      settings.vocab_size,
    )


def _add(settings: VocabularySettings, lines: Iterable[str]) -> None:
  has_model = bool(settings.init_checkpoint)
  config = {}
  if has_model:
    config = json_files.read(settings.bert_config_file, {"vocab_size": int})
  vocab = read_vocab(
    settings.vocab_file, settings.do_lower_case, config.get("vocab_size")
  )
  words, rejected = normalize_words(lines, settings.do_lower_case)
  if not words:
    raise InputError(f"{settings.add_words}: has no words that can be entries")
  entries, pieces = insert_words(vocab, words, settings.grow)

  with atomic_write(settings.output_file) as file:
    file.write("".join(f"{entry}\n" for entry in entries))
    if has_model:
      app.import_tensorflow()
      tensors = rewrite.read_with_rows(
        settings.init_checkpoint, config["vocab_size"], pieces, len(entries)
      )
      config["vocab_size"] = max(config["vocab_size"], len(entries))
      with atomic_write(settings.output_config) as config_file:
        config_file.write(json_files.pretty(config))
        rewrite.write_checkpoint(settings.output_checkpoint, tensors)

  appended = len(entries) - len(vocab)
  logging.info(
    "Of %d words, %d were entries, %d replaced [unusedN], %d were appended",
    len(words),
    len(words) - len(pieces),
    len(pieces) - appended,
    appended,
  )
  _warn("lines are not a single word and were skipped", rejected)
  unknown = [entries[i] for i, ids in pieces.items() if ids == [vocab["[UNK]"]]]
  _warn("words were [UNK] and start from its embedding", unknown)
  logging.info("%s: %d entries", settings.output_file, len(entries))


def _warn(message: str, words: Sequence[str]) -> None:
  if words:
    logging.warning("%d %s: %s", len(words), message, "; ".join(words))


if __name__ == "__main__":
  app.parse_flags(VocabularySettings)
  app.run(main)
