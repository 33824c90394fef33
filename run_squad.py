"""Fine-tunes BERT to answer questions about a text, and answers them.

For SQuAD 1.1 and 2.0, and data in their format. Also the module to call from
Python: `Predictor` loads a trained model once and answers whatever it is asked.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.squad import SquadSettings

  app.parse_flags(SquadSettings, imports_tensorflow=True)

import functools
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import modeling
import optimization
import tokenization
from bertlib import app, estimator_api, files, text_files
from bertlib.checkpoints import finding, loading, model_json, predictor
from bertlib.data import (
  input_pipeline,
  model_inputs,
  record_check,
  squad_audit,
  squad_examples,
  squad_features,
  squad_questions,
  squad_windows,
)
from bertlib.data.squad_examples import (  # noqa: F401
  SquadExample,
  read_squad_examples,
)
from bertlib.data.squad_features import (  # noqa: F401
  FeatureWriter,
  InputFeatures,
  convert_examples_to_features,
)
from bertlib.data.squad_spans import _improve_answer_span  # noqa: F401
from bertlib.data.squad_spans import (  # noqa: F401
  check_is_max_context as _check_is_max_context,
)
from bertlib.errors import InputError
from bertlib.files import find_files
from bertlib.metrics import squad_decoding, squad_evaluation, squad_results
from bertlib.metrics.squad_decoding import (  # noqa: F401 (their names are also here)
  RawResult,
  _get_best_indexes,
  get_final_text,
  write_predictions,
)
from bertlib.metrics.squad_decoding import (
  compute_softmax as _compute_softmax,
)
from bertlib.reporting import (
  conversation,
  doctor,
  receipts,
  report_sections,
  run_report,
  task_checks,
  training_checks,
)
from bertlib.settings import option
from bertlib.settings.squad import SquadSettings
from bertlib.training import (
  devices,
  estimator_spec,
  model_selection,
  multi_run,
  session_hooks,
  setup,
  squad_inputs,
  training_run,
)

FLAGS = flags.FLAGS


# Features to batches


def input_fn_builder(
  input_file: str,
  seq_length: int,
  is_training: bool,
  drop_remainder: bool,
  trim: bool = False,
  seed: int = 0,
  first_step: int = 0,
  by_length: bool = False,
):
  """`input_pipeline.record_input_fn` over a file of `FeatureWriter`.

  Args:
    input_file: the file.
    seq_length: tokens of its windows.
    is_training: whether the records have the answers; see there too.
    drop_remainder: see there.
    trim: see there.
    seed: see there.
    first_step: see there.
    by_length: see there.

  Returns:
    A function of `params`, which has the `batch_size`.
  """
  return input_pipeline.record_input_fn(
    input_file,
    squad_features.record_layout(seq_length, is_training),
    is_training,
    drop_remainder,
    trim,
    seed,
    first_step,
    by_length,
  )


# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,
  input_mask,
  segment_ids,
  use_one_hot_embeddings: bool,
  mask_padding: bool = False,
  dropout_seed=None,
  compute: modeling.Compute | None = None,
):
  """The encoder with two scores for each token: answer begins, answer ends.

  Args:
    bert_config: the encoder's sizes.
    is_training: whether dropout is on.
    input_ids: int32 [B, S].
    input_mask: int32 [B, S].
    segment_ids: int32 [B, S].
    use_one_hot_embeddings: see `modeling.BertModel`.
    mask_padding: whether padding gets the lowest score that there is. The
      reference scores it like tokens.
    dropout_seed: see `modeling.dropout`.
    compute: how to compute; None for `modeling.Compute()`. Unpadding, after
      which states at padding are 0, needs `mask_padding`.

  Returns:
    start_logits and end_logits, float32 [B, S].
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
  logits = modeling.span_logits(model.get_sequence_output())
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
  `estimator_spec.TrainingArguments`; more of these may be given by name.

  Returns:
    A function of features, labels, mode, params and config. It trains, and
    predicts `unique_ids` [B], `start_logits` and `end_logits` [B, S].
  """
  arguments = estimator_spec.TrainingArguments(
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    **more_arguments,
  )

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features

    def build(batch, is_training, dropout_seed=None):
      return create_model(
        bert_config,
        is_training,
        batch["input_ids"],
        batch["input_mask"],
        batch["segment_ids"],
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

    if mode != estimator_api.ModeKeys.TRAIN:
      start_logits, end_logits = build(features, False)
      return estimator_api.TPUEstimatorSpec(
        mode=mode,
        predictions={
          "unique_ids": features["unique_ids"],
          "start_logits": start_logits,
          "end_logits": end_logits,
        },
        scaffold_fn=estimator_spec.restore_trained(arguments, config),
      )
    return estimator_spec.train_spec(
      arguments, loss_fn, features, params, config
    )

  return model_fn


# A trained model from Python


class Answer(NamedTuple):
  """An answer to a question.

  Attributes:
    text: it, as it stands in the passage; "" says that there is none.
    probability: its share among the answers given with it.
    start: its first character in the passage.
    end: the character after its last.
  """

  text: str
  probability: float
  start: int
  end: int


class Predictor(predictor.LoadedModel):
  """A trained model, loaded once, that answers questions.

  ```python
  predictor = run_squad.Predictor("output/squad")
  predictor.predict([("Who left?", "Ann stayed. Bob left.")])[0][0].text
  ```
  """

  script = "run_squad"
  purpose = "answers questions"

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

  def predict(
    self,
    pairs: Iterable[tuple[str, str]],
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float = 0.0,
  ) -> list[list[Answer]]:
    """Answers questions.

    Args:
      pairs: each a question and a passage.
      n_best_size: answers to a question, at most.
      max_answer_length: tokens of an answer, at most.
      null_score_diff_threshold: above these odds there is no answer, for a
        model of 2.0.

    Returns:
      For each question its answers, the best first. A passage without words
      has none.
    """
    pairs = list(pairs)
    split = [squad_examples.split_words(passage) for _, passage in pairs]
    examples = [
      SquadExample(str(index), question, words)
      for index, ((question, _), (words, _)) in enumerate(zip(pairs, split))
    ]
    settings = squad_features.WindowSettings.of_model(self.description)
    windows = squad_features.convert_examples_to_windows(
      examples, self.tokenizer, settings
    )
    windows = list(
      squad_features.iterate_features(
        windows, settings.max_seq_length, self.tokenizer.inv_vocab
      )
    )
    rows = self.run(list(map(squad_features.as_record, windows)))
    finder = squad_decoding.AnswerFinder(
      examples,
      windows,
      [RawResult(window.unique_id, *row) for window, row in zip(windows, rows)],
      self.description["do_lower_case"],
    )
    may_be_none = self.description["version_2_with_negative"]
    found = finder.nbest_predictions(
      n_best_size, max_answer_length, may_be_none
    )
    answers = []
    for (predictions, best, odds), place in zip(found, split):
      has_answers = best or may_be_none
      listed = _answers(predictions, *place) if has_answers else []
      if may_be_none:
        chosen = "" if odds > null_score_diff_threshold else best
        listed.sort(key=lambda answer: answer.text != chosen)
      answers.append(listed)
    return answers


def _answers(
  predictions: Sequence[squad_decoding.NbestPrediction],
  words: Sequence[str],
  starts: Sequence[int],
) -> list[Answer]:
  """Predictions with their probability and their place in a passage."""
  probabilities = _compute_softmax([p.score for p in predictions])
  return [
    Answer(p.text, probability, *p.span_in_paragraph(words, starts))
    for p, probability in zip(predictions, probabilities)
  ]


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags.

  Args:
    required: whether parsing fails where a flag is missing that the command
      needs; False for other programs that use this module.
  """
  option.define(SquadSettings, required=required)


