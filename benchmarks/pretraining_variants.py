"""Compares ways of pretraining a small model on the same text.

Pairs of a text, every tenth document held out: masked LM with and without next
sentence prediction, with twice as many masks, and on packed rows, each on the
same number of tokens, with one seed. Prints the loss on the same held-out
masks as a Markdown table, and plots it over the tokens.

    python -m benchmarks.pretraining_variants --text_file=novels.txt \
        --vocab_file=output/novels-vocab.txt \
        --bert_config_file=output/novels-config.json --folder=output/variants
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from benchmarks import results, side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.io import text_files
from bertlib.reporting import run_report
from website import markdown

# What differs, by name: flags of the data, flags of the training.
VARIANTS = {
  "masked LM and next sentence": ([], []),
  "masked LM": ([], ["--objective=mlm"]),
  "masked LM, 30% masked": (["--masked_lm_prob=0.3"], ["--objective=mlm"]),
  # About as many tokens per step as without packing.
  "masked LM, packed": (
    ["--pack"],
    ["--objective=mlm", "--train_batch_size=29"],
  ),
}
SIZES = ["--max_seq_length=64", "--max_predictions_per_seq=20"]
# The sequences of a document have a random length: that leaves some to pack.
DATA = [*SIZES, "--short_seq_prob=1", "--dupe_factor=2"]
TRAINING = [
  *SIZES,
  *("--do_train", "--do_eval", "--eval_steps=250", "--eval_batch_size=32"),
  *("--train_batch_size=32", "--learning_rate=1e-3", "--bias_correction"),
  *("--warmup_proportion=0.1", "--precision=auto"),
]

# Flags of a benchmark that pretrains on a text.
INPUTS = {
  "text_file": "Text: a sentence per line, a blank line between documents.",
  "vocab_file": "Vocabulary.",
  "bert_config_file": "Config of the model.",
  "folder": "Folder for all files.",
  "tokens": (3_000_000, "Tokens per training."),
}


def main(_: list[str]) -> None:
  """Trains all variants, and reports their losses."""
  os.makedirs(FLAGS.folder, exist_ok=True)
  documents, held_out_documents = split_documents()
  held_out = write_records("held_out", held_out_documents, ["--dupe_factor=1"])
  rows, curves = [], {}
  for name, (data, training) in VARIANTS.items():
    records = write_records(name, documents, data)
    command = ["run_pretraining.py", *TRAINING, *training]
    train(name, command, records, held_out, token_budget=FLAGS.tokens)
    scalars = read_scalars(name)
    curves[name] = scalars["masked_lm_loss"]
    step, loss = curves[name][-1]
    accuracy = scalars["masked_lm_accuracy"][-1][1]
    rows.append((name, f"{step:,}", f"{loss:.3f}", f"{accuracy:.3f}"))
  heads = ("training", "steps", "held-out masked LM loss (nat)", "accuracy")
  print(markdown.table(heads, rows))
  draw("curves", "held-out masked LM loss (nat)", curves)


def split_documents() -> tuple[list[str], list[str]]:
  """Documents to train on, and every tenth one, which is held out."""
  documents = "".join(text_files.read_lines(FLAGS.text_file)).split("\n\n")
  held_out = documents[9::10]
  del documents[9::10]
  return documents, held_out


def path(name: str, ending: str = "") -> str:
  """Path of a file or folder of a variant."""
  return os.path.join(FLAGS.folder, re.sub(r"\W+", "_", name) + ending)


def write_records(name: str, documents: list[str], more: list[str]) -> str:
  """Writes the records of some documents; returns their file."""
  with open(path(name, ".txt"), "w", encoding="utf-8") as file:
    file.write("\n\n".join(documents))
  side_by_side.run_python(
    *("create_pretraining_data.py", *DATA, *more),
    watch=sys.stderr.write,
    input_file=path(name, ".txt"),
    output_file=path(name, ".tfrecord"),
    vocab_file=FLAGS.vocab_file,
  )
  return path(name, ".tfrecord")


def train(
  name: str, command: list[str], records: str, held_out: str, **options: Any
) -> None:
  """Trains on records by a command and its flags, and evaluates."""
  side_by_side.run_python(
    *command,
    watch=sys.stderr.write,
    input_file=records,
    eval_input_file=held_out,
    vocab_file=FLAGS.vocab_file,
    bert_config_file=FLAGS.bert_config_file,
    output_dir=path(name),
    **options,
  )


def read_scalars(name: str) -> dict[str, list[tuple[int, float]]]:
  """Metrics of the evaluations of a training, by step."""
  return run_report.read_scalars(os.path.join(path(name), "dev"))


def draw(
  name: str, label: str, curves: dict[str, list[tuple[int, float]]]
) -> None:
  """Plots held-out metrics over the tokens."""
  over_tokens = {
    legend: [(FLAGS.tokens / 1e6 * n / curve[-1][0], v) for n, v in curve]
    for legend, curve in curves.items()
  }
  results.plot(path(name, ".png"), "million tokens", label, over_tokens)


if __name__ == "__main__":
  side_by_side.run(main, side_by_side.define, **INPUTS)
