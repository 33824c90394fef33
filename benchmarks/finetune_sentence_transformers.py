"""Trains embeddings or a reranker with sentence-transformers, as a baseline.

The settings are those of `run_embeddings.py` with `--bias_correction`, or of
`run_reranker.py`: number of steps, learning rate of each step, weight decay and
its exceptions, clipping, dropout. torch.compile takes longer: it compiles each
shape of a batch. `benchmarks/embeddings.py` runs both in turns.

    python -m benchmarks.finetune_sentence_transformers --model_dir=DIR \
        --train_file=glue/STS-B/train.tsv --dev_file=glue/STS-B/dev.tsv \
        --text_columns=sentence1,sentence2 --score_column=score --max_score=5

Runs on the CPU. Needs sentence-transformers with its requirements for training.
Progress goes to standard error, one JSON line with the metrics to standard
output.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from typing import Any, Callable

import datasets
import sentence_transformers
import torch
import transformers
from sentence_transformers import cross_encoder
from sentence_transformers.cross_encoder.evaluation import (
  CrossEncoderRerankingEvaluator,
)
from sentence_transformers.sentence_transformer import evaluation, losses

from benchmarks.torch_optimizer import make_optimizer, make_schedule

Row = dict[str, Any]

LOSSES = {
  "cosent": losses.CoSENTLoss,
  "cosine": losses.CosineSimilarityLoss,
  "infonce": losses.MultipleNegativesRankingLoss,
  "listwise": cross_encoder.losses.ListNetLoss,  # of a reranker
}


# Names of metrics in sentence-transformers and in run_embeddings.py.
METRICS = {
  "spearman_cosine": "spearman",
  "pearson_cosine": "pearson",
  "cosine_ndcg@10": "ndcg@10",
  "cosine_mrr@10": "mrr@10",
  "cosine_recall@10": "recall@10",
  "ndcg@10": "ndcg@10",
  "mrr@10": "mrr@10",
}


def parse_args() -> argparse.Namespace:
  """Parses the command line; names as in run_embeddings.py."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  add = parser.add_argument
  add("--model_dir", required=True, help="folder of sentence-transformers")
  add("--train_file", help=".tsv with a header or .jsonl; default: no training")
  add(
    "--dev_file",
    required=True,
    help="the same, or a folder in the layout of BEIR",
  )
  add("--text_columns", default="anchor,positive")
  add("--score_column", help="scores of pairs; default: pairs have none")
  add("--max_score", type=float, default=1.0)
  add("--loss", choices=LOSSES, default="cosent")
  add("--train_batch_size", type=int, default=32)
  add("--learning_rate", type=float, default=5e-5, help="its peak")
  add("--num_train_epochs", type=float, default=3.0)
  add("--max_seq_length", type=int, default=128)
  add("--seed", type=int, default=1, help="of order and dropout")
  add("--precision", choices=("float32", "bfloat16"), default="float32")
  return parser.parse_args()


def read_rows(path: str) -> list[Row]:
  """Rows of a .tsv file without quoting, or of a .jsonl file."""
  with open(path, encoding="utf-8", newline="") as file:
    if path.endswith(".jsonl"):
      return [json.loads(line) for line in file]
    return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_pairs(args: argparse.Namespace, path: str) -> datasets.Dataset:
  """Texts of the pairs of a file, and their scores from 0 to 1."""
  rows = read_rows(path)
  columns = {
    column: [row[column] for row in rows]
    for column in args.text_columns.split(",")
  }
  if args.score_column:
    columns["score"] = [
      float(row[args.score_column]) / args.max_score for row in rows
    ]
  return datasets.Dataset.from_dict(columns)


def read_lists(args: argparse.Namespace) -> datasets.Dataset:
  """Queries with their documents, the right one first."""
  rows = read_rows(args.train_file)
  documents = [[row["positive"], *row["negatives"]] for row in rows]
  return datasets.Dataset.from_dict(
    {
      "query": [row["query"] for row in rows],
      "documents": documents,
      # The loss takes their softmax, which has to be 1 and 0.
      "labels": [[50.0] + [0.0] * (len(texts) - 1) for texts in documents],
    }
  )


