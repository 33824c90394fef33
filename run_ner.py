"""Fine-tunes BERT for named entity recognition, evaluates it and predicts.

Also the module to call from Python: `Predictor` loads a trained model once and
finds the entities of whatever text it is given.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.exchange import initial_model
  from bertlib.tasks.ner.settings import NerSettings

  app.parse_flags(NerSettings, True, [initial_model.check])
else:  # A program that uses the Predictor.
  from bertlib.cli import tensorflow_log

  tensorflow_log.hide_information(keras_2=True)

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
from bertlib.cli import app, option
from bertlib.cli.steps import Steps
from bertlib.data import tf_records
from bertlib.exchange import resolve
from bertlib.export import predictor
from bertlib.io import result_files
from bertlib.reporting import receipts, run_report, training_checks
from bertlib.task.task_record import Task
from bertlib.tasks.ner import ner, ner_decoding, ner_inputs, ner_report
from bertlib.tasks.ner.ner import Sentence
from bertlib.tasks.ner.ner_decoding import Tagged, TaggerPredictor
from bertlib.tasks.ner.record import RECORD
from bertlib.tasks.ner.settings import NerSettings
from bertlib.training import loop, runs, train_step
from bertlib.training.runs import Run

# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,  # int32 [B, S]
  input_mask,  # int32 [B, S], 1 at tokens, 0 at padding
  segment_ids,  # int32 [B, S]
  num_labels: int,  # tags
  use_one_hot_embeddings: bool,
  dropout_seed=None,
  compute: modeling.Compute | None = None,  # None for `modeling.Compute()`
):
  """Builds the encoder; returns tag logits, float32 [B, S, labels]."""
  model = modeling.BertModel(
    config=bert_config,
    is_training=is_training,
    input_ids=input_ids,
    input_mask=input_mask,
    token_type_ids=segment_ids,
    use_one_hot_embeddings=use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    compute=compute,
  )
  logits = modeling.token_classification_logits(
    model.get_sequence_output(),
    num_labels,
    dropout_prob=is_training * bert_config.classifier_dropout,
    dropout_seed=dropout_seed,
  )
  return tf.cast(logits, tf.float32)


def tagging_loss(logits, label_ids, num_labeled=None):
  """Mean cross-entropy over the labeled positions, float32 []."""
  # Logits are [B, S, labels], label ids [B, S] with -1 where there is none.
  # `num_labeled` replaces the number of labeled positions.
  flat = tf.reshape(label_ids, [-1])
  scores = tf.reshape(logits, [-1, logits.shape[-1]])
  losses, _ = modeling.cross_entropy(scores, flat)
  return modeling.weighted_mean(losses, flat >= 0, num_labeled)


def model_fn_builder(
  bert_config: modeling.BertConfig,
  num_labels: int,
  use_one_hot_embeddings: bool,
  **training_arguments: Any,
):
  """The `model_fn` of word tagging, for TPUEstimator.

  `num_labels` is the number of tags; `use_one_hot_embeddings` is that of
  `modeling.BertModel`. All other arguments are
  `train_step.TrainingArguments`.

  Returns:
    A function of features, labels, mode, params and config. It trains, and
    predicts `probabilities` [B, S, labels].
  """
  arguments = train_step.TrainingArguments(**training_arguments)

  def build(batch, is_training, dropout_seed=None):
    return create_model(
      bert_config,
      is_training,
      *(batch[name] for name in tf_records.TOKEN_FEATURES),
      num_labels,
      use_one_hot_embeddings,
      dropout_seed,
      arguments.compute,
    )

  def training_loss(features):
    num_labeled = train_step.loss_normalizer(
      features["label_ids"] >= 0, arguments
    )

    def loss_fn(batch, dropout_seed):
      logits = build(batch, True, dropout_seed)
      return tagging_loss(logits, batch["label_ids"], num_labeled), {}

    return loss_fn

  def predict(features):
    return {
      "probabilities": tf.nn.softmax(build(features, False)),
      **train_step.input_index(features),
    }

  return train_step.make_model_fn(arguments, training_loss, predict)


class Predictor(TaggerPredictor, predictor.LoadedModel):
  """Predicts entities with a trained model.

  ```python
  predictor = run_ner.Predictor("output/ner")
  predictor.predict(["Ann left Rome."])[0][0].text
  ```
  """

  record = RECORD

  @classmethod
  def build(cls, *arguments):
    """See base class."""
    return cls.build_with_logits(*arguments)[1]

  @staticmethod
  def build_with_logits(description, config, inputs, compute):
    """Logits and outputs."""
    logits = create_model(
      config,
      is_training=False,
      **inputs,
      num_labels=len(description["labels"]),
      use_one_hot_embeddings=False,
      compute=compute,
    )
    return logits, tf.nn.softmax(logits)


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(NerSettings, required=required)


def main(_) -> None:
  """Trains, evaluates and predicts, depending on the flags."""
  settings = option.from_flags(NerSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    run, data = prepare(settings, step)
  if step.is_dry_run:
    return
  settings = run.settings
  with run_report.started(receipt, run) as outcome:
    dev_set = None
    if data.dev:
      batch_size = settings.flags.eval_batch_size
      dev_set = write_windows(run, "eval", data.dev, batch_size)
    if run.seeds:
      loop.train_seeds(run, "--nodo_predict")
    elif settings.flags.do_train:
      train_tagger(run, data, dev_set)
    outcome.checkpoint = loop.select_checkpoint(run)
    if run.evaluates:
      outcome.found = evaluate_dev_set(run, dev_set, outcome.checkpoint)
    if run.predicts:
      outcome.found.warnings += tag_file(run, data.predict, outcome.checkpoint)
    outcome.num_examples = data.num_sentences


# Before the run


def prepare(asked: NerSettings, step: Steps) -> tuple[Run, ner_inputs.Data]:
  """Loads the model, its tags and the sentences; writes nothing."""
  settings = step("model", resolve.complete, asked)
  step("output", check_output, settings)
  train_set = step(
    "sentences", ner_inputs.read_training_set, settings, instead=[]
  )
  labels = step("tags", ner_inputs.find_labels, settings, train_set)
  run = step("run", set_up, settings, labels, step)
  data = step("data", ner_inputs.read_data, run, train_set)
  plan = loop.check_start(run, step)
  if step.is_dry_run:
    step("labels", ner_inputs.check_tags, labels, data)
    lengths = step("tokens", ner_inputs.check_sentences, run, data)
    training_checks.estimate_training(step, run, plan, lengths)
  return run, data


def set_up(settings: NerSettings, labels: Sequence[str], step: Steps) -> Run:
  """The run, see `runs.setup`."""
  return runs.setup(settings, make_task(settings, labels), step)


def make_task(settings: NerSettings, labels: Sequence[str]) -> Task:
  """Describes the task to the functions of `run`."""
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={"num_labels": len(labels)},
    features=ner.record_layout(settings.model.max_seq_length),
    metrics=ner_report.METRICS,
    description={"labels": labels},
    must_agree=["labels", "do_lower_case"],
    num_outputs=len(labels),
    unit="windows",
    min_seq_length=8,
  )


def check_output(settings: NerSettings) -> None:
  """Refuses an --output_dir in which data would be overwritten."""
  runs.check_overwrites(
    settings, [settings.train_file, settings.dev_file, settings.predict_file]
  )
  if settings.flags.do_predict:
    result_files.check_predict_file(settings.predict_file)


# Training and tagging


class WindowSet(NamedTuple):
  """Sentences in windows, whose records are written."""

  sentences: Sequence[Sentence]
  windows: Sequence[ner.Window]
  path: str  # file of the windows' records
  batch_size: int  # windows of a batch


def write_windows(
  run: Run,
  name: str,  # of the file, see `runs.records_path`
  sentences: Sequence[Sentence],
  batch_size: int,  # all batches are full on a TPU
) -> WindowSet:
  """Makes windows of sentences, and writes their records."""
  max_seq_length = run.settings.model.max_seq_length
  windows = ner_inputs.make_windows(run, sentences)
  path = runs.records_path(run, name)
  labels = run.task.description["labels"]
  records = ner.window_records(sentences, windows, max_seq_length, labels)
  if name != "train":
    records = runs.fill_last_batch(run, records, batch_size)
  tf_records.write_records(path, records, run.task.features)
  per_sentence = Counter(window.sentence for window in windows)
  logging.info(
    "%s: %d sentences in %d windows; %d sentences are too long for one",
    name,
    len(sentences),
    len(windows),
    sum(count > 1 for count in per_sentence.values()),
  )
  return WindowSet(sentences, windows, path, batch_size)


def train_tagger(
  run: Run,
  data: ner_inputs.Data,
  dev_set: WindowSet | None,  # evaluated during training
) -> None:
  """Trains on tagged sentences."""
  _, windows, path, _ = write_windows(
    run, "train", data.train, run.flags.train_batch_size
  )

  def evaluate(checkpoint):
    predicted = predict_tags(run, dev_set, checkpoint)
    results = ner_report.evaluate_tags(data.dev, predicted)
    overall = [f"eval_{name}" for name in ner_report.METRICS]
    return {name: results[name] for name in overall}

  loop.train_on_records(run, path, len(windows), evaluate)


def predict_tags(
  run: Run,
  window_set: WindowSet,
  checkpoint: str | None,  # None for the model of --init_checkpoint
) -> list[Tagged]:
  """Tags that a model predicts, and their probabilities, by sentence."""
  sentences, windows, path, batch_size = window_set
  input_fn = runs.input_fn_of(run, path, is_training=False)
  rows = loop.predict(run, input_fn, len(windows), checkpoint, batch_size)
  rows = tf_records.restore_input_order(rows)
  probabilities = (row["probabilities"] for row in rows)
  return ner_decoding.assign_tags(
    sentences, windows, probabilities, run.task.description["labels"]
  )


def evaluate_dev_set(
  run: Run,
  dev_set: WindowSet,
  checkpoint: str | None,  # None for the model of --init_checkpoint
) -> run_report.Findings:
  """Evaluates a checkpoint on the dev set; writes metrics and predictions."""
  sentences = dev_set.sentences
  predicted = predict_tags(run, dev_set, checkpoint)
  results = ner_report.evaluate_tags(sentences, predicted)
  gold, found = [s.tags for s in sentences], [tags for tags, _ in predicted]
  predictions = result_files.number_predictions(gold, found)
  loop.write_metrics(run, results, checkpoint, predictions=predictions)
  return run_report.Findings(
    results,
    ner_report.sections(sentences, predicted, results),
    run_report.collapse_warning(*map(ner_report.tag_texts, (found, gold)))
    or run_report.missing_labels_warning(
      *map(entity_types, (found, gold)),
      "Rare types may need more sentences, or more epochs",
    ),
    ner_report.intervals(sentences, predicted),
  )


def entity_types(tagged: Iterable[Sequence[str]]) -> Iterator[str]:
  """The type of each entity."""
  for tags in tagged:
    yield from (entity.label for entity in ner.tags_to_entities(tags))


def tag_file(
  run: Run, sentences: Sequence[Sentence], checkpoint: str | None
) -> list[str]:
  """Tags --predict_file, and writes the predictions; gives warnings."""
  predict_file = run.settings.predict_file
  window_set = write_windows(
    run,
    f"predict_{result_files.stem_of(predict_file)}",
    sentences,
    run.flags.predict_batch_size,
  )
  predicted = predict_tags(run, window_set, checkpoint)
  name = result_files.predictions_name(predict_file)
  ner_decoding.write_predictions(run.path(name), sentences, predicted)
  return run_report.collapse_warning(
    ner_report.tag_texts(tags for tags, _ in predicted)
  )


if __name__ == "__main__":
  app.run(main)
