"""Tests of the offsets of entities: their units, and words that they split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize

from bertlib.tasks.ner import ner_files

pytestmark = pytest.mark.unit


def annotated(*texts):
  """Texts, each with (start, end) of its entities."""
  return [
    ner_files.AnnotatedText(
      text,
      [{"start": start, "end": end, "label": "X"} for start, end in spans],
      f"data.jsonl, line {number}",
    )
    for number, (text, spans) in enumerate(texts, start=1)
  ]


def in_characters(*texts):
  found = ner_files.in_characters(annotated(*texts))
  return [[(span["start"], span["end"]) for span in spans] for spans in found]


JAVASCRIPT = [
  ("🚀 Mira Holt left Port Elne.", [(3, 12), (18, 27)]),
  ("Jon met Mira.", [(0, 3), (8, 12)]),
  ("🚀 🚀 Jon", [(6, 9)]),
]
BYTES = [("Zoë és Béla", [(0, 4), (9, 14)]), ("Jon", [(0, 3)])]


@parametrize(
  "texts, spans, units",
  (
    JAVASCRIPT,
    [[(2, 11), (17, 26)], [(0, 3), (8, 12)], [(4, 7)]],
    "UTF-16 units",
  ),
  (BYTES, [[(0, 3), (7, 11)], [(0, 3)]], "bytes of UTF-8"),
)
def test_other_units_are_read_and_reported(texts, spans, units, caplog):
  assert in_characters(*texts) == spans
  (message,) = caplog.messages
  fault = f"data.jsonl, line 1: offsets of entities are read as {units}"
  assert message.startswith(fault)


@given(st.data())
def test_offsets_in_characters_are_never_converted(data):
  words = st.sampled_from(["Mira", "a", "🚀", "我", "é", "!", "\u0301", "𠀀"])
  words = data.draw(st.lists(words, min_size=1, max_size=8))
  text = " ".join(words)
  spans, start = [], 0
  for word in words:
    if data.draw(st.booleans()):
      spans.append((start, start + len(word)))
    start += len(word) + 1
  assert in_characters((text, spans)) == [spans]


@parametrize(
  "texts, count, entity",
  # One entity is not whole words in UTF-16 units either.
  ([*JAVASCRIPT, ("🚀 Mira", [(3, 5)])], "4 of 6", "ira Holt "),
  ([("Mira Holt", [(0, 8)]), ("Jon", [(0, 3)])], "1 of 2", "Mira Hol"),
  ([("deutschlandweit", [(0, 11)])], "1 of 1", "deutschland"),
  ([("Mira left", [(1, 4)]), ("Jon", [(1, 3)])], "2 of 2", "ira"),
)
def test_entities_that_split_words_are_counted(caplog, texts, count, entity):
  assert in_characters(*texts) == [spans for _, spans in texts]
  (message,) = caplog.messages
  fault = f"line 1: the entity {entity!r} begins or ends within a word"
  assert message.startswith(f"data.jsonl, {fault}")
  assert f"as do {count} entities of the file" in message


@parametrize("span", (0, 4), (0, 5), (4, 10), (5, 9), (10, 13))
def test_whole_words_with_white_space_around_are_not_reported(caplog, span):
  assert in_characters(("Mira left  (x)", [span])) == [[span]]
  assert not caplog.messages


def test_entities_of_white_space_are_counted(caplog):
  in_characters(("a b", [(0, 1)]), ("a   b", [(1, 3), (4, 5)]))
  (message,) = caplog.messages
  assert message == (
    "data.jsonl, line 2: an entity is only white space, and is ignored, as are"
    " 1 of 3 entities of the file"
  )


@parametrize(
  "span",
  {"start": 3, "end": 99, "label": "X"},
  {"start": 3, "end": 3, "label": "X"},
  {"start": 3},
  {"start": "3", "end": "7", "label": "X"},
  {"start": None, "end": 7, "label": "X"},
  {"start": float("nan"), "end": 7, "label": "X"},
  [3, 7, "X"],
  "X",
  None,
)
def test_invalid_entities_are_left_to_the_reader(span):
  texts = [*annotated(*JAVASCRIPT), ("🚀 Mira", [span], "line 4")]
  assert ner_files.in_characters(
    [ner_files.AnnotatedText(*text) for text in texts]
  ) == [text[1] for text in texts]
