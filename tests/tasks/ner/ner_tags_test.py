"""Tests of tags: their notations, and the entities that they mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize
from refused import assert_refused
from seqeval.metrics.sequence_labeling import get_entities

from bertlib.cli.errors import InputError
from bertlib.tasks.ner import ner
from bertlib.tasks.ner.ner import Entity

pytestmark = pytest.mark.unit
TAGS = ["O", *(f"{head}-{kind}" for head in "BIES" for kind in "XY")]
TAGS = st.lists(st.sampled_from(TAGS), max_size=12)


def read(tags):
  """Tags in BIO or BIOES for tags of which each is in a line of its own."""
  meanings = ner.read_tags({tag: f"line {tag}" for tag in tags})
  return [meanings[tag] for tag in tags]


HEADS = {
  **dict.fromkeys(("BI", "bi"), "BI"),
  **dict.fromkeys(("BIES", "BILU", "BMES", "BMEW"), "BIES"),
}
NOTATIONS = [
  *("{}_PER", "{}:PER", "{}.PER", "{}－PER", "{} PER"),
  *("PER-{}", "PER_{}", "PER/{}"),
]


@parametrize("notation", *NOTATIONS)
@parametrize("heads", *HEADS)
def test_other_notations_are_read(notation, heads):
  tags = read([*map(notation.format, heads), "o" if heads.islower() else "O"])
  assert tags == [*(f"{head}-PER" for head in HEADS[heads]), "O"]


@parametrize(
  "tags, standard",
  ("B-PER I-LOC O", "B-PER I-LOC O"),
  ("I-PER O", "I-PER O"),
  ("B-creative-work I-creative-work", "B-creative-work I-creative-work"),
  ("B-LOC.city S-A/B-cell", "B-LOC.city S-A/B-cell"),
  ("B-X M-X E-X W-Y", "B-X I-X E-X S-Y"),
  ("U-X B-Y L-Y", "S-X B-Y E-Y"),
  ("b-per i-per O", "B-per I-per O"),
  ("B I O", "B-ENTITY I-ENTITY O"),
  ("B M E S", "B-ENTITY I-ENTITY E-ENTITY S-ENTITY"),
  ("PER LOC O", "PER LOC O"),
  ("E_MAIL PHONE O", "E_MAIL PHONE O"),
  ("BN NN IN", "BN NN IN"),
  ("O", "O"),
)
def test_the_meaning_of_tags(tags, standard):
  assert read(tags.split()) == standard.split()


@parametrize(
  "tags, uncertain",
  ("B_CELL T_CELL", "B_CELL"),
  ("LOC I_PER O", "I_PER"),
  ("B-PER I_PER", "I_PER"),
  ("B_PER I-PER", "B_PER"),
  ("b-per O", "b-per"),
  ("Vitamin-B Vitamin-E O", "Vitamin-B"),
  ("B O", "B"),
  ("BPER IPER O", "BPER"),
  ("PERB PERI", "PERB"),
  ("Begin-PER Inside-PER", "Begin-PER"),
  ("PER_begin PER_inside O", "PER_begin"),
  ("[PER O", "[PER"),
  ("PER - O", "-"),
  ("PER _", "_"),
  ("0 PER", "0"),
)
def test_a_tag_without_certain_meaning_is_refused(tags, uncertain):
  with pytest.raises(InputError) as raised:
    read(tags.split())
  fault = f"line {uncertain}: the tag {uncertain!r} has no certain meaning"
  assert str(raised.value).startswith(fault)


@parametrize("tag", "B-PER|I-ORG", "B-PER, B-ORG", "B_X;I_Y")
def test_two_tags_of_a_word_are_refused(tag):
  assert_refused(r"more than one tag", read, [tag, "O"])


@given(TAGS)
def test_entities_of_any_tags_equal_those_of_seqeval(tags):
  entities = [(e.label, e.start, e.end - 1) for e in ner.tags_to_entities(tags)]
  assert entities == get_entities(tags)


@st.composite
def entity_lists(draw):
  """Adjacent and separate entities, and the number of words."""
  entities, end = [], 0
  for _ in range(draw(st.integers(0, 4))):
    start = end + draw(st.integers(0, 2))
    end = start + draw(st.integers(1, 3))
    entities.append(Entity(draw(st.sampled_from("XY")), start, end))
  return entities, end + draw(st.integers(0, 2))


@given(entity_lists(), st.sampled_from(["BIO", "BIOES"]))
def test_entities_survive_conversion_to_tags(drawn, scheme):
  entities, num_words = drawn
  tags = ner.entities_to_tags(entities, num_words, scheme)
  assert ner.tags_to_entities(tags) == entities


@parametrize(
  "tags, entities",
  (["X", "X", "O", "Y"], [Entity("X", 0, 2), Entity("Y", 3, 4)]),
  (["U-X", "B-Y", "L-Y"], [Entity("X", 0, 1), Entity("Y", 1, 3)]),
  (["U-X", "I-X"], [Entity("X", 0, 1), Entity("X", 1, 2)]),
)
def test_other_schemes_and_invalid_tags_are_accepted(tags, entities):
  assert ner.tags_to_entities(tags) == entities


@pytest.mark.parametrize(
  "tags, scheme",
  [(["O", "B-X"], "BIO"), (["S-X"], "BIOES"), (["X", "O"], ""), (["O"], "")],
)
def test_find_scheme(tags, scheme):
  assert ner.find_scheme(tags) == scheme


@parametrize(
  "tags, count",
  ("B-X I-X O", None),
  ("B_X I_X O B_X", None),  # seqeval takes the first character
  ("PER PER O", None),
  ("ORG ORG O", 0),
  ("U-X B-X L-X", 1),
  ("X-B X-I O", 2),
)
def test_other_entities_of_seqeval_are_counted(tags, count):
  tags = tags.split()
  entities = ner.tags_to_entities(read(tags))
  assert ner.count_by_seqeval([(tags, entities)]) == count


@parametrize(
  "tags, expected",
  ("I-X B-X O I-Y", True),
  ("I-X I-X", True),
  ("O B-X", False),
  ("I-Y B-X", False),
  ("B-X", False),
)
def test_iob1_has_b_only_between_entities_of_a_type(tags, expected):
  assert ner.is_iob1([["O"], tags.split()]) == expected
