"""Tests of flags, their ranges, and the settings made from them."""

import dataclasses
import math
import pathlib
import re

import commands
import pytest
from absl import flags

import optimization
import run_ner
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import initial_model
from bertlib.settings import (
  classifier,
  conversion,
  download,
  embeddings,
  export,
  feature_extraction,
  ner,
  pretraining,
  pretraining_data,
  report,
  squad,
  training,
  vocabulary,
)
from bertlib.tasks.classification import classification

pytestmark = pytest.mark.unit

SETTINGS = [
  classifier.ClassifierSettings,
  conversion.ConversionSettings,
  download.DownloadSettings,
  embeddings.EmbeddingSettings,
  export.ExportSettings,
  feature_extraction.FeatureSettings,
  ner.NerSettings,
  pretraining.PretrainingSettings,
  pretraining_data.PretrainingDataSettings,
  report.ReportSettings,
  squad.SquadSettings,
  squad.SquadMetricsSettings,
  vocabulary.VocabularySettings,
]


def numeric_flags():
  """Declarations of numbers, and lists of numbers, by command and flag."""
  return [
    pytest.param(flag, id=f"{settings.__name__}-{name}")
    for settings in SETTINGS
    for name, flag in option.declarations(settings)
    if flag.within is not None
  ]


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_number_has_a_range(settings):
  for name, flag in option.declarations(settings):
    if flag.define in (flags.DEFINE_integer, flags.DEFINE_float):
      assert flag.within is not None, name


@pytest.mark.parametrize("flag", numeric_flags())
def test_defaults_are_in_range(flag):
  values = flag.default if isinstance(flag.default, list) else [flag.default]
  for value in values:
    assert value is None or float(value) in flag.within


@pytest.mark.parametrize("flag", numeric_flags())
def test_no_range_takes_nan_or_infinity(flag):
  for value in (math.nan, math.inf, -math.inf, None):
    assert value not in flag.within


def values_of(settings, *arguments, required=False):
  """Values of the flags of a command line."""
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
    squad.SquadSettings,
    "--max_seq_length=64",
    "--nodo_lower_case",
    "--learning_rate=1e-3",
    "--n_best_size=7",
    "--audit_doc_strides=1,2",
  )
  assert settings.model.max_seq_length == 64
  assert not settings.model.do_lower_case
  assert settings.optimizer.learning_rate == 1e-3
  assert settings.answers.n_best_size == 7
  assert settings.audit_doc_strides == [1, 2]
  assert "max_seq_length" in settings.model.given
  assert "vocab_file" not in settings.model.given


@pytest.mark.parametrize(
  ("settings", "flag", "text", "values"),
  [
    (embeddings.EmbeddingSettings, "matryoshka_dims", "384,128", [384, 128]),
    (embeddings.EmbeddingSettings, "matryoshka_weights", "1,.5", [1.0, 0.5]),
    (embeddings.EmbeddingSettings, "matryoshka_dims", "", []),
    (squad.SquadSettings, "audit_doc_strides", "32", [32]),
  ],
)
def test_lists_of_numbers_are_parsed(settings, flag, text, values):
  made = parse(settings, f"--{flag}={text}")
  assert option.values_of(made)[flag] == values
  assert parse(settings, *made.receipt.command_line) == made


@pytest.mark.parametrize(
  ("flag", "text", "noun"),
  [
    ("matryoshka_dims", "384.5", "integers"),
    ("matryoshka_dims", "3e2", "integers"),
    ("matryoshka_dims", "8,,4", "integers"),
    ("matryoshka_weights", "1,many", "numbers"),
  ],
)
def test_items_that_are_no_numbers_are_refused(flag, text, noun):
  with pytest.raises(flags.IllegalFlagValueError) as error:
    parse(embeddings.EmbeddingSettings, f"--{flag}={text}")
  assert str(error.value).endswith(f"give {noun}, separated by commas")


def test_an_alias_sets_the_flag_that_it_stands_for():
  settings = parse(classifier.ClassifierSettings, "--do_lower=false")
  assert not settings.model.do_lower_case


def test_choices_are_those_of_the_optimizers():
  assert list(training.OPTIMIZERS) == list(optimization.OPTIMIZERS)
  assert list(training.SCHEDULES) == list(optimization.SCHEDULES)


@pytest.mark.parametrize(
  "arguments",
  [
    ["--init_checkpoint=bert-base-uncased", "--output_dir=out"],
    ["--bert_hub_module_handle=folder", "--output_dir=out"],
    ["--bert_config_file=c", "--vocab_file=v", "--output_dir=out"],
  ],
)
def test_a_named_model_stands_for_its_files(arguments):
  initial_model.check(parse(ner.NerSettings, *arguments))


