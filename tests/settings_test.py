"""Tests of the ranges of flags."""

import importlib
import math

import commands
import pytest
import wrong_input_world
from absl import flags

from bertlib.errors import InputError
from bertlib.settings import ranges, rules

pytestmark = pytest.mark.unit

# Text that is meant as a list of numbers.
LISTS = {
  "sweep_n_best_size",
  "sweep_max_answer_length",
  "sweep_null_threshold",
  "audit_max_seq_lengths",
  "audit_doc_strides",
}


def numeric_flags(script):
  """The flags of a command that are numbers, by name."""
  with commands.in_process(importlib.import_module(script)):
    return {
      flag.name: flag
      for module, found in flags.FLAGS.flags_by_module_dict().items()
      if not module.startswith(("absl", "tensorflow"))
      for flag in found
      if flag.flag_type() in ("int", "float") or flag.name in LISTS
    }


@pytest.mark.parametrize("script", wrong_input_world.COMMANDS)
def test_every_number_has_a_range_that_its_default_is_in(script):
  for name, flag in numeric_flags(script).items():
    allowed = ranges.RANGES[name]
    if flag.default is None:
      continue
    values = flag.default if name in LISTS else [flag.default]
    assert all(float(value) in allowed for value in values), name


@pytest.mark.parametrize("name", ranges.RANGES)
def test_no_range_takes_nan_or_infinity(name):
  for value in (math.nan, math.inf, -math.inf, None):
    assert value not in ranges.RANGES[name]


def check(*arguments, **defined):
  """Checks a command line of flags that are defined by kind and default."""
  values = flags.FlagValues()
  for name, default in defined.items():
    define = {
      bool: flags.DEFINE_bool,
      int: flags.DEFINE_integer,
      float: flags.DEFINE_float,
      list: flags.DEFINE_list,
    }[type(default)]
    define(name, default, "", flag_values=values)
  values(["command", *arguments])
  rules.check(values)


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
    ("random_seed", int, ["-1", "9" * 400], []),
    ("sweep_n_best_size", list, ["1,20"], ["0", "5,nan", "many"]),
    ("sweep_null_threshold", list, ["-1,0.5"], ["inf", "1,nan"]),
  ],
)
def test_values_at_the_edge(flag, kind, good, bad):
  for text in good:
    check(f"--{flag}={text}", **{flag: kind()})
  for text in bad:
    with pytest.raises(InputError, match=f"^--{flag}="):
      check(f"--{flag}={text}", **{flag: kind()})


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
  defined = {"num_warmup_steps": 100, "num_train_steps": 9, "do_train": True}
  if not is_refused:
    check(*arguments, **defined)
    return
  with pytest.raises(InputError, match=r"^--num_warmup_steps=10.*=9"):
    check(*arguments, **defined)


@pytest.mark.parametrize("flag", ["num_train_epochs", "num_train_steps"])
def test_no_training_needs_no_steps(flag):
  kind = float if flag == "num_train_epochs" else int
  check(f"--{flag}=0", **{flag: kind(), "do_train": False})
  with pytest.raises(InputError, match=f"^--{flag}=0"):
    check(f"--{flag}=0", **{flag: kind(), "do_train": True})


def test_given_masks_are_not_more_than_the_tokens():
  defined = {"max_predictions_per_seq": 20, "max_seq_length": 128}
  check("--max_seq_length=16", **defined)  # warns
  check("--max_seq_length=16", "--max_predictions_per_seq=16", **defined)
  with pytest.raises(InputError, match=r"^--max_predictions_per_seq=17"):
    check("--max_seq_length=16", "--max_predictions_per_seq=17", **defined)
