"""Tests of flags, their ranges, and the settings made from them."""

import dataclasses
import math
import pathlib
import re

import pytest
from absl import flags

import optimization
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import convert
from bertlib.settings import (
  classifier,
  common,
  conversion,
  download,
  embeddings,
  export,
  feature_extraction,
  ner,
  pretraining,
  pretraining_data,
  report,
  rules,
  squad,
  squad_metrics,
  vocabulary,
)

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
  squad_metrics.SquadMetricsSettings,
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


def parse(settings, *arguments):
  """Parses and checks a command line without what the command requires."""
  values = flags.FlagValues()
  option.define(settings, values, required=False)
  values(["command", *arguments])
  rules.check(values)
  return option.from_flags(settings, values)


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
    "--sweep_n_best_size=1,2",
  )
  assert settings.model.max_seq_length == 64
  assert not settings.model.do_lower_case
  assert settings.optimizer.learning_rate == 1e-3
  assert settings.n_best_size == 7
  assert settings.sweep_n_best_size == [1, 2]
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


def test_settings_cannot_be_changed():
  with pytest.raises(dataclasses.FrozenInstanceError):
    classifier.ClassifierSettings().model.max_seq_length = 1


def test_choices_are_those_of_the_optimizers():
  assert list(common.OPTIMIZERS) == list(optimization.OPTIMIZERS)
  assert list(common.SCHEDULES) == list(optimization.SCHEDULES)


def test_architectures_are_those_that_are_written():
  assert tuple(convert._ARCHITECTURES) == conversion.ARCHITECTURES


def test_missing_flags_are_named_with_an_example():
  values = flags.FlagValues()
  option.define(ner.NerSettings, values)
  with pytest.raises(flags.IllegalFlagValueError) as error:
    values(["command", "--vocab_file=vocab.txt"])
  message = str(error.value)
  assert "--bert_config_file and --output_dir must be given" in message
  assert ner.NerSettings.EXAMPLE in message


@pytest.mark.parametrize(
  "arguments",
  [
    ["--init_checkpoint=bert-base-uncased", "--output_dir=out"],
    ["--bert_hub_module_handle=folder", "--output_dir=out"],
    ["--bert_config_file=c", "--vocab_file=v", "--output_dir=out"],
  ],
)
def test_a_named_model_stands_for_its_files(arguments):
  values = flags.FlagValues()
  option.define(ner.NerSettings, values)
  values(["command", *arguments])


MODEL = dict.fromkeys(["bert_config.json", "vocab.txt", "model.ckpt.index"], "")


@pytest.mark.parametrize(
  ("files", "value", "message"),
  [
    ({}, "bert-bse-uncased", "Did you mean bert-base-uncased"),
    ({}, "nothing", "neither a file, a folder nor a published model. download"),
    ({}, "gone/model.ckpt-7", "neither a file, .* Name a checkpoint without"),
    ({"hf/config.json": "{}"}, "hf", "is a Hugging Face folder. Convert it"),
    ({"hf/pytorch_model.bin": ""}, "hf", "is a Hugging Face folder. Convert"),
    ({"model.safetensors": ""}, "model.safetensors", "Convert its folder"),
    ({"uncased.zip": ""}, "uncased.zip", "Unpack it, and name the folder"),
  ],
)
def test_an_initial_model_that_is_none_is_named(
  tmp_path, monkeypatch, files, value, message
):
  monkeypatch.chdir(tmp_path)
  write(files)
  values = flags.FlagValues()
  option.define(ner.NerSettings, values)
  with pytest.raises(flags.IllegalFlagValueError) as error:
    values(["command", f"--init_checkpoint={value}", "--output_dir=out"])
  assert re.search(f"--init_checkpoint={value}: .*{message}", str(error.value))


@pytest.mark.parametrize(
  ("files", "arguments", "message"),
  [
    ({}, [], "unless --init_checkpoint names a published model or the folder"),
    (MODEL, ["--init_checkpoint=m/model.ckpt"], "or --init_checkpoint=m, "),
    (MODEL, ["--output_dir=m"], "or --init_checkpoint=m, the folder that has"),
  ],
)
def test_the_folder_that_has_missing_files_is_named(
  tmp_path, monkeypatch, files, arguments, message
):
  monkeypatch.chdir(tmp_path)
  write({f"m/{name}": text for name, text in files.items()})
  values = flags.FlagValues()
  option.define(ner.NerSettings, values)
  with pytest.raises(flags.IllegalFlagValueError) as error:
    values(["command", "--output_dir=out", *arguments])
  given = "--vocab_file and --bert_config_file must be given, "
  assert given in str(error.value)
  assert message in str(error.value)


@pytest.mark.parametrize(
  ("settings", "files"),
  [
    (ner.NerSettings, MODEL),
    (pretraining.PretrainingSettings, {"bert_config.json": ""}),
  ],
)
def test_a_folder_stands_for_the_files_that_it_has(
  tmp_path, monkeypatch, settings, files
):
  monkeypatch.chdir(tmp_path)
  write({f"m/{name}": text for name, text in files.items()})
  values = flags.FlagValues()
  option.define(settings, values)
  values(["command", "--init_checkpoint=m", "--output_dir=out"])


def write(files):
  """Writes files, by path and content, below the working folder."""
  for name, text in files.items():
    path = pathlib.Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("settings", SETTINGS)
