"""Fine-tunes BERT for extractive question answering, and answers questions.

For SQuAD 1.1 and 2.0, and data in their format. From Python, `Predictor` loads
a trained model once and answers any number of questions.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.exchange import initial_model
  from bertlib.tasks.squad.settings import SquadSettings

  app.parse_flags(SquadSettings, True, [initial_model.check])
else:  # A program that uses the Predictor.
  from bertlib.cli import tensorflow_log

  tensorflow_log.hide_information(keras_2=True)

import functools
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import modeling
import tokenization
from bertlib.checkpoints import model_folder
from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.data import tf_records, training_records
from bertlib.exchange import resolve
from bertlib.export import predictor
from bertlib.io import files
from bertlib.reporting import receipts, run_report, training_checks
from bertlib.task.task_record import Task
from bertlib.tasks.squad import (
  squad_decoding,
  squad_inputs,
  squad_report,
  squad_windows,
)
from bertlib.tasks.squad.record import RECORD
from bertlib.tasks.squad.settings import SquadSettings
from bertlib.tasks.squad.squad_decoding import AnswerPredictor
from bertlib.training import loop, runs, train_step
from bertlib.training.runs import Run

# isort: off
# Names of google-research/bert, which other code imports from here.
from bertlib.tasks.squad.original_api import (  # noqa: F401
  FeatureWriter, InputFeatures, RawResult, _get_best_indexes,
  _improve_answer_span, convert_examples_to_features, read_squad_examples,
  write_predictions,
)  # fmt: skip
from bertlib.tasks.squad.squad_decoding import (  # noqa: F401
  Answer, compute_softmax as _compute_softmax, get_final_text,
)  # fmt: skip
from bertlib.tasks.squad.squad_files import SquadExample  # noqa: F401
from bertlib.settings import model_description
from bertlib.tasks.squad.squad_windows import (  # noqa: F401
  check_is_max_context as _check_is_max_context,
)

FLAGS = flags.FLAGS


# Input


def input_fn_builder(
  input_file: str | Sequence[str],
  seq_length: int,
  is_training: bool,
  drop_remainder: bool,
  **options: Any,
):
  """`training_records.record_input_fn` for a file written by `FeatureWriter`.

  `seq_length` is S, the length of its windows. Training records also contain
  the positions of answers. Options are those of `record_input_fn`.
  """
  layout = squad_windows.record_layout(seq_length, is_training)
  return training_records.record_input_fn(
    input_file, layout, is_training, drop_remainder, **options
  )


# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,  # int32 [B, S]
  input_mask,  # int32 [B, S], 1 at tokens, 0 at padding
  segment_ids,  # int32 [B, S]
  use_one_hot_embeddings: bool,
  mask_padding: bool = False,
  dropout_seed=None,
  compute: modeling.Compute | None = None,  # None for `modeling.Compute()`
):
  """Builds the encoder; returns start and end logits, float32 [B, S].

  With `mask_padding`, logits at padding are the lowest float32; the original
  computes them like those of tokens. Unpadding needs it, since it sets hidden
  states at padding to 0.
  """
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
  rate = is_training * bert_config.qa_dropout
  states = modeling.dropout(model.get_sequence_output(), rate, dropout_seed)
  logits = modeling.span_logits(states)
  logits = [tf.cast(scores, tf.float32) for scores in logits]
  if mask_padding:
    logits = [
      tf.where_v2(input_mask > 0, scores, tf.float32.min) for scores in logits
    ]
  return tuple(logits)


def model_fn_builder(
  bert_config: modeling.BertConfig,
  init_checkpoint: str | None,
  learning_rate: float,
  num_train_steps: int | None,
  num_warmup_steps: int | None,
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  mask_padding: bool = False,
  **more_arguments: Any,
):
  """The `model_fn` of question answering, for TPUEstimator.

  `mask_padding` is that of `create_model`, `use_one_hot_embeddings` that of
  `modeling.BertModel`. All other arguments are
  `train_step.TrainingArguments`; more of these may be given by name.

  Returns:
    A function of features, labels, mode, params and config. It trains, and
    predicts `unique_ids` [B], `start_logits` and `end_logits` [B, S].
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
      *(batch[name] for name in tf_records.TOKEN_FEATURES),
      use_one_hot_embeddings,
      mask_padding,
      dropout_seed,
      arguments.compute,
    )

  def loss_fn(batch, dropout_seed):
    losses = [
      modeling.cross_entropy(logits, batch[positions])[0]
      for logits, positions in zip(
        build(batch, True, dropout_seed), ("start_positions", "end_positions")
      )
    ]
    return tf.reduce_mean(losses[0] + losses[1]) / 2.0, {}

  def predict(features):
    start_logits, end_logits = build(features, False)
    return {
      "unique_ids": features["unique_ids"],
      "start_logits": start_logits,
      "end_logits": end_logits,
    }

  return train_step.make_model_fn(arguments, lambda _: loss_fn, predict)


