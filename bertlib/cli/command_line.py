"""Parsing of command lines; errors say how to fix them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from bertlib.cli import errors
from bertlib.cli.absl import flags
from bertlib.cli.errors import InputError

# Flags of other BERT projects, and what to give here: the PyTorch port and
# transformers, GluonNLP, NVIDIA. Of several entries, separated by "|", the
# first one counts whose flags the command has.
COUNTERPARTS = {
  "accumulate": "--gradient_accumulation_steps",
  "adam_beta1": "--beta_1",
  "adam_beta2": "--beta_2",
  "adam_epsilon": "--epsilon",
  "amp": "--precision=float16 or --precision=bfloat16",
  "batch_size": "--train_batch_size",
  "bert_dataset": "--init_checkpoint",
  "bert_model": "--init_checkpoint",
  "bf16": "--precision=bfloat16",
  "comm_backend": "--distribution",
  "config_name": "--bert_config_file",
  "config_path": "--bert_config_file",
  "dev_batch_size": "--eval_batch_size",
  "display_loss_steps": "--log_steps",
  "dtype": "--precision",
  "early_stop": "--patience",
  "early_stopping_patience": "--patience",
  "epochs": "--num_train_epochs",
  "eval_data_file": "--eval_input_file | --dev_file",
  "eval_files_dir": "--eval_input_file, a pattern such as 'eval/*'",
  "eval_strategy": "--eval_steps",
  "evaluate_during_training": "--eval_steps",
  "evaluation_strategy": "--eval_steps",
  "fp16": "--precision=float16",
  "gpu": "--distribution; CUDA_VISIBLE_DEVICES selects the GPUs",
  "gradient_checkpointing": "--recompute_activations",
  "horovod": "--distribution=mirrored or --distribution=multi_worker",
  "input_files_dir": "--input_file, a pattern such as 'train/*'",
  "label_column_name": "--label_column",
  "load_best_model_at_end": "--eval_steps, which keeps the best checkpoint",
  "local_rank": "--distribution=mirrored or --distribution=multi_worker",
  "log_interval": "--log_steps",
  "logging_steps": "--log_steps",
  "lr": "--learning_rate",
  "lr_scheduler_type": "--schedule",
  "manual_fp16": "--precision=float16",
  "max_grad_norm": "--clip_norm",
  "max_len": "--max_seq_length",
  "max_length": "--max_seq_length",
  "max_steps": "--num_train_steps | --num_train_epochs",
  "metric_for_best_model": "--best_metric",
  "mlm_probability": "--masked_lm_prob",
  "model_name": "--init_checkpoint",
  "model_name_or_path": "--init_checkpoint",
  "model_parameters": "--init_checkpoint",
  "no_cuda": "CUDA_VISIBLE_DEVICES=-1 in the environment",
  "num_accumulation_steps": (
    "--gradient_accumulation_steps, which divides --train_batch_size"
  ),
  "only_inference": "--do_eval or --do_predict",
  "optimizer_type": "--optimizer",
  "per_device_eval_batch_size": "--eval_batch_size",
  "per_device_train_batch_size": "--train_batch_size, over all devices",
  "per_gpu_eval_batch_size": "--eval_batch_size",
  "per_gpu_train_batch_size": "--train_batch_size, over all devices",
  "pretrained_bert_parameters": "--init_checkpoint",
  "pytorch_dump_path": "--output",
  "resume_from_checkpoint": "the same command again, see --resume",
  "save_steps": "--save_checkpoints_steps",
  "save_total_limit": "--keep_checkpoint_max",
  "text_column_name": "--text_a_column",
  "tf_checkpoint_path": "--input",
  "tokenizer_name": "--vocab_file",
  "train_corpus": "--input_file",
  "train_data_file": "--input_file | --train_file",
  "use_cpu": "CUDA_VISIBLE_DEVICES=-1 in the environment",
  "use_fp16": "--precision=float16",
  "use_xla": "--xla=on",
  "validation_file": "--dev_file",
  "warmup_ratio": "--warmup_proportion",
  "warmup_steps": (
    "--num_warmup_steps | --warmup_proportion, a fraction of all steps"
  ),
}

# Flags of earlier versions, and what to do instead.
REMOVED = {
  "cache_dir": "Leave it out; examples are made anew in each run",
  "last": "Give the number of checkpoints as --average=N",
  "null_score_diff_threshold": (
    "An export has the one in model.json, where --do_eval stores it; its output"
    " null_odds allows any other"
  ),
  "phases": (
    "Run one command per phase, the second with --init_checkpoint=FOLDER of"
    " the first; recipes/ has their flags"
  ),
  "steps_from": (
    "--num_train_epochs counts questions; the log has the epochs of windows"
  ),
  "sweep_max_answer_length": (
    "Run --from_logits once for each value of --max_answer_length"
  ),
  "sweep_n_best_size": (
    "Run --from_logits once for each value of --n_best_size"
  ),
  "sweep_null_threshold": (
    "--do_eval finds the best value of --null_score_diff_threshold"
  ),
}


def parse(
  argv: Sequence[str],
  values: flags.FlagValues = flags.FLAGS,
  takes_arguments: bool = False,
  passes_on: bool = False,
) -> list[str]:
  """Parses flags; returns the program and the arguments that are no flags."""
  argv, passed_on = read_flag_files(argv, values), []
  if passes_on and "--" in argv:
    end = argv.index("--")
    argv, passed_on = argv[:end], argv[end + 1 :]
  with input_errors(values):
    if not takes_arguments:
      _check_words(argv[1:], values)
    program, *words = values(argv)
  if words and not takes_arguments:  # after an unknown flag in --undefok
    raise InputError(_refusal("", words[0], values))
  return [program, *words, *passed_on]


def read_flag_files(
  argv: Sequence[str], values: flags.FlagValues = flags.FLAGS
) -> list[str]:
  """Puts the flags of each --flagfile in its position."""
  with input_errors(values):
    try:
      return [argv[0], *values.read_flags_from_files(argv[1:])]
    except (flags.CantOpenFlagFileError, ValueError) as error:
      cause = error.__context__
      if isinstance(cause, OSError):
        file, problem = f"--flagfile={cause.filename}", cause.strerror
      else:  # its bytes or its path
        named = [word for word in argv if re.match("--?flagfile", word)]
        file, problem = " ".join(named), "not UTF-8 text"
      raise InputError(
        f"{file}: {problem}. Name a text file with one flag per line"
      ) from error


# Words that are no flags


def _check_words(arguments: Sequence[str], values: flags.FlagValues) -> None:
  """Refuses words that are neither flags nor values of flags."""
  # absl stops at the first such word: a program that does not check its
  # arguments would ignore all flags after it.
  rest, previous = iter(arguments), ""
  for argument in rest:
    name = argument.lstrip("-")
    if name.startswith("help"):
      return
    if argument == "--":
      continue
    if not argument.startswith("-") or not name:
      raise InputError(_refusal(previous, argument, values))
    if "=" not in name and not _is_switch(name, values):
      # The next word may be the value of a flag that is not defined.
      if name not in {*values, "undefok"}:
        return
      next(rest, None)
    previous = argument


def _is_switch(name: str, values: flags.FlagValues) -> bool:
  """True for a boolean flag, or its negation `noNAME`."""
  names = name, name.removeprefix("no")
  return any(each in values and values[each].boolean for each in names)


def _is_flag(name: str, values: flags.FlagValues) -> bool:
  return name in values or _is_switch(name, values)


def _refusal(previous: str, word: str, values: flags.FlagValues) -> str:
  """Message for a word that is no flag, with the likely fix."""
  # Without dashes, or with typographic ones or a byte-order mark.
  as_flag = re.fullmatch(r"\W*(\w[\w-]*)(=.*)?", word, re.DOTALL)
  name, has_value, _ = previous.lstrip("-").partition("=")
  problem = "not a flag"
  if not word.strip():
    fix = "Remove it; a backslash must be the last character of its line"
    word = repr(word)
  elif as_flag and _is_flag(as_flag[1], values):
    fix = f"Write --{as_flag[1]}{as_flag[2] or ''}"
  elif previous.endswith("="):
    fix = f"Write {previous}{word}"
  elif not has_value and _is_switch(name, values):
    is_value = word.lower() in ("true", "false", "t", "f", "1", "0")
    problem += f", and {previous} takes no value after a space"
    fix = f"Write {previous}={word}" if is_value else "Remove it"
  elif previous:
    fix = (
      f"If it belongs to --{name}, quote a value with spaces, and separate"
      " several values by commas"
    )
  else:
    fix = "Remove it; flags begin with --"
  return f"{word}: {problem}. {fix}"


# Errors of absl


@contextlib.contextmanager
def input_errors(values: flags.FlagValues) -> Iterator[None]:
  """Turns absl's errors into InputError."""
  try:
    yield
  except InputError:
    raise
  except flags.UnrecognizedFlagError as error:
    name = error.flagname
    if name in REMOVED:
      raise InputError(f"--{name}: removed. {REMOVED[name]}") from error
    fix = _fix_of_unknown(name, values)
    if not fix:
      raise InputError(_one_line(error)) from error
    raise InputError(f"--{name}: unknown flag. {fix}") from error
  except (flags.Error, ValueError) as error:
    raise InputError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
  """Absl's message in one line."""
  message = "; ".join(_flag_errors(str(error))).rstrip(" .")
  if message.endswith("?"):
    return f"{message.rstrip(' ?')}? --helpfull lists all flags"
  return f"{message}. --helpfull lists all flags"


def _fix_of_unknown(name: str, values: flags.FlagValues) -> str | None:
  """Counterpart of an unknown flag, or None."""
  written, space, value = name.partition(" ")
  if space and _is_flag(written, values):
    # A line of a flag file is one argument.
    return f"Write --{written}={value.strip()}"
  for fix in COUNTERPARTS.get(name.replace("-", "_"), "").split("|"):
    if fix and flags_in(fix) <= {*values}:
      return f"Here it is {fix.strip()}"
  return None


def flags_in(text: str) -> set[str]:
  """Names of the flags that a text names."""
  return {*re.findall(r"--(\w+)", text)}


def _flag_errors(message: str) -> list[str]:
  """Rewrites absl's lines about flags; merges those about required flags."""
  required = re.compile(r"flag --(\w+)=None: Flag .* other than None\.")
  names = required.findall(message)
  others = [
    re.sub(r"^flags? .*?: (?=--)", "", line)
    for line in message.splitlines()
    if not required.fullmatch(line)
  ]
  if not names:
    return others
  named = errors.english_list(f"--{name}" for name in names)
  return [f"{named} {'are' if names[1:] else 'is'} required", *others]
