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
Progress goes to standard error, one JSON line to standard output, with metrics
by the names that they have here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
import transformers

from benchmarks import inference_peers, side_by_side
from benchmarks.side_by_side import FLAGS
from benchmarks.torch_training import load, make_optimizer, make_schedule

NO_TAG = -100  # ignored by torch's cross entropy


class Job(NamedTuple):
  """What is trained and evaluated."""

  model: torch.nn.Module
  rows: Sequence[Any]  # features of the training examples
  num_examples: int  # of an epoch
  collate: Callable  # makes a batch of rows
  evaluate: Callable[[], dict[str, float]]


# GLUE


def classification(tokenizer: Any) -> Job:
  """A classifier, or a regression."""
  from bertlib.tasks.classification.classification import PROCESSORS
  from bertlib.tasks.classification.classification_report import METRICS

  processor = PROCESSORS[FLAGS.task.lower().replace("-", "")]()
  names = processor.get_labels()  # none: regression
  train_rows, dev_rows = (
    encode_examples(examples, names, tokenizer)
    for examples in (
      processor.get_train_examples(FLAGS.data_dir),
      processor.get_dev_examples(FLAGS.data_dir),
    )
  )
  architecture = "BertForSequenceClassification"
  model = load(architecture, FLAGS.model_dir, num_labels=len(names) or 1)
  collate = transformers.DataCollatorWithPadding(tokenizer)

  def evaluate():
    batches = torch.utils.data.DataLoader(
      dev_rows, FLAGS.batch_size, collate_fn=collate
    )
    predictions = predict(model, batches).numpy()
    labels = [row["label"] for row in dev_rows]
    return {
      f"eval_{name}": METRICS[name](labels, predictions)
      for name in processor.metrics
    }

  return Job(model, train_rows, len(train_rows), collate, evaluate)


def encode_examples(
  examples: Sequence[Any], names: Sequence[str], tokenizer: Any
) -> list[dict[str, Any]]:
  """Features of texts or pairs, with their labels."""
  seconds = [example.text_b for example in examples]
  features = tokenizer(
    [example.text_a for example in examples],
    None if seconds[0] is None else seconds,
    truncation="longest_first",
    max_length=FLAGS.max_seq_length,
  )
  to_number = names.index if names else float
  features["label"] = [to_number(example.label) for example in examples]
  return [dict(zip(features, values)) for values in zip(*features.values())]


# Entities


def entities(tokenizer: Any) -> Job:
  """A tagger: the first piece of a word carries its tag."""
  from bertlib.tasks.ner import ner_files, ner_report

  train_set, dev_set = (
    ner_files.read_sentences(path, ner_files.Columns())
    for path in (FLAGS.train_file, FLAGS.dev_file)
  )
  labels = sorted({tag for sentence in train_set for tag in sentence.tags})
  train_rows, dev_rows = (
    [encode(sentence, tokenizer, labels) for sentence in sentences]
    for sentences in (train_set, dev_set)
  )
  architecture = "BertForTokenClassification"
  model = load(architecture, FLAGS.model_dir, num_labels=len(labels))
  collate = transformers.DataCollatorForTokenClassification(tokenizer)

  def evaluate():
    # Words of truncated sentences stay "O".
    predicted = [["O"] * len(sentence.tags) for sentence in dev_set]
    for tags, row in zip(predicted, dev_rows):
      label_ids = predict(model, [collate([row])])[0]
      for word, position in first_pieces(row).items():
        tags[word] = labels[int(label_ids[position])]
    return ner_report.evaluate_tags(dev_set, [(t, ()) for t in predicted])

  return Job(model, train_rows, len(train_rows), collate, evaluate)


def encode(sentence: Any, tokenizer: Any, labels: list[str]) -> Any:
  """Features of a sentence."""
  row = tokenizer(
    sentence.words,
    is_split_into_words=True,
    truncation=True,
    max_length=FLAGS.max_seq_length,
  )
  row["labels"] = [NO_TAG] * len(row["input_ids"])
  for word, position in first_pieces(row).items():
    row["labels"][position] = labels.index(sentence.tags[word])
  return row


def first_pieces(row: Any) -> dict[int, int]:
  """Position of the first piece of each word, by number of the word."""
  found: dict[int, int] = {}
  for position, word in enumerate(row.word_ids()):
    if word is not None:
      found.setdefault(word, position)
  return found


# Questions


class Window(NamedTuple):
  """A question and as much of its paragraph as fits."""

  question: int  # its index
  inputs: dict[str, Any]  # in training with the answer; 0 if it is outside
  offsets: np.ndarray  # int [tokens, 2], characters of each token


def questions(tokenizer: Any) -> Job:
  """A model that answers questions."""
  from bertlib.tasks.squad import squad_files, squad_scores

  train_set, dev_set = map(
    squad_files.read_questions, (FLAGS.train_file, FLAGS.dev_file)
  )
  train_windows = make_windows(train_set, tokenizer, is_training=True)
  windows = make_windows(dev_set, tokenizer, is_training=False)
  model = load("AutoModelForQuestionAnswering", FLAGS.model_dir)
  collate = transformers.DataCollatorWithPadding(tokenizer)

  def evaluate():
    answers, odds = find_answers(dev_set, windows, model, collate)
    if not FLAGS.version_2_with_negative:
      found = squad_scores.evaluate_v1(dev_set, answers)
      return {name: found[name] for name in ("exact_match", "f1")}
    found = squad_scores.evaluate_v2(
      dev_set, answers, odds, na_prob_thresh=0.0, answer_nothing=-math.inf
    )
    return {name: found[name] for name in ("best_exact", "best_f1")}

  rows = [window.inputs for window in train_windows]
  # An epoch is a pass over the questions, of which some have many windows.
  return Job(model, rows, len(train_set), collate, evaluate)


