"""Fine-tunes transformers' BERT for question answering, as a baseline.

The settings are those of `run_squad.py --bias_correction --mask_padding`: the
same windows, number of steps, rates, decay, clipping, dropout and null scores.
Two things are as in transformers: its softmax over positions includes padding
up to the longest window of the batch, and an answer may start in any window
that has it, not only in the one with the most context.

    python -m benchmarks.finetune_transformers_squad \
        --train_file=train-v1.1.json --predict_file=dev-v1.1.json \
        --model_dir=DIR_WITH_CONFIG_WEIGHTS_AND_VOCAB

Runs on the CPU. Needs torch, transformers, scikit-learn and scipy. Progress
goes to standard error, one JSON line with metrics to standard output.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from benchmarks.finetune_transformers import (
  add_training_flags,
  shuffled_batches,
  train,
  use_precision,
)
from bertlib.tasks.squad import squad_files, squad_scores

MAX_QUERY_LENGTH = 64  # tokens, as by default in run_squad.py


class Window(NamedTuple):
  """A question and as much of its paragraph as fits.

  Attributes:
    question: index of the question.
    inputs: input_ids and token_type_ids; in training the positions of the
      answer, 0 if the window does not have all of it.
    first: position of the paragraph's first token in the window.
    offsets: int [tokens, 2], characters of each token of the paragraph.
  """

  question: int
  inputs: dict[str, Any]
  first: int
  offsets: np.ndarray


def parse_args() -> argparse.Namespace:
  """Parses the command line; most names are those of run_squad.py."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  add = parser.add_argument
  add("--train_file", required=True, help="JSON in SQuAD format")
  add("--predict_file", required=True, help="likewise, to evaluate")
  add("--model_dir", required=True, help="Hugging Face BERT directory")
  add_training_flags(parser, "windows")
  add("--max_seq_length", type=int, default=384, help="tokens of a window")
  add(
    "--doc_stride",
    type=int,
    default=128,
    help="tokens between the starts of overlapping windows",
  )
  add(
    "--version_2_with_negative",
    action="store_true",
    help="whether questions may have no answer, as in SQuAD 2.0",
  )
  add("--n_best_size", type=int, default=20, help="starts and ends per window")
  add("--max_answer_length", type=int, default=30, help="tokens")
  add(
    "--max_predict_questions",
    type=int,
    help="evaluate only so many questions, evenly spaced in --predict_file",
  )
  return parser.parse_args()


# Windows


def make_windows(
  questions: Sequence[squad_files.Question],
  tokenizer: Any,
  max_seq_length: int,
  doc_stride: int,
  is_training: bool,
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
    capacity = max_seq_length - len(prefix) - 1
    step = min(doc_stride, capacity)
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


def answer_span(
  question: squad_files.Question, offsets: np.ndarray
) -> tuple[int, int] | None:
  """First and last token of the first gold answer; None if there is none."""
  if question.is_impossible or not question.answers:
    return None
  text, start = question.answers[0]
  begins, ends = offsets.T
  (tokens,) = np.nonzero((ends > start) & (begins < start + len(text)))
  return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


# Prediction


@torch.inference_mode()
def predict_logits(
  model: torch.nn.Module,
  windows: Sequence[Window],
  collate: Any,
  batch_size: int,
) -> list[np.ndarray]:
  """Start and end logits of each window: float32 [2, tokens]."""
  model.eval()
  lengths = [len(window.inputs["input_ids"]) for window in windows]
  order = np.argsort(lengths, kind="stable")
  logits: list[Any] = [None] * len(windows)
  for i in range(0, len(order), batch_size):
    rows = order[i : i + batch_size]
    output = model(**collate([windows[row].inputs for row in rows]))
    batch = torch.stack([output.start_logits, output.end_logits], 1)
    for row, values in zip(rows, batch.float().numpy()):
      logits[row] = values[:, : lengths[row]]
  return logits


def best_span(
  window: Window,
  logits: np.ndarray,
  n_best_size: int,
  max_answer_length: int,
) -> tuple[float, int, int]:
  """Score of the best answer in a window, and its range of characters.

  Args:
    window: the window.
    logits: float [2, tokens], its start and end logits.
    n_best_size: the answer starts and ends at one of so many best tokens.
    max_answer_length: maximum length in tokens.

  Returns:
    (-inf, 0, 0) if no answer is valid.
  """
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
  questions: Sequence[squad_files.Question],
  windows: Sequence[Window],
  logits: Sequence[np.ndarray],
  n_best_size: int,
  max_answer_length: int,
) -> tuple[dict[str, str], dict[str, float]]:
  """Best answer and null odds of each question, by id.

  The null odds are the lowest score of [CLS] over the windows minus the score
  of the best answer.
  """
  best = [(-math.inf, 0, 0)] * len(questions)
  null = [math.inf] * len(questions)
  for window, values in zip(windows, logits):
    span = best_span(window, values, n_best_size, max_answer_length)
    # The earlier window wins a tie.
    best[window.question] = max(
      best[window.question], span, key=lambda span: span[0]
    )
    null[window.question] = min(
      null[window.question], float(values[:, 0].sum())
    )
  answers, odds = {}, {}
  for question, (score, begin, end), null_score in zip(questions, best, null):
    answers[question.id] = question.context[begin:end]
    odds[question.id] = null_score - score
  return answers, odds


