"""Accuracy of --long_texts where the answer lies behind the model's length.

A sentence of a film review (SST-2) stands in paragraphs of Wikipedia (XQuAD):
in half of the texts at their start, in the others behind the first 128 tokens.
The encoder is first trained on short sentences alone; then each way to cut
trains with each seed. The rival is a plain loop: the model of `truncate`
predicts pieces of 90 words, and the mean of their probabilities counts.

    python -m benchmarks.long_texts --sst_dir=glue/SST-2 \
      --filler_file=xquad.en.json --init_checkpoint=minilm -- --precision=auto
"""

from __future__ import annotations

import bisect
import os
import random
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
from absl import app

from benchmarks import inference_works, side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.data import vocabulary
from bertlib.io import result_files

LENGTH, TOTAL, PIECE = 128, 250, 90  # tokens of the model and a text; words
CUTS = ("truncate", "head_tail", "windows")


def main(argv: Sequence[str]) -> None:
  """Trains with each way and seed, and prints the accuracies."""
  files = {
    "train": make_rows("train", FLAGS.num_train),
    "dev": [*make_rows("dev", FLAGS.num_dev)],
    "sentences": read_sentences("train")[: FLAGS.num_sentences],
  }
  with tempfile.TemporaryDirectory() as folder:
    for name, rows in files.items():
      path = os.path.join(folder, f"{name}.tsv")
      with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{text.strip()}\t{label}\n" for text, label in rows)
    first = train(
      folder,
      "truncate",
      "0",
      *(f"--init_checkpoint={FLAGS.init_checkpoint}", *argv[1:]),
      *("--train_file=sentences.tsv", "--num_train_epochs=1"),
      *("--train_batch_size=32", "--learning_rate=2e-4"),
    )
    found: dict[str, list[float]] = {}
    for seed in FLAGS.seeds:
      for cut in CUTS:
        out = train(folder, cut, seed, f"--init_checkpoint={first}", *argv[1:])
        results = result_files.read_results(f"{out}/eval_results.txt")
        found.setdefault(cut, []).append(results["eval_accuracy"])
        if cut == "truncate":
          found.setdefault("loop", []).append(loop_accuracy(files["dev"], out))
        print(f"seed {seed}, {cut}: {found}", flush=True)
  for name, values in found.items():
    shown = " ".join(f"{100 * value:.1f}" for value in values)
    print(f"{name:10} {100 * np.mean(values):.1f} ({shown})")


def read_sentences(split: str) -> list[list[str]]:
  """Sentences of 8 words or more and their labels, shuffled."""
  path = os.path.join(FLAGS.sst_dir, f"{split}.tsv")
  with open(path, encoding="utf-8") as file:
    rows = [line.rstrip("\n").split("\t") for line in file][1:]
  rows = [row for row in rows if len(row[0].split()) > 7]
  random.Random(split).shuffle(rows)
  return rows


def make_rows(split: str, number: int) -> Iterator[tuple[str, str]]:
  """Yields texts and their labels, in an order that a seed fixes."""
  rng, rows = random.Random(split), read_sentences(split)[-number:]
  pairs = inference_works.squad_questions(FLAGS.filler_file)
  paragraphs = [*dict.fromkeys(paragraph for _, paragraph in pairs)]
  # Those around dev sentences are not those of training.
  half = len(paragraphs) // 2
  paragraphs = paragraphs[:half] if split == "train" else paragraphs[half:]
  vocab_file = os.path.join(FLAGS.init_checkpoint, "vocab.txt")
  tokenizer = vocabulary.load_tokenizer(vocab_file, True)
  for index, (sentence, label) in enumerate(rows):
    words, starts = [], [0]  # tokens before each word
    while starts[-1] < TOTAL - len(tokenizer.encode(sentence)):
      for word in rng.choice(paragraphs).split():
        words.append(word)
        starts.append(starts[-1] + len(tokenizer.encode(word)))
    position = 0
    if index % 2:  # somewhere behind the first window
      wanted = rng.randrange(LENGTH, TOTAL - 60)
      position = bisect.bisect_left(starts, wanted)
    last = bisect.bisect_right(starts, TOTAL - 50)
    text = " ".join(
      [*words[:position], sentence.strip(), *words[position:last]]
    )
    yield text, label


def train(folder: str, cut: str, seed: str, *more: str) -> str:
  """Trains with one way to cut, and evaluates; returns the output folder."""
  out = os.path.join(folder, f"{cut}_{seed}")
  side_by_side.run_python(
    *("run_classifier.py", "--task_name=tsv", "--do_train", "--do_eval"),
    *(f"--data_dir={folder}", f"--output_dir={out}", f"--seed={seed}"),
    *(f"--max_seq_length={LENGTH}", f"--long_texts={cut}"),
    *("--train_batch_size=16", "--learning_rate=5e-5", *more),
  )
  return out


def loop_accuracy(rows: list[tuple[str, str]], model_dir: str) -> float:
  """Accuracy of the mean of the probabilities of pieces."""
  import run_classifier

  right = []
  with run_classifier.Predictor(model_dir) as predictor:
    for text, label in rows:
      words = text.split()
      starts = range(0, len(words), PIECE)
      pieces = [" ".join(words[n : n + PIECE]) for n in starts]
      predicted = predictor.predict(pieces)
      mean = np.mean([[*p.probabilities.values()] for p in predicted], axis=0)
      right.append(predictor.labels[int(mean.argmax())] == label)
  return float(np.mean(right))


if __name__ == "__main__":
  side_by_side.define(
    sst_dir="Folder of SST-2.",
    filler_file="Paragraphs, in the format of SQuAD.",
    init_checkpoint="Encoder.",
    num_train=(400, "Number of training texts."),
    num_dev=(300, "Number of dev texts."),
    num_sentences=(3000, "Number of short sentences."),
    seeds=(["1", "2", "3"], "Seeds."),
  )
  app.run(main)
