"""Tests of the parsing of command lines, and of what is refused in them."""

import json
import os
import threading

import commands
import pytest
from absl import flags
from parametrize import parametrize
from refused import refusal
from settings_test import SETTINGS

from bertlib.cli import command_line, option
from bertlib.settings import conversion, export, training
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.tasks.pretraining.settings import (
  BeamDataSettings,
  PretrainingSettings,
)
from bertlib.tasks.squad.settings import SquadMetricsSettings

pytestmark = pytest.mark.unit

CLASSIFIER = ClassifierSettings
CONVERSION = conversion.ConversionSettings
PRETRAINING = PretrainingSettings
SQUAD_METRICS = SquadMetricsSettings


def parse(settings, *arguments):
  """Parses a command line; returns its arguments and the values of flags."""
  values = flags.FlagValues()
  option.define(settings, values, required=False)
  _, *words = command_line.parse(
    ["command.py", *arguments],
    values,
    settings.TAKES_ARGUMENTS,
    settings.PASSES_ON_ARGUMENTS,
  )
  return words, values


def refused(settings, *arguments):
  """The line with which a command line is refused."""
  return refusal(parse, settings, *arguments)


# Words that are no flags


@parametrize(
  "arguments",
  ["--do_train", "true", "--seed=1"],
  ["--seed=1", "–do_train"],
  ["--seed=1", ""],
  ["--seed=1", "-"],
  ["--seed=1", "--", "--do_train"],
  ["--undefok=x", "--x", "3", "--seed=1"],
)
def test_a_word_that_is_no_flag_is_refused(arguments):
  message = refused(CLASSIFIER, *arguments)
  (word,) = {repr(word) for word in arguments if f"{word!r}: not" in message}
  assert message.startswith(f"{word}: not a flag. Write flags as --NAME=VALUE")


def test_values_after_a_space_are_no_words():
  given = ["--output_dir", "out", "--do_train", "--learning_rate", "-1"]
  words, values = parse(CLASSIFIER, *given)
  assert not words
  assert values["output_dir"].value == "out"
  assert values["do_train"].value
  assert values["learning_rate"].value == -1


@pytest.mark.parametrize(
  "settings", [s for s in SETTINGS if not s.TAKES_ARGUMENTS]
)
def test_commands_without_arguments_refuse_words(settings):
  assert refused(settings, "word").startswith("'word': not a flag")


@pytest.mark.parametrize(
  "settings",
  [s for s in SETTINGS if s.TAKES_ARGUMENTS and [*option.declarations(s)]],
)
def test_flags_are_read_before_and_after_arguments(settings):
  assert {"python", settings.EXAMPLE.split()[1]} < {*settings.EXAMPLE.split()}
  name, flag = list(option.declarations(settings))[-1]
  given = f"--{name}" if flag.placeholder is None else f"--{name}=1"
  for arguments in ([given, "a", "b"], ["a", given, "b"], ["a", "b", given]):
    words, values = parse(settings, *arguments)
    assert words == ["a", "b"]
    assert values[name].present


def test_beam_gets_what_follows_two_dashes_and_only_that():
  settings = BeamDataSettings
  words, values = parse(
    settings, "--num_shards=3", "--", "x", "--runner=A", "--num_shards=4"
  )
  assert words == ["x", "--runner=A", "--num_shards=4"]
  assert values["num_shards"].value == 3
  assert refused(settings, "x", "--", "--runner=A").startswith(
    "'x': not a flag"
  )


def test_help_needs_no_correct_command_line():
  done = commands.succeed("run_ner.py", "--help", "--do_train", "true")
  assert "--train_batch_size" in done.stdout


# Unknown flags

HERE = "unknown flag. Here it is "
BEGINS = "removed. The warm-up begins at the first step and takes "