class Start(NamedTuple):
  """What a run begins with, all of it checked.

  Attributes:
    settings: with nothing left to decide.
    config: the encoder's sizes.
    tokenizer: gives the ids.
    trained: the checkpoint that has all of the model; None for a new one.
    selection: how the best weights are found.
    seeds: of `--seeds`.
    model: what describes the model.
    data: the questions.
  """

  settings: SquadSettings
  config: modeling.BertConfig
  tokenizer: tokenization.FullTokenizer
  trained: str | None
  selection: model_selection.Selection
  seeds: list[int]
  model: dict[str, Any]
  data: squad_questions.Data


def main(_) -> None:
  """Does what the flags say: trains, answers, scores."""
  settings = option.from_flags(SquadSettings)
  if settings.receipt.doctor:
    doctor.diagnose(settings, examine)
    return
  if settings.audit:
    check_flags(settings)
    squad_audit.print_audit(
      settings, squad_inputs.load_audit_tokenizer(settings)
    )
    return
  receipt = receipts.begin(__file__, settings)
  start = prepare(settings, doctor.simply)
  settings = start.settings
  check_start(settings, start)
  with training_run.lock_output_dir(settings):
    carry_out(settings, start, receipt)


def carry_out(
  settings: SquadSettings, start: Start, receipt: receipts.Receipt
) -> None:
  """Trains, evaluates and predicts as the flags say, all of it checked.

  Args:
    settings: of the command.
    start: what the run begins with.
    receipt: of the run.
  """
  config, tokenizer, selection = start.config, start.tokenizer, start.selection
  data, model = start.data, start.model
  files = settings.train_file, settings.predict_file
  receipt.start(settings, (path for path, used in zip(files, data) if used))
  devices.log_devices(settings.devices, settings.compute)
  if settings.run.do_train or not model_json.load_description(
    settings.run.output_dir
  ):
    model_json.claim(
      settings.run.output_dir,
      model,
      config,
      settings.model.vocab_file,
      settings.run.do_train,
    )
  if start.seeds:
    multi_run.train_seeds(
      settings.run.output_dir,
      start.seeds,
      selection.metric,
      ["--nointeractive", *training_run.choice_flags(settings.compute)],
    )

  predict_windows, key = [], ""
  if data.predict:
    arrays, key = squad_windows.load_windows(
      settings,
      settings.predict_file,
      data.predict,
      tokenizer,
      is_training=False,
    )
    predict_windows = list(
      squad_features.iterate_features(
        arrays, settings.model.max_seq_length, tokenizer.inv_vocab
      )
    )
  compute_logits = functools.partial(
    predict, settings, config, predict_windows, len(data.predict)
  )
  lengths = None
  if settings.run.do_train and not start.seeds:
    squad_questions.write_unaligned(settings.run.output_dir, data.unaligned)
    lengths = train(
      settings,
      config,
      tokenizer,
      data.train,
      selection,
      lambda checkpoint: squad_evaluation.score_logits(
        settings,
        data.predict,
        predict_windows,
        compute_logits(checkpoint),
        data.questions,
      ),
    )
  checkpoint = training_run.checkpoint_to_use(settings)
  results, sections, warnings = {}, [], []
  if settings.answers_questions:
    if settings.from_logits:
      logits = squad_decoding.load_logits(settings.from_logits, key)
    else:
      logits = compute_logits(checkpoint)
    if settings.save_logits:
      squad_decoding.save_logits(settings.save_logits, key, logits)
    results = squad_results.decode(
      settings, data.predict, predict_windows, logits, data.questions
    )
    if settings.run.do_eval:
      training_run.write_dev_scores(settings, results, checkpoint)
      sections = report_sections.squad_sections(settings, data.questions)
    warnings = run_report.point_out_collapse(
      *squad_results.answers_to_compare(settings.run.output_dir, data.questions)
    )
  if settings.run.do_train:
    run_report.write_report(
      settings, results, selection, sections, lengths, warnings
    )
  receipt.finish(results, checkpoint)
  if settings.interactive:
    precision = settings.compute.precision
    with Predictor(
      settings.run.output_dir,
      checkpoint or settings.model.init_checkpoint,
      precision=precision,
    ) as predictor:
      lines = text_files.decode_lines(
        sys.stdin.buffer,
        "standard input",
        text_files.encoding_of(settings.text),
      )
      conversation.converse(settings, predictor, lines)