MODEL = {"bert_config.json": "{}", "vocab.txt": "", "model.ckpt.index": ""}


@pytest.mark.parametrize(
  ("value", "message"),
  [
    ("nothing", "neither a file, a folder nor a published model. download"),
    ("gone/model.ckpt-7", "neither a file, .* Name a checkpoint without"),
  ],
)
def test_an_initial_model_that_is_none_is_named(
  tmp_path, monkeypatch, value, message
):
  monkeypatch.chdir(tmp_path)
  given = parse(
    ner.NerSettings, f"--init_checkpoint={value}", "--output_dir=out"
  )
  with pytest.raises(InputError) as error:
    initial_model.check(given)
  assert re.search(f"--init_checkpoint={value}: .*{message}", str(error.value))


@pytest.mark.parametrize(
  ("files", "arguments", "message"),
  [
    ({}, ["--do_train"], "unless --init_checkpoint names a published model or"),
    (MODEL, ["--init_checkpoint=m/model.ckpt"], "which m does not bring"),
  ],
)
def test_the_folder_that_has_missing_files_is_named(
  tmp_path, monkeypatch, files, arguments, message
):
  monkeypatch.chdir(tmp_path)
  write({f"m/{name}": text for name, text in files.items()})
  settings = parse(ner.NerSettings, "--output_dir=out", *arguments).completed()
  with pytest.raises(InputError) as error:
    initial_model.check(settings)
  given = "--vocab_file and --bert_config_file must be given, "
  assert given in str(error.value)
  assert message in str(error.value)


@pytest.mark.parametrize(
  ("settings", "files"),
  [
    (ner.NerSettings, MODEL),
    (
      pretraining.PretrainingSettings,
      {"bert_config.json": "{}", "model.ckpt.index": ""},
    ),
  ],
)
def test_a_folder_stands_for_the_files_that_it_has(
  tmp_path, monkeypatch, settings, files
):
  monkeypatch.chdir(tmp_path)
  write({f"m/{name}": text for name, text in files.items()})
  given = "--init_checkpoint=m", "--output_dir=out"
  initial_model.check(parse(settings, *given).completed())


def write(files):
  """Writes files, by path and content, below the working folder."""
  for name, text in files.items():
    path = pathlib.Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


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


@pytest.mark.parametrize(
  ("flag", "good", "bad"),
  [
    ("train_batch_size", ["1", "4096"], ["99999999999"]),
    ("learning_rate", ["0", "5e-5"], ["-1e-9", "nan", "inf"]),
    ("warmup_proportion", ["0", "0.1", "1"], ["-0.1", "1.01", "nan"]),
    ("beta_2", ["0", "0.999"], ["1", "-0.5"]),
    ("epsilon", ["1e-12"], ["0", "-1e-6"]),
    ("null_score_diff_threshold", ["-3.5", "0"], ["nan", "inf", "-inf"]),
    ("seeds", ["0", "2"], ["-2"]),
    ("seed", ["0", "-1"], ["2147483648"]),
    ("word_column", ["1", "-1"], ["0"]),
    ("na-prob-thresh", ["1", "-2"], ["nan"]),
    ("memory_gb", ["0.5"], ["0", "-1"]),
    ("num_shards", ["0", "99999"], ["-1", "100000"]),
    ("num_threads", ["0", "1024"], ["-1", "1025"]),
    ("num_workers", ["0", "1024"], ["-1", "1025"]),
    ("num_replicas", ["1", "1024"], ["0", "1025"]),
    ("seeds", ["1000"], ["1001"]),
    ("max_seq_length", ["3", "1048576"], ["2", "1048577"]),
    ("num_unused", ["0", "1000000"], ["1000001"]),
    ("random_seed", ["-1", "9" * 400], []),
    ("audit_doc_strides", ["1,20"], ["0", "5,-1"]),
    ("matryoshka_weights", ["1,0.5"], ["inf", "1,nan"]),
  ],
)
def test_values_at_the_edge(flag, good, bad):
  settings = DECLARES[flag]
  for text in good:
    option.check_values(settings, values_of(settings, f"--{flag}={text}"))
  for text in bad:
    with pytest.raises(InputError, match=f"^--{flag}="):
      option.check_values(settings, values_of(settings, f"--{flag}={text}"))


def command_of(module):
  """The settings that a module declares."""
  return next(s for s in SETTINGS if s.__module__ == module.__name__)