# A trained model from Python


class Predictor(AnswerPredictor, predictor.LoadedModel):
  """Answers questions with a trained model.

  ```python
  predictor = run_squad.Predictor("output/squad")
  predictor.predict([("Who left?", "Ann stayed. Bob left.")])[0][0].text
  ```
  """

  record = RECORD

  @classmethod
  def find_model(cls, model_dir, checkpoint=None):
    """See base class; InputError if a question leaves no room for text."""
    description, checkpoint = super().find_model(model_dir, checkpoint)
    squad_windows.check_settings(
      squad_windows.WindowSettings.of_model(description)
    )
    return description, checkpoint

  @staticmethod
  def build(description, config, inputs, compute):
    """See base class."""
    del description
    logits = create_model(
      config,
      is_training=False,
      **inputs,
      use_one_hot_embeddings=False,
      mask_padding=True,
      compute=compute,
    )
    return tf.stack(logits, axis=1)


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(SquadSettings, required=required)


def main(_) -> None:
  """Trains, predicts and evaluates, depending on the flags."""
  settings = option.from_flags(SquadSettings)
  if settings.audit:
    squad_inputs.print_audit(settings)
    return
  with receipts.begin(__file__, settings) as (receipt, step):
    run, data = prepare(settings, step)
  if step.is_dry_run:
    return
  settings, files_read = run.settings, squad_inputs.data_files(settings, data)
  with run_report.started(receipt, run, files_read) as outcome:
    if not model_description.load(run.model_folder):
      runs.write_companions(run)
    if run.seeds:
      loop.train_seeds(run)
    elif settings.flags.do_train:
      train_reader(run, data)
    outcome.checkpoint = loop.select_checkpoint(run)
    if settings.answers_questions and run.is_chief:
      logits = data.logits
      if logits is None:
        logits = predict_logits(run, data, outcome.checkpoint)
      outcome.found = answer_questions(run, data, logits, outcome.checkpoint)
    outcome.num_examples = data.num_questions


# Before the run


def prepare(
  asked: SquadSettings, step: Steps
) -> tuple[Run, squad_inputs.SquadData]:
  """Loads the model, the questions and --from_logits; writes nothing."""
  settings = step("model", resolve.complete, asked)
  step("output", check_output, settings)
  run = step("run", lambda s: runs.setup(s, make_task(s), step), settings)
  questions = step("data", squad_inputs.read_data, run)
  data = step("windows", squad_inputs.make_windows, run, questions)
  plan = loop.check_start(run, step)
  if step.is_dry_run:
    lengths = step("tokens", squad_inputs.check_lengths, run, data)
    training_checks.estimate_training(
      step, run, plan, lengths, lambda _: data.num_train_steps
    )
  return run, data