# What is asked for, and whether it can be


def prepare(settings: SquadSettings, check: doctor.Check) -> Start:
  """Checks and reads all that a run needs; nothing is written yet.

  Whatever is wrong with folders and data is said now, not after training.

  Args:
    settings: of the command.
    check: makes each check.

  Returns:
    What the run begins with.
  """
  seeds = check("flags", check_flags, settings)
  check("output", check_output, settings, after=seeds)
  model_files = check("model", setup.fetch_model, settings.model)
  decided = check("devices", setup.find_devices, settings)
  settings = setup.resolved(settings, model_files, decided)
  config = check("config", setup.load_config, model_files)
  tokenizer = check("vocabulary", setup.load_tokenizer, model_files, config)
  trained = check("checkpoint", squad_inputs.find_model, settings)
  selection = check("scores", read_selection, settings)
  model = check("folder", squad_inputs.describe_model, settings, config, seeds)
  data = check("data", squad_inputs.read_data, settings, selection, after=seeds)
  return Start(
    settings, config, tokenizer, trained, selection, seeds, model, data
  )


def examine(settings: SquadSettings, doctor: doctor.Doctor) -> None:
  """Makes the checks of a run, and some more.

  Args:
    settings: of the command.
    doctor: makes each check.
  """
  start = prepare(settings, doctor.check)
  settings = start.settings
  doctor.check("weights", check_weights, settings, start.trained, start.config)
  lengths = doctor.check(
    "tokens",
    task_checks.check_questions,
    settings,
    start.config,
    start.tokenizer,
    start.data,
  )
  training_checks.check_training(
    settings,
    doctor,
    start.config,
    lengths,
    lambda num_windows: squad_inputs.count_steps(
      settings, len(start.data.train), num_windows
    ),
  )