@parametrize(
  "settings, flag, fix",
  (CLASSIFIER, "bert_model", HERE + "--init_checkpoint"),
  (CLASSIFIER, "model-name-or-path", HERE + "--init_checkpoint"),
  (CLASSIFIER, "warmup_steps", HERE + "--warmup_proportion, "),
  (PRETRAINING, "warmup_steps", HERE + "--num_warmup_steps"),
  (PRETRAINING, "max_steps", HERE + "--num_train_steps"),
  (CLASSIFIER, "no_cuda", HERE + "CUDA_VISIBLE_DEVICES=-1 in"),
  (CONVERSION, "tf_checkpoint_path", HERE + "--input"),
  (CLASSIFIER, "learning_rat", "unknown flag. Did you mean: learning_rate?"),
  (PRETRAINING, "phases", "removed. Run one command per phase"),
  (PRETRAINING, "train_batch_size_end", "removed. Batches have one size"),
  (PRETRAINING, "batch-size-warmup-steps", "removed. Batches have one size"),
  (PRETRAINING, "start_warmup_step", BEGINS + "--num_warmup_steps"),
  (CLASSIFIER, "start_warmup_step", BEGINS + "--warmup_proportion"),
  (CLASSIFIER, "schedule_power", "removed. --schedule=polynomial is linear"),
  (CLASSIFIER, "rerun", "removed. --flagfile=OLD/run.flags --output_dir=NEW"),
  (
    BeamDataSettings,
    "rerun",
    "removed. Give the flags of OUTPUT.run.json again",
  ),
  (CLASSIFIER, "target_metric", "removed. --eval_steps writes the metrics"),
  (CLASSIFIER, "target_value", "removed. --eval_steps writes the metrics"),
  (export.ExportSettings, "null_score_diff_threshold", "removed. An export"),
  (CONVERSION, "text_file", "removed. examples/compare_with_transformers.py"),
  (CONVERSION, "tolerance", "removed. --compare prints the largest"),
  (CONVERSION, "max_seq_length", "removed. Leave it out; --compare"),
  (CONVERSION, "encoding-errors", "removed. Leave it out; --compare"),
  (CLASSIFIER, "encoding_errors", "removed. Convert the file first: iconv"),
  (CLASSIFIER, "adam_beta1", HERE + "StepOptions.beta_1 in Python"),
  (CLASSIFIER, "logging_steps", HERE + "not needed: the log has a line"),
  (SQUAD_METRICS, "max_seq_length", "unknown flag. --helpfull"),
)
@pytest.mark.parametrize("separator", "= ")
def test_unknown_flags_have_a_counterpart_or_suggestions(
  settings, flag, fix, separator
):
  message = refused(settings, *f"--{flag}{separator}x".split())
  assert message.startswith(f"--{flag}: {fix}")


def test_a_counterpart_that_the_command_lacks_is_not_named():
  message = refused(SQUAD_METRICS, "--bert_model=x")
  assert "init_checkpoint" not in message
  message = refused(SQUAD_METRICS, "--target_metric=x")
  assert message.startswith("--target_metric: unknown flag")


def test_misspelled_flags_have_suggestions():
  message = refused(CLASSIFIER, "--learning_rat=1")
  assert message.endswith("learning_rate? --helpfull lists all flags")


def test_counterparts_are_flags_of_commands():
  known = {
    name for settings in SETTINGS for name, _ in option.declarations(settings)
  }
  for fixes in json.loads(command_line.OTHER_FLAGS.read_text("utf-8")).values():
    for name, fix in fixes.items():
      assert command_line.flags_in(fix) <= known, name


@parametrize(
  "arguments, message",
  (["--nodo_train=true"], "--nodo_train=true does not take an argument"),
  (["--output_dir"], "Missing value for flag --output_dir"),
  (["--flagfile"], "--flagfile with no argument"),
)
def test_other_errors_of_absl_are_one_line(arguments, message):
  assert refused(training.TrainingSettings, *arguments).startswith(message)


# Flag files


@parametrize(
  "content, message",
  (None, "{path}: No such file or directory. "),
  (..., "{path}: Is a directory. "),
  (b"\x00\xff\x7fELF", "{path}: not UTF-8 text. "),
  ("--output_dir=Größe".encode("latin-1"), "{path}: not UTF-8 text. "),
  ("--do_train".encode("utf-16"), "{path}: not UTF-8 text. "),
  (b"--seed 1", "--seed 1: unknown flag. Did you mean: seed"),
  (b"do_train=true\n", "'do_train=true': not a flag. "),
  (b"--flagfile=/missing", "--flagfile=/missing: No such file"),
)
def test_flag_files_that_cannot_be_used_are_refused(tmp_path, content, message):
  path = tmp_path / "a.flags"
  if content is ...:
    path.mkdir()
  elif content is not None:
    path.write_bytes(content)
  found = refused(CLASSIFIER, f"--flagfile={path}")
  assert found.startswith(message.format(path=f"--flagfile={path}"))


def test_a_flag_file_may_begin_with_a_byte_order_mark(tmp_path):
  path = tmp_path / "a.flags"
  path.write_text("--nosuch\n", encoding="utf-8-sig")
  found = refused(CLASSIFIER, f"--flagfile={path}")
  assert found.startswith("--nosuch: unknown flag")


def test_a_flag_file_may_be_a_pipe(tmp_path):
  path = tmp_path / "pipe"
  os.mkfifo(path)
  writer = threading.Thread(target=path.write_text, args=["--nosuch\n"])
  writer.start()
  found = refused(CLASSIFIER, f"--flagfile={path}")
  writer.join()
  assert found.startswith("--nosuch: unknown flag")