@pytest.mark.parametrize(
  ("settings", "arguments"),
  [
    (classifier, "--task_name=tsv --do_eval --num_train_epochs=0"),
    (classifier, "--task_name=tsv --do_train --labels=a,b"),
    (classifier, "--task_name=tsv --do_train --do_eval --seeds=2"),
    (classifier, "--task_name=tsv --do_train --predict_batch_size=4 --use_tpu"),
    (
      pretraining,
      "--input_file=x --do_train --num_warmup_steps=9 --num_train_steps=9",
    ),
    # The default is longer.
    (pretraining, "--input_file=x --do_train --num_train_steps=9"),
    (
      pretraining,
      "--input_file=x --do_eval --num_warmup_steps=10 --num_train_steps=9",
    ),
    (pretraining, "--do_eval --eval_input_file=x"),
    (pretraining, "--input_file=x --do_train --max_seq_length=16"),
    (
      pretraining,
      "--input_file=x --do_train --max_seq_length=16"
      " --max_predictions_per_seq=16",
    ),
    (
      pretraining,
      "--do_train --input_file=x --token_budget=9 --schedule=trapezoidal"
      " --decay_proportion=0.9",
    ),
    (squad, "--from_logits=x --predict_file=y"),
    (embeddings, "--do_train --train_file=x --text_columns=a,b --loss=infonce"),
    (conversion, "--input=a --average=2 --output=b"),
    (feature_extraction, "--layers=-1"),
  ],
)
def test_flags_that_fit_are_accepted(settings, arguments):
  checked(command_of(settings), *arguments.split())


@pytest.mark.parametrize(
  ("settings", "arguments", "named"),
  [
    (classifier, "--task_name=tsv", "nothing to do; give"),
    (classifier, "--task_name=mrpc --do_train", "--data_dir"),
    (pretraining, "--do_train", "--input_file is needed with --do_train"),
    (pretraining, "--do_predict", "--predict_file"),
    (ner, "--do_train", "--train_file is needed with --do_train"),
    (ner, "--train_file=x --do_train --eval_steps=5", "--dev_file"),
    (squad, "--do_train --train_file=x --do_eval", "there are no answers"),
    (embeddings, "--do_predict", "--do_predict: name --predict_file"),
    (embeddings, "--matryoshka_dims=8,4,4", "--matryoshka_dims=8,4,4"),
    (
      conversion,
      "--input=a,b --output=b --average=3",
      "--average=3: --input lists 2 checkpoints. Give --average=2",
    ),
    (export, "--quantize=int8 --precision=float16", "--precision=float16"),
    (vocabulary, "--add_words=x", "--add_words needs --vocab_file"),
  ],
)
def test_flags_are_checked_by_values(settings, arguments, named):
  with pytest.raises(InputError, match=f"^{re.escape(named)}"):
    checked(command_of(settings), *arguments.split())


@pytest.mark.parametrize(
  ("arguments", "named"),
  [
    (
      "--do_train --precision=float16 --use_tpu",
      "--precision=float16 cannot be used with --use_tpu",
    ),
    ("--do_train --train_batch_size=4 --use_tpu", "--train_batch_size=4"),
    ("--do_predict --predict_batch_size=4 --use_tpu", "--predict_batch_size=4"),
    ("--do_eval --distribution=multi_worker", "--distribution=multi_worker"),
    ("--do_train --num_replicas=2 --distribution=off", "--num_replicas"),
  ],
)
def test_devices_are_checked(arguments, named):
  with pytest.raises(InputError, match=f"^{named}"):
    checked(
      classifier.ClassifierSettings, "--task_name=tsv", *arguments.split()
    )


@pytest.mark.parametrize(
  ("arguments", "named"),
  [
    (
      "--token_budget=9 --time_budget_minutes=1",
      "--token_budget and --time_budget_minutes: each is the length",
    ),
    ("--batch_size_warmup_steps=9", "--batch_size_warmup_steps"),
    (
      "--train_batch_size=8 --train_batch_size_end=20"
      " --batch_size_warmup_steps=9",
      "--train_batch_size_end=20: is not a multiple of --train_batch_size=8",
    ),
    (
      "--train_batch_size=8 --num_train_steps=9 --train_batch_size_end=16"
      " --batch_size_warmup_steps=9 --num_warmup_steps=1",
      "--batch_size_warmup_steps=9: not less than --num_train_steps=9",
    ),
    (
      "--eval_steps=1 --target_metric=loss",
      "--target_metric: has no effect. Add --target_value",
    ),
    (
      "--target_metric=loss --target_value=1",
      "--target_metric: has no effect. Add --eval_steps",
    ),
    (
      "--token_budget=9 --num_train_steps=1",
      "--token_budget and --num_train_steps: each is the length",
    ),
    ("--token_budget=9 --num_warmup_steps=1", "--num_warmup_steps"),
    (
      "--token_budget=9 --remask --vocab_file=x --masked_lm_prob_end=0.1",
      "--masked_lm_prob_end",
    ),
    ("--time_budget_minutes=9 --warmup_proportion=1", "--warmup_proportion=1"),
    (
      "--token_budget=9 --schedule=trapezoidal --decay_proportion=0.95",
      "--warmup_proportion=0.1: ",
    ),
  ],
)
def test_budgets_of_pretraining_are_checked(arguments, named):
  given = ["--do_train", "--input_file=x", *arguments.split()]
  with pytest.raises(InputError, match=f"^{named}"):
    checked(pretraining.PretrainingSettings, *given)