def check_output(settings: SquadSettings) -> None:
  """Refuses outputs that would overwrite data, a passage or logits."""
  inputs = [
    settings.train_file,
    settings.predict_file,
    settings.passage_file,
    settings.from_logits,
  ]
  doctor.check_output_dir(
    settings,
    [
      "*.tf_record",
      "*predictions.json",
      "null_odds.json",
      "unaligned_answers.jsonl",
    ],
    inputs,
  )
  if settings.save_logits:
    model_files = [settings.model.vocab_file, settings.model.bert_config_file]
    files.check_outputs([settings.save_logits], inputs + model_files)
  if settings.interactive and settings.passage_file:
    conversation.read_passage(settings)


def read_selection(settings: SquadSettings) -> model_selection.Selection:
  """How the flags want the best weights found."""
  return training_run.read_selection(
    settings.run,
    ["best_f1", "f1", "exact", "best_exact"]
    if settings.version_2_with_negative
    else ["f1", "exact_match"],
  )


def check_start(settings: SquadSettings, start: Start) -> None:
  """Makes the last checks, before which nothing is written.

  Args:
    settings: of the command.
    start: what the run begins with.

  Raises:
    InputError: there are too few questions, --from_logits are of others, or
      devices or weights do not fit.
  """
  questions = start.data.train
  if (
    0
    < len(questions) * settings.run.num_train_epochs
    < settings.run.train_batch_size
  ):
    # There may be more windows, and making them takes no time.
    windows = squad_features.convert_examples_to_windows(
      questions,
      start.tokenizer,
      squad_windows.window_settings(settings, is_training=True),
    )
    squad_inputs.count_steps(settings, len(questions), len(windows.length))
  if settings.from_logits:
    key = squad_windows.windows_key(
      settings, settings.predict_file, is_training=False
    )
    squad_decoding.load_logits(settings.from_logits, key)
  training_checks.check_start(
    settings,
    start.config,
    start.trained,
    lambda: check_weights(settings, start.trained, start.config),
  )


