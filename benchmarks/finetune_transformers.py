"""Fine-tunes transformers' BERT on a GLUE task, as a baseline.

The settings are those of `run_classifier.py`: number of steps, batches that
span epochs, learning rate of each step, weight decay and its exceptions,
clipping, dropout. The optimizer is PyTorch's AdamW, which corrects the bias of
Adam's moments; run_classifier.py does so only with `--bias_correction`.

    python -m benchmarks.finetune_transformers --task=MRPC \
        --data_dir=glue/MRPC --model_dir=DIR_WITH_CONFIG_WEIGHTS_AND_VOCAB

Runs on the CPU. Needs torch, transformers, scikit-learn and scipy. Progress
goes to standard error, one JSON line with dev set metrics to standard output.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

import torch
import transformers
from scipy import stats
from sklearn import metrics

from benchmarks.torch_optimizer import make_optimizer, make_schedule

Example = dict[str, Any]


class Task(NamedTuple):
  """Columns of labels and texts of a task, and its metrics."""

  has_header: bool
  label_column: int
  text_columns: tuple[int, ...]
  labels: tuple[str, ...]  # in the order of their ids; none: regression
  scores: dict[str, Callable]  # name -> function of labels and predictions


BINARY = ("0", "1")
ACCURACY = {"accuracy": metrics.accuracy_score}

TASKS = {
  "CoLA": Task(False, 1, (3,), BINARY, {"matthews": metrics.matthews_corrcoef}),
  "SST-2": Task(True, 1, (0,), BINARY, ACCURACY),
  "MRPC": Task(True, 0, (3, 4), BINARY, {**ACCURACY, "f1": metrics.f1_score}),
  "STS-B": Task(
    True,
    9,
    (7, 8),
    (),
    {
      "pearson": lambda *pair: stats.pearsonr(*pair)[0],
      "spearman": lambda *pair: stats.spearmanr(*pair)[0],
    },
  ),
  "RTE": Task(True, 3, (1, 2), ("entailment", "not_entailment"), ACCURACY),
  "WNLI": Task(True, 3, (1, 2), BINARY, ACCURACY),
}


def parse_args() -> argparse.Namespace:
  """Parses the command line; names and defaults as in run_classifier.py."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  add = parser.add_argument
  add("--task", required=True, choices=TASKS)
  add("--data_dir", required=True, help="folder of train.tsv and dev.tsv")
  add("--model_dir", required=True, help="Hugging Face BERT directory")
  add_training_flags(parser, "examples")
  add(
    "--max_seq_length",
    type=int,
    default=128,
    help="tokens; the longer text is truncated first",
  )
  return parser.parse_args()


def add_training_flags(parser: argparse.ArgumentParser, unit: str) -> None:
  """Adds the flags of training; a step takes a batch of `unit`."""
  add = parser.add_argument
  add("--epochs", type=float, default=3.0, help="passes over the training set")
  add("--batch_size", type=int, default=32, help=f"{unit} per step")
  add("--learning_rate", type=float, default=5e-5, help="its peak")
  add(
    "--max_steps",
    type=int,
    help="stop after this many steps, for a quick trial",
  )
  add(
    "--seed",
    type=int,
    default=1,
    help="seed of the output layer, example order and dropout",
  )
  add("--threads", type=int, default=1, help="threads per operation")
  add("--precision", choices=("float32", "bfloat16"), default="float32")


def read_examples(
  path: str, task: Task, tokenizer: Any, max_seq_length: int
) -> list[Example]:
  """Tokenizes a TSV file without quoting."""
  with open(path, encoding="utf-8-sig", newline="") as file:
    rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
  rows = rows[task.has_header :]
  texts = [[row[column] for row in rows] for column in task.text_columns]
  features = tokenizer(
    *texts, truncation="longest_first", max_length=max_seq_length
  )
  to_number = task.labels.index if task.labels else float
  features["label"] = [to_number(row[task.label_column]) for row in rows]
  return [dict(zip(features, values)) for values in zip(*features.values())]


def shuffled_batches(
  num_examples: int, batch_size: int, epochs: float
) -> list[list[int]]:
  """Example indices of each step; each epoch is shuffled differently.

  The remainder of an epoch begins the first batch of the next; only the
  remainder of the last epoch is dropped.
  """
  order = torch.cat(
    [torch.randperm(num_examples) for _ in range(math.ceil(epochs))]
  )
  num_steps = int(num_examples / batch_size * epochs)
  return order[: num_steps * batch_size].view(-1, batch_size).tolist()


def use_precision(model: torch.nn.Module, precision: str) -> None:
  """Computes in bfloat16 if asked for.

  Each call has a context of its own: autocast keeps its casts of the weights as
  long as the context is open, so that one around a training would never see
  what the training changes.
  """
  if precision == "bfloat16":
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)


def train(
  model: torch.nn.Module,
  batches: Iterable[Any],
  num_steps: int,
  learning_rate: float,
) -> None:
  """Takes `num_steps` steps and logs the loss of some."""
  optimizer = make_optimizer(model, learning_rate, fused=False)
  schedule = make_schedule(optimizer, num_steps)
  model.train()
  for step, batch in enumerate(batches, start=1):
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step % 50 == 0 or step == num_steps:
      print(f"step {step}/{num_steps}: loss {loss:.4f}", file=sys.stderr)


@torch.inference_mode()
def predict(model: torch.nn.Module, batches: Iterable[Any]) -> torch.Tensor:
  """The predicted class, or value, of each example."""
  model.eval()
  logits = torch.cat([model(**batch).logits for batch in batches]).float()
  return logits.argmax(-1) if logits.shape[-1] > 1 else logits.squeeze(-1)


def main() -> None:
  """Trains, predicts and prints the metrics."""
  args = parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(args.seed)
  task = TASKS[args.task]

  tokenizer = transformers.BertTokenizerFast.from_pretrained(args.model_dir)
  train_examples, dev_examples = (
    read_examples(
      os.path.join(args.data_dir, name), task, tokenizer, args.max_seq_length
    )
    for name in ("train.tsv", "dev.tsv")
  )
  model = transformers.BertForSequenceClassification.from_pretrained(
    args.model_dir, num_labels=len(task.labels) or 1, dtype=torch.float32
  )

  steps = shuffled_batches(len(train_examples), args.batch_size, args.epochs)
  steps = steps[: args.max_steps]
  pad_to_longest = transformers.DataCollatorWithPadding(tokenizer)
  train_batches = torch.utils.data.DataLoader(
    train_examples, batch_sampler=steps, collate_fn=pad_to_longest
  )
  dev_batches = torch.utils.data.DataLoader(
    dev_examples, args.batch_size, collate_fn=pad_to_longest
  )
  use_precision(model, args.precision)
  started = time.perf_counter()
  train(model, train_batches, len(steps), args.learning_rate)
  seconds = time.perf_counter() - started
  predictions = predict(model, dev_batches)

  labels = [example["label"] for example in dev_examples]
  scores = {
    name: round(float(score(labels, predictions.numpy())), 4)
    for name, score in task.scores.items()
  }
  rate = len(steps) * args.batch_size / seconds
  line = {
    "task": args.task,
    "seed": args.seed,
    "precision": args.precision,
    "threads": args.threads,
    "steps": len(steps),
    "examples_per_second": round(rate, 2),
    **scores,
  }
  print(json.dumps(line))


if __name__ == "__main__":
  main()
