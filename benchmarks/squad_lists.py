"""Writes questions of SQuAD with mined paragraphs, to train a reranker.

`lists.jsonl` has the first question of each paragraph, its two closest wrong
paragraphs and two random ones; `dev.jsonl` the first question of each of some
paragraphs and the closest 29. Closest by the vectors of an encoder. Files that
are there are kept.

    python -m benchmarks.squad_lists --model_dir=output/minilm \
        --train_file=train-v1.1.json --dev_file=dev-v1.1.json --output_dir=lists
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
from collections.abc import Iterator
from typing import Any

from benchmarks import inference_works, results, side_by_side
from benchmarks.side_by_side import FLAGS


def main(_: list[str]) -> None:
  """Writes both files."""
  if os.path.exists(os.path.join(FLAGS.output_dir, "lists.jsonl")):
    return
  os.makedirs(FLAGS.output_dir, exist_ok=True)
  chosen = itertools.islice(pairs(FLAGS.dev_file), FLAGS.dev_paragraphs)
  path = functools.partial(os.path.join, FLAGS.output_dir)
  results.write_rows(path("dev.jsonl"), mined("dev", chosen, 29))
  rows = [*mined("train", pairs(FLAGS.train_file), 2)]
  texts = sorted({row["positive"] for row in rows})
  draw = random.Random(1)
  for row in rows:
    others = [t for t in draw.sample(texts, 3) if t != row["positive"]]
    row["negatives"] += others[:2]
  results.write_rows(path("lists.jsonl"), rows)


def pairs(path: str) -> Iterator[dict[str, str]]:
  """The first question of each paragraph, with the paragraph."""
  questions = inference_works.squad_questions(path)
  for paragraph, group in itertools.groupby(questions, lambda pair: pair[1]):
    question, _ = next(group)
    yield {"query": question.strip(), "positive": paragraph}


def mined(name: str, rows: Any, number: int) -> Iterator[dict[str, Any]]:
  """The rows with so many wrong paragraphs that a search finds closest."""
  path = os.path.join(FLAGS.output_dir, f"{name}_pairs.jsonl")
  results.write_rows(path, rows)
  folder = os.path.join(FLAGS.output_dir, f"{name}_search")
  side_by_side.run_python(
    *("run_embeddings.py", "--do_predict", "--text_columns=query,positive"),
    init_checkpoint=FLAGS.model_dir,
    train_file=path,
    mine_negatives=number,
    max_seq_length=256,
    output_dir=folder,
  )
  path = os.path.join(folder, f"{name}_pairs_negatives.jsonl")
  with open(path, encoding="utf-8") as file:
    yield from map(json.loads, file)


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    model_dir="Encoder that searches.",
    train_file="SQuAD, for training.",
    dev_file="SQuAD, for evaluation.",
    output_dir="Folder of the lists.",
    dev_paragraphs=(300, "Paragraphs of the dev set."),
  )