def check_weights(
  settings: SquadSettings, trained: str | None, config: modeling.BertConfig
) -> None:
  """Refuses a checkpoint that is damaged, or not of this model."""
  layout = squad_features.record_layout(
    settings.model.max_seq_length, is_training=False
  )
  training_checks.check_weights(
    trained or settings.model.init_checkpoint,
    make_model_fn(settings, config),
    layout,
    settings.run.output_dir,
  )


def check_flags(settings: SquadSettings) -> list[int]:
  """Refuses flags that do not go together; gives the seeds of `--seeds`.

  Raises:
    InputError: something is missing, or has no sense.
  """
  if not (
    settings.run.do_train
    or settings.answers_questions
    or settings.audit
    or settings.interactive
  ):
    raise InputError(
      "nothing to do; give one or more of --do_train, --do_predict, --audit,"
      " --interactive"
    )
  for flag, needed, why in (
    (
      "train_file",
      settings.run.do_train or settings.audit,
      "--do_train and --audit",
    ),
    ("predict_file", settings.answers_questions, "--do_predict"),
    (
      "predict_file",
      settings.run.do_train and settings.run.eval_steps,
      "--eval_steps",
    ),
  ):
    if needed and not getattr(settings, flag):
      raise InputError(f"--{flag} is needed with {why}")
  if (
    settings.run.do_eval or settings.sweeps
  ) and not settings.answers_questions:
    raise InputError("there are no answers to score; add --do_predict")
  if settings.interactive and settings.passage_file:
    find_files([settings.passage_file])
  folder = os.path.dirname(settings.save_logits or "")
  if folder and not tf.gfile.IsDirectory(folder):
    raise InputError(
      f"--save_logits={settings.save_logits}: there is no {folder}"
    )
  squad_features.check_settings(
    squad_windows.window_settings(settings, is_training=False)
  )
  return training_run.read_seeds(settings.run)


def validate_flags_or_throw(bert_config: modeling.BertConfig) -> None:
  """Checks the flags, which also have to go with the model.

  Args:
    bert_config: the encoder's sizes.

  Raises:
    InputError: something is missing, or contradicts something else.
  """
  settings = option.from_flags(SquadSettings)
  check_flags(settings)
  loading.check_max_seq_length(settings.model.max_seq_length, bert_config)
  tokenization.validate_case_matches_checkpoint(
    settings.model.do_lower_case, settings.model.init_checkpoint
  )


def build_estimator(
  settings: SquadSettings, config: modeling.BertConfig, num_train_steps: int
):
  """The Estimator of the model that the flags describe.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    num_train_steps: length of training; 0 where there is none.

  Returns:
    An `estimator_api.TPUEstimator`.
  """
  compute, options = training_run.plan_training(
    settings,
    training_run.read_execution(settings, unpad=settings.mask_padding),
    config,
    num_train_steps,
  )
  return training_run.build_estimator(
    settings,
    make_model_fn(settings, config, num_train_steps, compute, options),
    settings.run.output_dir,
    settings.run.train_batch_size,
    predict_batch_size=settings.run.predict_batch_size,
  )


def make_model_fn(
  settings: SquadSettings,
  config: modeling.BertConfig,
  num_train_steps: int = 0,
  compute: modeling.Compute | None = None,
  options: optimization.StepOptions | None = None,
):
  """The `model_fn` as the flags want it, see `model_fn_builder`."""
  return model_fn_builder(
    bert_config=config,
    init_checkpoint=settings.model.init_checkpoint,
    learning_rate=settings.optimizer.learning_rate,
    num_train_steps=num_train_steps,
    num_warmup_steps=int(
      num_train_steps * settings.optimizer.warmup_proportion
    ),
    use_tpu=settings.devices.on_tpu,
    use_one_hot_embeddings=settings.devices.on_tpu,
    mask_padding=settings.mask_padding,
    seed=settings.run.seed,
    log_steps=settings.run.log_steps,
    compute=compute,
    options=options,
  )


