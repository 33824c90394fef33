"""Plots the masked LM loss of a pretraining beside the best unigram model.

A unigram model predicts each token with its frequency in the training text. A
masked LM that has a lower loss uses the context.

    python -m benchmarks.pretraining_curve --output_dir=output/pretraining \
        --vocab_file=vocab.txt --train_text=train.txt \
        --eval_input_file=output/heldout.tfrecord --picture=curve.png
"""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

import tokenization
from benchmarks import results, side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.io import text_files
from bertlib.reporting import run_report


def main(_: list[str]) -> None:
  """Prints both losses and plots the curves."""
  unigram = unigram_loss()
  curve, held_out_curve = (
    run_report.read_scalars(folder)["masked_lm_loss"]
    for folder in (FLAGS.output_dir, os.path.join(FLAGS.output_dir, "dev"))
  )
  step, held_out = held_out_curve[-1]
  print(f"unigram loss on the held-out masked tokens: {unigram:.3f} nat")
  print(f"masked LM loss on them after {step} steps: {held_out:.3f} nat")
  print(f"difference: {unigram - held_out:.3f} nat")
  curves = {
    "a training batch": curve,
    "held out": held_out_curve,
    "best unigram model": [(0, unigram), (step, unigram)],
  }
  results.plot(FLAGS.picture, "step", "masked LM loss (nat)", curves)


def unigram_loss() -> float:
  """Mean loss of the best unigram model on the held-out masked tokens.

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
  return float(np.concatenate(masked).mean())


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    output_dir="Output folder of run_pretraining.py --do_train --do_eval.",
    vocab_file="Vocabulary.",
    train_text="Text of the training records.",
    eval_input_file="Held-out records.",
    picture="PNG file to write.",
    do_lower_case=(True, "Lower-case the text."),
  )