def make_task(settings: SquadSettings) -> Task:
  """Describes the task of answering questions."""
  metrics = ["f1", "exact_match"]
  if settings.answers.version_2_with_negative:
    metrics = ["best_f1", "f1", "exact", "best_exact"]
  must_agree = ["do_lower_case"]
  if settings.flags.do_train:
    must_agree.append("version_2_with_negative")
  head = "cls/squad/output_weights"
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={"mask_padding": settings.mask_padding},
    features=squad_windows.record_layout(
      settings.model.max_seq_length, is_training=True
    ),
    metrics=metrics,
    must_agree=must_agree,
    heads={
      head: (
        f"was not trained on questions (it has no {head}). Train it with"
        " --do_train into another --output_dir, or name one that was"
      )
    },
    unit="windows",
    masks_padding=settings.mask_padding,
    may_be_new=bool(settings.from_logits),
  )


def validate_flags_or_throw(bert_config: modeling.BertConfig) -> None:
  """Checks the flags, on their own and against the config of the model."""
  settings = option.from_flags(SquadSettings)
  model_folder.check_max_seq_length(
    settings.model.max_seq_length, vars(bert_config)
  )
  tokenization.validate_case_matches_checkpoint(
    settings.model.do_lower_case, settings.model.init_checkpoint
  )


def check_output(settings: SquadSettings) -> None:
  """Refuses outputs without a folder, or that would overwrite inputs."""
  inputs = [
    settings.train_file,
    settings.predict_file,
    settings.from_logits,
  ]
  runs.check_overwrites(settings, inputs)
  if settings.save_logits:
    folder = os.path.dirname(settings.save_logits)
    if folder and not tf.gfile.IsDirectory(folder):
      raise InputError(
        f"--save_logits={settings.save_logits}: there is no {folder}"
      )
    model_files = [settings.model.vocab_file, settings.model.bert_config_file]
    files.check_outputs([settings.save_logits], inputs + model_files)


# Training, prediction, answers


def train_reader(run: Run, data: squad_inputs.SquadData) -> None:
  """Trains the model on the windows of the training questions."""
  windows = data.train_windows
  order = squad_windows.reference_order(len(data.train))
  rows = squad_windows.rows_of_questions(windows, order)
  path = write_windows(run, "train", windows, rows, is_training=True)
  loop.train_on_records(
    run,
    path,
    len(data.train),
    functools.partial(evaluate_checkpoint, run, data),
    f"{len(data.train)} questions in {len(windows.length)} windows",
  )


def write_windows(
  run: Run,
  name: str,
  windows: squad_windows.Windows,
  rows: Iterable[int],
  is_training: bool,
) -> str:
  """Writes windows, by index, as TFRecords of `runs.records_path`."""
  path = runs.records_path(run, name)
  max_seq_length = run.settings.model.max_seq_length
  tf_records.write_records(
    path,
    squad_windows.window_records(windows, max_seq_length, run.tokenizer, rows),
    squad_windows.record_layout(max_seq_length, is_training),
  )
  return path


def predict_logits(
  run: Run,
  data: squad_inputs.SquadData,
  checkpoint: str | None,  # None for the model of --init_checkpoint
) -> np.ndarray:
  """Start and end logits of --predict_file, float32 [2, windows, S]."""
  max_seq_length = run.settings.model.max_seq_length
  num_windows = len(data.windows.length)
  batch_size = run.flags.predict_batch_size
  rows = runs.fill_last_batch(run, range(num_windows), batch_size)
  # The lowest float32 stays at padding that is not computed.
  logits = np.full([2, num_windows, max_seq_length], np.finfo("f").min, "f")
  if not num_windows:
    return logits
  options = runs.input_options(run, is_training=False)
  input_fn = input_fn_builder(
    write_windows(run, "eval", data.windows, rows, is_training=False),
    max_seq_length,
    by_length=options["trim"],
    **options,
  )
  start = time.monotonic()
  for row in loop.predict(run, input_fn, num_windows, checkpoint):
    index = row["unique_ids"] - squad_windows.FIRST_UNIQUE_ID
    for kind, name in enumerate(("start_logits", "end_logits")):
      logits[kind, index, : len(row[name])] = row[name]
  seconds = time.monotonic() - start
  logging.info(
    "%d windows of %d questions in %.1f s: %.1f questions/s",
    num_windows,
    len(data.predict),
    seconds,
    len(data.predict) / seconds,
  )
  return logits


