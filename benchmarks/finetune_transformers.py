"""Fine-tunes transformers' BERT, as a baseline: GLUE, entities, questions.

The settings are those of this project's commands with `--bias_correction`:
number of steps, batches that span epochs, learning rate of each step, weight
decay and its exceptions, clipping, dropout. For questions the peer of this is
`--mask_padding`.

    python -m benchmarks.finetune_transformers --task=MRPC \
        --data_dir=glue/MRPC --model_dir=DIR_WITH_CONFIG_WEIGHTS_AND_VOCAB
    python -m benchmarks.finetune_transformers --task=entities \
        --train_file=train.conll --dev_file=test.conll --model_dir=DIR
    python -m benchmarks.finetune_transformers --task=questions \
        --train_file=train-v1.1.json --dev_file=dev-v1.1.json --model_dir=DIR

Some things are as in transformers: long sentences of entities are truncated,
not split into windows. The softmax over positions includes padding up to the
longest window of the batch, and an answer may start in any window that has it,
not only in the one with the most context.

Runs on the CPU. Needs torch, transformers, scikit-learn, scipy and seqeval.
Progress goes to standard error, one JSON line with metrics to standard output.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
import transformers

from benchmarks.torch_optimizer import make_optimizer, make_schedule

Args = argparse.Namespace
NO_TAG = -100  # ignored by torch's cross entropy
MAX_QUERY_LENGTH = 64  # tokens, as by default in run_squad.py


class Columns(NamedTuple):
  """Columns of labels and texts of a GLUE task."""

  has_header: bool
  label: int
  texts: tuple[int, ...]
  labels: tuple[str, ...]  # in the order of their ids; none: regression
  metrics: tuple[str, ...]


BINARY = ("0", "1")
GLUE = {
  "CoLA": Columns(False, 1, (3,), BINARY, ("matthews",)),
  "SST-2": Columns(True, 1, (0,), BINARY, ("accuracy",)),
  "MRPC": Columns(True, 0, (3, 4), BINARY, ("accuracy", "f1")),
  "STS-B": Columns(True, 9, (7, 8), (), ("pearson", "spearman")),
  "RTE": Columns(
    True, 3, (1, 2), ("entailment", "not_entailment"), ("accuracy",)
  ),
  "WNLI": Columns(True, 3, (1, 2), BINARY, ("accuracy",)),
}


class Job(NamedTuple):
  """What is trained and evaluated."""

  model: torch.nn.Module
  rows: Sequence[Any]  # features of the training examples
  num_examples: int  # of an epoch
  collate: Callable  # makes a batch of rows
  evaluate: Callable[[], dict[str, float]]


def parse_args() -> Args:
  """Parses the command line; most names are those of this project's flags."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  add = parser.add_argument
  add("--task", required=True, choices=[*GLUE, "entities", "questions"])
  add("--data_dir", help="of a GLUE task: folder of train.tsv and dev.tsv")
  add("--train_file", help="entities: one word and tag per line; or SQuAD")
  add("--dev_file", help="likewise, to evaluate")
  add("--model_dir", required=True, help="Hugging Face BERT directory")
  add("--epochs", type=float, default=3.0, help="passes over the training set")
  add("--batch_size", type=int, default=32, help="rows per step")
  add("--learning_rate", type=float, default=5e-5, help="its peak")
  add("--seed", type=int, default=1, help="of the output layer, order, dropout")
  add("--threads", type=int, default=1, help="threads per operation")
  add("--precision", choices=("float32", "bfloat16"), default="float32")
  add("--max_seq_length", type=int, default=128, help="tokens")
  add("--doc_stride", type=int, default=128, help="tokens between windows")
  add("--version_2_with_negative", action="store_true", help="as in SQuAD 2.0")
  return parser.parse_args()


# GLUE


