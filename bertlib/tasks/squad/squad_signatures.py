"""SavedModel signatures of question answering."""

from __future__ import annotations

import tensorflow as tf

from bertlib.export import tf_tokenizer
from bertlib.export.signatures import (
  Signature,
  SignatureModel,
  Tensors,
  text_specs,
)
from bertlib.tasks.squad import squad_decoding, squad_windows


class QuestionAnswering(SignatureModel):
  """Answers to questions; the model outputs logits, float32 [B, 2, S]."""

  output = "logits"
  n_best_size = 20
  max_answer_length = 30

  def __init__(self, description, *args, **kwargs):
    """See base class; InputError if a question leaves no room for text."""
    super().__init__(description, *args, **kwargs)
    self.null_score_diff_threshold = description.get(
      "null_score_diff_threshold", 0.0
    )
    squad_windows.check_settings(
      squad_windows.WindowSettings.of_model(description)._replace(
        max_seq_length=self.max_seq_length
      )
    )

  def ids(self, inputs):
    """See base class."""
    starts, ends = tf.unstack(self.run(inputs), axis=1)
    return {"start_logits": starts, "end_logits": ends}

  def outputs(self, inputs):
    """See base class."""
    found = super().outputs(inputs)
    starts, ends = tf.unstack(found["logits"], axis=1)
    return found | {"start_logits": starts, "end_logits": ends}

  def signatures(self):
    """See base class."""
    signatures = {"ids": Signature(self.token_specs(), self.ids)}
    if self.text:
      inputs = text_specs("question", "passage")
      signatures["text"] = Signature(inputs, self.answer)
    return signatures

  def answer(self, texts: Tensors) -> Tensors:
    """Predicts the best answer to each question; outputs are [B]."""
    passages = self.text.tokenize(texts["passage"])
    queries = self.text.tokenize(texts["question"]).ids
    max_query_length = self.description["max_query_length"]
    queries = tf_tokenizer.truncate_rows(
      queries, tf.minimum(queries.row_lengths(), max_query_length)
    )
    before = tf.cast(queries.row_lengths(), tf.int32) + 2
    room = self.max_seq_length - before - 1
    windows = tf_tokenizer.split_into_windows(
      tf.cast(passages.ids.row_lengths(), tf.int32),
      room,
      tf.minimum(room, self.description["doc_stride"]),
    )
    row = windows.row
    encoded = self.text.join(
      tf.gather(queries, row),
      tf_tokenizer.gather_windows(passages.ids, windows),
      self.seq_length,
    )
    logits = self.run(encoded)  # [windows, 2, S]
    scores, first, last = self._best_spans(
      logits, windows, tf.gather(before, row), passages.ids
    )

    # The best answer over each question's windows.
    num_rows = tf.shape(texts["question"])[0]
    best = tf.math.unsorted_segment_max(scores, row, num_rows)
    winner = _first_where(scores == tf.gather(best, row), row, num_rows)
    has_answer = best > tf.float32.min
    results = {"score": best}
    if self.description["version_2_with_negative"]:
      null_score = tf.reduce_sum(logits[:, :, 0], axis=1)
      null_score = tf.math.unsorted_segment_min(null_score, row, num_rows)
      results["null_odds"] = tf.where(
        has_answer, null_score - best, squad_decoding.CERTAIN_ODDS
      )
      has_answer &= results["null_odds"] <= self.null_score_diff_threshold
    first, last = tf.gather(first, winner), tf.gather(last, winner)
    row_start = tf.cast(passages.ids.row_starts(), tf.int32)
    # Character offsets in the passage.
    start, end = (
      tf.where(has_answer, _gather_values(offsets, row_start + piece), 0)
      for offsets, piece in ((passages.starts, first), (passages.ends, last))
    )
    # Offsets do not count bytes that are not UTF-8.
    passage = tf.strings.unicode_transcode(
      texts["passage"], "UTF-8", "UTF-8", errors="ignore"
    )
    text = tf.strings.substr(passage, start, end - start, unit="UTF8_CHAR")
    return results | {"answer": text, "start": start, "end": end}

  def _best_spans(self, logits, windows: tf_tokenizer.Windows, before, pieces):
    """Score, first and last piece of each window's best answer: [windows]."""
    # As in `squad_decoding`. Logits are [windows, 2, S]; `before` [windows]
    # counts the tokens before the passage. The score is the lowest float if
    # there is no answer.
    row, start, length = (values[:, tf.newaxis] for values in windows)
    column = tf.range(tf.shape(logits)[2])
    position = column - before[:, tf.newaxis]  # [windows, S], in the window
    is_text = (position >= 0) & (position < length)
    # An answer starts in the window with the most context around its start.
    context = tf.minimum(position, length - 1 - position)
    context = tf.cast(context, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    piece = tf.gather(tf.cast(pieces.row_starts(), tf.int32), row)
    piece = tf.where(is_text, piece + start + position, -1)
    num_pieces = tf.size(pieces.values) + 1
    max_context = tf.math.unsorted_segment_max(context, piece, num_pieces)
    window = tf.range(tf.size(windows.row))[:, tf.newaxis]
    best_window = _first_where(
      context == tf.gather(max_context, tf.maximum(piece, 0)),
      piece,
      num_pieces,
      window + tf.zeros_like(piece),
    )
    has_max_context = is_text & (
      window == tf.gather(best_window, tf.maximum(piece, 0))
    )

    count = tf.minimum(self.n_best_size, tf.size(column))
    lowest = tf.math.top_k(logits, count).values[:, :, -1:]
    allowed = tf.stack([has_max_context, is_text], axis=1) & (logits >= lowest)
    span = column - column[:, tf.newaxis]
    span = (span >= 0) & (span < self.max_answer_length)  # [S, S]
    span &= allowed[:, 0, :, tf.newaxis] & allowed[:, 1, tf.newaxis]
    scores = logits[:, 0, :, tf.newaxis] + logits[:, 1, tf.newaxis]
    scores = tf.where(span, scores, tf.float32.min)
    num_spans = tf.size(column) ** 2
    # [windows, S * S]
    scores = tf.reshape(scores, [tf.shape(logits)[0], num_spans])
    best = tf.argmax(scores, axis=1, output_type=tf.int32)
    first, last = best // tf.size(column), best % tf.size(column)
    to_piece = windows.start - before
    return tf.reduce_max(scores, axis=1), first + to_piece, last + to_piece


def _gather_values(rows, indices):
  """Gathers from the flat values of a ragged tensor; 0 beyond the last."""
  values = tf.concat([rows.values, [0]], axis=0)
  return tf.gather(values, tf.clip_by_value(indices, 0, tf.size(values) - 1))


def _first_where(condition, segment, num_segments, values=None):
  """Lowest value per segment where a condition holds, else `tf.int32.max`."""
  if values is None:
    values = tf.range(tf.size(condition))
  values = tf.where(condition, values, tf.int32.max)
  return tf.math.unsorted_segment_min(values, segment, num_segments)
