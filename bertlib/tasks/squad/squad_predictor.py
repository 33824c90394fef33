"""Predicted answers from the outputs of a model. Imports no TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from bertlib.cli import option
from bertlib.data import batch_predictor
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.settings.squad import AnswerSettings
from bertlib.tasks.squad import squad_decoding, squad_files, squad_windows
from bertlib.tasks.squad.squad_decoding import Answer
from bertlib.tasks.squad.squad_files import SquadExample


class AnswerPredictor(BatchPredictor):
  """Predicts answers to questions."""

  def predict(
    self,
    pairs: Iterable[tuple[str, str]],
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float | None = None,
  ) -> list[list[Answer]]:
    """Answers questions.

    Args:
      pairs: pairs of a question and a passage.
      n_best_size: maximum number of answers per question.
      max_answer_length: maximum length of an answer, in tokens.
      null_score_diff_threshold: the first answer is "" if the null score minus
        the score of the best span is above this (SQuAD 2.0 only); None for the
        one of the model, which --do_eval tunes, or 0.

    Returns:
      The answers to each question, best first; empty for a passage without
      words.

    Raises:
      InputError: a pair is not two texts, or another argument is not in the
        range of its flag.
    """
    if null_score_diff_threshold is None:
      null_score_diff_threshold = self.description.get(
        "null_score_diff_threshold", 0.0
      )
    settings = AnswerSettings(
      n_best_size,
      max_answer_length,
      self.description.get("version_2_with_negative", False),
      null_score_diff_threshold,
    )
    for name, flag in option.declarations(AnswerSettings):
      if flag.within:
        option.check_argument(name, getattr(settings, name), flag)
    pairs = batch_predictor.validated(
      pairs,
      batch_predictor.is_pair,
      "a question and a passage, both str",
      "pairs",
    )
    decode = functools.partial(self._decode, settings)
    return self.predict_blocks(pairs, self._encode, decode)

  def _encode(self, pairs):
    """The questions, passages and windows of pairs, and rows of the windows."""
    examples, passages, last_passage = [], [], None
    for index, (question, text) in enumerate(pairs):
      if text != last_passage:  # questions share the words of a passage
        last_passage = text
        words, _ = squad_files.split_words(text)
        _, offsets = self.tokenizer.tokenize_with_offsets(text)
      passages.append(squad_decoding.Passage(text, offsets))
      examples.append(SquadExample(str(index), question, words))
    settings = squad_windows.WindowSettings.of_model(self.description)
    windows = squad_windows.convert_examples_to_windows(
      examples, self.tokenizer, settings
    )
    rows = squad_windows.window_records(windows, settings.max_seq_length)
    return (examples, passages, windows), list(rows)

  def _decode(
    self, settings: AnswerSettings, encoded, outputs
  ) -> Iterator[list[Answer]]:
    """The answers to each question."""
    examples, passages, windows = encoded
    logits = [
      squad_decoding.stack_logits([output[kind] for output in outputs])
      for kind in range(2)
    ]
    return squad_decoding.PassageFinder(
      passages,
      examples,
      windows,
      logits,
      self.description["do_lower_case"],
      self.tokenizer.inv_vocab,
    ).answers(settings)
