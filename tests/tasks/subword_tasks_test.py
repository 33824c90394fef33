"""Data of tasks with byte-level BPE and unigram."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_subword
from parametrize import parametrize
from refused import refusal

from bertlib.data import subword_tokenizer, vocabulary
from bertlib.tasks.pretraining import dynamic_masking, masking, pretraining_text
from bertlib.tasks.pretraining.recipe import Recipe
from bertlib.tasks.squad import squad_decoding, squad_files, squad_windows
from bertlib.tasks.squad.settings import AnswerSettings

pytestmark = pytest.mark.unit

CONTEXT = "she said:  don't play with\tnaïve cafés, the dogran to the cat."


@pytest.fixture(name="tokenizer", params=tiny_subword.KINDS)
def tokenizer_of_a_kind(request):
  content = tiny_subword.content(request.param)
  return subword_tokenizer.SubwordTokenizer(json.loads(content))


def windows_of(tokenizer, context, *answers):
  """Examples of a question, and its windows, with positions of its answer."""
  question = squad_files.Question("q", "who?", context, answers, False)
  is_training = bool(answers)
  examples, _ = squad_files.make_examples([question], "f", is_training, False)
  return examples, squad_windows.convert_examples_to_windows(
    examples, tokenizer, squad_windows.WindowSettings(50, 20, 6, is_training)
  )


def decoded(tokenizer, examples, windows, logits):
  arguments = examples, windows, logits, tokenizer
  finder = squad_decoding.AnswerFinder(*arguments)
  return squad_decoding.find_answers(finder, AnswerSettings()).predictions["q"]


@parametrize("answer", "don't play", "naïve cafés", "ran", "cat")
def test_answers_are_given_back_as_the_paragraph_has_them(tokenizer, answer):
  at = squad_files.Answer(answer, CONTEXT.index(answer))
  examples, windows = windows_of(tokenizer, CONTEXT, at)
  logits = np.zeros([2, len(windows.length), 50])
  (rows,) = np.nonzero(windows.start_position)
  logits[0, rows, windows.start_position[rows]] = 9
  logits[1, rows, windows.end_position[rows]] = 9
  found = decoded(tokenizer, examples, windows, logits)
  # A piece may have more letters than the answer.
  assert answer in found
  assert len(found) <= len(answer) + 3


def test_an_answer_has_the_marks_of_its_last_letter():
  content = tiny_subword.content("BPE")  # in which marks are tokens
  tokenizer = subword_tokenizer.SubwordTokenizer(json.loads(content))
  context = "the cafe\u0301 is open"
  examples, windows = windows_of(tokenizer, context)
  ((_, offsets),) = tokenizer.encode_with_offsets([context])
  (first,) = (i for i, (start, _) in enumerate(offsets) if start == 4)
  (last,) = (i for i, (_, end) in enumerate(offsets) if end == 8)
  logits = np.zeros([2, 1, 50])
  shift = len(windows.ids) - len(offsets) - 1
  logits[0, 0, first + shift] = logits[1, 0, last + shift] = 9
  assert decoded(tokenizer, examples, windows, logits) == "cafe\u0301"


@parametrize("has_spaces", False, True)
def test_tokens_that_continue_a_word_are_marked(tokenizer, has_spaces):
  marking = pretraining_text.WordMarkingTokenizer(tokenizer, has_spaces)
  text = "she sat on the mat"
  tokens = marking.tokenize(text)
  ids = marking.convert_tokens_to_ids(tokens)
  ((expected, words),) = tokenizer.encode_words([text.split()])
  assert tokenizer.text_of(tokenizer.convert_ids_to_tokens(ids)) == text
  if has_spaces:
    assert ids == expected
    begins = [not t.startswith("##") for t in tokens]
    assert np.cumsum(begins).tolist() == [word + 1 for word in words]


def test_long_words_are_masked_by_pieces(tokenizer):
  marking = pretraining_text.WordMarkingTokenizer(tokenizer, False)
  tokens = marking.tokenize("cat " + "日" * 2 * masking.MAX_PIECES)
  assert len(tokens) > masking.MAX_PIECES
  assert not [token for token in tokens[2:] if token.startswith("##")]


@pytest.mark.graph
def test_long_words_are_masked_by_pieces_in_training(tokenizer):
  text = "cats " + "xq" * masking.MAX_PIECES
  ids, _ = tokenizer.special_ids.join(tokenizer.encode(text))
  settings = dynamic_masking.Masking(tokenizer, do_whole_word_mask=True)
  batch = {
    "input_ids": tf.constant([ids]),
    "input_mask": tf.ones([1, len(ids)], tf.int32),
    "masked_lm_positions": tf.zeros([1, 4], tf.int32),
    "masked_lm_ids": tf.zeros([1, 4], tf.int32),
    "masked_lm_weights": tf.zeros([1, 4]),
  }
  masked = dynamic_masking.remask(batch, tf.constant([1], tf.int64), settings)
  assert tf.reduce_sum(masked["masked_lm_weights"]).numpy() > 0


def test_pairs_are_refused_for_models_without_segments(tokenizer, tmp_path):
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(tokenizer.rules))
  recipe = Recipe(vocab_file=str(path))
  line = refusal(pretraining_text.load_tokenizer, recipe)
  assert line.startswith(f"--segments=pairs: {path} has one segment type")
  assert "Give --segments=documents" in line
  recipe = dataclasses.replace(recipe, segments="documents")
  assert pretraining_text.load_tokenizer(recipe).vocab == tokenizer.vocab


def test_flags_of_wordpiece_are_refused_with_other_tokenizers():
  flags = ["do_lower_case"]
  line = refusal(vocabulary.check_own_rules, "tokenizer.json", flags)
  assert line.startswith("--do_lower_case: tokenizer.json has the rules")


def test_tokens_are_shown_as_text(tokenizer):
  text = "she said there"
  assert "".join(map(tokenizer.shown, tokenizer.tokenize(text))).strip() == text