def classification(args: Args, tokenizer: Any) -> Job:
  """A classifier, or a regression."""
  from scipy import stats
  from sklearn import metrics

  columns = GLUE[args.task]
  train_rows, dev_rows = (
    read_examples(args, name, tokenizer) for name in ("train.tsv", "dev.tsv")
  )
  model = transformers.BertForSequenceClassification.from_pretrained(
    args.model_dir, num_labels=len(columns.labels) or 1, dtype=torch.float32
  )
  collate = transformers.DataCollatorWithPadding(tokenizer)
  metric_of = {
    "accuracy": metrics.accuracy_score,
    "f1": metrics.f1_score,
    "matthews": metrics.matthews_corrcoef,
    "pearson": lambda *pair: stats.pearsonr(*pair)[0],
    "spearman": lambda *pair: stats.spearmanr(*pair)[0],
  }

  def evaluate():
    batches = torch.utils.data.DataLoader(
      dev_rows, args.batch_size, collate_fn=collate
    )
    predictions = predict(model, batches).numpy()
    labels = [row["label"] for row in dev_rows]
    return {
      name: metric_of[name](labels, predictions) for name in columns.metrics
    }

  return Job(model, train_rows, len(train_rows), collate, evaluate)


def read_examples(
  args: Args, name: str, tokenizer: Any
) -> list[dict[str, Any]]:
  """Tokenizes a TSV file without quoting."""
  columns = GLUE[args.task]
  path = os.path.join(args.data_dir, name)
  with open(path, encoding="utf-8-sig", newline="") as file:
    rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
  rows = rows[columns.has_header :]
  texts = [[row[column] for row in rows] for column in columns.texts]
  features = tokenizer(
    *texts, truncation="longest_first", max_length=args.max_seq_length
  )
  to_number = columns.labels.index if columns.labels else float
  features["label"] = [to_number(row[columns.label]) for row in rows]
  return [dict(zip(features, values)) for values in zip(*features.values())]


# Entities


def entities(args: Args, tokenizer: Any) -> Job:
  """A tagger: the first piece of a word carries its tag."""
  from seqeval import metrics

  train_set, dev_set = map(read_sentences, (args.train_file, args.dev_file))
  labels = sorted({tag for _, tags in train_set for tag in tags})
  (train_rows, _), (dev_rows, dev_words) = (
    encode(sentences, tokenizer, labels, args.max_seq_length)
    for sentences in (train_set, dev_set)
  )
  model = transformers.BertForTokenClassification.from_pretrained(
    args.model_dir, num_labels=len(labels), dtype=torch.float32
  )
  collate = transformers.DataCollatorForTokenClassification(tokenizer)

  def evaluate():
    true_tags = [tags for _, tags in dev_set]
    # Words of truncated sentences stay "O".
    predicted = [["O"] * len(tags) for tags in true_tags]
    for tags, words_at, row in zip(predicted, dev_words, dev_rows):
      label_ids = predict(model, [collate([row])])[0]
      for position, word in words_at.items():
        tags[word] = labels[int(label_ids[position])]
    return {
      "f1": metrics.f1_score(true_tags, predicted),
      "precision_score": metrics.precision_score(true_tags, predicted),
      "recall": metrics.recall_score(true_tags, predicted),
    }

  return Job(model, train_rows, len(train_rows), collate, evaluate)


