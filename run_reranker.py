"""Trains rerankers, evaluates them and ranks documents.

Also the module to call from Python: `Predictor` loads a trained model once
and scores whatever pairs it is given.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.exchange import initial_model
  from bertlib.tasks.ranking.settings import RankingSettings

  app.parse_flags(
    RankingSettings, imports_tensorflow=True, checks=[initial_model.check]
  )
else:  # A program that uses the Predictor.
  from bertlib.cli import tensorflow_log

  tensorflow_log.hide_information(keras_2=True)

import functools
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.cli import app, option
from bertlib.cli.steps import Steps
from bertlib.compute import fast_compute
from bertlib.data import batch_predictor, input_pipeline, record_check
from bertlib.exchange import resolve
from bertlib.export import predictor
from bertlib.io import result_files
from bertlib.reporting import receipts, run_report, training_checks
from bertlib.task.task_record import Task
from bertlib.tasks.ranking import (
  ranking_inputs,
  ranking_losses,
  ranking_predictor,
  ranking_records,
)
from bertlib.tasks.ranking.ranking_predictor import RankingPredictor
from bertlib.tasks.ranking.record import RECORD
from bertlib.tasks.ranking.settings import RankingSettings
from bertlib.training import loop, runs, step_plan, text_sets, train_step
from bertlib.training.runs import Run

# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,  # int32 [..., S], any number of pairs
  input_mask,  # int32 [..., S], 1 at tokens, 0 at padding
  segment_ids,  # int32 [..., S]
  use_one_hot_embeddings: bool,
  dropout_seed=None,
  compute: modeling.Compute | None = None,  # None for `modeling.Compute()`
):
  """Builds a cross-encoder; returns the logit of each pair, float32 [...]."""
  shape = modeling.get_shape_list(input_ids)
  inputs = [
    tf.reshape(tensor, [-1, shape[-1]])
    for tensor in (input_ids, input_mask, segment_ids)
  ]
  pairs = None
  # A TPU needs static shapes.
  if len(shape) > 2 and not use_one_hot_embeddings:
    pairs = fast_compute.present_rows(inputs[1][:, 0])
    num_pairs = tf.shape(inputs[0])[0]
    inputs = [tf.gather(tensor, pairs) for tensor in inputs]
  input_ids, input_mask, segment_ids = inputs
  model = modeling.BertModel(
    config=bert_config,
    is_training=is_training,
    input_ids=input_ids,
    input_mask=input_mask,
    token_type_ids=segment_ids,
    use_one_hot_embeddings=use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    compute=compute,
    output_positions=tf.zeros_like(input_ids[:, :1]),  # [CLS]
  )
  rate = bert_config.classifier_dropout
  logits = modeling.classification_logits(
    model.get_pooled_output(),
    1,
    dropout_prob=is_training * (0.1 if rate is None else rate),
    dropout_seed=dropout_seed,
  )
  logits = tf.cast(logits, tf.float32)[:, 0]
  if pairs is not None:  # those of missing documents are 0
    logits = tf.scatter_nd(pairs[:, tf.newaxis], logits, [num_pairs])
  return tf.reshape(logits, shape[:-1])


def model_fn_builder(
  bert_config: modeling.BertConfig,
  loss: str | None,
  init_checkpoint: str | None,
  learning_rate: float,
  num_train_steps: int | None,
  num_warmup_steps: int | None,
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  **more_arguments: Any,
):
  """The `model_fn` of a reranker, for TPUEstimator.

  `loss` is a key of `ranking_losses.LOSSES`, None without training, and
  `use_one_hot_embeddings` that of `modeling.BertModel`. All other arguments are
  `train_step.TrainingArguments`; more of these may be given by name.

  Returns:
    A function of features, labels, mode, params and config. It trains on
    queries with their documents, and predicts `logits` of pairs.
  """
  arguments = train_step.TrainingArguments(
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    **more_arguments,
  )

  def build(batch, is_training, dropout_seed=None):
    return create_model(
      bert_config,
      is_training,
      batch["input_ids"],
      batch["input_mask"],
      batch["segment_ids"],
      use_one_hot_embeddings,
      dropout_seed,
      arguments.compute,
    )

  def training_loss(features):
    total_weight = train_step.loss_normalizer(
      ranking_losses.weights(loss, features), arguments
    )

    def loss_fn(batch, seed):
      terms = ranking_losses.terms(loss, build(batch, True, seed), batch)
      weights = ranking_losses.weights(loss, batch)
      return modeling.weighted_mean(terms, weights, total_weight), {}

    return loss_fn

  def predict(features):
    logits = build(features, False)
    return {"logits": logits, **train_step.input_index(features)}

  return train_step.make_model_fn(arguments, training_loss, predict)


class Predictor(RankingPredictor, predictor.LoadedModel):
  """Scores and ranks documents with a trained reranker.

  ```python
  predictor = run_reranker.Predictor("output/reranker")
  predictor.score([("Who left?", "He went away."), ("Who left?", "Ann sat.")])
  ```
  """

  record = RECORD

  @staticmethod
  def build(description, config, inputs, compute):
    """See base class; logits, float32 [B, 1]."""
    del description
    logits = create_model(
      config,
      is_training=False,
      **inputs,
      use_one_hot_embeddings=False,
      compute=compute,
    )
    return logits[:, tf.newaxis]


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(RankingSettings, required=required)


def main(_) -> None:
  """Trains, evaluates and predicts, depending on the flags."""
  settings = option.from_flags(RankingSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    run, data = prepare(settings, step)
  if step.is_dry_run:
    return
  files_read = ranking_inputs.data_files(run.settings)
  with run_report.started(receipt, run, files_read) as outcome:
    if run.is_chief:
      result_files.write_bad_rows(run.output_dir, data.bad_rows)
    if run.seeds:
      loop.train_seeds(run, "--nodo_predict")
    elif settings.flags.do_train:
      train_reranker(run, data)
    outcome.checkpoint = loop.select_checkpoint(run)
    if run.predicts:
      write_predictions(run, data, outcome.checkpoint)
    if data.train:
      outcome.num_examples = {"training queries": len(data.train)}


# Before the run


def prepare(
  asked: RankingSettings, step: Steps
) -> tuple[Run, ranking_inputs.Data]:
  """Loads the model and reads the data; writes nothing."""
  settings = step("model", resolve.complete, asked)
  step("output", check_output, settings)
  loss = step("loss", ranking_inputs.find_loss, settings)
  data = step("texts", ranking_inputs.read_data, settings, loss)
  task = step("task", make_task, settings, loss, data)
  run = step("run", runs.setup, settings, task, step)
  plan = loop.check_start(run, step)
  if step.is_dry_run:
    lengths = step("tokens", ranking_inputs.check_pairs, run, data)
    training_checks.estimate_training(step, run, plan, lengths)
  return run, data


def make_task(
  settings: RankingSettings, loss: str | None, data: ranking_inputs.Data
) -> Task:
  """Describes the task to the functions of `run`."""
  num_documents = data.train.num_documents if data.train else 1
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={"loss": loss},
    features=ranking_records.layout(
      loss, num_documents, settings.model.max_seq_length
    ),
    metrics=["ndcg@10"],
    description={"activation": ranking_inputs.activation_of(settings, loss)},
    must_agree=["activation", "do_lower_case"],
    num_outputs=1,
    unit="queries" if loss else "pairs",
    num_output_positions=1,  # [CLS]
  )


def check_output(settings: RankingSettings) -> None:
  """Refuses an --output_dir in which data would be overwritten."""
  runs.check_overwrites(
    settings,
    ["*.tf_record", "*_predictions.*", "*_bad_rows.txt"],
    [path for path, _ in ranking_inputs.data_files(settings)],
  )


# Training and prediction


def train_reranker(run: Run, data: ranking_inputs.Data) -> None:
  """Trains on queries with their documents."""
  path, features = run.path("train.tf_record"), run.task.features
  ranking_records.write_records(path, data.train, features, run.tokenizer)
  loop.train(
    run,
    input_pipeline.record_input_fn(
      path,
      features,
      by_length=run.flags.group_by_length and not run.on_tpu,
      **runs.input_options(run, is_training=True),
    ),
    step_plan.count_steps(run.flags, len(data.train), run.task.unit),
    f"{len(data.train)} {run.task.unit}",
    None,
    functools.partial(record_check.find, [path], features),
  )


def write_predictions(
  run: Run, data: ranking_inputs.Data, checkpoint: str | None
) -> None:
  """Writes the scores of the pairs of --predict_file."""
  path = run.settings.predict_file
  texts = text_sets.write(
    run,
    f"predict_{result_files.stem_of(path)}",
    data.pairs,
    run.flags.predict_batch_size,
    keeps_first=True,
  )
  logits = [row["logits"] for row in text_sets.predict(run, texts, checkpoint)]
  scores = ranking_predictor.activate(run.task.description, np.array(logits))
  batch_predictor.write_files(
    run.path(result_files.predictions_name(path)),
    ranking_predictor.FORMATS,
    data.pairs,
    scores,
  )


if __name__ == "__main__":
  app.run(main)
