"""The doctor's checks of each task's examples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from absl import logging

from bertlib.data import model_inputs
from bertlib.reporting import doctor
from bertlib.tasks.classification import (
  classification_records,
  classifier_inputs,
)
from bertlib.tasks.classification.classification import DataProcessor
from bertlib.tasks.embeddings import embedding_inputs
from bertlib.tasks.ner import ner, ner_inputs, ner_tags
from bertlib.tasks.pretraining import pretraining_inputs, pretraining_records
from bertlib.tasks.squad import squad_features, squad_questions, squad_windows
from bertlib.training.task import Run


def check_questions(
  run: Run, data: squad_questions.SquadData
) -> doctor.LengthSummary:
  """Encodes a sample of questions; warns if many lose text or answers."""
  questions = data.train or data.predict
  sample = doctor.sample(questions)
  windows = squad_features.convert_examples_to_windows(
    sample,
    run.tokenizer,
    squad_windows.window_settings(run.settings, is_training=bool(data.train)),
  )
  truncated, lost = squad_features.find_incomplete_questions(windows)
  for problem, affected in (
    ("questions are truncated", truncated),
    ("answers fall outside every window", lost),
  ):
    if len(affected) > len(sample) / 20:
      logging.warning("%d of %d %s", len(affected), len(sample), problem)
  ends = np.cumsum(windows.length)
  return doctor.check_encoded(
    [
      doctor.Encoded(windows.ids[end - length : end].tolist(), int(length))
      for end, length in zip(ends, windows.length)
    ],
    run.config.vocab_size,
    len(questions) * len(ends) // max(len(sample), 1),
  )


def check_class_labels(
  processor: DataProcessor, examples: classifier_inputs.Examples
) -> None:
  """Warns of labels that are missing or rare."""
  labels = processor.problem.labels
  sets = {"the training set": examples.train}
  sets |= {
    f"the dev set{suffix}": dev_set
    for suffix, dev_set in examples.eval_sets.items()
  }
  doctor.check_labels(
    labels,
    {
      name: [
        label
        for example in split
        for label in (
          [example.label]
          if isinstance(example.label, str)
          else example.label or ()
        )
      ]
      for name, split in sets.items()
      if labels and split
    },
  )


def check_texts(
  run: Run,
  processor: DataProcessor,
  examples: classifier_inputs.Examples,
) -> doctor.LengthSummary:
  """Encodes a sample of the examples; warns if many are truncated."""
  others = [*examples.eval_sets.values(), *examples.predict_sets.values()]
  found = examples.train or list(itertools.chain.from_iterable(others))

  def encode(example):
    # Index 1, because the tokens of example 0 would be logged.
    features, encoded = classification_records.encode_example(
      1,
      example,
      processor.problem,
      run.settings.model.max_seq_length,
      run.tokenizer,
    )
    return doctor.Encoded(
      features.input_ids,
      max(row.num_tokens for row in encoded),
      sum(row.num_cut for row in encoded),
    )

  return doctor.check_encoded(
    map(encode, doctor.sample(found)), run.config.vocab_size, len(found)
  )


def check_pretraining_records(
  run: Run, data: pretraining_inputs.Data, number: int = 2000
) -> doctor.LengthSummary:
  """Checks `number` of the pretraining records, from all files.

  Returns:
    The number of training records and their mean length.

  Raises:
    InputError: a record has other lengths or ids outside the vocabulary.
  """

  def encoded():
    for path in data.num_records:
      num_per_file = -(-number // len(data.num_records))
      records = itertools.islice(
        pretraining_records.read_records(path), num_per_file
      )
      for count, record in enumerate(records, start=1):
        where = f"{path}, record {count}"
        pretraining_records.check_lengths(
          where,
          record,
          run.settings.model.max_seq_length,
          run.settings.max_predictions_per_seq,
        )
        for name in ("input_ids", "masked_lm_ids"):
          ids = record[name].int64_list.value
          doctor.check_ids(ids, run.config.vocab_size, where)
        yield doctor.Encoded(
          record["input_ids"].int64_list.value,
          sum(record["input_mask"].int64_list.value),
        )

  total = sum(data.num_records[path] for path in data.train_files)
  return doctor.check_encoded(encoded(), run.config.vocab_size, total)


def check_tags(labels: Sequence[str], data: ner_inputs.Data) -> None:
  """Warns of types of entities that are missing or rare."""
  sets = {"the training set": data.train, "the dev set": data.dev}
  doctor.check_labels(
    sorted({label[2:] or label for label in labels} - {"O"}),
    {
      name: [
        entity.label
        for sentence in sentences
        for entity in ner_tags.tags_to_entities(sentence.tags)
      ]
      for name, sentences in sets.items()
      if sentences
    },
  )


def check_sentences(run: Run, data: ner_inputs.Data) -> doctor.LengthSummary:
  """Makes windows of some of the sentences."""
  sentences = data.train or data.dev or data.predict
  some = doctor.sample(sentences)
  windows = list(
    ner.make_windows(some, run.tokenizer, run.settings.model.max_seq_length)
  )
  return doctor.check_encoded(
    [doctor.Encoded(w.input_ids, len(w.input_ids)) for w in windows],
    run.config.vocab_size,
    len(sentences) * len(windows) // len(some),
  )


def check_text_groups(
  run: Run, data: embedding_inputs.Data
) -> doctor.LengthSummary:
  """Encodes the texts of some of the examples, or some of the texts."""
  groups = [example.texts for example in data.train]
  if not groups and data.dev:
    groups = [example.texts for example in data.dev.examples]
    if data.dev.retrieval:
      groups = [[text] for text in data.dev.retrieval.queries.values()]
  groups = groups or [[text] for text in (*data.predict, *data.queries)]
  max_seq_length = run.settings.model.max_seq_length

  def encode(text):
    pair = model_inputs.encode_pair(run.tokenizer, text, None, max_seq_length)
    return doctor.Encoded(pair.input_ids, pair.num_tokens, pair.num_cut)

  texts = itertools.chain.from_iterable(doctor.sample(groups))
  return doctor.check_encoded(
    map(encode, texts), run.config.vocab_size, len(groups)
  )