def read_sentences(path: str) -> list[tuple[list[str], list[str]]]:
  """Words and tags of each sentence of a CoNLL file."""
  with open(path, encoding="utf-8-sig") as file:
    text = "".join(line if line.strip() else "\n" for line in file)
  rows = [
    [line.rsplit("\t", 1) for line in block.splitlines() if line]
    for block in text.split("\n\n")
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


# Questions


class Window(NamedTuple):
  """A question and as much of its paragraph as fits."""

  question: int  # its index
  inputs: dict[str, Any]  # in training with the answer; 0 if it is outside
  first: int  # position of the paragraph's first token in the window
  offsets: np.ndarray  # int [tokens, 2], characters of each token


def questions(args: Args, tokenizer: Any) -> Job:
  """A model that answers questions."""
  from bertlib.tasks.squad import squad_files, squad_scores

  train_set, dev_set = map(
    squad_files.read_questions, (args.train_file, args.dev_file)
  )
  train_windows = make_windows(args, train_set, tokenizer, is_training=True)
  windows = make_windows(args, dev_set, tokenizer, is_training=False)
  model = transformers.AutoModelForQuestionAnswering.from_pretrained(
    args.model_dir, dtype=torch.float32
  )
  collate = transformers.DataCollatorWithPadding(tokenizer)

  def evaluate():
    logits = predict_logits(model, windows, collate, args.batch_size)
    answers, odds = find_answers(dev_set, windows, logits)
    if not args.version_2_with_negative:
      found = squad_scores.evaluate_v1(dev_set, answers)
      return {"exact_match": found["exact_match"], "f1": found["f1"]}
    found = squad_scores.evaluate_v2(
      dev_set, answers, odds, na_prob_thresh=0.0, answer_nothing=-math.inf
    )
    return {
      "exact_match": found["exact"],
      "f1": found["f1"],
      "best_exact_match": found["best_exact"],
      "best_f1": found["best_f1"],
    }

  rows = [window.inputs for window in train_windows]
  # An epoch is a pass over the questions, of which some have many windows.
  return Job(model, rows, len(train_set), collate, evaluate)


def make_windows(
  args: Args, questions: Sequence[Any], tokenizer: Any, is_training: bool
) -> list[Window]:
  """Splits paragraphs into windows that start `doc_stride` tokens apart."""
  queries = tokenizer(
    [question.text for question in questions],
    add_special_tokens=False,
    truncation=True,
    max_length=MAX_QUERY_LENGTH,
  )["input_ids"]
  contexts = list(dict.fromkeys(question.context for question in questions))
  encoded = tokenizer(
    contexts,
    add_special_tokens=False,
    return_offsets_mapping=True,
    verbose=False,
  )
  paragraphs = {
    context: (ids, np.array(offsets).reshape(-1, 2))
    for context, ids, offsets in zip(
      contexts, encoded["input_ids"], encoded["offset_mapping"]
    )
  }
  cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
  windows = []
  for index, (question, query) in enumerate(zip(questions, queries)):
    ids, offsets = paragraphs[question.context]
    answer = answer_span(question, offsets) if is_training else None
    prefix = cls + query + sep
    capacity = args.max_seq_length - len(prefix) - 1
    step = min(args.doc_stride, capacity)
    num_windows = 1 + max(0, math.ceil((len(ids) - capacity) / step))
    for start in range(0, num_windows * step, step):
      part = ids[start : start + capacity]
      inputs = {
        "input_ids": prefix + part + sep,
        "token_type_ids": [0] * len(prefix) + [1] * (len(part) + 1),
      }
      if is_training:
        begin, end = answer or (-1, -1)
        is_inside = start <= begin and end < start + len(part)
        shift = len(prefix) - start
        inputs["start_positions"] = begin + shift if is_inside else 0
        inputs["end_positions"] = end + shift if is_inside else 0
      offsets_here = offsets[start : start + capacity]
      windows.append(Window(index, inputs, len(prefix), offsets_here))
  return windows


def answer_span(question: Any, offsets: np.ndarray) -> tuple[int, int] | None:
  """First and last token of the first gold answer; None if there is none."""
  if question.is_impossible or not question.answers:
    return None
  text, start = question.answers[0]
  begins, ends = offsets.T
  (tokens,) = np.nonzero((ends > start) & (begins < start + len(text)))
  return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


@torch.inference_mode()
def predict_logits(
  model: torch.nn.Module, windows: Sequence[Window], collate: Any, size: int
) -> list[np.ndarray]:
  """Start and end logits of each window: float32 [2, tokens]."""
  model.eval()
  lengths = [len(window.inputs["input_ids"]) for window in windows]
  order = np.argsort(lengths, kind="stable")
  logits: list[Any] = [None] * len(windows)
  for i in range(0, len(order), size):
    rows = order[i : i + size]
    output = model(**collate([windows[row].inputs for row in rows]))
    batch = torch.stack([output.start_logits, output.end_logits], 1)
    for row, values in zip(rows, batch.float().numpy()):
      logits[row] = values[:, : lengths[row]]
  return logits


def best_span(
  window: Window, logits: np.ndarray, n_best_size=20, max_answer_length=30
) -> tuple[float, int, int]:
  """Score of the best answer in a window, and its range of characters."""
  starts, ends = np.argsort(-logits, axis=1, kind="stable")[:, :n_best_size]
  scores = logits[0, starts, np.newaxis] + logits[1, ends]
  lengths = ends - starts[:, np.newaxis] + 1
  is_valid = (lengths > 0) & (lengths <= max_answer_length)
  is_valid &= (starts >= window.first)[:, np.newaxis]
  is_valid &= ends < window.first + len(window.offsets)
  scores = np.where(is_valid, scores, -np.inf)
  i, j = np.unravel_index(scores.argmax(), scores.shape)
  if not is_valid[i, j]:
    return -math.inf, 0, 0
  begin = window.offsets[starts[i] - window.first, 0]
  end = window.offsets[ends[j] - window.first, 1]
  return float(scores[i, j]), int(begin), int(end)


def find_answers(
  questions: Sequence[Any], windows: Sequence[Window], logits: list[np.ndarray]
) -> tuple[dict[str, str], dict[str, float]]:
  """Best answer and null odds of each question, by id.

  The null odds are the lowest score of [CLS] over the windows minus the score
  of the best answer.
  """
  best = [(-math.inf, 0, 0)] * len(questions)
  null = [math.inf] * len(questions)
  for window, values in zip(windows, logits):
    index, span = window.question, best_span(window, values)
    if span[0] > best[index][0]:  # the earlier window wins a tie
      best[index] = span
    null[index] = min(null[index], float(values[:, 0].sum()))
  answers, odds = {}, {}
  for question, (score, begin, end), null_score in zip(questions, best, null):
    answers[question.id] = question.context[begin:end]
    odds[question.id] = null_score - score
  return answers, odds


# Training


def train(args: Args, job: Job) -> int:
  """Trains the model; returns the number of steps.

  Each epoch is shuffled differently. The remainder of an epoch begins the first
  batch of the next; only the remainder of the last epoch is dropped.
  """
  orders = [
    torch.randperm(len(job.rows)) for _ in range(math.ceil(args.epochs))
  ]
  num_steps = int(len(job.rows) / args.batch_size * args.epochs)
  order = torch.cat(orders)[: num_steps * args.batch_size]
  num_steps = int(job.num_examples / args.batch_size * args.epochs)
  steps = order.view(-1, args.batch_size).tolist()[:num_steps]
  batches = torch.utils.data.DataLoader(
    job.rows, batch_sampler=steps, collate_fn=job.collate
  )
  model = job.model
  if args.precision == "bfloat16":
    # Each call has a context of its own: autocast keeps its casts of the
    # weights as long as the context is open, so that one around a training
    # would never see what the training changes.
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
  optimizer = make_optimizer(model, args.learning_rate, fused=False)
  schedule = make_schedule(optimizer, len(steps))
  model.train()
  for step, batch in enumerate(batches, start=1):
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step % 50 == 0 or step == len(steps):
      print(f"step {step}/{len(steps)}: loss {loss:.4f}", file=sys.stderr)
  return len(steps)


@torch.inference_mode()
def predict(model: torch.nn.Module, batches: Iterable[Any]) -> torch.Tensor:
  """The predicted class, or value, of each example."""
  model.eval()
  logits = torch.cat([model(**batch).logits for batch in batches]).float()
  return logits.argmax(-1) if logits.shape[-1] > 1 else logits.squeeze(-1)


def main() -> None:
  """Trains, evaluates and prints the metrics."""
  args = parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(args.seed)
  tokenizer = transformers.BertTokenizerFast.from_pretrained(args.model_dir)
  make_job = {"entities": entities, "questions": questions}
  job = make_job.get(args.task, classification)(args, tokenizer)
  num_steps = train(args, job)
  names = ("task", "seed", "precision", "threads")
  line = {
    **{name: getattr(args, name) for name in names},
    "steps": num_steps,
    **{name: round(float(v), 4) for name, v in job.evaluate().items()},
  }
  print(json.dumps(line))


if __name__ == "__main__":
  main()
