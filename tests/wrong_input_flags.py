"""Wrong input: flags, configs, vocabularies, folders of other models."""

from wrong_input_row import Row

# Flags have ranges.


def out_of_range(script, *arguments, as_command=False):
  """A row for the last of the arguments, which the message has to name."""
  flag = arguments[-1].partition("=")[0]
  return Row(
    "flags",
    f"{script} {' '.join(arguments)}",
    script,
    arguments,
    f"{flag}=",
    as_command=as_command,
  )


_OUT_OF_RANGE = [
  # Cases of real use.
  out_of_range("run_classifier", "--learning_rate=-1", as_command=True),
  out_of_range("run_classifier", "--do_eval", "--eval_batch_size=0"),
  out_of_range("run_classifier", "--warmup_proportion=nan"),
  out_of_range("run_classifier", "--num_train_epochs=nan"),
  out_of_range("run_classifier", "--num_train_epochs=0"),
  out_of_range("run_classifier", "--num_train_epochs=-1"),
  out_of_range("run_pretraining", "--num_train_steps=0"),
  out_of_range("run_pretraining", "--num_train_steps=-1"),
  out_of_range("run_pretraining", "--num_warmup_steps=-5"),
  out_of_range(
    "run_pretraining", "--num_train_steps=9", "--num_warmup_steps=10"
  ),
  out_of_range("run_squad", "--null_score_diff_threshold=nan"),
  out_of_range("create_pretraining_data", "--masked_lm_prob=nan"),
  out_of_range("create_pretraining_data", "--max_predictions_per_seq=500"),
]

# Values at the edge, which the original takes.
_AT_THE_EDGE = [
  Row(
    "flags",
    "no share of tokens is masked",
    "create_pretraining_data",
    ["--masked_lm_prob=0", "--short_seq_prob=1", "--random_seed=-1"],
    logged="records in {out}/records.tfrecord",
  ),
]

ROWS = [*_OUT_OF_RANGE, *_AT_THE_EDGE]