def evaluate_checkpoint(
  run: Run, data: squad_inputs.SquadData, checkpoint: str | None
) -> dict[str, float]:
  """Metrics of a checkpoint on the questions of --predict_file."""
  logits = predict_logits(run, data, checkpoint)
  finder = squad_decoding.AnswerFinder(
    data.predict, data.windows, logits, run.tokenizer
  )
  return squad_decoding.evaluate_best(
    finder, data.questions, run.settings.answers
  )


def answer_questions(
  run: Run,
  data: squad_inputs.SquadData,
  logits: np.ndarray,  # of `predict_logits`
  checkpoint: str | None,  # None for the model of --init_checkpoint
) -> run_report.Findings:
  """Writes answers and, with --do_eval, their metrics."""
  if run.settings.save_logits:
    squad_windows.save_logits(run.settings.save_logits, data.windows, logits)
  found, settings = run_report.Findings(), run.settings.answers
  has_negative = settings.version_2_with_negative
  do_eval = run.flags.do_eval
  if has_negative and not do_eval:
    log_stored_threshold(run)
  finder = squad_decoding.AnswerFinder(
    data.predict, data.windows, logits, run.tokenizer
  )
  answers = squad_decoding.find_answers(finder, settings)
  squad_decoding.write_answers(
    answers,
    run.path("predictions.json"),
    run.path("nbest_predictions.json"),
    run.path("null_odds.json") if has_negative else None,
  )
  logging.info(
    "Answers to %d questions in %s", len(data.predict), run.output_dir
  )
  if do_eval:
    found.results = squad_decoding.evaluate_answers(
      data.questions, answers.best, answers.odds, settings
    )
    answered = squad_report.answered_questions(
      data.questions, answers, settings
    )
    loop.write_metrics(
      run,
      found.results,
      checkpoint,
      predictions=squad_report.dev_predictions(answered),
    )
    if has_negative:
      store_best_threshold(run, found.results)
    found.sections = squad_report.sections(
      answered, found.results, settings.null_score_diff_threshold
    )
    found.intervals = squad_report.intervals(
      [answer.score for answer in answered], found.results
    )
  found.warnings = run_report.collapse_warning(
    *squad_report.answers_to_compare(answers, data.questions)
  )
  return found


def store_best_threshold(run: Run, results: Mapping[str, float]) -> None:
  """Stores the threshold with the best F1 in model.json."""
  used = run.settings.answers.null_score_diff_threshold
  best = results["best_f1_thresh"]
  logging.info(
    "F1 is %.2f at --null_score_diff_threshold=%s, and best, %.2f, at %s",
    results["f1"],
    used,
    results["best_f1"],
    best,
  )
  if results["f1"] >= results["best_f1"]:
    # Of equally good ones, the lowest is at the odds of a question with an
    # answer: others like it would get none.
    best = used
  if math.isfinite(best):  # it is not if the best is to answer nothing
    loop.store_thresholds(
      run, run.settings.predict_file, null_score_diff_threshold=best
    )


def log_stored_threshold(run: Run) -> None:
  """Names the tuned threshold of the model, if the answers have another."""
  description = model_description.load(run.model_folder, RECORD)
  used = run.settings.answers.null_score_diff_threshold
  stored = description.get("null_score_diff_threshold", used)
  if stored != used:
    logging.info(
      "--null_score_diff_threshold=%s, but the model has %s, tuned on %s, which"
      " Predictor uses. Give that for the same answers",
      used,
      stored,
      description.get("tuned_on", "a dev set"),
    )


if __name__ == "__main__":
  app.run(main)
