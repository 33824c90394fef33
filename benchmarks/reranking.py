"""Benchmark of training a reranker on questions of SQuAD.

A query has its paragraph and the next ones of the data; the loss is listwise.
Steps of run_reranker.py take turns with those of CrossEncoderTrainer, and of a
plain loop of PyTorch over batches whose lists have similar lengths.

    python -m benchmarks.reranking --model_dir=output/minilm --batch_size=8 \
        --hugging_face_dir=DIR_OF_THE_SAME_MODEL --squad_file=train-v1.1.json
"""

from __future__ import annotations

import functools
import os
import tempfile

from benchmarks import inference_works, mrpc_epoch, side_by_side, training_step
from benchmarks.side_by_side import FLAGS, Answers, Settings, timed

NUM_DOCUMENTS = 4  # of a query


def main(_: list[str]) -> None:
  """Times passes over the pairs, and reports ratios."""
  queries, _ = make_lists(FLAGS)
  needed = FLAGS.batch_size * FLAGS.steps
  side_by_side.check_number(FLAGS.squad_file, len(queries), needed)
  sides = side_by_side.chosen(
    [ours, sentence_transformers, hugging_face],
    ["datasets", "sentence-transformers"],
  )
  model = os.path.basename(FLAGS.model_dir.rstrip("/"))
  work = f"{FLAGS.batch_size} lists of {NUM_DOCUMENTS} paragraphs per step"
  side_by_side.compare(sides, f"SQuAD, {work}, {model}")


def make_lists(settings: Settings) -> tuple[list[str], list[list[str]]]:
  """The queries of all steps of a pass, and the paragraphs of each."""
  return read_lists(settings.squad_file, settings.batch_size * settings.steps)


def read_lists(path: str, count: int) -> tuple[list[str], list[list[str]]]:
  """Evenly spaced questions, and their paragraphs, the right one first."""
  questions = [*inference_works.squad_questions(path)]
  texts = [*dict.fromkeys(text for _, text in questions)]
  chosen = questions[:: max(len(questions) // count, 1)][:count]
  firsts = [texts.index(right) for _, right in chosen]
  return (
    [query for query, _ in chosen],
    [(texts[i:] + texts)[:NUM_DOCUMENTS] for i in firsts],
  )


def ours(settings: Settings) -> Answers:
  """Steps of run_reranker.py."""
  import run_reranker
  import tokenization
  from bertlib.data import training_records
  from bertlib.settings.common import LongDocumentSettings
  from bertlib.tasks.ranking import ranking_records
  from bertlib.tasks.ranking.ranking_records import Group

  config = mrpc_epoch.read_config(settings)
  keywords = training_step.training_plan(
    settings, config, settings.max_seq_length
  )
  labels = [1.0] + [0.0] * (NUM_DOCUMENTS - 1)
  layout = ranking_records.layout(
    "listwise", NUM_DOCUMENTS, settings.max_seq_length
  )
  vocab_file = os.path.join(settings.model_dir, "vocab.txt")
  with tempfile.NamedTemporaryFile() as file:
    ranking_records.write_records(
      file.name,
      [Group(*row, labels) for row in zip(*make_lists(settings))],
      layout,
      tokenization.FullTokenizer(vocab_file),
      LongDocumentSettings(),
    )
    input_fn = training_records.record_input_fn(
      file.name, layout, True, False, trim=True, by_length=True
    )
    model_fn = training_step.make_model_fn(
      run_reranker,
      config,
      loss="listwise",
      init_checkpoint=os.path.join(settings.model_dir, "bert_model.ckpt"),
      seed=1,
      **keywords,
    )
    description = training_step.describe(keywords)
    answers = mrpc_epoch.graph_epochs(
      settings, description, input_fn, model_fn, settings.steps
    )
    yield from per_pair(settings, answers)


def per_pair(settings: Settings, answers: Answers) -> Answers:
  """Answers with the time of a pair instead of that of an epoch."""
  num_pairs = settings.batch_size * settings.steps * NUM_DOCUMENTS
  for answer in answers:
    seconds = answer.get("an epoch")
    yield {"pairs": seconds / num_pairs} if seconds else answer


def sentence_transformers(settings: Settings) -> Answers:
  """CrossEncoderTrainer, in the faster of two ways to compute its loss."""
  from sentence_transformers import cross_encoder

  from benchmarks import finetune_sentence_transformers
  from benchmarks.torch_training import make_optimizer

  model = cross_encoder.CrossEncoder(
    settings.hugging_face_dir,
    num_labels=1,
    max_length=settings.max_seq_length,
    device="cpu",
  )
  data = finetune_sentence_transformers.make_lists(*make_lists(settings))
  optimizer = make_optimizer(model, learning_rate=5e-5)
  precision = settings.peer_precision.replace("auto", "float32")

  def train(size, num_steps=1):
    finetune_sentence_transformers.fit(
      model,
      data,
      cross_encoder.losses.ListNetLoss(model, mini_batch_size=size),
      (optimizer, None),
      bf16=precision == "bfloat16",
      per_device_train_batch_size=settings.batch_size,
      max_steps=num_steps,
    )

  train(-1)
  size = min((-1, None), key=functools.partial(timed, train))
  description = f"{precision}, mini_batch_size={size}"
  epoch = functools.partial(train, size, settings.steps)
  yield from per_pair(settings, mrpc_epoch.epochs(description, epoch))


def hugging_face(settings: Settings) -> Answers:
  """A plain loop over batches that are sorted by their longest text."""
  import torch
  import transformers

  from benchmarks.torch_training import load, make_optimizer

  queries, documents = make_lists(settings)
  model_dir = settings.hugging_face_dir
  encoded = transformers.AutoTokenizer.from_pretrained(model_dir)(
    [query for query in queries for _ in range(NUM_DOCUMENTS)],
    [text for texts in documents for text in texts],
    truncation=True,
    max_length=settings.max_seq_length,
  )
  lengths = torch.tensor([*map(len, encoded["input_ids"])])
  rows = torch.arange(len(lengths)).reshape(-1, NUM_DOCUMENTS)
  rows = rows[lengths[rows].amax(1).argsort()].reshape(settings.steps, -1)
  batches = [mrpc_epoch.padded(encoded, batch) for batch in rows.tolist()]
  model = load("AutoModelForSequenceClassification", model_dir, num_labels=1)
  model.train()
  optimizer = make_optimizer(model, learning_rate=5e-5)
  precision = settings.peer_precision.replace("auto", "float32")

  def epoch():
    for batch in batches:
      with torch.autocast("cpu", enabled=precision == "bfloat16"):
        logits = model(**batch).logits.float().reshape(-1, NUM_DOCUMENTS)
      right = torch.zeros(len(logits), dtype=torch.long)
      torch.nn.functional.cross_entropy(logits, right).backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()

  yield from per_pair(settings, mrpc_epoch.epochs(precision, epoch))


if __name__ == "__main__":
  side_by_side.run(
    main,
    passes=3,
    **side_by_side.ENCODER,
    squad_file="Questions of SQuAD.",
    steps=(8, "Steps per pass."),
  )
