"""Tests of the inputs of run_ner.py."""

import pytest

from bertlib.errors import InputError
from bertlib.settings import option
from bertlib.settings.ner import NerSettings
from bertlib.training import ner_inputs

pytestmark = pytest.mark.unit


def columns(**flags):
  return ner_inputs.columns(option.make(NerSettings, **flags))


@pytest.mark.parametrize("flag", ["delimiter", "item_delimiter"])
@pytest.mark.parametrize(
  ("text", "delimiter"),
  [
    ("|", "|"),
    (r"\t", "\t"),
    (r"\x02", "\x02"),
    (r"\\", "\\"),
    ("·", "·"),
    ("｜", "｜"),
    ("、 ", "、 "),
    (None, None),
  ],
)
def test_delimiters_may_be_any_characters_and_escapes(flag, text, delimiter):
  assert getattr(columns(**{flag: text}), flag) == delimiter


@pytest.mark.parametrize("text", ["\\", r"\x0"])
def test_an_incomplete_escape_sequence_is_refused(text):
  with pytest.raises(InputError, match="--delimiter="):
    columns(delimiter=text)