def make_evaluator(args: argparse.Namespace) -> Callable:
  """A function from a model to its metrics by name."""
  if args.loss == "listwise":
    samples = [
      {
        "query": row["query"],
        "positive": [row["positive"]],
        "negative": row["negatives"],
      }
      for row in read_rows(args.dev_file)
    ]
    return CrossEncoderRerankingEvaluator(samples, at_k=10, batch_size=32)
  if not os.path.isdir(args.dev_file):
    anchors, others, scores = read_pairs(args, args.dev_file).to_dict().values()
    return evaluation.EmbeddingSimilarityEvaluator(anchors, others, scores)

  def texts(name):
    rows = read_rows(os.path.join(args.dev_file, name))
    return {row["_id"]: row["text"] for row in rows}

  relevant: dict[str, set[str]] = {}
  for row in read_rows(os.path.join(args.dev_file, "qrels", "test.tsv")):
    relevant.setdefault(row["query-id"], set()).add(row["corpus-id"])
  return evaluation.InformationRetrievalEvaluator(
    texts("queries.jsonl"), texts("corpus.jsonl"), relevant
  )


class Progress(transformers.TrainerCallback):
  """Prints the first step, each twentieth, and the last."""

  def on_step_end(self, args, state, control, **kwargs):
    """See base class."""
    del args, control, kwargs
    step, last = state.global_step, state.max_steps
    if step == 1 or step % 20 == 0 or step == last:
      print(f"step {step} of {last}", file=sys.stderr, flush=True)


def train(args: argparse.Namespace, model: Any) -> None:
  """Trains the model in place."""
  reranks = args.loss == "listwise"
  dataset = read_lists(args) if reranks else read_pairs(args, args.train_file)
  num_steps = int(len(dataset) / args.train_batch_size * args.num_train_epochs)
  optimizer = make_optimizer(model, args.learning_rate)
  samplers = sentence_transformers.base.sampler.BatchSamplers
  make_trainer = sentence_transformers.SentenceTransformerTrainer
  make_settings = sentence_transformers.SentenceTransformerTrainingArguments
  if reranks:
    make_trainer = cross_encoder.CrossEncoderTrainer
    make_settings = cross_encoder.CrossEncoderTrainingArguments
  with tempfile.TemporaryDirectory() as folder:
    settings = make_settings(
      folder,
      use_cpu=True,
      bf16=args.precision == "bfloat16",
      per_device_train_batch_size=args.train_batch_size,
      max_steps=num_steps,
      max_grad_norm=1.0,
      seed=args.seed,
      # Duplicates would be negatives of themselves.
      batch_sampler=samplers.NO_DUPLICATES
      if args.loss == "infonce"
      else samplers.BATCH_SAMPLER,
      dataloader_drop_last=True,
      save_strategy="no",
      eval_strategy="no",
      logging_strategy="no",
      report_to="none",
      disable_tqdm=True,
    )
    make_trainer(
      model,
      settings,
      dataset,
      loss=LOSSES[args.loss](model),
      optimizers=(optimizer, make_schedule(optimizer, num_steps)),
      callbacks=[Progress()],
    ).train()


def main() -> None:
  """Trains, evaluates and prints the metrics."""
  args = parse_args()
  torch.manual_seed(args.seed)
  if args.loss == "listwise":
    model = cross_encoder.CrossEncoder(
      args.model_dir,
      num_labels=1,
      max_length=args.max_seq_length,
      device="cpu",
    )
  else:
    model = sentence_transformers.SentenceTransformer(
      args.model_dir, device="cpu"
    )
    model.max_seq_length = args.max_seq_length
  if args.train_file:
    train(args, model)
  found = make_evaluator(args)(model)
  names = {name: ours for name, ours in METRICS.items() if name in found}
  print(json.dumps({ours: float(found[name]) for name, ours in names.items()}))


if __name__ == "__main__":
  main()
