"""SavedModel signatures of taggers."""

from __future__ import annotations

import tensorflow as tf

from bertlib.export import tf_tokenizer
from bertlib.export.signatures import LabelModel, Signature, Tensors, text_specs
from bertlib.tasks.ner import ner


class Tagger(LabelModel):
  """Tags of words; the model outputs probabilities, float32 [B, S, labels]."""

  def graph_tokenizer(self, tokenizer):
    """See base class."""
    return tf_tokenizer.GraphTokenizer(tokenizer, ner.WORD)

  def ids(self, inputs):
    """See base class."""
    return {"probabilities": self.run(inputs)}

  def signatures(self):
    """See base class."""
    signatures = {"ids": Signature(self.token_specs(), self.ids)}
    if self.text:
      signatures["text"] = Signature(text_specs("text"), self.tag)
    return signatures

  def tag(self, texts: Tensors) -> Tensors:
    """Predicts the tag of each word; outputs are [B, words], with padding."""
    # Each word takes its tag from one window, see `ner.make_windows`.
    tokens = self.text.tokenize(texts["text"])
    lengths = tf.cast(tokens.ids.row_lengths(), tf.int32)
    room = self.max_seq_length - 2
    windows = tf_tokenizer.split_into_windows(
      lengths,
      tf.fill(tf.shape(lengths), room),
      tf.fill(tf.shape(lengths), max(room // 2, 1)),
    )
    ids = tf_tokenizer.gather_windows(tokens.ids, windows)
    probabilities = self.run(self.text.join(ids, ids[:, :0], self.seq_length))

    # A window decides the words that begin in [first, last): its middle half,
    # extended to the ends of the text.
    row, start, length = windows
    end = start + length
    first = tf.where(start > 0, start + room // 4, 0)
    is_last = end == tf.gather(lengths, row)
    last = tf.where(is_last, end, start + room // 4 + room // 2)
    words = tokens.words.values
    is_first = tf.concat([words[:1] >= 0, words[1:] != words[:-1]], axis=0)
    window = tf.cast(ids.value_rowids(), tf.int32)
    position = tf.ragged.range(start, end).values  # in the text
    piece = tf_tokenizer.gather_windows(
      tokens.ids.with_values(tf.range(tf.size(words))), windows
    ).values
    is_decided = tf.gather(is_first, piece)
    is_decided &= position >= tf.gather(first, window)
    is_decided &= position < tf.gather(last, window)
    column = position - tf.gather(start, window) + 1
    probabilities = tf.gather_nd(
      probabilities, tf.stack([window, column], axis=1)[is_decided]
    )  # [words, labels]
    word = tf.gather(words, piece[is_decided])[:, tf.newaxis]
    labels = tf.constant(self.description["labels"])
    num_words = tf.size(tokens.word_starts.values)
    tags = tf.tensor_scatter_nd_update(
      tf.fill([num_words], "O"),
      word,
      tf.gather(labels, tf.argmax(probabilities, -1)),
    )
    tag_probabilities = tf.tensor_scatter_nd_update(
      tf.ones([num_words]), word, tf.reduce_max(probabilities, axis=-1)
    )
    by_text = tokens.word_starts.with_values
    return {
      # Character offsets.
      "starts": tokens.word_starts.to_tensor(-1),
      "ends": tokens.word_ends.to_tensor(-1),
      "tags": by_text(tags).to_tensor(""),
      "probabilities": by_text(tag_probabilities).to_tensor(0.0),
    }
