"""Command lines: parsing, errors that say how to fix them, and `--help`."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from bertlib import PREFIX
from bertlib.cli import option
from bertlib.cli.absl import flags
from bertlib.cli.errors import InputError
from bertlib.cli.option import Flag

_LOGGED = "not needed: the log has a line every 20 steps"

# Flags of other BERT projects, and what to give here: the PyTorch port and
# transformers, GluonNLP, NVIDIA. Of several entries, separated by "|", the
# first one counts whose flags the command has; here and in `REMOVED`.
COUNTERPARTS = {
  "accumulate": "--gradient_accumulation_steps",
  "adam_beta1": "StepOptions.beta_1 in Python",
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
  "display_loss_steps": _LOGGED,
  "dtype": "--precision",
  "early_stop": "--patience",
  "early_stopping_patience": "--patience",
  "epochs": "--num_train_epochs",
  "eval_data_file": "--eval_input_file | --dev_file",
  "eval_files_dir": "--eval_input_file, a pattern such as 'eval/*'",
  "eval_script": "--do_eval, which computes exact match and F1",
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
  "log_interval": _LOGGED,
  "logging_steps": _LOGGED,
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
  "num_eval_iterations": "--max_eval_steps",
  "only_inference": "--do_eval or --do_predict",
  "optimizer_type": "--optimizer",
  "per_device_eval_batch_size": "--eval_batch_size",
  "per_device_train_batch_size": "--train_batch_size, over all devices",
  "per_gpu_eval_batch_size": "--eval_batch_size",
  "per_gpu_train_batch_size": "--train_batch_size, over all devices",
  "pretrained_bert_parameters": "--init_checkpoint",
  "pytorch_dump_path": "--output",
  "report_loss": _LOGGED,
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
  "use_trt": "export_model.py --format=onnx, for another engine",
  "use_xla": "--xla=on",
  "validation_file": "--dev_file",
  "warmup_ratio": "--warmup_proportion",
  "warmup_steps": (
    "--num_warmup_steps | --warmup_proportion, a fraction of all steps"
  ),
}

_ONE_SIZE = (
  "Batches have one size, --train_batch_size; a stopped run may be resumed with"
  " a larger one"
)
_NO_TARGET = (
  "--eval_steps writes the metrics to dev_scores.jsonl, and --patience ends"
  " training when they no longer improve"
)

_NO_TEXT = "Leave it out; --compare compares weights"
_AUDITED = "--audit tries lengths of 128 to 512, and strides of 64 and 128"
_ASK = "Write questions into --predict_file, or ask a Predictor in Python"

# Flags of earlier versions, and what to do instead, in the same form.
REMOVED = {
  "architecture": (
    "--to=huggingface writes the class of the model's heads; from_pretrained of"
    " another class leaves out those that it lacks"
  ),
  "audit_doc_strides": _AUDITED,
  "audit_max_seq_lengths": _AUDITED,
  "batch_size_warmup_steps": _ONE_SIZE,
  "beir_split": "--dev_file=FOLDER/qrels/SPLIT.tsv names the judgments",
  "beta_1": "--optimizer has 0.9; in Python, StepOptions.beta_1 is another",
  "cache_dir": (
    "Leave it out; a run makes its examples anew, in --output_dir |"
    " Set BERT_CACHE_DIR in the environment"
  ),
  "dev_label_column": (
    "--dev_score_column takes labels of 1 and 0 too; or evaluate in a command"
    " of its own, with --label_column"
  ),
  "dry_run": "Leave it out; --rename writes to --output and changes no --input",
  "encoding": _NO_TEXT,
  "encoding_errors": (
    f"{_NO_TEXT} | Convert the file first: iconv -c leaves out bytes that are"
    " not in its --encoding"
  ),
  "interactive": _ASK,
  "item_delimiter": (
    "Write a sentence per line as JSON Lines with tokens and tags; --delimiter"
    " is that of columns"
  ),
  "last": "Give the number of checkpoints as --average=N",
  "limit_alphabet": (
    "--vocab_size must hold all characters that occur twice; in Python,"
    " create_vocab.learn_vocab takes limit_alphabet"
  ),
  "list": "docs/how_to/models.md lists the published models",
  "log_steps": (
    "The log has a line every 20 steps; in Python, model_fn_builder takes"
    " log_steps"
  ),
  "loss_scale": (
    "The scale of --precision=float16 adapts; in Python, model_fn_builder takes"
    " loss_scale"
  ),
  "masked_lm_prob_end": "The fraction is constant, --masked_lm_prob",
  "matryoshka_weights": (
    "Each of --matryoshka_dims has weight 1; LossOptions.weights are others in"
    " Python"
  ),
  "max_seq_length": _NO_TEXT,
  "min_frequency": (
    "Entries of --vocab_size occur twice or more; in Python,"
    " create_vocab.learn_vocab takes min_frequency"
  ),
  "min_score": (
    "Scores begin at 0: subtract the lowest from all, and from --max_score"
  ),
  "null_score_diff_threshold": (
    "An export has the one in model.json, where evaluation stores it; its"
    " output null_odds allows any other"
  ),
  "num_unused": "--add_words with --grow appends entries to a vocabulary",
  "optimizer_on_cpu": (
    "--recompute_activations and --gradient_accumulation_steps save memory"
  ),
  "output_config": "bert_config.json is written beside --output_checkpoint",
  "passage_file": _ASK,
  "num_eval_records": (
    "--max_eval_steps=N evaluates the first N batches; create_pretraining_data"
    ".py shuffles its records"
  ),
  "phases": (
    "Run one command per phase, the second with --init_checkpoint=FOLDER of"
    " the first; recipes/ has their flags"
  ),
  "projection_activation": (
    "A layer of --projection_dim is linear; EmbeddingSpec.projection_activation"
    " is another in Python, and is read from model.json"
  ),
  "rerun": (
    "--flagfile=OLD/run.flags --output_dir=NEW repeats a training |"
    " Give the flags of OUTPUT.run.json again, with another --output_file"
  ),
  "schedule_power": (
    "--schedule=polynomial is linear; StepOptions.power is its exponent in"
    " Python"
  ),
  "shard_by": "Leave it out; each worker reads its rows of each batch",
  "start_warmup_step": (
    "The warm-up begins at the first step and takes --num_warmup_steps |"
    " The warm-up begins at the first step and takes --warmup_proportion of all"
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
  "symmetric": "LossOptions.symmetric does it in Python",
  "target_metric": _NO_TARGET,
  "target_value": _NO_TARGET,
  "text_file": (
    "examples/compare_with_transformers.py compares hidden states; --compare"
    " compares weights"
  ),
  "tolerance": (
    "--compare prints the largest difference of each weight, and accepts 0.0001"
  ),
  "train_batch_size_end": _ONE_SIZE,
  "truncate_prob": "Leave it out; truncate sentences in the text itself",
  "whole_word_draw": (
    "Leave it out; replacements are drawn per piece, with --do_span_mask once"
    " per span"
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
    program, *words = values(argv)
  if words and not takes_arguments:
    raise InputError(
      f"{words[0]!r}: not a flag. Write flags as --NAME=VALUE, booleans as"
      " --NAME or --noNAME, and quote values with spaces"
    )
  return [program, *words, *passed_on]


def read_flag_files(
  argv: Sequence[str], values: flags.FlagValues = flags.FLAGS
) -> list[str]:
  """Puts the flags of each --flagfile in its position."""
  # Otherwise absl would ignore all flags after the first word that is none.
  values.set_gnu_getopt()
  with input_errors(values):
    try:
      found = values.read_flags_from_files(argv[1:])
      # A file of Windows may begin with a byte-order mark.
      return [argv[0], *(word.removeprefix("\ufeff") for word in found)]
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


@contextlib.contextmanager
def input_errors(values: flags.FlagValues) -> Iterator[None]:
  """Turns absl's errors into InputError."""
  try:
    yield
  except InputError:
    raise
  except (flags.Error, ValueError) as error:
    name = getattr(error, "flagname", None)
    for problem, fixes in (
      ("removed.", REMOVED),
      ("unknown flag. Here it is", COUNTERPARTS),
    ):
      for fix in fixes.get(str(name).replace("-", "_"), "").split("|"):
        if fix and flags_in(fix) <= {*values}:
          raise InputError(f"--{name}: {problem} {fix.strip()}") from error
    lines = str(error).splitlines()
    message = "; ".join(re.sub("^flags? .*?: (?=--)", "", x) for x in lines)
    message = message.replace(" ?", "?").rstrip(" .")
    named = f"Unknown command line flag '{name}'"
    message = message.replace(named, f"--{name}: unknown flag")
    end = "" if message.endswith("?") else "."
    raise InputError(f"{message}{end} --helpfull lists all flags") from error