def test_tasks_are_those_of_the_script():
  plain = {classifier.plain_task(name) for name in classifier.TASKS}
  assert plain == {*classification.PROCESSORS}


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_a_flag_needs_are_values_of_other_flags(settings):
  declared = {
    name for each in SETTINGS for name, _ in option.declarations(each)
  }
  own = dict(option.declarations(settings))
  for flag, declaration in own.items():
    for term in re.split(", | or ", declaration.needs):
      name, _, value = term.removeprefix("not ").partition("=")
      assert name in declared | {""} and name != flag, flag
      if value and name in own and name != "task_name":
        assert any(
          value in dict(option.declarations(each))[name].choices
          for each in SETTINGS
          if name in dict(option.declarations(each))
        ), flag


TRAIN, EVALUATE = "--task_name=tsv --do_train", "--task_name=tsv --do_eval"
TO_TRAIN = "--train_file=x --do_train"


@pytest.mark.parametrize(
  ("settings", "arguments", "named"),
  [
    (classifier, f"{TRAIN} --learning_rate=1e-3", ""),
    (
      classifier,
      f"{EVALUATE} --learning_rate=1e-3 --num_train_epochs=1",
      "--num_train_epochs and --learning_rate: .* --do_train",
    ),
    # Values that are the defaults change nothing.
    (classifier, f"{EVALUATE} --num_train_epochs=3 --nofreeze_embeddings", ""),
    # A flag file of a training, of which another action is wanted now.
    (classifier, f"{TRAIN} --epsilon=1e-8 --nodo_train --do_eval", ""),
    (classifier, f"{TRAIN} --loss_scale=128", "--loss_scale: .* --precision"),
    (classifier, f"{TRAIN} --loss_scale=128 --precision=auto", ""),
    (classifier, f"{EVALUATE} --calibration_file=x", "--calibration_file: "),
    (classifier, f"{EVALUATE} --calibration_file=x --precision=int8", ""),
    (
      classifier,
      f"{TRAIN} --memory_gb=4 --recompute_activations",
      "--recompute_activations: .* --memory_gb",
    ),
    (
      classifier,
      "--task_name=MRPC --data_dir=x --do_eval --label_column=3",
      "--label_column: .* --task_name=tsv",
    ),
    (classifier, "--task_name=TSV --do_eval --label_column=3", ""),
    (classifier, f"{TRAIN} --eval_batch_size=4", "--eval_batch_size: "),
    (classifier, f"{TRAIN} --eval_steps=5 --eval_batch_size=4", ""),
    (
      classifier,
      f"{TRAIN} --tpu_name=local --num_tpu_cores=4",
      "--tpu_name and --num_tpu_cores: .* --use_tpu",
    ),
    (classifier, f"{TRAIN} --tpu_name=local --distribution=tpu", ""),
    (
      pretraining,
      "--input_file=x --do_train --masked_lm_prob=0.3",
      "--masked_lm_prob: .* --remask",
    ),
    (squad, f"{TO_TRAIN} --doc_stride=382", "--doc_stride=382 is longer than"),
    (squad, f"{TO_TRAIN} --doc_stride=381", ""),
    (conversion, "--input=a --output=b --tolerance=1", "--tolerance: "),
  ],
)
def test_flags_without_effect_are_named(settings, arguments, named):
  command = command_of(settings)
  values = values_of(command, *arguments.split())
  warnings = [*option.warnings(command, values)]
  assert len(warnings) == bool(named)
  assert re.match(named, "".join(warnings))


def test_warnings_are_logged_when_the_command_line_is_read(caplog):
  with commands.in_process(run_ner) as main, pytest.raises(InputError):
    main(
      "--vocab_file=gone",
      "--bert_config_file=gone",
      "--output_dir=gone",
      "--do_eval",
      "--dev_file=gone",
      "--seed=1",
      "--epsilon=1e-8",
    )
  assert "--epsilon: has no effect without --do_train" in caplog.text
