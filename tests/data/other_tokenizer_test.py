"""Call sites with a tokenizer whose pairs and special tokens are not BERT's."""

import random

import numpy as np
import pytest
from parametrize import parametrize

import create_pretraining_data
import tokenization
from bertlib.data import model_inputs
from bertlib.tasks.ner import ner
from bertlib.tasks.pretraining import fill_mask
from bertlib.tasks.squad import squad_files, squad_windows

pytestmark = pytest.mark.unit

LETTERS = "abcdefgh"
ENTRIES = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "<mask>"]
VOCAB = {entry: index for index, entry in enumerate(ENTRIES)}
NAMES = {"<": "<s>", "/": "</s>", "M": "<mask>"}


class LetterTokenizer(tokenization.Tokenizer):
  """Each letter is a token; a pair has two separators and one segment."""

  vocab, inv_vocab = VOCAB, dict(enumerate(ENTRIES))
  special_tokens = tokenization.SpecialTokens(
    "<s>", "</s>", "<pad>", "<mask>", "<unk>", 2, 0
  )

  def encode(self, text):
    text = text.replace("<mask>", "M")
    return [VOCAB[NAMES.get(x, x)] for x in text if x in LETTERS + "M"]

  def encode_with_offsets(self, texts):
    for text in texts:
      places = [i for i, letter in enumerate(text) if letter in LETTERS]
      yield self.encode(text), [(i, i + 1) for i in places]

  def encode_words(self, sentences):
    for words in sentences:
      ids = [*map(self.encode, words)]
      yield (
        [number for piece in ids for number in piece],
        [index for index, piece in enumerate(ids) for _ in piece],
      )


TOKENIZER = LetterTokenizer()


def ids(text):
  return [VOCAB[NAMES.get(letter, letter)] for letter in text]


@parametrize(
  "pair, length, expected",
  (("ab", None), 6, "<ab/"),
  (("ab", "c"), 8, "<ab//c/"),
  (("abcd", "efgh"), 10, "<abc//efg/"),
  (("a", "bcdefgh"), 8, "<a//bcd/"),
)
def test_pairs_have_two_separators_and_one_segment(pair, length, expected):
  row = model_inputs.encode_pair(TOKENIZER, *pair, length)
  assert row.input_ids[: row.num_tokens] == ids(expected)
  assert row.segment_ids == [0] * length
  total = sum(len(text or "") for text in pair)
  kept = sum(letter in LETTERS for letter in expected)
  assert row.num_truncated_tokens == total - kept


def test_windows_of_words_are_joined_by_its_special_tokens():
  (window,) = ner.make_windows([ner.from_text("ab - cd")], TOKENIZER, 8)
  assert window.input_ids == ids("<abcd/")
  assert window.words == [-1, 0, -1, 2, -1, -1]


def test_windows_of_questions_have_two_separators_and_one_segment():
  context = "ab cd ef"
  words, _ = squad_files.split_words(context)
  example = squad_files.SquadExample("q", "gh", words, context=context)
  windows = squad_windows.convert_examples_to_windows(
    [example], TOKENIZER, squad_windows.WindowSettings(10, 2, 4, False)
  )
  records = [*squad_windows.window_records(windows, 10, TOKENIZER)]
  assert [r["input_ids"] for r in records] == [
    ids("<gh//abcd/"),
    ids("<gh//cdef/"),
  ]
  assert not np.any([r["segment_ids"] for r in records])
  assert windows.word.tolist()[5:9] == [0, 0, 1, 1]


def test_its_special_tokens_are_in_pretraining_instances():
  documents = [[[*"abc"], [*"def"]], [[*"gh"], [*"ab"]]]
  instances = create_pretraining_data.create_instances_from_document(
    *(documents, 0, 11, 0.0, 0.3, 3, [*LETTERS], random.Random(0)),
    special=TOKENIZER.special_tokens,
    mask_split=(100, 0, 0),
  )
  for instance in instances:
    places = [i for i, t in enumerate(instance.tokens) if t.startswith("<")]
    masked = instance.masked_lm_positions
    assert [p for p in places if instance.tokens[p] == "<mask>"] == masked
    assert instance.tokens[0] == "<s>"
    assert instance.tokens.count("</s>") == 3
    assert not any(instance.segment_ids)


def test_its_mask_is_found_by_its_name():
  line = fill_mask.encode_line(("a<mask>b", None), TOKENIZER, 8)
  assert line.has_masks
  assert line.positions == [2]