def make_windows(
  questions: Sequence[Any], tokenizer: Any, is_training: bool
) -> list[Window]:
  """Splits paragraphs into windows that start `doc_stride` tokens apart."""
  windows = []
  for index, question in enumerate(questions):
    first = len(tokenizer(question.text)["input_ids"])
    capacity = FLAGS.max_seq_length - first - 1
    encoded = tokenizer(
      question.text,
      question.context,
      truncation="only_second",
      max_length=FLAGS.max_seq_length,
      stride=max(capacity - FLAGS.doc_stride, 0),  # tokens of two windows
      return_overflowing_tokens=True,
    )
    for window in encoded.encodings:
      inputs = {"input_ids": window.ids, "token_type_ids": window.type_ids}
      offsets = np.array(window.offsets)
      if is_training:
        span = answer_span(question, offsets[first:-1])
        begin, end = (first + token for token in span) if span else (0, 0)
        inputs |= {"start_positions": begin, "end_positions": end}
      windows.append(Window(index, inputs, offsets))
  return windows


def answer_span(question: Any, offsets: np.ndarray) -> tuple[int, int] | None:
  """First and last token of the first gold answer; None if one is outside."""
  if question.is_impossible or not question.answers:
    return None
  text, start = question.answers[0]
  begins, ends = offsets.T
  if start < begins[0] or start + len(text) > ends[-1]:
    return None
  (tokens,) = np.nonzero((ends > start) & (begins < start + len(text)))
  return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


@torch.inference_mode()
def find_answers(
  questions: Sequence[Any],
  windows: Sequence[Window],
  model: torch.nn.Module,
  collate: Any,
) -> tuple[dict[str, str], dict[str, float]]:
  """Best answer and null odds of each question, by id.

  The null odds are the lowest score of [CLS] over the windows minus the score
  of the best answer.
  """
  model.eval()
  encoded = {
    name: [window.inputs[name] for window in windows]
    for name in ("input_ids", "token_type_ids")
  }
  order = np.argsort([*map(len, encoded["input_ids"])], kind="stable")
  found: list[Any] = [None] * len(windows)  # best span, score of [CLS]
  for i in range(0, len(order), FLAGS.batch_size):
    rows = order[i : i + FLAGS.batch_size]
    output = model(**collate([windows[row].inputs for row in rows]))
    logits = output.start_logits.float(), output.end_logits.float()
    spans = inference_peers.best_spans(encoded, rows, *logits)
    for row, span, null_score in zip(rows, spans, sum(logits)[:, 0].tolist()):
      found[row] = span, null_score
  best = [(-math.inf, 0, 0)] * len(questions)
  null = [math.inf] * len(questions)
  for window, ((score, first, last), null_score) in zip(windows, found):
    index = window.question
    if score > best[index][0]:  # the earlier window wins a tie
      best[index] = score, window.offsets[first, 0], window.offsets[last, 1]
    null[index] = min(null[index], null_score)
  answers, odds = {}, {}
  for question, (score, begin, end), null_score in zip(questions, best, null):
    answers[question.id] = question.context[begin:end]
    odds[question.id] = null_score - score
  return answers, odds


# Training


def train(job: Job) -> None:
  """Trains the model.

  Each epoch is shuffled differently. The remainder of an epoch begins the first
  batch of the next; only the remainder of the last epoch is dropped.
  """
  orders = [
    torch.randperm(len(job.rows)) for _ in range(math.ceil(FLAGS.epochs))
  ]
  num_steps = int(job.num_examples / FLAGS.batch_size * FLAGS.epochs)
  parts = torch.cat(orders).split(FLAGS.batch_size)[:num_steps]
  steps = [indices.tolist() for indices in parts]
  batches = torch.utils.data.DataLoader(
    job.rows, batch_sampler=steps, collate_fn=job.collate
  )
  model = job.model
  if FLAGS.precision == "bfloat16":
    # Each call has a context of its own: autocast keeps its casts of the
    # weights as long as the context is open, so that one around a training
    # would never see what the training changes.
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
  optimizer = make_optimizer(model, FLAGS.learning_rate, fused=False)
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


@torch.inference_mode()
def predict(model: torch.nn.Module, batches: Iterable[Any]) -> torch.Tensor:
  """The predicted class, or value, of each example."""
  model.eval()
  logits = torch.cat([model(**batch).logits for batch in batches]).float()
  return logits.argmax(-1) if logits.shape[-1] > 1 else logits.squeeze(-1)


def main(_: list[str]) -> None:
  """Trains, evaluates and prints the metrics."""
  torch.set_num_threads(FLAGS.threads)
  torch.manual_seed(FLAGS.seed)
  tokenizer = transformers.BertTokenizerFast.from_pretrained(FLAGS.model_dir)
  make_job = {"entities": entities, "questions": questions}
  job = make_job.get(FLAGS.task, classification)(tokenizer)
  train(job)
  found = {name: round(float(v), 4) for name, v in job.evaluate().items()}
  print(json.dumps(found | {"versions": side_by_side.versions()}))


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    **side_by_side.BASELINE,
    task="entities, questions, or a task of GLUE, such as MRPC.",
    data_dir=(str, "Of a GLUE task: folder of train.tsv and dev.tsv."),
    epochs=(3.0, "Passes over the training set."),
    batch_size=(32, "Rows per step."),
    threads=(1, "Threads per operation."),
    doc_stride=(128, "Tokens between windows."),
    version_2_with_negative=(False, "As in SQuAD 2.0."),
  )