def test_examples_parse(settings):
  values = flags.FlagValues()
  option.define(settings, values)
  values(settings.EXAMPLE.split()[1:])
  rules.check(values)


# A list of floats.
NUMBERS = dict(option.declarations(squad.SquadSettings))["sweep_null_threshold"]


def check(*arguments, **defined):
  """Checks a command line of flags that are defined by range and default."""
  values = flags.FlagValues()
  for name, (default, within) in defined.items():
    define = {
      bool: flags.DEFINE_bool,
      int: flags.DEFINE_integer,
      float: flags.DEFINE_float,
      list: NUMBERS.define,
    }[type(default)]
    define(name, default, "", flag_values=values)
    values[name].within = within
  values(["command", *arguments])
  rules.check(values)


RANGES = {
  name: flag.within
  for settings in SETTINGS
  for name, flag in option.declarations(settings)
}


@pytest.mark.parametrize(
  ("flag", "kind", "good", "bad"),
  [
    ("train_batch_size", int, ["1", "4096"], ["0", "-1", "99999999999"]),
    ("learning_rate", float, ["0", "5e-5"], ["-1e-9", "nan", "inf"]),
    ("warmup_proportion", float, ["0", "0.1", "1"], ["-0.1", "1.01", "nan"]),
    ("beta_2", float, ["0", "0.999"], ["1", "-0.5"]),
    ("epsilon", float, ["1e-12"], ["0", "-1e-6"]),
    ("null_score_diff_threshold", float, ["-3.5", "0"], ["nan", "inf", "-inf"]),
    ("seeds", int, ["0", "2"], ["-2"]),
    ("seed", int, ["0", "-1"], ["2147483648"]),
    ("word_column", int, ["1", "-1"], ["0"]),
    ("na-prob-thresh", float, ["1", "-2"], ["nan"]),
    ("memory_gb", float, ["0.5"], ["0", "-1"]),
    ("num_shards", int, ["0", "99999"], ["-1", "100000"]),
    ("num_threads", int, ["0", "1024"], ["-1", "1025"]),
    ("num_workers", int, ["0", "1024"], ["-1", "1025"]),
    ("num_replicas", int, ["1", "1024"], ["0", "1025"]),
    ("seeds", int, ["1000"], ["1001"]),
    ("max_seq_length", int, ["3", "1048576"], ["2", "1048577"]),
    ("num_unused", int, ["0", "1000000"], ["1000001"]),
    ("random_seed", int, ["-1", "9" * 400], []),
    ("sweep_n_best_size", list, ["1,20"], ["0", "5,nan"]),
    ("sweep_null_threshold", list, ["-1,0.5"], ["inf", "1,nan"]),
  ],
)
def test_values_at_the_edge(flag, kind, good, bad):
  for text in good:
    check(f"--{flag}={text}", **{flag: (kind(), RANGES[flag])})
  for text in bad:
    with pytest.raises(InputError, match=f"^--{flag}="):
      check(f"--{flag}={text}", **{flag: (kind(), RANGES[flag])})


@pytest.mark.parametrize(
  ("arguments", "is_refused"),
  [
    (["--num_warmup_steps=10", "--num_train_steps=9"], True),
    (["--num_warmup_steps=9", "--num_train_steps=9"], False),
    (["--num_train_steps=9"], False),  # the default is longer
    (["--num_warmup_steps=10", "--num_train_steps=9", "--nodo_train"], False),
  ],
)
def test_a_given_warm_up_is_not_longer_than_the_given_training(
  arguments, is_refused
):
  defined = {
    "num_warmup_steps": (100, None),
    "num_train_steps": (9, None),
    "do_train": (True, None),
  }
  if not is_refused:
    check(*arguments, **defined)
    return
  with pytest.raises(InputError, match=r"^--num_warmup_steps=10.*=9"):
    check(*arguments, **defined)


@pytest.mark.parametrize("flag", ["num_train_epochs", "num_train_steps"])
def test_no_training_needs_no_steps(flag):
  kind = float if flag == "num_train_epochs" else int
  check(f"--{flag}=0", **{flag: (kind(), None), "do_train": (False, None)})
  with pytest.raises(InputError, match=f"^--{flag}=0"):
    check(f"--{flag}=0", **{flag: (kind(), None), "do_train": (True, None)})


def test_given_masks_are_not_more_than_the_tokens():
  defined = {
    "max_predictions_per_seq": (20, None),
    "max_seq_length": (128, None),
  }
  check("--max_seq_length=16", **defined)  # warns
  check("--max_seq_length=16", "--max_predictions_per_seq=16", **defined)
  with pytest.raises(InputError, match=r"^--max_predictions_per_seq=17"):
    check("--max_seq_length=16", "--max_predictions_per_seq=17", **defined)


@pytest.mark.parametrize(
  ("precision", "warns"), [("float32", True), ("float16", False)]
)
def test_a_loss_scale_of_another_precision_is_named(precision, warns, caplog):
  values = flags.FlagValues()
  option.define(classifier.ClassifierSettings, values, required=False)
  values(["command", "--loss_scale=128", f"--precision={precision}"])
  with caplog.at_level("WARNING"):
    rules.check(values)
  assert ("--loss_scale: has no effect" in caplog.text) == warns