def flags_in(text: str) -> set[str]:
  """Names of the flags that a text names, but for --flagfile of all."""
  return {*re.findall(r"--(?!flagfile\b)(\w+)", text)}


# Help

SECTIONS = {
  "data": "Data",
  "model": "Model",
  "training": "Training",
  "evaluation": "Evaluation and prediction",
  "devices": "Devices, speed and memory",
  "output": "Output",
}

_OF_ALL_COMMANDS = """\
Flags of all commands: --flagfile=PATH reads flags from a file, one per line;
--undefok=NAME,NAME ignores flags that the command does not have;
--tensorflow_log shows TensorFlow's own log; --verbosity=1 shows tracebacks.
--helpxml lists all flags of libraries."""

# Fixed, so that the text does not depend on the terminal.
_WIDTH = 80


def help_text(
  settings: type[option.CommandSettings], full: bool, summary: str = ""
) -> str:
  """Help of a command: its basic flags or, if `full`, all flags."""
  own = dict(option.declarations(settings))
  required = set(settings.REQUIRED)
  if "init_checkpoint" in own:  # a published model brings them
    required -= {"bert_config_file", "vocab_file"}
  parts = [f"Example:\n{example_lines(settings.EXAMPLE)}", summary]
  for section, title in SECTIONS.items():
    listed = [
      (name, flag)
      for name, flag in own.items()
      if flag.section == section and (full or flag.basic)
    ]
    listed.sort(key=lambda item: not item[1].basic)
    if listed:
      entries = [_entry(name, flag, name in required) for name, flag in listed]
      parts.append("\n".join([f"{title}:", *entries]))
  parts.append(_OF_ALL_COMMANDS if full else "--helpfull lists all flags.")
  return "\n\n".join(filter(None, parts))


