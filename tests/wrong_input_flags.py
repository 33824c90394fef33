"""Wrong input: flags, configs, vocabularies, folders of other models."""

import wrong_input_world
from wrong_input_row import Row

import config_schema

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

# bert_config.json has a schema.


def bad_config(name, key, as_command=False, script="run_classifier", **changed):
  """A row for a config that differs from a good one; names file and key."""
  return Row(
    "config",
    name,
    script,
    ["--bert_config_file={case}/config.json"],
    "{case}/config.json: " + key,
    files={"config.json": wrong_input_world.config(**changed)},
    as_command=as_command,
  )


def not_a_config(name, text):
  """A row for a file that is no config at all."""
  return Row(
    "config",
    name,
    "run_classifier",
    ["--bert_config_file={case}/config.json"],
    "{case}/config.json: ",
    files={"config.json": text},
  )


_CONFIGS = [
  # Cases of real use.
  bad_config(
    "misspelled key",
    "unknown key num_hiden_layers; num_hidden_layers",
    as_command=True,
    num_hidden_layers=...,
    num_hiden_layers=2,
  ),
  bad_config("width of 65", "num_attention_heads is 2", hidden_size=65),
  bad_config("no layers", "num_hidden_layers is 0", num_hidden_layers=0),
  bad_config("negative layers", "num_hidden_layers", num_hidden_layers=-1),
  bad_config("dropout 1.5", "hidden_dropout_prob", hidden_dropout_prob=1.5),
  bad_config(
    "null", "max_position_embeddings is null", max_position_embeddings=None
  ),
  bad_config("layers 2.0", "num_hidden_layers is 2.0", num_hidden_layers=2.0),
  bad_config("text for a size", "vocab_size", vocab_size="24"),
  bad_config("NaN", "initializer_range is NaN", initializer_range=float("nan")),
  # More of each kind.
  *(
    bad_config(f"no {key}", f"has no {key}", **{key: ...})
    for key in config_schema.SIZES
  ),
  bad_config("extra letter", "unknown key hidden_sizes", hidden_sizes=8),
  bad_config("capitals", "unknown key Hidden_Size", Hidden_Size=8),
  bad_config("hyphen", "unknown key hidden-act", **{"hidden-act": "gelu"}),
  bad_config(
    "misspelled rate",
    "unknown key hidden_droput_prob",
    hidden_droput_prob=0.1,
  ),
  bad_config(
    "true for a size", "type_vocab_size is true", type_vocab_size=True
  ),
  bad_config("list for a size", "hidden_size is [8]", hidden_size=[8]),
  bad_config("no heads", "num_attention_heads is 0", num_attention_heads=0),
  bad_config("3 heads", "num_attention_heads is 3", num_attention_heads=3),
  bad_config(
    "dropout 1",
    "attention_probs_dropout_prob is 1",
    attention_probs_dropout_prob=1,
  ),
  bad_config(
    "negative dropout", "hidden_dropout_prob is -0.1", hidden_dropout_prob=-0.1
  ),
  bad_config(
    "infinite range",
    "initializer_range is Infinity",
    initializer_range=float("inf"),
  ),
  bad_config("no activation", "hidden_act is null", hidden_act=None),
  bad_config("unknown activation", "hidden_act", hidden_act="gelo"),
  bad_config("zero epsilon", "layer_norm_eps is 0", layer_norm_eps=0),
  bad_config("of SQuAD", "hidden_size", script="run_squad", hidden_size=0),
  bad_config("of NER", "hidden_size", script="run_ner", hidden_size=0),
  bad_config(
    "of pretraining", "hidden_size", script="run_pretraining", hidden_size=0
  ),
  bad_config(
    "of features", "hidden_size", script="extract_features", hidden_size=0
  ),
  not_a_config("empty", ""),
  not_a_config("a list", "[1, 2]"),
  not_a_config("incomplete", wrong_input_world.config()[:40]),
]

ROWS = [*_OUT_OF_RANGE, *_AT_THE_EDGE, *_CONFIGS]
