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

import json
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

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from benchmarks.torch_training import make_optimizer, make_schedule
from bertlib.data import beir, text_groups
from bertlib.settings.common import TableSettings

LOSSES = {
  "cosent": losses.CoSENTLoss,
  "infonce": losses.MultipleNegativesRankingLoss,
  "listwise": cross_encoder.losses.ListNetLoss,  # of a reranker
}
# Names of metrics in sentence-transformers and in run_embeddings.py.
METRICS = {
  "spearman_cosine": "eval_spearman",
  "pearson_cosine": "eval_pearson",
  "cosine_ndcg@10": "eval_ndcg@10",
  "cosine_mrr@10": "eval_mrr@10",
  "cosine_recall@10": "eval_recall@10",
  "ndcg@10": "eval_ndcg@10",
  "mrr@10": "eval_mrr@10",
}


def read(path: str) -> list[text_groups.Example]:
  """Rows of a .tsv or .jsonl file; scores are from 0 to 1."""
  columns = text_groups.Columns(
    FLAGS.text_columns.split(","), FLAGS.score_column
  )
  return text_groups.read_examples(
    path, columns, FLAGS.max_score, TableSettings()
  )


def make_pairs(rows: list[text_groups.Example]) -> datasets.Dataset:
  """Pairs of texts, and their scores if they have some."""
  texts = map(list, zip(*(row.texts for row in rows)))
  columns = dict(zip(("anchor", "positive"), texts))
  if FLAGS.score_column:
    columns["score"] = [row.score for row in rows]
  return datasets.Dataset.from_dict(columns)


def make_lists(
  queries: list[str], documents: list[list[str]]
) -> datasets.Dataset:
  """Examples of a reranker; the first document of a query is the right one."""
  # The loss takes the softmax of labels, which has to be 1 and 0.
  labels = [[50.0] + [0.0] * (len(texts) - 1) for texts in documents]
  return datasets.Dataset.from_dict(
    {"query": queries, "documents": documents, "labels": labels}
  )


def make_evaluator() -> Callable:
  """A function from a model to its metrics by name."""
  if beir.is_beir(FLAGS.dev_file):
    found = beir.read(FLAGS.dev_file)
    relevant = {query: {*grades} for query, grades in found.relevance.items()}
    return evaluation.InformationRetrievalEvaluator(
      dict(found.queries), dict(found.corpus), relevant
    )
  rows = read(FLAGS.dev_file)
  if FLAGS.loss == "listwise":
    samples = [
      {"query": query, "positive": [right], "negative": wrong}
      for query, right, *wrong in (row.texts for row in rows)
    ]
    return CrossEncoderRerankingEvaluator(samples, at_k=10, batch_size=32)
  pairs = make_pairs(rows).to_dict().values()
  return evaluation.EmbeddingSimilarityEvaluator(*pairs)


class Progress(transformers.TrainerCallback):
  """Prints the first step, each twentieth, and the last."""

  def on_step_end(self, args, state, control, **kwargs):
    """See base class."""
    del args, control, kwargs
    step, last = state.global_step, state.max_steps
    if step == 1 or step % 20 == 0 or step == last:
      print(f"step {step} of {last}", file=sys.stderr, flush=True)


def train(model: Any) -> None:
  """Trains the model in place, on the files of the flags."""
  rows = read(FLAGS.train_file)
  if FLAGS.loss == "listwise":
    queries = [row.texts[0] for row in rows]
    data = make_lists(queries, [row.texts[1:] for row in rows])
  else:
    data = make_pairs(rows)
  num_steps = int(len(data) / FLAGS.train_batch_size * FLAGS.num_train_epochs)
  optimizer = make_optimizer(model, FLAGS.learning_rate)
  samplers = sentence_transformers.base.sampler.BatchSamplers
  fit(
    model,
    data,
    LOSSES[FLAGS.loss](model),
    (optimizer, make_schedule(optimizer, num_steps)),
    bf16=FLAGS.precision == "bfloat16",
    per_device_train_batch_size=FLAGS.train_batch_size,
    max_steps=num_steps,
    seed=FLAGS.seed,
    # Duplicates would be negatives of themselves.
    batch_sampler=samplers.NO_DUPLICATES
    if FLAGS.loss == "infonce"
    else samplers.BATCH_SAMPLER,
  )


def fit(
  model: Any,
  data: datasets.Dataset,
  loss: Any,
  optimizers: tuple[Any, Any],
  **arguments: Any,
) -> None:
  """Trains by the trainer of the model, which writes nothing."""
  make_trainer = sentence_transformers.SentenceTransformerTrainer
  make_arguments = sentence_transformers.SentenceTransformerTrainingArguments
  if isinstance(model, cross_encoder.CrossEncoder):
    make_trainer = cross_encoder.CrossEncoderTrainer
    make_arguments = cross_encoder.CrossEncoderTrainingArguments
  with tempfile.TemporaryDirectory() as folder:
    made = make_arguments(
      folder,
      use_cpu=True,
      dataloader_drop_last=True,
      save_strategy="no",
      logging_strategy="no",
      report_to="none",
      disable_tqdm=True,
      **arguments,
    )
    make_trainer(
      *(model, made, data),
      loss=loss,
      optimizers=optimizers,
      callbacks=[Progress()],
    ).train()


def main(_: list[str]) -> None:
  """Trains, evaluates and prints the metrics."""
  torch.manual_seed(FLAGS.seed)
  if FLAGS.loss == "listwise":
    model = cross_encoder.CrossEncoder(
      FLAGS.model_dir,
      num_labels=1,
      max_length=FLAGS.max_seq_length,
      device="cpu",
    )
  else:
    model = sentence_transformers.SentenceTransformer(
      FLAGS.model_dir, device="cpu"
    )
    model.max_seq_length = FLAGS.max_seq_length
  if FLAGS.train_file:
    train(model)
  found = make_evaluator()(model)
  names = {name: ours for name, ours in METRICS.items() if name in found}
  metrics = {ours: float(found[name]) for name, ours in names.items()}
  print(json.dumps(metrics | {"versions": side_by_side.versions()}))


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    **side_by_side.BASELINE,
    text_columns=("anchor,positive", "Columns of a table with a header."),
    score_column=(str, "Scores of pairs; default: pairs have none."),
    max_score=(1.0, "Largest score."),
    loss=(tuple(LOSSES), "Loss; listwise is that of a reranker."),
    train_batch_size=(32, "Rows per step."),
    num_train_epochs=(3.0, "Passes over the training set."),
  )
