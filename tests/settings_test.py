"""Tests of flags, their ranges, and the settings made from them."""

import collections
import dataclasses
import math
import os
import pathlib
import re

import commands
import pytest
from absl import flags
from parametrize import parametrize
from refused import refusal

import optimization
import run_ner
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import initial_model
from bertlib.settings import training
from bertlib.tasks.classification import classification
from bertlib.tasks.classification.settings import (
  TASKS,
  ClassifierSettings,
  plain_task,
)
from bertlib.tasks.embeddings.settings import EmbeddingSettings
from bertlib.tasks.squad.settings import SquadSettings
from website import reference

pytestmark = pytest.mark.unit

# The settings of each command.
COMMANDS = {name: settings for name, _, settings in reference.commands()}
SETTINGS = [*COMMANDS.values()]


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_number_has_a_range(settings):
  for name, flag in option.declarations(settings):
    if flag.define in (flags.DEFINE_integer, flags.DEFINE_float):
      assert flag.within is not None, name


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_range_has_the_default_and_neither_nan_nor_infinity(settings):
  for name, flag in option.declarations(settings):
    if flag.within is not None:
      default = flag.default
      for value in default if isinstance(default, list) else [default]:
        assert value is None or float(value) in flag.within, name
      for value in (math.nan, math.inf, -math.inf, None):
        assert value not in flag.within, name


def values_of(settings, *arguments, required=False):
  values = flags.FlagValues()
  option.define(settings, values, required)
  values(["command", *arguments])
  return values


def parse(settings, *arguments):
  """Parses a command line without what the command requires."""
  return option.read_flags(settings, values_of(settings, *arguments))


def checked(settings, *arguments):
  """Parses and checks a command line with what the command requires."""
  return option.from_flags(settings, values_of(settings, *arguments))


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_without_flags_are_the_defaults(settings):
  from_flags, default = parse(settings), settings()
  for field in dataclasses.fields(settings):
    found, expected = (
      getattr(made, field.name) for made in (from_flags, default)
    )
    if isinstance(expected, tuple):
      expected = list(expected)
    assert found == expected, field.name


def test_settings_have_the_values_of_the_command_line():
  settings = parse(
    SquadSettings,
    "--max_seq_length=64",
    "--nodo_lower_case",
    "--learning_rate=1e-3",
    "--n_best_size=7",
  )
  assert settings.model.max_seq_length == 64
  assert not settings.model.do_lower_case
  assert settings.optimizer.learning_rate == 1e-3
  assert settings.answers.n_best_size == 7
  assert "max_seq_length" in settings.model.given
  assert "vocab_file" not in settings.model.given


@parametrize(
  "settings, flag, text, values",
  (EmbeddingSettings, "matryoshka_dims", "384,128", [384, 128]),
  (EmbeddingSettings, "matryoshka_dims", "", []),
  (EmbeddingSettings, "matryoshka_dims", "32", [32]),
)
def test_lists_of_numbers_are_parsed(settings, flag, text, values):
  made = parse(settings, f"--{flag}={text}")
  assert option.values_of(made)[flag] == values
  assert parse(settings, *made.receipt.command_line) == made


@parametrize("text", "384.5", "3e2", "8,,4")
def test_items_that_are_no_integers_are_refused(text):
  with pytest.raises(flags.IllegalFlagValueError) as error:
    parse(EmbeddingSettings, f"--matryoshka_dims={text}")
  assert str(error.value).endswith("give integers, separated by commas")


def test_an_alias_sets_the_flag_that_it_stands_for():
  settings = parse(ClassifierSettings, "--do_lower=false")
  assert not settings.model.do_lower_case


def test_choices_are_those_of_the_optimizers():
  assert list(training.OPTIMIZERS) == list(optimization.OPTIMIZERS)
  assert list(training.SCHEDULES) == list(optimization.SCHEDULES)


def cases(text):
  """Parametrizes a test by lines `COMMAND ARGUMENTS => EXPECTED`.

  What is expected may be left out. An indented line continues the one before.
  """
  found = []
  for line in re.sub(r"\n +", " ", text.strip()).splitlines():
    given, _, expected = line.partition(" => ")
    command, *arguments = given.split()
    found.append(pytest.param(COMMANDS[command], arguments, expected, id=given))
  return pytest.mark.parametrize(("settings", "arguments", "expected"), found)


