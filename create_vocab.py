"""Learns a WordPiece vocabulary from text, or adds words to one.

  python create_vocab.py --input_file='text/*.gz' --output_file=vocab.txt
  python create_vocab.py --add_words=words.txt --vocab_file=vocab.txt \\
    --output_file=larger_vocab.txt

Text is split by `tokenization.BasicTokenizer`, as it will be for the model, so
that no entry waits for what never comes. The library `tokenizers` then finds
the pieces: from single characters on, it joins the two neighbours that come
together most often.

An added word takes an [unusedN] place, or with --grow a new one at the end;
its embedding in a checkpoint starts as the mean of those of the pieces that it
was cut into. The same input gives the same files, bit for bit.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.vocabulary import VocabularySettings

  app.parse_flags(VocabularySettings)

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

import tokenization
from bertlib import app, files, folder_lock, lazy_module, text_files
from bertlib.checkpoints import config_schema
from bertlib.data import vocabulary
from bertlib.errors import InputError
from bertlib.files import atomic_write
from bertlib.settings import option
from bertlib.settings.vocabulary import VocabularySettings
from tokenization import BasicTokenizer, WordpieceTokenizer

# With it comes TensorFlow, which only a model with new words needs.
embeddings = lazy_module.load("bertlib.checkpoints.embeddings")

# Text to words

# Distinct pieces between white space that wait to be split; some 20 MiB.
_MAX_CHUNKS = 2**17


def read_text(
  files: Sequence[str], encoding: text_files.Encoding = text_files.UTF8
) -> Iterator[str]:
  """Reads text line by line, with a progress bar.

  Args:
    files: unpacked if the name ends in `.gz`.
    encoding: of the files.

  Yields:
    The lines, without their ends.

  Raises:
    InputError: see `text_files.read_lines`.
  """
  with app.progress(len(files), "files") as bar:
    for path in files:
      for line in text_files.read_lines(path, encoding):
        yield line.rstrip("\n")
      bar.update()


def count_words(lines: Iterable[str], do_lower_case: bool) -> Counter[str]:
  """Counts the words of a text, as `BasicTokenizer` gives them.

  Takes memory for the distinct words, however long the text is.
  """
  tokenizer = BasicTokenizer(do_lower_case)
  words: Counter[str] = Counter()
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

# The library counts neighbours in 32 bits, and beyond goes wrong unseen
# (huggingface/tokenizers, issue 437).
_MAX_PAIRS = 2**31 - 1


def learn_vocab(
  words: Mapping[str, int],
  vocab_size: int,
  min_frequency: int = 2,
  num_unused: int = 0,
  limit_alphabet: int | None = None,
) -> list[str]:
  """Learns which pieces of words are worth an entry.

  Any word of the alphabet's characters can be cut into entries: each character
  has one for the beginning of a word and, unless it is a word by itself, one
  for the rest.

  Args:
    words: how often each comes.
    vocab_size: entries at most; fewer where the text has no more pieces.
    min_frequency: how often a character or piece comes at least.
    num_unused: [unusedN] places, after [PAD].
    limit_alphabet: how many characters are kept, the most frequent; None for
      all.

  Returns:
    The entries: special ones, characters, pieces as they were found.

  Raises:
    InputError: the characters do not fit into `vocab_size`, or there are none;
      or `tokenizers` is not installed.
  """
  tokenizers = _import_tokenizers()
  special = ["[PAD]", *(f"[unused{n}]" for n in range(num_unused))]
  special += ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  alphabet = _alphabet(words, min_frequency, limit_alphabet)
  if not alphabet:
    raise InputError(
      f"--min_frequency={min_frequency}: no character of the text comes as"
      " often; lower it, or give more text"
    )
  if len(special + alphabet) > vocab_size:
    raise InputError(
      f"--vocab_size={vocab_size} is too small: the special entries are"
      f" {len(special)}, the characters of the text {len(alphabet)}. Give"
      f" {len(special + alphabet)} or more, or keep the most frequent"
      " characters with --limit_alphabet"
    )
  # A word with other characters is [UNK], whatever its pieces.
  cut = WordpieceTokenizer(dict.fromkeys(alphabet, 0)).tokenize
  words = {w: count for w, count in words.items() if cut(w) != ["[UNK]"]}
  scale = 1 + sum((len(w) - 1) * n for w, n in words.items()) // _MAX_PAIRS
  if scale > 1:
    logging.info("Counts are divided by %d, which the library needs", scale)

  def copies():
    for word, count in words.items():
      for done in range(0, count // scale, 1000):
        yield f"{word} " * min(1000, count // scale - done)

  learner = tokenizers.Tokenizer(tokenizers.models.WordPiece())
  learner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  trainer = tokenizers.trainers.WordPieceTrainer(
    vocab_size=vocab_size,
    min_frequency=max(min_frequency // scale, 1),
    # Of equally frequent pairs that of the smallest ids is joined first.
    # Left to itself, the library numbers the characters anew in each run.
    special_tokens=special + alphabet,
    show_progress=sys.stderr.isatty(),
  )
  learner.train_from_iterator(copies(), trainer)
  ids = learner.get_vocab(with_added_tokens=False)
  return sorted(ids, key=ids.get)


def _import_tokenizers():
  try:
    import tokenizers
  except ImportError as error:
    raise InputError(
      "learning a vocabulary needs the package tokenizers:"
      " pip install -e .[vocab]"
    ) from error
  return tokenizers


def _alphabet(
  words: Mapping[str, int], min_frequency: int, limit: int | None
) -> list[str]:
  """The entries of single characters, in order of code points."""
  counts: Counter[str] = Counter()
  for word, count in words.items():
    for char in word:
      counts[char] += count
  chars = [char for char, count in counts.items() if count >= min_frequency]
  chars = sorted(sorted(chars, key=lambda c: (-counts[c], c))[:limit])
  split = BasicTokenizer(do_lower_case=False).tokenize
  return chars + [f"##{char}" for char in chars if len(split(2 * char)) == 1]


class Coverage(NamedTuple):
  """How a vocabulary cuts a text.

  Attributes:
    num_words: how many the text has.
    whole: share of them that are one entry.
    pieces: entries a word, [UNK] among them.
    unknown: share of words that are [UNK].
  """

  num_words: int
  whole: float
  pieces: float
  unknown: float


def measure_coverage(
  entries: Iterable[str], words: Mapping[str, int]
) -> Coverage:
  """Cuts `words`, each as often as it comes, into `entries`."""
  cut = WordpieceTokenizer(dict.fromkeys(entries, 0)).tokenize
  whole = num_pieces = unknown = 0
  for word, count in words.items():
    pieces = cut(word)
    whole += count * (pieces == [word])
    unknown += count * (pieces == ["[UNK]"])
    num_pieces += count * len(pieces)
  total = sum(words.values())
  return Coverage(total, whole / total, num_pieces / total, unknown / total)


# Words into a vocabulary

_UNUSED = re.compile(r"\[unused\d+\]")


def read_vocab(
  path: str, do_lower_case: bool, vocab_size: int | None = None
) -> dict[str, int]:
  """Reads a vocabulary to which words can be added.

  Args:
    path: one entry a line.
    do_lower_case: whether the words will be lower-cased.
    vocab_size: rows of the model's embedding table; None: not checked.

  Returns:
    The id of each entry, in order and without gaps.

  Raises:
    InputError: it is no vocabulary, is too large, has an entry twice, or has
      capital letters for words that have none.
  """
  vocab = vocabulary.load(path)
  vocabulary.check(path, vocab, vocab_size)
  if list(vocab.values()) != list(range(len(vocab))):
    raise InputError(f"{path}: has an entry twice; make each line different")
  if do_lower_case:
    vocabulary.check_case(path, vocab, do_lower_case)
  return vocab


def normalize_words(
  lines: Iterable[str], do_lower_case: bool
) -> tuple[list[str], list[str]]:
  """Puts words, one a line, as `BasicTokenizer` will give them.

  Returns:
    The words, each once; and the lines that are not one word to it, or one
    too long for `WordpieceTokenizer`. Blank lines are neither.
  """
  tokenizer = BasicTokenizer(do_lower_case)
  longest = WordpieceTokenizer({}).max_input_chars_per_word
  words, refused = {}, []
  for line in map(str.strip, lines):
    split = tokenizer.tokenize(line)
    if len(split) == 1 and len(split[0]) <= longest:
      words[split[0]] = None
    elif line:
      refused.append(line)
  return list(words), refused


def place_words(
  vocab: Mapping[str, int], words: Iterable[str], grow: bool
) -> tuple[list[str], dict[int, list[int]]]:
  """Puts words in [unusedN] places, in order, and then behind the last entry.

  No other entry changes its id. Words that are entries stay as they are.

  Args:
    vocab: id of each entry, in order and without gaps.
    words: as `normalize_words` gives them.
    grow: whether there may be more entries than before.

  Returns:
    All entries; and for the id of each new word, the ids of the pieces that
    `vocab` had for it.

  Raises:
    InputError: there are too few places, and `grow` is false.
  """
  new = [word for word in words if word not in vocab]
  places = [place for entry, place in vocab.items() if _UNUSED.fullmatch(entry)]
  missing = len(new) - len(places)
  if missing > 0 and not grow:
    raise InputError(
      f"--add_words: {len(new)} words are new, and the vocabulary has"
      f" {len(places)} [unusedN] places. Leave out {missing} words, or add"
      " --grow to append them"
    )
  entries = [*vocab, *[""] * missing]
  places += range(len(vocab), len(entries))
  cut = WordpieceTokenizer(vocab).tokenize
  pieces = {}
  for place, word in zip(places, new):
    entries[place] = word
    pieces[place] = [vocab[piece] for piece in cut(word)]
  return entries, pieces


# Words into a checkpoint


def read_config(path: str) -> dict[str, Any]:
  """Reads a `bert_config.json` as it is.

  Raises:
    InputError: it is not one.
  """
  return config_schema.read(path, required=["vocab_size"])


# The command line

_TO_LEARN = ("vocab_size", "min_frequency", "num_unused", "limit_alphabet")
_OF_MODEL = (
  "init_checkpoint",
  "output_checkpoint",
  "bert_config_file",
  "output_config",
)
_TO_ADD = ("vocab_file", "grow", *_OF_MODEL)


def define_flags() -> None:
  """Defines the flags."""
  option.define(VocabularySettings)


def main(_) -> None:
  """Learns from --input_file, or adds --add_words to --vocab_file."""
  settings = option.from_flags(VocabularySettings)
  if (settings.input_file is None) == (settings.add_words is None):
    raise InputError(
      "give either --input_file, to learn a vocabulary from, or --add_words,"
      " to add to one"
    )
  learns = settings.input_file is not None
  others, mode = (_TO_ADD, "add_words") if learns else (_TO_LEARN, "input_file")
  for name in others:
    if name in settings.given:
      raise InputError(f"--{name} goes with --{mode}; leave it out")
  with folder_lock.lock_files([settings.output_file]):
    if learns:
      _learn(settings)
    else:
      _add(settings)


def _learn(settings: VocabularySettings) -> None:
  _import_tokenizers()  # better missed before the text is read
  paths = files.find_files(files.split_names(settings.input_file))
  files.check_outputs([settings.output_file], paths)
  lines = read_text(paths, text_files.encoding_of(settings.text))
  words = count_words(lines, settings.do_lower_case)
  if not words:
    raise InputError(f"{settings.input_file}: has no words")
  entries = learn_vocab(
    words, **{name: getattr(settings, name) for name in _TO_LEARN}
  )
  with atomic_write(settings.output_file) as file:
    file.write("".join(f"{entry}\n" for entry in entries))
  logging.info("%s: %d entries", settings.output_file, len(entries))
  if len(entries) < settings.vocab_size:
    logging.warning(
      "No more pieces come %d times: the model's vocab_size has to be %d, not"
      " %d",
      settings.min_frequency,
      len(entries),
      settings.vocab_size,
    )
  coverage = measure_coverage(entries, words)
  logging.info(
    "Of %d words, %d different ones, %.2f%% are one piece and %.3f%% [UNK];"
    " %.3f pieces a word",
    coverage.num_words,
    len(words),
    100 * coverage.whole,
    100 * coverage.unknown,
    coverage.pieces,
  )


def _add(settings: VocabularySettings) -> None:
  if settings.vocab_file is None:
    raise InputError("--add_words needs --vocab_file, to add them to")
  missing = [name for name in _OF_MODEL if not getattr(settings, name)]
  has_model = len(missing) < len(_OF_MODEL)
  if has_model and missing:
    raise InputError(f"to add to a model, give --{', --'.join(missing)} too")
  paths = files.find_files([settings.add_words])
  check_overwriting(settings, paths)
  config = read_config(settings.bert_config_file) if has_model else {}
  vocab = read_vocab(
    settings.vocab_file, settings.do_lower_case, config.get("vocab_size")
  )
  lines = read_text(paths, text_files.encoding_of(settings.text))
  words, refused = normalize_words(lines, settings.do_lower_case)
  if not words:
    raise InputError(f"{settings.add_words}: has no words that can be entries")
  entries, pieces = place_words(vocab, words, settings.grow)

  with atomic_write(settings.output_file) as file:
    file.write("".join(f"{entry}\n" for entry in entries))
    if has_model:
      tensors = embeddings.read_checkpoint(
        settings.init_checkpoint, config["vocab_size"]
      )
      tensors = embeddings.add_vocab_rows(tensors, pieces, len(entries))
      config["vocab_size"] = len(tensors[embeddings.WORD_EMBEDDINGS])
      with atomic_write(settings.output_config) as config_file:
        text = json.dumps(config, indent=2, ensure_ascii=False)
        config_file.write(f"{text}\n")
        embeddings.write_checkpoint(settings.output_checkpoint, tensors)

  appended = len(entries) - len(vocab)
  logging.info(
    "Of %d words %d were entries, %d took [unusedN] places, %d came behind",
    len(words),
    len(words) - len(pieces),
    len(pieces) - appended,
    appended,
  )
  _warn("lines are never one word of a text, and left out", refused)
  unknown = [entries[p] for p, ids in pieces.items() if ids == [vocab["[UNK]"]]]
  _warn("words were [UNK], and start from its embedding", unknown)
  logging.info("%s: %d entries", settings.output_file, len(entries))
  if has_model:
    logging.info(
      "%s: %d tensors, vocab_size %d",
      settings.output_checkpoint,
      len(tensors),
      config["vocab_size"],
    )


def check_overwriting(
  settings: VocabularySettings, word_files: Sequence[str]
) -> None:
  """Refuses outputs that are inputs.

  Args:
    settings: names the outputs and the other inputs.
    word_files: those of --add_words.
  """
  outputs = [settings.output_file, settings.output_config]
  if settings.output_checkpoint:
    outputs += files.checkpoint_files(settings.output_checkpoint)
  files.check_outputs(
    filter(None, outputs),
    [
      *word_files,
      settings.vocab_file,
      settings.bert_config_file,
      *files.checkpoint_files(settings.init_checkpoint),
    ],
  )


def _warn(what: str, which: Sequence[str]) -> None:
  if which:
    logging.warning("%d %s: %s", len(which), what, "; ".join(which))


if __name__ == "__main__":
  app.run(main)