def example_lines(example: str) -> str:
  """The command line on several lines, joined by backslashes as in a shell."""
  lines = textwrap.wrap(
    as_installed(example),
    _WIDTH - 2,
    initial_indent="  ",
    subsequent_indent="    ",
    break_on_hyphens=False,
  )
  return " \\\n".join(lines)


def as_installed(command: str) -> str:
  """The command `python SCRIPT.py ...` in the form for an installed package."""
  if not PREFIX:
    return command
  return re.sub(r"^python (\w+)\.py", rf"python -m {PREFIX}\1", command)


def _entry(name: str, flag: Flag, is_required: bool) -> str:
  """Names, default and description of a flag."""
  end = " (required)" if is_required else _default(flag.default)
  body, line = flag.help, _names(name, flag, flag.placeholder) + end
  if flag.choices:
    listed = _names(name, flag, "|".join(flag.choices)) + end
    if len(listed) <= _WIDTH:
      line = listed
    else:
      body += f" One of {', '.join(flag.choices)}."
  indent = " " * 6
  body = textwrap.fill(
    body,
    _WIDTH,
    initial_indent=indent,
    subsequent_indent=indent,
    break_on_hyphens=False,
    break_long_words=False,
  )
  return f"{line}\n{body}"


def _names(name: str, flag: Flag, placeholder: str | None) -> str:
  """The names of a flag and its kind of value, indented."""
  long_names = [n for n in (name, flag.alias) if n]
  if placeholder:
    shown = [f"--{n}={placeholder}" for n in long_names]
  else:
    shown = [f"--[no]{n}" for n in long_names]
  if flag.short_name:
    shown.insert(0, f"-{flag.short_name}")
  return f"  {', '.join(shown)}"


def _default(value: Any) -> str:
  if value in (None, "", [], {}):
    return ""
  if isinstance(value, bool):
    value = str(value).lower()
  elif isinstance(value, list):
    value = ",".join(map(str, value))
  return f" (default: {value})"
