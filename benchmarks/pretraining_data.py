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
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from absl import flags

from benchmarks import results, side_by_side
from bertlib.cli import app
from bertlib.cli.errors import InputError

FLAGS = flags.FLAGS
OURS = [sys.executable, "create_pretraining_data.py"]


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string("vocab_file", None, "Vocabulary.", required=True)
  flags.DEFINE_string(
    "text_file", None, "Text file, one sentence per line.", required=True
  )
  flags.DEFINE_integer("dupe_factor", 5, "See create_pretraining_data.py.")
  side_by_side.define_flags(passes=3)
  flags.adopt_module_key_flags(side_by_side)


class Seconds(NamedTuple):
  """Wall-clock and processor time of a command."""

  clock: float
  processor: float


def main(_: list[str]) -> None:
  """Times the commands and reports ratios."""
  with tempfile.TemporaryDirectory() as folder:
    flag_values = [
      f"--input_file={FLAGS.text_file}",
      f"--vocab_file={FLAGS.vocab_file}",
      f"--dupe_factor={FLAGS.dupe_factor}",
    ]

    def make(command, name, *more):
      output = f"--output_file={os.path.join(folder, name)}"
      return timed([*command, *flag_values, output, *more])

    values: results.Values = {"whole command": {}, "its processor time": {}}
    for number in range(FLAGS.passes):
      seconds = {
        "ours": make(OURS, "ours"),
        "one worker": make(OURS, f"one-{number}", "--num_workers=1"),
        "two workers": make(OURS, f"two-{number}", "--num_workers=2"),
      }
      if FLAGS.reference:
        script = os.path.join(FLAGS.reference, "create_pretraining_data.py")
        seconds["reference"] = make([FLAGS.reference_python, script], "theirs")
        if not number:
          check_equal(
            os.path.join(folder, "ours"), os.path.join(folder, "theirs")
          )
      for by_side, index in zip(values.values(), (0, 1)):
        for name, times in seconds.items():
          by_side.setdefault(name, []).append(times[index])
      results.show_pass(number + 1, values)
  pairs = [("whole command", "two workers", "one worker")]
  if FLAGS.reference:
    pairs += [
      ("its processor time", "ours", "reference"),
      ("whole command", "two workers", "reference"),
    ]
  side_by_side.report(
    f"{os.path.basename(FLAGS.text_file)}, {FLAGS.dupe_factor} duplicates",
    {name: {"description": "", "versions": {}} for name in seconds},
    values,
    pairs,
    threads=os.cpu_count(),
  )


def timed(command: list[str]) -> Seconds:
  """Runs a command that has to succeed; returns its times."""
  start = time.monotonic()
  before = os.times()
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  after = os.times()
  if done.returncode:
    raise InputError(f"{' '.join(command)}: failed: {done.stderr[-2000:]}")
  return Seconds(
    time.monotonic() - start,
    after.children_user
    - before.children_user
    + after.children_system
    - before.children_system,
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
  define_flags()
  app.run(main)
