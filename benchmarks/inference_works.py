"""Works of `inference`: tasks, texts, and how a side does them."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

from benchmarks.side_by_side import Answer, timed

# As in `bertlib.checkpoints.predictor`: the hidden states fit in the caches.
_TOKENS_PER_BATCH = 2048


class Task(NamedTuple):
  """What a model is asked."""

  architecture: str  # class of transformers
  # Scope of its output layer in our checkpoints; None without one.
  head: str | None
  description: dict[str, Any]  # contents of `model.json`


TASKS = {
  "labels": Task(
    "BertForSequenceClassification",
    "output_",
    {"script": "run_classifier", "labels": ["0", "1"], "max_seq_length": 128},
  ),
  "answers": Task(
    "BertForQuestionAnswering",
    "cls/squad/output_",
    {
      "script": "run_squad",
      "max_seq_length": 384,
      "doc_stride": 128,
      "max_query_length": 64,
      "version_2_with_negative": False,
    },
  ),
  "vectors": Task(
    "BertModel",
    None,
    {
      "script": "run_embeddings",
      "max_seq_length": 256,
      "embedding": {"pooling": "mean", "normalize": True},
    },
  ),
}


class Work(NamedTuple):
  """Texts to predict, and how."""

  description: str  # in words
  task: str  # one of `TASKS`
  texts: str  # name of the texts, see `read_texts`
  alone: bool  # one text per call, else all in batches


WORKS = {
  "mrpc": Work("MRPC pairs", "labels", "mrpc", False),
  "mrpc-one": Work("one MRPC pair", "labels", "mrpc", True),
  "tokens": Work("texts of 128 tokens", "labels", "tokens", False),
  "tokens-one": Work("one text of 128 tokens", "labels", "tokens", True),
  "squad": Work("SQuAD questions", "answers", "squad", False),
  "lines": Work("vectors of lines", "vectors", "lines", False),
  "lines-one": Work("the vector of one line", "vectors", "lines", True),
}


# Texts


def read_texts(settings: SimpleNamespace, name: str) -> list[tuple[str, ...]]:
  """Texts of one set: an evenly spaced sample."""
  count = settings.max_texts
  if name == "calibration":
    count = 256
    labels = "mrpc-train" if settings.glue_dir else "tokens"
    name = {"answers": "squad", "labels": labels, "vectors": "lines"}[
      settings.task
    ]
  if name == "squad":
    texts = list(squad_questions(settings.squad_file))
  elif name == "tokens":
    texts = full_texts(in_folder(settings, "ours", "vocab.txt"), count)
  elif name == "lines":
    with open(settings.text_file, encoding="utf-8") as file:
      texts = [(line.strip(),) for line in file if line.strip()]
  else:
    texts = list(glue_texts(settings.glue_dir, name))
  count = min(len(texts), count)
  return [texts[index * len(texts) // count] for index in range(count)]


def glue_texts(glue_dir: str, name: str) -> Iterator[tuple[str, ...]]:
  """Pairs of MRPC."""
  file_name, columns = {
    "mrpc-train": ("MRPC/train.tsv", [3, 4]),
    "mrpc": ("MRPC/test.tsv", [3, 4]),
  }[name]
  path = os.path.join(glue_dir, file_name)
  with open(path, encoding="utf-8-sig") as file:
    for line in itertools.islice(file, 1, None):
      row = line.rstrip("\n").split("\t")
      yield tuple(row[column] for column in columns)


def squad_questions(path: str) -> Iterator[tuple[str, str]]:
  """Questions with their passages."""
  with open(path, encoding="utf-8") as file:
    articles = json.load(file)["data"]
  for article in articles:
    for paragraph in article["paragraphs"]:
      for question in paragraph["qas"]:
        yield question["question"], paragraph["context"]


def full_texts(vocab_file: str, count: int) -> list[tuple[str]]:
  """Texts of whole words that are 128 tokens with [CLS] and [SEP]."""
  with open(vocab_file, encoding="utf-8") as file:
    words = re.findall(r"(?m)^[a-z]+$", file.read())
  endless = itertools.cycle(words)
  return [(" ".join(itertools.islice(endless, 126)),) for _ in range(count)]


# Sides


def serve(
  settings: SimpleNamespace, description: str, predict: Callable
) -> Iterator[Answer]:
  """A side of `side_by_side`, whose requests are "try WORK" and "time WORK"."""
  answer: Answer = {"description": description}
  while True:
    request = yield answer
    action, name = request.split()
    work = WORKS[name]
    texts = read_texts(settings, work.texts)
    calls = [texts]
    if work.alone:
      calls = [[text] for text in texts[: settings.latency_runs]]
    if action == "try":
      answer = {"outputs": list(itertools.chain(*map(predict, calls)))}
      continue
    start = time.process_time()
    seconds = sorted(timed(predict, call) for call in calls)
    num_texts = sum(map(len, calls))
    answer = {"processor time": (time.process_time() - start) / num_texts}
    if work.alone:
      answer["median"] = statistics.median(seconds)
      answer["99th percentile"] = seconds[-(len(seconds) // 100) - 1]
    else:
      answer["batches"] = sum(seconds) / num_texts


def checksums(vectors: Any) -> list[float]:
  """A number for each vector, float [N, D], to compare sides by."""
  import numpy as np

  vectors = np.asarray(vectors, np.float32)
  return (vectors @ np.cos(np.arange(vectors.shape[1]))).tolist()


def in_folder(settings: SimpleNamespace, *names: str) -> str:
  """Path of a file that `make_model` wrote."""
  return os.path.join(settings.folder, *names)


def require_task(settings: SimpleNamespace, task: str) -> None:
  """Ends a side that does only one task."""
  if settings.task != task:
    raise NotImplementedError(f"does not do the task {settings.task}")


def in_sorted_batches(
  settings: SimpleNamespace, lengths: list[int], run: Callable
) -> list[Any]:
  """Outputs of all rows, computed in batches of similar length."""
  order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
  outputs: list[Any] = [None] * len(order)
  first = 0
  while first < len(order):
    longest = max(lengths[order[first]], 1)
    size = settings.batch_size or max(_TOKENS_PER_BATCH // longest, 1)
    batch = order[first : first + size]
    first += size
    for row, output in zip(batch, run(batch)):
      outputs[row] = output
  return outputs