@cases("""
run_ner --init_checkpoint=bert-base-uncased
run_ner --bert_hub_module_handle=folder
run_ner --bert_config_file=c --vocab_file=v
run_ner --init_checkpoint=whole
run_pretraining --init_checkpoint=without_vocabulary
run_ner --init_checkpoint=nothing => --init_checkpoint=nothing: neither a file,
  a folder nor a published model. docs/
run_ner --init_checkpoint=whoel => Did you mean whole?
run_ner --init_checkpoint=whole/modle.ckpt => Did you mean whole/model.ckpt?
run_ner --init_checkpoint=gone/model.ckpt-7 => neither a file,
  a folder nor a published model. Name a checkpoint without
run_ner --do_train => --vocab_file and --bert_config_file must be given,
  unless --init_checkpoint names a published model or
run_ner --init_checkpoint=whole/model.ckpt => --vocab_file and
  --bert_config_file must be given, which whole does not bring
""")
def test_an_initial_model_brings_the_files_that_are_not_given(
  settings, arguments, expected, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  for folder in ("whole", "without_vocabulary"):
    os.mkdir(folder)
    for name in ("bert_config.json", "model.ckpt.index"):
      pathlib.Path(folder, name).write_text("{}")
  pathlib.Path("whole", "vocab.txt").touch()
  parsed = parse(settings, "--output_dir=out", *arguments).completed()
  if expected:
    assert expected in refusal(initial_model.check, parsed)
  else:
    initial_model.check(parsed)


@pytest.mark.parametrize("settings", SETTINGS)
def test_examples_parse(settings):
  values = values_of(settings, *settings.EXAMPLE.split()[2:], required=True)
  option.from_flags(settings, values)


# A class that declares it, by the name of a flag.
DECLARES = {
  name: settings
  for settings in SETTINGS
  for name, _ in option.declarations(settings)
}


@parametrize(
  "flag, good, bad",
  ("train_batch_size", ["1", "4096"], ["0", "99999999999"]),
  *(
    (flag, ["1"], ["0"])
    for flag in (
      *("predict_batch_size", "eval_batch_size", "save_checkpoints_steps"),
      *("keep_checkpoint_max", "eval_steps", "doc_stride", "dupe_factor"),
      *("max_query_length", "n_best_size", "max_answer_length", "top_k"),
      *("max_predictions_per_seq", "max_eval_steps", "projection_dim"),
    )
  ),
  ("learning_rate", ["0", "5e-5"], ["-1e-9", "nan", "inf"]),
  ("num_train_epochs", ["0", "0.5"], ["-1", "nan", "inf"]),
  ("num_train_steps", ["0"], ["-1"]),
  ("num_warmup_steps", ["0"], ["-5"]),
  ("freeze_layers", ["0"], ["-1"]),
  ("layer_decay", ["0", "1"], ["1.1"]),
  ("masked_lm_prob", ["0", "1"], ["-0.1", "1.1", "nan"]),
  ("short_seq_prob", ["0", "1"], ["-0.1"]),
  ("weight_decay", ["0"], ["-0.01"]),
  ("clip_norm", ["0"], ["nan"]),
  ("temperature", ["0.1"], ["0"]),
  ("margin", ["0"], ["-1"]),
  ("max_score", ["5"], ["0", "inf"]),
  ("token_budget", ["1"], ["9" * 31]),
  ("warmup_proportion", ["0", "0.1", "1"], ["-0.1", "1.01", "nan"]),
  ("beta_2", ["0", "0.999"], ["1", "-0.5"]),
  ("epsilon", ["1e-12"], ["0", "-1e-6"]),
  ("null_score_diff_threshold", ["-3.5", "0"], ["nan", "inf", "-inf"]),
  ("seeds", ["0", "2"], ["-2"]),
  ("seed", ["0", "-1"], ["2147483648"]),
  ("word_column", ["1", "-1"], ["0"]),
  ("tag_column", ["1", "-1"], ["0"]),
  ("na-prob-thresh", ["1", "-2"], ["nan"]),
  ("memory_gb", ["0.5"], ["0", "-1"]),
  ("num_shards", ["0", "99999"], ["-1", "100000"]),
  ("num_threads", ["0", "1024"], ["-1", "1025"]),
  ("num_workers", ["0", "1024"], ["-1", "1025"]),
  ("num_replicas", ["1", "1024"], ["0", "1025"]),
  ("seeds", ["1000"], ["1001"]),
  ("max_seq_length", ["3", "1048576"], ["2", "1048577"]),
  ("random_seed", ["-1", "9" * 400], []),
  ("matryoshka_dims", ["1,20"], ["0", "5,-1"]),
)
def test_values_at_the_edge(flag, good, bad):
  settings = DECLARES[flag]
  for text in good:
    option.check_values(settings, values_of(settings, f"--{flag}={text}"))
  for text in bad:
    with pytest.raises(InputError, match=f"^--{flag}="):
      option.check_values(settings, values_of(settings, f"--{flag}={text}"))


@cases("""
run_classifier --task_name=tsv --do_eval --num_train_epochs=0
run_classifier --task_name=tsv --do_train --labels=a,b
run_classifier --task_name=tsv --do_train --do_eval --seeds=2
run_classifier --task_name=tsv --do_train --predict_batch_size=4 --use_tpu
run_pretraining --input_file=x --do_train --num_warmup_steps=9
  --num_train_steps=9
run_pretraining --input_file=x --do_train --num_train_steps=9
run_pretraining --input_file=x --do_eval --num_warmup_steps=10
  --num_train_steps=9
run_pretraining --do_eval --eval_input_file=x
run_pretraining --input_file=x --do_train --max_seq_length=16
run_pretraining --input_file=x --do_train --max_seq_length=16
  --max_predictions_per_seq=16
run_pretraining --do_train --input_file=x --token_budget=9
  --schedule=trapezoidal --decay_proportion=0.9
run_squad --from_logits=x --predict_file=y
run_embeddings --do_train --train_file=x --text_columns=a,b --loss=infonce
convert_checkpoint --input=a --average=2 --output=b
extract_features --layers=-1
run_classifier --task_name=tsv => nothing to do; give
run_classifier --task_name=mrpc --do_train => --data_dir
run_pretraining --do_train => --input_file is needed with --do_train
run_pretraining --do_predict => --predict_file
run_ner --do_train => --train_file is needed with --do_train
run_ner --train_file=x --do_train --eval_steps=5 => --dev_file
run_squad --do_train --train_file=x --do_eval => there are no answers
run_embeddings --do_predict => --do_predict: name --predict_file
run_embeddings --matryoshka_dims=8,4,4 => --matryoshka_dims=8,4,4
convert_checkpoint --input=a,b --output=b --average=3
  => --average=3: --input lists 2 checkpoints. Give --average=2
export_model --quantize=int8 --precision=float16 => --precision=float16
create_vocab --add_words=x => --add_words needs --vocab_file
run_classifier --task_name=tsv --do_train --precision=float16 --use_tpu
  => --precision=float16 cannot be used with --use_tpu
run_classifier --task_name=tsv --do_train --train_batch_size=4 --use_tpu
  => --train_batch_size=4
run_classifier --task_name=tsv --do_predict --predict_batch_size=4 --use_tpu
  => --predict_batch_size=4
run_classifier --task_name=tsv --do_eval --distribution=multi_worker
  => --distribution=multi_worker
run_classifier --task_name=tsv --do_train --num_replicas=2 --distribution=off
  => --num_replicas
""")
def test_flags_are_checked_by_values(settings, arguments, expected):
  if expected:
    message = refusal(checked, settings, *arguments)
    assert message.startswith(expected)
  else:
    checked(settings, *arguments)


@cases("""
run_pretraining --token_budget=9 --time_budget_minutes=1
  => --token_budget and --time_budget_minutes: each is the length
run_pretraining --token_budget=9 --num_train_steps=1
  => --token_budget and --num_train_steps: each is the length
run_pretraining --token_budget=9 --num_warmup_steps=1 => --num_warmup_steps
run_pretraining --time_budget_minutes=9 --warmup_proportion=1
  => --warmup_proportion=1
run_pretraining --token_budget=9 --schedule=trapezoidal --decay_proportion=0.95
  => --warmup_proportion=0.1:
""")
def test_budgets_of_pretraining_are_checked(settings, arguments, expected):
  given = "--do_train", "--input_file=x", *arguments
  assert refusal(checked, settings, *given).startswith(expected)


def test_tasks_are_those_of_the_script():
  plain = {plain_task(name) for name in TASKS}
  assert plain == {*classification.PROCESSORS}


def test_what_a_flag_needs_are_values_of_other_flags():
  choices = collections.defaultdict(set)
  for settings in SETTINGS:
    for name, flag in option.declarations(settings):
      choices[name].update(flag.choices or ())
  for settings in SETTINGS:
    for flag, declaration in option.declarations(settings):
      for term in re.split(", | or ", declaration.needs):
        name, _, value = term.removeprefix("not ").partition("=")
        assert name in {*choices, ""} and name != flag, flag
        if value and name != "task_name":
          assert value in choices[name], flag


# A value that is the default changes nothing. A flag file may be that of a
# training, of which another action is wanted now.
@cases("""
run_classifier --task_name=tsv --do_train --learning_rate=1e-3
run_classifier --task_name=tsv --do_eval --learning_rate=1e-3
  --num_train_epochs=1
  => --num_train_epochs and --learning_rate: .* --do_train
run_classifier --task_name=tsv --do_eval --num_train_epochs=3
  --nofreeze_embeddings
run_classifier --task_name=tsv --do_train --epsilon=1e-8 --nodo_train --do_eval
run_classifier --task_name=tsv --do_eval --calibration_file=x
  => --calibration_file:
run_classifier --task_name=tsv --do_eval --calibration_file=x --precision=int8
run_classifier --task_name=tsv --do_train --memory_gb=4 --recompute_activations
  => --recompute_activations: .* --memory_gb
run_classifier --task_name=MRPC --data_dir=x --do_eval --label_column=3
  => --label_column: .* --task_name=tsv
run_classifier --task_name=TSV --do_eval --label_column=3
run_classifier --task_name=tsv --do_train --eval_batch_size=4
  => --eval_batch_size:
run_classifier --task_name=tsv --do_train --eval_steps=5 --eval_batch_size=4
run_classifier --task_name=tsv --do_train --tpu_name=local --num_tpu_cores=4
  => --tpu_name and --num_tpu_cores: .* --use_tpu
run_classifier --task_name=tsv --do_train --tpu_name=local --distribution=tpu
run_pretraining --input_file=x --do_train --masked_lm_prob=0.3
  => --masked_lm_prob: .* --remask
run_squad --train_file=x --do_train --doc_stride=382
  => --doc_stride=382 is longer than
run_squad --train_file=x --do_train --doc_stride=381
""")
def test_flags_without_effect_are_named(settings, arguments, expected):
  warnings = [*option.warnings(settings, values_of(settings, *arguments))]
  assert len(warnings) == bool(expected)
  assert re.match(expected, "".join(warnings))


OF_TABLES = {"text_a_column": "1", "label_column": "2"}
OF_XNLI = {"language": "zh"}


@parametrize(
  "arguments, expected",
  (["--task_name=tsv"], OF_TABLES),
  (["--task_name=XNLI"], OF_XNLI),
  (["--task_name=MRPC", "--label_column=3"], {"label_column": "3"}),
)
def test_a_model_keeps_no_defaults_of_other_tasks(arguments, expected):
  kept = option.kept_values(parse(ClassifierSettings, *arguments))
  names = {*OF_TABLES, *OF_XNLI, "label_delimiter"}
  assert {n: kept[n] for n in names if n in kept} == expected


def test_warnings_are_logged_when_the_command_line_is_read(caplog):
  paths = "--vocab_file=x --bert_config_file=x --output_dir=x --dev_file=x"
  with commands.in_process(run_ner) as main, pytest.raises(InputError):
    main(*paths.split(), "--do_eval", "--seed=1", "--epsilon=1e-8")
  assert "--epsilon: has no effect without --do_train" in caplog.text