def train(
  settings: SquadSettings,
  config: modeling.BertConfig,
  tokenizer: tokenization.FullTokenizer,
  examples: Sequence[SquadExample],
  selection: model_selection.Selection,
  evaluate: model_selection.Evaluate,
) -> model_inputs.Lengths:
  """Trains, or goes on where training was stopped.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    tokenizer: gives the ids.
    examples: the questions of --train_file.
    selection: how it is scored on the way.
    evaluate: scores a checkpoint.

  Returns:
    The lengths of the windows.
  """
  windows, _ = squad_windows.load_windows(
    settings, settings.train_file, examples, tokenizer, is_training=True
  )
  num_steps = squad_inputs.count_steps(
    settings, len(examples), len(windows.length)
  )
  path = os.path.join(settings.run.output_dir, "train.tf_record")
  with FeatureWriter(path, is_training=True) as writer:
    for window in squad_features.iterate_features(
      windows,
      settings.model.max_seq_length,
      tokenizer.inv_vocab,
      squad_features.reference_order(len(examples)),
    ):
      writer.process_feature(window)
  input_fn = input_fn_builder(
    path,
    settings.model.max_seq_length,
    is_training=True,
    drop_remainder=True,
    trim=settings.mask_padding and not settings.devices.on_tpu,
    seed=settings.run.seed,
    first_step=finding.steps_done(settings.run.output_dir),
    by_length=settings.run.group_by_length and not settings.devices.on_tpu,
  )
  training_run.train(
    settings,
    build_estimator(settings, config, num_steps),
    input_fn,
    num_steps,
    f"{len(examples)} questions in {len(windows.length)} windows",
    "windows",
    selection,
    evaluate,
    functools.partial(
      record_check.find,
      [path],
      squad_features.record_layout(
        settings.model.max_seq_length, is_training=True
      ),
    ),
  )
  return squad_features.window_lengths(windows, settings.model.max_seq_length)


def predict(
  settings: SquadSettings,
  config: modeling.BertConfig,
  windows: Sequence[squad_features.Window],
  num_questions: int,
  checkpoint: str | None,
) -> np.ndarray:
  """The model's scores of all windows.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    windows: the windows.
    num_questions: of which they are made.
    checkpoint: of the model; None where it is that of --init_checkpoint.

  Returns:
    float32 [2, windows, max_seq_length], starts and ends; the lowest number
    at padding that was left out.
  """
  logits = np.full(
    [2, len(windows), settings.model.max_seq_length], np.finfo("f").min, "f"
  )
  trim = settings.mask_padding and not settings.devices.on_tpu
  batches = list(windows)
  if settings.devices.on_tpu:
    batches += batches[:1] * (-len(batches) % settings.run.predict_batch_size)
  if not batches:
    return logits
  path = os.path.join(settings.run.output_dir, "eval.tf_record")
  with FeatureWriter(path, is_training=False) as writer:
    for window in batches:
      writer.process_feature(window)
  input_fn = input_fn_builder(
    path,
    settings.model.max_seq_length,
    is_training=False,
    drop_remainder=settings.devices.on_tpu,
    trim=trim,
    by_length=trim,
  )
  rows = build_estimator(settings, config, 0).predict(
    input_fn, checkpoint_path=checkpoint
  )
  start = time.time()
  for row in session_hooks.follow(rows, len(batches), "windows"):
    index = row["unique_ids"] - squad_features.FIRST_UNIQUE_ID
    for kind, name in enumerate(("start_logits", "end_logits")):
      logits[kind, index, : len(row[name])] = row[name]
  seconds = time.time() - start
  logging.info(
    "%d windows of %d questions in %.1f s: %.1f questions/s",
    len(windows),
    num_questions,
    seconds,
    num_questions / seconds,
  )
  return logits


if __name__ == "__main__":
  app.run(main)
