"""Pretrains BERT, evaluates it, and predicts masked tokens, next sentences.

Two tasks (Devlin et al. 2019, section 3.1): the masked LM predicts masked
tokens; next sentence prediction classifies whether segment B followed segment A
in the corpus. A record, before it is padded:

  tokens    [CLS] he went to the [MASK] [SEP] he bought a [MASK] of milk [SEP]
  segments    0   0   0   0   0    0      0   1    1    1   1    1   1     1
  labels    is next                store                  gallon
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.exchange import initial_model
  from bertlib.tasks.pretraining.settings import PretrainingSettings

  app.parse_flags(PretrainingSettings, True, [initial_model.check])

import functools
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.compute import precision
from bertlib.data import input_pipeline, tf_records, training_records
from bertlib.exchange import resolve
from bertlib.reporting import receipts, run_report, training_checks
from bertlib.task.task_record import Task
from bertlib.tasks.pretraining import (
  budget,
  dynamic_masking,
  electra,
  fill_mask,
  objectives,
  pretraining_inputs,
  pretraining_instances,
  pretraining_text,
  training_batches,
)
from bertlib.tasks.pretraining.objectives import MLM_NSP, Objective
from bertlib.tasks.pretraining.record import RECORD
from bertlib.tasks.pretraining.settings import PretrainingSettings
from bertlib.tasks.pretraining.training_batches import input_fn_builder
from bertlib.training import loop, runs, step_plan, train_step
from bertlib.training.runs import Run

FLAGS = flags.FLAGS


# Records to batches


def _decode_record(
  record, name_to_features: Mapping[str, tf.io.FixedLenFeature]
) -> dict[str, Any]:
  """Parses one serialized record; its integers come as int32."""
  parsed = tf.io.parse_single_example(record, name_to_features)
  return input_pipeline.narrow_integers(parsed)


# The model


def create_encoder(
  bert_config: modeling.BertConfig,
  is_training: bool,
  batch: Mapping[str, Any],  # int32 [B, S], and positions [B, P]
  use_one_hot_embeddings: bool,
  dropout_seed=None,
  compute: modeling.Compute | None = None,
  objective: Objective = MLM_NSP,
) -> modeling.BertModel | electra.Networks:
  """Builds the encoder; the last layer only at [CLS] and masked positions.

  With a generator it is that one, which predicts the tokens.
  """
  # Other states of the last layer have no loss, so that nothing would use them.
  positions = batch.get("masked_lm_positions")
  if positions is None:
    positions = batch["input_ids"][:, :0]  # none
  if "next_sentence_positions" in batch:  # every [CLS] of a packed row
    positions = tf.concat([batch["next_sentence_positions"], positions], axis=1)
  else:
    positions = tf.pad(positions, [[0, 0], [1, 0]])  # [CLS] is at 0
  build = modeling.BertModel
  if objective.has_generator:
    build = functools.partial(electra.Networks, objective=objective)
  return build(
    config=bert_config,
    is_training=is_training,
    input_ids=batch["input_ids"],
    input_mask=batch["input_mask"],
    token_type_ids=batch["segment_ids"],
    use_one_hot_embeddings=use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    compute=compute,
    output_positions=positions,
    position_ids=batch.get("position_ids"),
    sequence_ids=batch.get("sequence_ids"),
  )


def masked_states(model: modeling.BertModel, num_sequences: int = 1):
  """Hidden states at the masked positions of `create_encoder`, [B, P, H]."""
  return model.get_sequence_output()[:, num_sequences:]


def create_model(
  bert_config: modeling.BertConfig,
  batch: Mapping[str, Any],
  use_one_hot_embeddings: bool,
  compute: modeling.Compute | None = None,
  objective: Objective = MLM_NSP,
):
  """Logits of each prediction: masked LM [B * P, V], next sentence [B, 2]."""
  model = create_encoder(
    bert_config,
    False,
    batch,
    use_one_hot_embeddings,
    compute=compute,
    objective=objective,
  )
  logits = []
  if objective.has_generator:  # all weights of the checkpoint are known
    model.replaced_token_logits(batch["input_ids"])
  if objective.predicts_tokens:
    logits.append(
      modeling.masked_lm_logits(
        bert_config, masked_states(model), model.get_embedding_table()
      )
    )
  if objective.predicts_pairs:
    logits.append(
      modeling.next_sentence_logits(bert_config, model.get_pooled_output())
    )
  return tuple(logits)


def get_masked_lm_output(
  bert_config: modeling.BertConfig,
  input_tensor,
  output_weights,
  positions,
  label_ids,
  label_weights,
  total_weight=None,
):
  """Builds the masked-LM head and its loss.

  Args:
    bert_config: config of the encoder.
    input_tensor: float [B, S, H], hidden states.
    output_weights: float [V, H], the word embeddings.
    positions: int [B, P], the masked positions; None where `input_tensor` has
      the states at these positions alone, S = P.
    label_ids: int [B, P], the original tokens.
    label_weights: float [B, P], 1 at masked positions and 0 at padding.
    total_weight: see `modeling.weighted_mean`.

  Returns:
    The loss, float32 []; the loss of each position, float32 [B * P]; and the
    log probabilities, float32 [B * P, V].
  """
  if positions is not None:
    input_tensor = gather_indexes(input_tensor, positions)
  logits = modeling.masked_lm_logits(bert_config, input_tensor, output_weights)
  per_example_loss, log_probs = modeling.cross_entropy(
    logits, tf.reshape(label_ids, [-1])
  )
  loss = modeling.weighted_mean(
    per_example_loss, tf.reshape(label_weights, [-1]), total_weight
  )
  return loss, per_example_loss, log_probs


def get_next_sentence_output(
  bert_config: modeling.BertConfig, input_tensor, labels
):
  """Builds the next-sentence head and its loss.

  Args:
    bert_config: config of the encoder.
    input_tensor: float [B, H], the pooled output.
    labels: int [B, 1], 0 for the true next sentence and 1 for a random one.

  Returns:
    The mean loss, float32 []; the loss of each example, float32 [B]; and the
    log probabilities, float32 [B, 2].
  """
  logits = modeling.next_sentence_logits(bert_config, input_tensor)
  per_example_loss, log_probs = modeling.cross_entropy(
    logits, tf.reshape(labels, [-1])
  )
  return tf.reduce_mean(per_example_loss), per_example_loss, log_probs


def gather_indexes(sequence_tensor, positions):
  """Gathers the hidden states at `positions` of each sequence.

  Args:
    sequence_tensor: float [B, S, H].
    positions: int [B, P], each in [0, S).

  Returns:
    [B * P, H], dtype of `sequence_tensor`.
  """
  return modeling.gather_positions(sequence_tensor, positions)


def masked_lm_loss(
  bert_config: modeling.BertConfig,
  model: modeling.BertModel,
  batch: Mapping[str, Any],
  total_weight=None,
):
  """Loss of the original tokens at masked positions, see `LOSSES`."""
  # A left-to-right model is asked for each next token; one that sees both sides
  # would see the answer, so that some tokens are hidden. 80% of these became
  # [MASK], 10% a random token, and 10% stayed: no later task has [MASK], and a
  # model that is asked about visible tokens too has to represent each of them.
  outputs = get_masked_lm_output(
    bert_config,
    masked_states(model, num_sequences(batch)),
    model.get_embedding_table(),
    None,
    batch["masked_lm_ids"],
    batch["masked_lm_weights"],  # 0 in slots beyond the masked tokens
    total_weight,
  )
  return *outputs, batch["masked_lm_ids"]


def next_sentence_loss(
  bert_config: modeling.BertConfig,
  model: modeling.BertModel,
  batch: Mapping[str, Any],
  total_weight=None,
):
  """Loss of whether segment B follows segment A, see `LOSSES`."""
  # Half of the pairs are random ones. This was meant for tasks on two texts;
  # Liu et al. (2019, section 4.2) found that the masked LM alone does as well.
  labels, pooled = batch["next_sentence_labels"], model.get_pooled_output()
  weights = batch.get("next_sentence_weights")
  if weights is not None:  # of each sequence of a packed row
    pooled = pooled[:, : num_sequences(batch)]
    pooled = tf.reshape(pooled, [-1, bert_config.hidden_size])
  loss, losses, log_probs = get_next_sentence_output(
    bert_config, pooled, labels
  )
  if weights is not None:
    weights = tf.reshape(weights, [-1])
    loss = modeling.weighted_mean(losses, weights, total_weight)
  return loss, losses, log_probs, labels


def num_sequences(batch: Mapping[str, Any]) -> int:
  """Sequences per row of a batch: more than 1 if they are packed."""
  positions = batch.get("next_sentence_positions")
  return 1 if positions is None else positions.shape[1]


# By their names in `Objective.losses`. Each gives the mean that is trained on,
# float32 []; and of each prediction the loss, the log probabilities, the label.
LOSSES = {
  "masked_lm": masked_lm_loss,
  "next_sentence": next_sentence_loss,
  "disc": electra.disc_loss,
}


def pretraining_loss(
  bert_config: modeling.BertConfig,
  model: modeling.BertModel,
  batch: Mapping[str, Any],
  # By loss, see `modeling.weighted_mean`.
  total_weights: Mapping[str, Any] | None = None,
  objective: Objective = MLM_NSP,
):
  """Sum of the losses, float32 [], and (values, weights) of each metric."""
  _, seq_length = modeling.get_shape_list(batch["input_ids"])
  layout = pretraining_inputs.limited_layout(
    bert_config, seq_length, 0, max_sequences_per_row=num_sequences(batch)
  )
  # NaN where a value of the batch is out of range.
  mark = training_batches.nan_if_out_of_range(batch, layout)
  total_loss, measured = mark, {}
  for name in objective.losses:
    loss, losses, log_probs, labels = LOSSES[name](
      bert_config, model, batch, (total_weights or {}).get(name)
    )
    total_loss += objective.weight(name) * loss
    # A GPU compares int64; int32 would be copied to the host.
    labels = tf.cast(tf.reshape(labels, [-1]), tf.int64)
    is_correct = tf.equal(tf.argmax(log_probs, axis=-1), labels)
    weights = batch.get(f"{name}_weights", tf.ones_like(losses))
    weights = tf.reshape(weights, [-1])
    measured |= {
      f"{name}_accuracy": (tf.cast(is_correct, tf.float32), weights),
      f"{name}_loss": (losses + mark, weights),
    }
    if objective.has_generator and name == "masked_lm":
      batch = electra.replace_tokens(batch, log_probs, objective.temperature)
  if objective.has_generator:
    measured |= electra.metrics(batch, log_probs)
  return total_loss, measured


def loss_normalizers(
  features: Mapping[str, Any],
  arguments: train_step.TrainingArguments,
  objective: Objective = MLM_NSP,
) -> dict[str, Any]:
  """The `train_step.loss_normalizer` of each loss with weights."""
  weights = {"disc_weights": features["input_mask"], **features}
  return {
    name: train_step.loss_normalizer(weights[f"{name}_weights"], arguments)
    for name in objective.losses
    if f"{name}_weights" in weights
  }


def measured_means(
  measured: Mapping[str, Any], total_weights: Mapping[str, Any]
) -> dict[str, Any]:
  """Means of the metrics of `pretraining_loss`, by name, divided as a loss."""
  # Other ones are no means over a batch of which micro-batches add up.
  return {
    name: modeling.weighted_mean(
      values, weights, total_weights.get(name.rpartition("_")[0])
    )
    for name, (values, weights) in measured.items()
    if name.rpartition("_")[0] in LOSSES and name.endswith(("loss", "accuracy"))
  }


def mask_predictions(logits, masked_lm_ids, top_k: int) -> dict[str, Any]:
  """`log_prob` of `masked_lm_ids` [B * P], and the best [B * P, top_k]."""
  ids = tf.reshape(masked_lm_ids, [-1])
  _, log_probs = modeling.cross_entropy(logits, ids)
  top = tf.nn.top_k(log_probs, top_k)
  return {
    "log_prob": tf.gather(log_probs, ids, batch_dims=1),
    "top_ids": top.indices,
    "top_probs": tf.exp(top.values),
  }


def model_fn_builder(
  bert_config: modeling.BertConfig,
  init_checkpoint: str | None,
  learning_rate: float,
  num_train_steps: int | None,
  num_warmup_steps: int | None,
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  top_k: int = 5,
  objective: Objective = MLM_NSP,
  predicted: Objective | None = None,
  **more_arguments: Any,
):
  """The `model_fn` of pretraining, for TPUEstimator.

  `top_k` is the number of predictions per mask; `use_one_hot_embeddings` is
  that of `modeling.BertModel`; `predicted` is the objective of a model that
  predicts, if not `objective`. All other arguments are
  `train_step.TrainingArguments`; more of these may be given by name.

  Returns:
    A function of features, labels, mode, params and config. It predicts what
    `mask_predictions` gives, and `is_next_probability` [B], that segment B
    follows segment A.
  """
  arguments = train_step.TrainingArguments(
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    **more_arguments,
  )

  build = functools.partial(
    create_encoder,
    bert_config,
    use_one_hot_embeddings=use_one_hot_embeddings,
    compute=arguments.compute,
    objective=objective,
  )

  def training_loss(features):
    total_weights = loss_normalizers(features, arguments, objective)

    def loss_fn(batch, dropout_seed):
      model = build(True, batch, dropout_seed=dropout_seed)
      loss, measured = pretraining_loss(
        bert_config, model, batch, total_weights, objective
      )
      return loss, measured_means(measured, total_weights)

    return loss_fn

  def predict(features):
    found = predicted or objective
    logits = create_model(
      bert_config, features, use_one_hot_embeddings, arguments.compute, found
    )
    predictions = {}
    if found.predicts_tokens:
      predictions |= mask_predictions(
        logits[0], features["masked_lm_ids"], top_k
      )
    if found.predicts_pairs:
      scores = tf.cast(logits[-1], tf.float32)
      predictions["is_next_probability"] = tf.nn.softmax(scores)[:, 0]
    return predictions

  def evaluate(features):
    model = build(False, features)
    total_loss, measured = pretraining_loss(
      bert_config, model, features, objective=objective
    )

    return {"loss": total_loss, "eval_metrics": eval_metrics(measured)}

  return training_batches.recording_position(
    train_step.make_model_fn(arguments, training_loss, predict, evaluate)
  )


def eval_metrics(measured: Mapping[str, Any]) -> tuple[Callable, list[Any]]:
  """The `eval_metrics` of an Estimator: weighted means over all batches."""

  def metric_fn(*tensors):
    pairs = zip(tensors[::2], tensors[1::2])
    return {
      name: electra.streaming_mean(values, weights)
      for name, (values, weights) in zip(measured, pairs)
    }

  return metric_fn, list(itertools.chain(*measured.values()))


# The command line

# Steps of an evaluation unless --max_eval_steps is given.
_MOST_EVAL_STEPS = 100


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(PretrainingSettings, required=required)


def main(_) -> None:
  """Trains, evaluates and predicts masked tokens, depending on the flags."""
  settings = option.from_flags(PretrainingSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    run, data = prepare(settings, step)
  if step.is_dry_run:
    return
  settings = run.settings
  files_read = pretraining_inputs.data_files(settings, data)
  with run_report.started(receipt, run, files_read) as outcome:
    if settings.flags.do_train:
      pretrain(with_device_peak(run, receipt), data)
    outcome.checkpoint = loop.select_checkpoint(run)
    if run.evaluates:
      outcome.found.results = evaluate_records(run, data, outcome.checkpoint)
      loop.write_metrics(run, outcome.found.results, outcome.checkpoint)
    if run.predicts:
      fill_masks(run, data.lines, outcome.checkpoint)
    outcome.num_examples = pretraining_inputs.count(settings, data)


def with_device_peak(run: Run, receipt: receipts.Receipt) -> Run:
  """Records the peak of the device, with which the log compares the speed."""
  if run.on_tpu:
    return run
  dtype = run.compute.dtype.name
  size = 4096 if tf.config.list_physical_devices("GPU") else 1024
  sizes = size, size, size
  peak = precision.product_rates([dtype], *sizes, num_rounds=3)[dtype]
  receipt.record(device_peak={"dtype": dtype, "flops_per_second": peak})
  logging.info("Peak of the device: %.4g FLOP/s in %s", peak, dtype)
  replicas = run.devices.replicas
  # Those on the CPU share it.
  num_devices = replicas.count if replicas.on_gpu else replicas.num_processes

  def step_flops(num_examples: float, num_tokens: float) -> float:
    # Of sequences of equal lengths.
    shape = run.step_shape._replace(seq_length=num_tokens / num_examples)
    return step_plan.step_flops(run.config, num_examples, shape)

  peak *= num_devices
  speed = functools.partial(budget.TokenSpeed, step_flops, peak)
  return run.with_arguments(speed=speed)


# Before the run


def prepare(
  asked: PretrainingSettings, step: Steps
) -> tuple[Run, pretraining_inputs.Data]:
  """Loads the model and checks the records; writes nothing."""
  settings = step("model", resolve.complete, asked)
  run = step("run", set_up, settings, step)
  data = step("data", pretraining_inputs.find_data, run)
  step("output", check_output, settings, data)
  plan = loop.check_start(run, step)
  if step.is_dry_run:
    lengths = step("records", pretraining_inputs.check_records, run, data)
    training_checks.estimate_training(
      step,
      run,
      plan,
      lengths,
      lambda _: expected_steps(settings, lengths.num_tokens),
      writes_records=False,
    )
  return run, data


def set_up(settings: PretrainingSettings, step: Steps) -> Run:
  """The run, see `runs.setup`; refuses other packing or another budget."""
  run = runs.setup(settings, make_task(settings), step)
  if settings.flags.do_train and not run.start.own:
    check_objective(settings)
  if run.start.trained:
    run = with_heads_of(run, run.start.trained)
  if run.task.needs_vocabulary:
    vocab_file = settings.model.vocab_file
    pretraining_text.check_has_mask(vocab_file, run.tokenizer)
  if settings.flags.do_train:
    budget.check(budget.read_budget(settings), run.start.last, run.on_tpu)
    training_batches.check_same_packing(settings, run.start.last)
  return run


def check_objective(settings: PretrainingSettings) -> None:
  """Refuses the default objective for an initial model with a generator."""
  path, objective = settings.model.init_checkpoint, settings.chosen_objective
  if not path or objective.has_generator or "objective" in settings.given:
    return
  reader = checkpoint_files.open_reader(path)
  found = objectives.of_variables(reader.has_tensor)
  if found and found.has_generator:
    raise InputError(
      f"--objective: {path} has a generator beside the model. Give"
      f" --objective={found.name} to train both, or {objective.name} for the"
      " model alone"
    )


def check_output(
  settings: PretrainingSettings, data: pretraining_inputs.Data
) -> None:
  """Refuses an --output_dir in which inputs would be overwritten."""
  inputs = [*data.num_records, settings.predict_file]
  runs.check_overwrites(settings, inputs)


def make_task(settings: PretrainingSettings) -> Task:
  """Describes the task to the functions of `run`."""
  objective, within = settings.chosen_objective, budget.read_budget(settings)
  must_agree = [*objective.must_agree]
  if settings.flags.do_train:  # an evaluation may leave out a loss
    must_agree.append("objective")
  num_predictions = 0
  if objective.predicts_tokens:
    num_predictions = settings.max_predictions_per_seq
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={
      "top_k": settings.top_k,
      "objective": objective,
      "budget": within,
    },
    features=pretraining_instances.record_layout(
      settings.model.max_seq_length,
      settings.max_predictions_per_seq,
      objective,
    ),
    metrics=objective.metrics,
    description=objective.description,
    must_agree=must_agree,
    heads=objective.required_head,
    unit="records",
    num_predictions=num_predictions,
    num_output_positions=num_predictions + 1,  # and [CLS]
    generator_config=(
      electra.generator_config if objective.has_generator else None
    ),
    num_warmup_steps=None if within else settings.num_warmup_steps,
    finds_mask=True,
    needs_vocabulary=settings.remask or settings.flags.do_predict,
  )


def expected_steps(settings: PretrainingSettings, num_tokens: float) -> int:
  """Training steps, given the mean tokens per record; 0 if unknown."""
  within = budget.read_budget(settings)
  if not within:
    return settings.num_train_steps
  if within.unit != "tokens":
    return 0
  num_records = within.amount / num_tokens
  return math.ceil(num_records / settings.flags.train_batch_size)


# Training, evaluation, prediction


def pretrain(run: Run, data: pretraining_inputs.Data) -> None:
  """Trains up to --num_train_steps, or within a budget."""
  settings, files = run.settings, data.train_files
  within = budget.read_budget(settings)
  if not within and settings.num_warmup_steps >= settings.num_train_steps:
    logging.warning(
      "--num_warmup_steps=%d: not less than --num_train_steps=%d, so the"
      " learning rate never reaches its peak",
      settings.num_warmup_steps,
      settings.num_train_steps,
    )
  total = data.count(files)
  masking = None
  if settings.remask:
    masking = dynamic_masking.Masking(
      run.tokenizer,
      settings.masked_lm_prob,
      settings.do_whole_word_mask,
      run.flags.seed,
      settings.mask_split,
      settings.do_span_mask,
    )
  packing = None
  if settings.pack:
    packing = training_batches.resume_packing(
      settings.max_sequences_per_row, run.start.last
    )
  read = f"{total} records in {len(files)} files"
  if not (within or packing):
    num_read = settings.num_train_steps * run.flags.train_batch_size
    read += f" ({num_read / total:.3g} epochs)"
  loop.train(
    run,
    input_fn_builder(
      files,
      settings.model.max_seq_length,
      settings.max_predictions_per_seq,
      masking=masking,
      num_records=total,
      objective=settings.chosen_objective,
      packing=packing,
      **runs.input_options(run, is_training=True),
    ),
    within.amount if within else settings.num_train_steps,
    read,
    lambda checkpoint: evaluate_records(run, data, checkpoint),
    pretraining_inputs.bad_record_finder(run, files),
    pretraining_inputs.record_layout(run, files),
    within,
  )


def evaluate_records(
  run: Run, data: pretraining_inputs.Data, checkpoint: str | None
) -> dict[str, Any]:
  """Evaluates a checkpoint, or the initial model, on the first records."""
  settings, files = run.settings, data.eval_files
  total = data.count(files)
  batch_size = run.flags.eval_batch_size
  num_steps, num_passes = plan_evaluation(
    total,
    batch_size,
    settings.max_eval_steps if "max_eval_steps" in settings.given else None,
    run.on_tpu,
  )
  num_wanted = min(num_steps * batch_size, num_passes * total)
  logging.info(
    "Evaluating on %d records of %d%s",
    num_wanted,
    total,
    " (repeated)" * (num_wanted > total),
  )
  input_fn = input_fn_builder(
    [*files] * num_passes,
    settings.model.max_seq_length,
    settings.max_predictions_per_seq,
    num_records=total,
    objective=settings.chosen_objective,
    **runs.input_options(run, is_training=False),
  )
  find_bad_record = pretraining_inputs.bad_record_finder(
    run, files, min(num_wanted, total)
  )
  with training_records.report_bad_record(find_bad_record):
    results = loop.evaluate(run, input_fn, num_steps, checkpoint).results
  is_finite = all(map(np.isfinite, results.values()))
  if not is_finite and (problem := find_bad_record()):
    raise InputError(problem)
  return results


def plan_evaluation(
  num_records: int,
  batch_size: int,
  max_steps: int | None,
  full_batches: bool,
) -> tuple[int, int]:
  """Steps of an evaluation, and passes over the records for these."""
  one_pass = -(-num_records // batch_size)
  # For --max_eval_steps the records repeat if they are too few, as in the
  # original. On a TPU a second pass fills the last batch.
  num_steps = max_steps or min(one_pass, _MOST_EVAL_STEPS)
  if not (max_steps or full_batches):
    return num_steps, 1
  return num_steps, -(-num_steps * batch_size // num_records)


def with_heads_of(run: Run, checkpoint: str) -> Run:
  """Lets the run predict what the checkpoint has heads for."""
  reader = checkpoint_files.open_reader(checkpoint)
  return run.with_arguments(
    predicted=objectives.of_variables(reader.has_tensor)
  )


def fill_masks(
  run: Run, lines: Sequence[fill_mask.Line], checkpoint: str | None
) -> None:
  """Writes predictions of masked tokens and next sentences."""
  run = with_heads_of(run, checkpoint or run.start.trained)
  predicted = run.task.model_arguments["predicted"]
  max_seq_length = run.settings.model.max_seq_length
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "lines.tf_record")
    layout = fill_mask.record_layout(max_seq_length)
    num_rows = tf_records.write_records(
      path,
      fill_mask.prediction_records(
        lines, run.tokenizer.special_ids.mask, predicted
      ),
      layout,
    )

    def input_fn(params):
      return input_pipeline.record_batches(
        path,
        layout,
        params["batch_size"],
        drop_remainder=False,
        trim=not run.on_tpu,
      )

    rows = loop.predict(run, input_fn, num_rows, checkpoint)
    fill_mask.write_predictions(
      run.path("predictions.jsonl"),
      fill_mask.describe_lines(lines, rows, run.tokenizer, predicted),
    )


if __name__ == "__main__":
  app.run(main)
