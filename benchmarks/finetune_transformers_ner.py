"""Fine-tunes transformers' BERT for token classification, as a baseline.

The settings are those of `run_ner.py` with `--bias_correction`: the first piece
of a word carries its tag, and steps, rates, decay, clipping and dropout are the
same. Long sentences are truncated; run_ner.py splits them into windows.

    python -m benchmarks.finetune_transformers_ner --train_file=train.conll \
        --test_file=test.conll --model_dir=DIR_WITH_CONFIG_WEIGHTS_AND_VOCAB

Runs on the CPU. Needs torch, transformers and seqeval. Progress goes to
standard error, one JSON line with test set metrics to standard output.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
import transformers
from seqeval import metrics

from benchmarks.finetune_transformers import (
  add_training_flags,
  predict,
  shuffled_batches,
  train,
  use_precision,
)

NO_TAG = -100  # ignored by torch's cross entropy


def parse_args() -> argparse.Namespace:
  """Parses the command line; names and defaults as in run_ner.py."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  add = parser.add_argument
  add("--train_file", required=True, help="one word and its tag per line")
  add("--test_file", required=True, help="likewise")
  add("--model_dir", required=True, help="Hugging Face BERT directory")
  add_training_flags(parser, "sentences")
  add(
    "--max_seq_length",
    type=int,
    default=128,
    help="tokens; longer sentences are truncated",
  )
  return parser.parse_args()


def read_sentences(path: str) -> list[tuple[list[str], list[str]]]:
  """Words and tags of each sentence of a CoNLL file."""
  with open(path, encoding="utf-8-sig") as file:
    blocks = "".join(line if line.strip() else "\n" for line in file).split(
      "\n\n"
    )
  rows = [
    [line.rsplit("\t", 1) for line in block.splitlines() if line]
    for block in blocks
  ]
  return [tuple(map(list, zip(*block))) for block in rows if block]


def encode(
  sentences, tokenizer: Any, labels: list[str], max_seq_length: int
) -> tuple[list[dict[str, Any]], list[dict[int, int]]]:
  """Features of each sentence, and the word that starts at each position."""
  rows, words_at = [], []
  for words, tags in sentences:
    row = tokenizer(
      words,
      is_split_into_words=True,
      truncation=True,
      max_length=max_seq_length,
    )
    owners = row.word_ids()
    words_at.append(
      {
        position: word
        for position, (word, before) in enumerate(zip(owners, [None, *owners]))
        if word is not None and word != before
      }
    )
    row["labels"] = [NO_TAG] * len(owners)
    for position, word in words_at[-1].items():
      row["labels"][position] = labels.index(tags[word])
    rows.append(dict(row))
  return rows, words_at


def main() -> None:
  """Trains, tags and prints the metrics."""
  args = parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(args.seed)
  tokenizer = transformers.BertTokenizerFast.from_pretrained(args.model_dir)
  train_set, test_set = map(read_sentences, (args.train_file, args.test_file))
  labels = sorted({tag for _, tags in train_set for tag in tags})
  (train_rows, _), (test_rows, test_words) = (
    encode(sentences, tokenizer, labels, args.max_seq_length)
    for sentences in (train_set, test_set)
  )
  model = transformers.BertForTokenClassification.from_pretrained(
    args.model_dir, num_labels=len(labels), dtype=torch.float32
  )
  steps = shuffled_batches(len(train_rows), args.batch_size, args.epochs)
  steps = steps[: args.max_steps]
  collate = transformers.DataCollatorForTokenClassification(tokenizer)
  batches = torch.utils.data.DataLoader(
    train_rows, batch_sampler=steps, collate_fn=collate
  )
  use_precision(model, args.precision)
  started = time.perf_counter()
  train(model, batches, len(steps), args.learning_rate)
  seconds = time.perf_counter() - started
  predictions = [predict(model, [collate([row])])[0] for row in test_rows]

  true_tags = [tags for _, tags in test_set]
  # Words of truncated sentences stay "O".
  predicted_tags = [["O"] * len(tags) for tags in true_tags]
  for tags, words_at, label_ids in zip(predicted_tags, test_words, predictions):
    for position, word in words_at.items():
      tags[word] = labels[int(label_ids[position])]
  line = {
    "train_file": args.train_file,
    "seed": args.seed,
    "precision": args.precision,
    "steps": len(steps),
    "examples_per_second": round(len(steps) * args.batch_size / seconds, 2),
    "f1": round(float(metrics.f1_score(true_tags, predicted_tags)), 4),
    "precision_score": round(
      float(metrics.precision_score(true_tags, predicted_tags)), 4
    ),
    "recall": round(float(metrics.recall_score(true_tags, predicted_tags)), 4),
  }
  print(json.dumps(line))


if __name__ == "__main__":
  main()
