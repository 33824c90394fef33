"""Resolves flags: model files, checkpoint, tokenizer, devices."""

from __future__ import annotations

from typing import TypeVar

from bertlib.checkpoints import checkpoint_files, model_folder
from bertlib.cli import lazy_module, option, terminal
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.exchange import initial_model
from bertlib.io import model_files
from bertlib.io.files import exists
from bertlib.settings import model_description
from bertlib.settings.command import ModelCommand

# Of models that are downloaded or converted.
tfhub = lazy_module.load("bertlib.exchange.tfhub")
zoo = lazy_module.load("bertlib.exchange.zoo")

Settings = TypeVar("Settings", bound=ModelCommand)


def complete(settings: Settings) -> Settings:
  """Downloads or converts the initial model; completes and checks settings."""
  if not settings.trains:
    terminal.at_end.enter_context(checkpoint_files.keeping())
  initial_model.check(settings)
  model = settings.model
  handle, checkpoint = model.bert_hub_module_handle, model.init_checkpoint
  brought = {}
  if handle and (name := tfhub.published_name(handle)):
    brought = zoo.flags_for(name)
  elif handle:
    brought = {"init_checkpoint": tfhub.convert(handle)}
  elif checkpoint and initial_model.is_name(checkpoint):
    brought = zoo.flags_for(checkpoint)
  elif checkpoint and initial_model.is_huggingface(checkpoint):
    brought = {"init_checkpoint": zoo.convert(checkpoint)}
  if brought:
    settings = option.fill(
      settings,
      {
        name: value
        for name, value in brought.items()
        if name == "init_checkpoint" or name not in model.given
      },
    ).completed()
    initial_model.check(settings, is_found=True)
    settings.check()
  check_model_files(settings)
  if path := settings.model.init_checkpoint:
    initial_model.check_exists(path)
    path = checkpoint_files.find_checkpoint(path)
    if checkpoint_files.has_other_names(path):
      path = zoo.convert_objects(path)
    settings = option.fill(settings, {"init_checkpoint": path})
  if vocabulary.is_subword(settings.model.vocab_file or ""):
    vocabulary.check_own_rules(settings.model.vocab_file, settings.model.given)
    settings = option.fill(settings, {"do_lower_case": False})
  return settings


def check_model_files(settings: ModelCommand) -> None:
  """Refuses flags that contradict the folder of the model that is read."""
  model = settings.model
  if not model.folder:
    return
  description = model_description.load(model.folder)
  script = description.get("script")
  if script and script == settings.SCRIPT and not settings.trains:
    model_folder.check(model.folder)
  model_folder.check_vocabulary(model.folder, description)
  if settings.trains:
    return
  is_lower = description.get("do_lower_case", model.do_lower_case)
  if is_lower != model.do_lower_case:
    raise InputError(
      f"--do_lower_case={str(model.do_lower_case).lower()}: {model.folder} was"
      f" trained with {str(is_lower).lower()}. Leave out the flag"
    )
  path = model_files.path_of(model.folder, "vocab_file")
  if model.vocab_file and description and exists(path):
    vocabulary.check_same(model.vocab_file, path)
