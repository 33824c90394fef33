"""Loss of the best unigram model on the masked tokens of a pretraining.

A unigram model predicts each token with its frequency in the training text. A
masked LM whose `masked_lm_loss` is lower uses the context.

    python -m benchmarks.unigram_loss --vocab_file=vocab.txt \
        --train_text=train.txt --eval_input_file=output/heldout.tfrecord
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tokenization
from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.io import text_files


def main(_: list[str]) -> None:
  """Prints the mean loss on the held-out masked tokens.

  Counts are smoothed by adding one, so that no token has probability zero.
  """
  tokenizer = tokenization.FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
  counts = np.ones(max(tokenizer.vocab.values()) + 1)
  for line in text_files.read_lines(FLAGS.train_text):
    np.add.at(counts, tokenizer.encode(line), 1)
  losses = -np.log(counts / counts.sum())
  masked = []
  records = tf.data.TFRecordDataset(FLAGS.eval_input_file)
  for record in records.as_numpy_iterator():
    feature = tf.train.Example.FromString(record).features.feature
    ids = np.array(feature["masked_lm_ids"].int64_list.value)
    weights = np.array(feature["masked_lm_weights"].float_list.value)
    masked.append(losses[ids[weights > 0]])
  mean = np.concatenate(masked).mean()
  print(f"unigram loss on the held-out masked tokens: {mean:.3f} nat")


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    vocab_file="Vocabulary.",
    train_text="Text of the training records.",
    eval_input_file="Held-out records.",
    do_lower_case=(True, "Lower-case the text."),
  )