# The command


def evaluate(
  questions: Sequence[squad_files.Question],
  answers: dict[str, str],
  odds: dict[str, float],
  version_2_with_negative: bool,
) -> dict[str, float]:
  """Metrics in percent, by the evaluators of squad_metrics.py."""
  if not version_2_with_negative:
    return squad_scores.evaluate_v1(questions, answers)
  results = squad_scores.evaluate_v2(
    questions, answers, odds, na_prob_thresh=0.0, answer_nothing=-math.inf
  )
  return {
    "exact_match": results["exact"],
    "f1": results["f1"],
    "best_exact_match": results["best_exact"],
    "best_f1": results["best_f1"],
  }


def main() -> None:
  """Trains, answers the questions and prints the metrics."""
  args = parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(args.seed)
  tokenizer = transformers.BertTokenizerFast.from_pretrained(args.model_dir)
  collate = transformers.DataCollatorWithPadding(tokenizer)
  model = transformers.AutoModelForQuestionAnswering.from_pretrained(
    args.model_dir, dtype=torch.float32
  )

  train_questions = squad_files.read_questions(args.train_file)
  train_windows = make_windows(
    train_questions, tokenizer, args.max_seq_length, args.doc_stride, True
  )
  # An epoch is a pass over the questions, of which some have many windows.
  num_steps = int(len(train_questions) / args.batch_size * args.epochs)
  steps = shuffled_batches(len(train_windows), args.batch_size, args.epochs)
  steps = steps[: min(num_steps, args.max_steps or num_steps)]
  batches = torch.utils.data.DataLoader(
    [window.inputs for window in train_windows],
    batch_sampler=steps,
    collate_fn=collate,
  )

  questions = squad_files.read_questions(args.predict_file)
  num_questions = min(
    len(questions), args.max_predict_questions or len(questions)
  )
  questions = [
    questions[i * len(questions) // num_questions] for i in range(num_questions)
  ]
  windows = make_windows(
    questions, tokenizer, args.max_seq_length, args.doc_stride, False
  )
  use_precision(model, args.precision)
  started = time.perf_counter()
  train(model, batches, len(steps), args.learning_rate)
  seconds = time.perf_counter() - started
  logits = predict_logits(model, windows, collate, args.batch_size)
  answers, odds = find_answers(
    questions, windows, logits, args.n_best_size, args.max_answer_length
  )
  scores = evaluate(questions, answers, odds, args.version_2_with_negative)
  line = {
    "task": "SQuAD 2.0" if args.version_2_with_negative else "SQuAD 1.1",
    "seed": args.seed,
    "precision": args.precision,
    "threads": args.threads,
    "steps": len(steps),
    "examples_per_second": round(len(steps) * args.batch_size / seconds, 2),
    "questions": num_questions,
    **{name: round(score, 2) for name, score in scores.items()},
  }
  print(json.dumps(line))


if __name__ == "__main__":
  main()
