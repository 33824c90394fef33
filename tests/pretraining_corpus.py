"""Texts in which every word piece is unique, and their records.

Also a pytest plugin with the fixtures `vocab_file` and `text_file`.
"""

from collections import Counter

import pytest
from hypothesis import strategies as st

from bertlib.tasks.pretraining import pretraining_blocks, pretraining_text
from bertlib.tasks.pretraining.recipe import Recipe

# Words of up to three pieces, each unique to its word: w0000, ##w0001, ##w0002;
# and as many Chinese characters.
NUM_PIECES = 900
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LATIN = [f"{'##' if n % 3 else ''}w{n:04}" for n in range(NUM_PIECES)]
CHINESE = [chr(0x4E00 + n) for n in range(NUM_PIECES)]
VOCAB = SPECIAL + LATIN + CHINESE
_, _, CLS, SEP, MASK = range(len(SPECIAL))


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
  path.write_text("\n".join(VOCAB), encoding="utf-8")
  return str(path)


# Documents: sentences: words: numbers of pieces.
_SENTENCE = st.lists(st.integers(1, 3), min_size=1, max_size=6)
_DOCUMENT = st.lists(_SENTENCE, min_size=1, max_size=4)
DOCUMENTS = st.lists(_DOCUMENT, min_size=1, max_size=4)


class Corpus:
  """A text in which every piece is unique; its documents are as in `DOCUMENTS`.

  Attributes:
    lines: the text.
    positions: piece id -> (document, position in the document, word).
  """

  def __init__(self, documents, entries=LATIN):
    self.lines, self.positions, word = [], {}, 0
    for number, document in enumerate(documents):
      position = 0
      for sentence in document:
        words = []
        for length in sentence:
          pieces = entries[3 * word : 3 * word + length]
          words.append("".join(pieces).replace("##", ""))
          for piece in pieces:
            self.positions[VOCAB.index(piece)] = number, position, word
            position += 1
          word += 1
        self.lines.append(f"{' '.join(words)}\n".encode())
      self.lines.append(b"\n")


def make(corpus, vocab_file, **options):
  """Creates the records of a corpus; returns them and the counts."""
  recipe, counts = Recipe(vocab_file=vocab_file, **options), Counter()
  tokenizer = pretraining_text.load_tokenizer(recipe)
  passes = pretraining_blocks.create_block_records(
    recipe, tokenizer, 0, corpus.lines, counts
  )
  return [parsed(record) for records in passes for record in records], counts


def read_file(path):
  """The serialized records of a file."""
  # Imported here: pytest-xdist's controller process does not need TensorFlow.
  import tensorflow as tf

  return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def parsed(serialized):
  """The features of a record as lists, by name."""
  import tensorflow as tf

  feature = tf.train.Example.FromString(serialized).features.feature
  return {
    name: list(values.int64_list.value or values.float_list.value)
    for name, values in feature.items()
  }


def masks(record):
  """The original token id at each masked position."""
  number = int(sum(record["masked_lm_weights"]))
  positions, ids = record["masked_lm_positions"], record["masked_lm_ids"]
  return dict(zip(positions[:number], ids[:number]))


def tokens(record):
  """The token ids of a record before masking."""
  used = sum(record["input_mask"])
  ids = record["input_ids"][:used]
  for position, token in masks(record).items():
    ids[position] = token
  return ids


def parts(record):
  """The token ids of both segments, without [CLS] and [SEP]."""
  ids = tokens(record)
  middle = ids.index(SEP)
  return ids[1:middle], ids[middle + 1 : -1]


def assert_share(count, total, share):
  """Asserts a count within five standard deviations of `share * total`."""
  deviation = (total * share * (1 - share)) ** 0.5
  assert abs(count - total * share) < 5 * deviation


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
  """Twenty documents of six sentences of two to three words."""
  path = tmp_path_factory.mktemp("text") / "text.txt"
  lines = Corpus([[[1, 2], [3, 1, 2]] * 3 for _ in range(20)]).lines
  path.write_bytes(b"".join(lines))
  return str(path)
