"""Benchmark of create_pretraining_data.py against the original's script.

Runs whole commands in turns: the original, ours with the same flags, whose
records have to be equal, and ours with one worker and with two. Without
`--reference`, only ours.

    python -m benchmarks.pretraining_data \
        --vocab_file=uncased/vocab.txt --text_file=sentences.txt \
        --reference=bert --reference_python=python3.7

The original needs a checkout of google-research/bert and a Python with
TensorFlow 1.15. For one process the processor time is compared, which depends
less on other load of the machine; for two workers, wall-clock time.
"""

from __future__ import annotations

import os
import sys
import tempfile

from absl import flags

from benchmarks import results, side_by_side
from bertlib.cli.errors import InputError
from bertlib.io import processes

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags(passes=3)
  side_by_side.require(
    vocab_file="Vocabulary.", text_file="Text file, one sentence per line."
  )
  side_by_side.define(dupe_factor=(5, "See create_pretraining_data.py."))


def main(_: list[str]) -> None:
  """Times the commands and reports ratios."""
  script = "create_pretraining_data.py"
  sides = {
    "ours": [sys.executable, script],
    "one worker": [sys.executable, script, "--num_workers=1"],
    "two workers": [sys.executable, script, "--num_workers=2"],
  }
  pairs = [("whole command", "two workers", "one worker")]
  if FLAGS.reference:
    original = os.path.join(FLAGS.reference, script)
    sides["reference"] = [FLAGS.reference_python, original]
    pairs += [
      ("its processor time", "ours", "reference"),
      ("whole command", "two workers", "reference"),
    ]
  words = [
    f"--input_file={FLAGS.text_file}",
    f"--vocab_file={FLAGS.vocab_file}",
    f"--dupe_factor={FLAGS.dupe_factor}",
  ]
  measures = ("whole command", "its processor time")
  values = {measure: {name: [] for name in sides} for measure in measures}
  for number in range(FLAGS.passes):
    with tempfile.TemporaryDirectory() as folder:
      paths = {name: os.path.join(folder, name) for name in sides}
      for name, command in sides.items():
        output = f"--output_file={paths[name]}"
        done = side_by_side.run_command([*command, *words, output])
        for measure, value in zip(measures, done[1:]):
          values[measure][name].append(value)
      if FLAGS.reference and not number:
        check_equal(paths["ours"], paths["reference"])
    results.show_pass(number + 1, values)
  side_by_side.report(
    f"{os.path.basename(FLAGS.text_file)}, {FLAGS.dupe_factor} duplicates",
    {name: {"description": "", "versions": {}} for name in sides},
    values,
    pairs,
    threads=processes.usable_cores(),
  )


def check_equal(ours: str, theirs: str) -> None:
  """Compares the records of two files; features may be in any order."""
  import tensorflow as tf

  def examples(path):
    return [
      tf.train.Example.FromString(record)
      for record in tf.data.TFRecordDataset(path).as_numpy_iterator()
    ]

  records = examples(ours)
  if records != examples(theirs):
    raise InputError("the records differ")
  print(f"{len(records)} records equal")


if __name__ == "__main__":
  side_by_side.run(main, define_flags)
