"""Resolves flags: model files, checkpoint, tokenizer, devices."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from absl import logging

import modeling
from bertlib.checkpoints import finding, loading, model_files, model_json
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli.errors import InputError
from bertlib.cli.option import CommandSettings
from bertlib.data import vocabulary
from bertlib.exchange import initial_model, published_models, tfhub, zoo
from bertlib.hardware import devices
from bertlib.io import json_files
from bertlib.io.files import exists
from bertlib.settings.common import (
  EstimatorSettings,
  ModelSettings,
)

Settings = TypeVar("Settings", bound=EstimatorSettings)


def fetch_model(settings: CommandSettings) -> ModelSettings:
  """Downloads a model that the flags name, and finds its files."""
  # Flags of the command line take precedence over what a model brings.
  initial_model.check(settings)
  model = settings.model
  handle, checkpoint = model.bert_hub_module_handle, model.init_checkpoint
  if handle:
    brought = tfhub.flags_for(handle)
  elif checkpoint and published_models.is_name(checkpoint):
    brought = zoo.flags_for(checkpoint)
  elif checkpoint:
    if published_models.is_hidden_by(checkpoint):
      logging.info(
        "%s: the local folder is used; a published model has this name too",
        checkpoint,
      )
    found = dataclasses.replace(
      model, init_checkpoint=find_init_checkpoint(checkpoint)
    )
    return complete_model(found, checkpoint)
  else:
    return model
  return dataclasses.replace(
    model,
    **{
      name: value
      for name, value in brought.items()
      if name == "init_checkpoint" or name not in model.given
    },
  )


def complete_model(
  model: ModelSettings,
  folder: str,
  names: Sequence[str] = ("do_lower_case", "max_input_chars_per_word"),
) -> ModelSettings:
  """Adds a model folder's files and `model.json` entries to the settings."""
  description = model_json.load_description(folder)
  config_file = os.path.join(folder, model_files.CONFIG)
  if not description and exists(config_file):
    # Earlier versions wrote the casing of a converted model there.
    description = json_files.read(config_file, dict)
  brought: dict[str, Any] = {
    name: description[name]
    for name in names
    if name in description and name not in model.given
  }
  for flag, name in model_files.BY_FLAG.items():
    path = os.path.join(folder, name)
    if not getattr(model, flag) and exists(path):
      brought[flag] = path
  if "vocab_file" in brought:
    model_json.check_vocabulary(folder, description)
  return dataclasses.replace(model, **brought)


def find_description(
  settings: Settings, task: TaskRecord
) -> tuple[dict[str, Any], str]:
  """`model.json` ({} without) and folder of the model to evaluate or export."""
  output_dir, model = settings.run.output_dir, settings.model
  initial = model.bert_hub_module_handle or model.init_checkpoint
  # Downloads nothing: a published model is no model of a task.
  is_published = model.bert_hub_module_handle or (
    initial and published_models.is_name(initial)
  )
  if is_published and not finding.trained_checkpoint(output_dir):
    return {}, initial
  checkpoint = finding.find_start(
    None if is_published else initial and find_init_checkpoint(initial),
    output_dir,
    may_be_new=False,
  ).trained
  description = model_json.load_trained(output_dir, checkpoint, task)
  return description, os.path.dirname(checkpoint)


def find_init_checkpoint(value: str) -> str:
  """Checkpoint that --init_checkpoint names, itself or its folder."""
  try:
    return finding.find_checkpoint(value)
  except InputError as error:
    problem = initial_model.why_no_model(value)
    if not problem:
      raise
    raise InputError(problem) from error


def find_devices(settings: Settings) -> Settings:
  """Finds the devices of a run, and what "auto" stands for on them."""
  run = settings.run
  paths = {"init_checkpoint": settings.model.init_checkpoint}
  recorded = {}
  if run and run.output_dir:
    paths["output_dir"] = run.output_dir
    # Where a run resumes, or evaluates what another has trained, "auto" is what
    # that run recorded in its folder.
    recorded = model_json.load_description(run.output_dir)
  if run and run.seeds:  # "auto" computes here, before those runs
    devices.share_gpus()
  found = devices.find(settings.devices, paths)
  compute = devices.choose(settings.compute, found, recorded)
  return dataclasses.replace(settings, devices=found, compute=compute)


def load_config(model: ModelSettings, least: int = 3) -> modeling.BertConfig:
  """Config of a model; InputError if it has no room for --max_seq_length."""
  config = loading.load_config(model.bert_config_file)
  loading.check_max_seq_length(model.max_seq_length, config, least)
  logging.info(
    "%s: %d layers, %d wide, %s weights",
    model.bert_config_file,
    config.num_hidden_layers,
    config.hidden_size,
    f"{loading.num_weights(config):,}",
  )
  return config


def load_tokenizer(
  model: ModelSettings,
  config: modeling.BertConfig,
  never_split: Sequence[str] = (),
  needs_vocabulary: bool = True,
):
  """Tokenizer, which leaves `never_split` whole; None without a vocabulary."""
  if not model.vocab_file:
    if needs_vocabulary:
      handle = model.bert_hub_module_handle
      raise InputError(
        f"{handle}: has no vocabulary; name it by --vocab_file"
        if handle and model.vocab_file is None
        else "--vocab_file is empty; name a vocab.txt"
      )
    return None
  tokenizer = vocabulary.load_tokenizer(
    model.vocab_file,
    model.do_lower_case,
    config.vocab_size,
    model.init_checkpoint,
    never_split,
    max_input_chars_per_word=model.max_input_chars_per_word,
  )
  logging.info(
    "%s: %d entries, text %s",
    model.vocab_file,
    len(tokenizer.vocab),
    "is lower-cased" if model.do_lower_case else "keeps its case",
  )
  return tokenizer
