"""Wrong input: flags, configs, vocabularies, folders of other models."""

import wrong_input_world
from wrong_input_row import Row

from bertlib.checkpoints import loading

# Flags have ranges.


def out_of_range(script, *arguments):
  """A row for the last of the arguments, which the message has to name."""
  flag = arguments[-1].partition("=")[0]
  return Row(
    "flags",
    f"{script} {' '.join(arguments)}",
    script,
    arguments,
    f"{flag}=",
  )


_OUT_OF_RANGE = [
  # Cases of real use.
  out_of_range("run_classifier", "--learning_rate=-1"),
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
  # More of each command.
  *(
    out_of_range(script, *arguments.split())
    for script, arguments in (
      ("run_classifier", "--train_batch_size=0"),
      ("run_classifier", "--predict_batch_size=-8"),
      ("run_classifier", "--learning_rate=inf"),
      ("run_classifier", "--warmup_proportion=1.5"),
      ("run_classifier", "--num_train_epochs=inf"),
      ("run_classifier", "--max_seq_length=2"),
      ("run_classifier", "--save_checkpoints_steps=0"),
      ("run_classifier", "--keep_checkpoint_max=0"),
      ("run_classifier", "--eval_steps=0"),
      ("run_classifier", "--num_threads=100000"),
      ("run_classifier", "--layer_decay=1.1"),
      ("run_classifier", "--freeze_layers=-1"),
      ("run_classifier", "--do_eval --seeds=1"),
      ("run_classifier", "--seed=99999999999"),
      ("run_classifier", "--doctor --beta_1=1"),
      ("run_squad", "--doc_stride=0"),
      ("run_squad", "--max_query_length=0"),
      ("run_squad", "--n_best_size=0"),
      ("run_squad", "--max_answer_length=-1"),
      ("run_squad", "--null_score_diff_threshold=inf"),
      ("run_squad", "--audit --audit_doc_strides=0"),
      ("run_squad", "--num_workers=-1"),
      ("run_ner", "--word_column=0"),
      ("run_ner", "--tag_column=0"),
      ("run_ner", "--weight_decay=-0.01"),
      ("run_ner", "--clip_norm=nan"),
      ("run_pretraining", "--max_predictions_per_seq=0"),
      ("run_pretraining", "--max_predictions_per_seq=17"),
      ("run_pretraining", "--do_eval --max_eval_steps=0"),
      ("run_pretraining", "--remask --masked_lm_prob=-0.1"),
      ("run_pretraining", "--log_steps=-1"),
      ("run_pretraining", "--schedule_power=nan"),
      ("create_pretraining_data", "--masked_lm_prob=1.1"),
      ("create_pretraining_data", "--short_seq_prob=-0.1"),
      ("create_pretraining_data", "--dupe_factor=0"),
      ("create_pretraining_data", "--truncate_prob=inf"),
      ("create_pretraining_data", "--num_shards=-2"),
      ("create_pretraining_data", "--num_workers=-1"),
      ("create_vocab", "--min_frequency=0"),
      ("create_vocab", "--num_unused=-1"),
      ("create_vocab", "--limit_alphabet=0"),
      ("create_vocab", "--vocab_size=0"),
      ("extract_features", "--batch_size=0"),
      ("extract_features", "--max_seq_length=0"),
      ("export_model", "--seq_length=1"),
      ("export_model", "--max_seq_length=-5"),
      ("convert_checkpoint", "--average=1"),
      ("convert_checkpoint", "--tolerance=nan"),
      ("squad_metrics", "--na-prob-thresh=nan"),
    )
  ),
]

# Values at the edge, which the original takes.
_AT_THE_EDGE = [
  *(
    Row(
      "flags",
      f"{script} {flag}= without a name",
      script,
      [f"{flag}="],
      flag,
    )
    for script, flag in (
      ("run_classifier", "--output_dir"),
      ("run_squad", "--save_logits"),
      ("extract_features", "--output_file"),
      ("create_pretraining_data", "--output_file"),
      ("create_vocab", "--output_file"),
      ("create_vocab", "--output_config"),
      ("export_model", "--export_dir"),
      ("convert_checkpoint", "--output"),
      ("squad_metrics", "--out-file"),
    )
  ),
  *(
    Row(
      "flags",
      f"{flag} with a NUL",
      "run_classifier",
      ["--flagfile={case}/flags"],
      flag,
      files={"flags": f"{flag}=a\0b\n"},
    )
    for flag in ("--output_dir", "--vocab_file", "--train_file")
  ),
  Row(
    "flags",
    "a folder that TensorFlow takes for a pattern",
    "run_classifier",
    ["--output_dir={out}/rate[2e-5]"],
    "--output_dir=",
  ),
  Row(
    "flags",
    "training in 8 bits",
    "run_classifier",
    ["--do_train", "--precision=int8"],
    "--precision=int8",
  ),
  Row(
    "flags",
    "XLA without kernels",
    "run_classifier",
    ["--do_train", "--compute=plain", "--xla=on"],
    "--xla=on",
  ),
  Row(
    "flags",
    "8 bits without kernels",
    "run_classifier",
    ["--nodo_train", "--do_eval", "--compute=plain", "--precision=int8"],
    "--precision=int8",
  ),
  Row(
    "flags",
    "a word that is no flag",
    "run_classifier",
    ["--do_train", "true", "--learning_rate=1e-3"],
    "true: not a flag, and --do_train takes no value",
  ),
  Row(
    "flags",
    "a flag file that is not text",
    "extract_features",
    ["--flagfile={case}/flags"],
    "--flagfile={case}/flags: ",
    files={"flags": b"\xff\xfe-\x00"},
  ),
  Row(
    "flags",
    "the name of another project",
    "run_squad",
    ["--bert_model=bert-base-uncased"],
    "--bert_model: unknown flag. Here it is --init_checkpoint",
  ),
  Row(
    "flags",
    "several seeds on workers",
    "run_classifier",
    ["--do_eval", "--seeds=2", "--distribution=multi_worker"],
    "--seeds=2",
  ),
  Row(
    "flags",
    "8 bits on a TPU",
    "run_classifier",
    ["--nodo_train", "--do_eval", "--precision=int8", "--use_tpu"],
    "--precision=int8",
  ),
  Row(
    "flags",
    "8 bits, distributed to a TPU",
    "run_ner",
    ["--nodo_train", "--do_eval", "--precision=int8", "--distribution=tpu"],
    "--precision=int8",
  ),
  Row(
    "flags",
    "a precision of an export that has its own",
    "export_model",
    ["--quantize=dynamic_int8", "--precision=bfloat16"],
    "--precision=bfloat16",
  ),
  Row(
    "flags",
    "no share of tokens is masked",
    "create_pretraining_data",
    ["--masked_lm_prob=0", "--short_seq_prob=1", "--random_seed=-1"],
    logged="records in {out}/records.tfrecord",
  ),
]

# bert_config.json has a schema.


def bad_config(name, key, script="run_classifier", **changed):
  """A row for a config that differs from a good one; names file and key."""
  return Row(
    "config",
    name,
    script,
    ["--bert_config_file={case}/config.json"],
    "{case}/config.json: " + key,
    files={"config.json": wrong_input_world.config(**changed)},
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
    "unknown key num_hiden_layers. Rename it to num_hidden_layers",
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
    for key in loading.SIZES
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

# A vocabulary has what a model needs, and is that of a trained folder.

_VOCAB = wrong_input_world.VOCAB
_SWAPPED = [*_VOCAB[:5], _VOCAB[6], _VOCAB[5], *_VOCAB[7:]]


def bad_vocab(name, entries, *arguments, script="run_classifier"):
  """A row for a vocabulary that is refused."""
  return Row(
    "vocabulary",
    f"{script} {name}",
    script,
    ["--vocab_file={case}/vocab.txt", *arguments],
    "{case}/vocab.txt",
    files={"vocab.txt": wrong_input_world.vocab(*entries)},
  )


def without(*words):
  """The vocabulary, with these words replaced by others."""
  return [f"w{n}" if e in words else e for n, e in enumerate(_VOCAB)]


def use(folder, *actions):
  """Arguments that use a trained folder, and do not train."""
  return [f"--output_dir={{world}}/{folder}", "--nodo_train", *actions]


def copies(folder, *names):
  """Copies of files of a folder in the world, for the folder of a case."""
  names = names or (
    "checkpoint",
    "model.ckpt-1.index",
    "model.ckpt-1.data-00000-of-00001",
  )
  return {
    f"{folder}/{name}": lambda world, name=name: (
      world / folder / name
    ).read_bytes()
    for name in names
  }


_VOCABULARIES = [
  # Cases of real use.
  bad_vocab(
    "predict with another order",
    _SWAPPED,
    *use("trained", "--do_predict"),
  ),
  bad_vocab(
    "resume with another order", _SWAPPED, "--output_dir={world}/trained"
  ),
  Row(
    "vocabulary",
    "a word twice",
    "create_pretraining_data",
    ["--vocab_file={case}/vocab.txt"],
    files={
      "vocab.txt": wrong_input_world.vocab(*_VOCAB[:6], "the", *_VOCAB[7:])
    },
    logged="{case}/vocab.txt: 1 entries occur more than once",
  ),
  # More of each kind.
  bad_vocab(
    "evaluate with another order", _SWAPPED, *use("trained", "--do_eval")
  ),
  bad_vocab(
    "another order",
    _SWAPPED,
    *use("trained_squad", "--do_predict"),
    script="run_squad",
  ),
  bad_vocab(
    "another order",
    _SWAPPED,
    *use("trained_ner", "--do_predict"),
    script="run_ner",
  ),
  bad_vocab(
    "another order",
    _SWAPPED,
    *use(
      "trained_pretraining", "--do_predict", "--predict_file={world}/lines.txt"
    ),
    script="run_pretraining",
  ),
  bad_vocab("another order", _SWAPPED, script="export_model"),
  bad_vocab("one word less", _VOCAB[:-1], *use("trained", "--do_predict")),
  bad_vocab("another word", without("bad"), *use("trained", "--do_predict")),
  bad_vocab("too long", [*_VOCAB, "one", "more"]),
  bad_vocab("too long", [*_VOCAB, "more"], script="extract_features"),
  bad_vocab("no [CLS]", without("[CLS]")),
  bad_vocab("no [SEP]", without("[SEP]"), script="run_ner"),
  bad_vocab("no [UNK]", without("[UNK]"), script="run_squad"),
  bad_vocab("no [MASK]", without("[MASK]"), script="create_pretraining_data"),
  bad_vocab("no special entries", _VOCAB[5:], script="create_pretraining_data"),
  bad_vocab("[SEP] twice", [*_VOCAB[:-1], "[SEP]"]),
  bad_vocab(
    "[MASK] twice", [*_VOCAB[:-1], "[MASK]"], script="create_pretraining_data"
  ),
  bad_vocab("empty", []),
  Row(
    "vocabulary",
    "padding is not the first entry",
    "create_pretraining_data",
    ["--vocab_file={case}/vocab.txt"],
    files={
      "vocab.txt": wrong_input_world.vocab(_VOCAB[1], _VOCAB[0], *_VOCAB[2:])
    },
    logged="{case}/vocab.txt: [PAD] is not its first entry",
  ),
]

# A folder keeps to its task and kind of input.


def other_model(name, script, *arguments, error="{world}/trained", **more):
  """A row for a run in the folder of another model."""
  return Row("folder", name, script, arguments, error, **more)


_MRPC = use("trained_mrpc", "--data_dir={world}/mrpc", "--task_name=mrpc")
_COLA = use("trained_mrpc", "--data_dir={world}/cola", "--task_name=cola")
_ONE_SEGMENT = {
  "arguments": ["--bert_config_file={case}/config.json"],
  "error": "{case}/config.json: type_vocab_size is 1",
  "files": {"config.json": wrong_input_world.config(type_vocab_size=1)},
}

_FOLDERS = [
  # Cases of real use.
  other_model(
    "predict another task",
    "run_classifier",
    *_COLA,
    "--do_predict",
    error="{world}/trained_mrpc: ",
  ),
  Row(
    "folder",
    "pairs with one segment",
    "run_classifier",
    [
      *_ONE_SEGMENT["arguments"],
      "--train_file=pairs.tsv",
      "--text_b_column=2",
      "--label_column=3",
    ],
    _ONE_SEGMENT["error"],
    _ONE_SEGMENT["files"],
  ),
  # More of each kind.
  other_model("evaluate another task", "run_classifier", *_COLA, "--do_eval"),
  other_model("resume another task", "run_classifier", *_COLA, "--do_train"),
  other_model(
    "predict own data by a task's model",
    "run_classifier",
    *use("trained_mrpc", "--do_predict", "--labels=0,1"),
  ),
  other_model(
    "predict other labels",
    "run_classifier",
    *use("trained", "--do_predict", "--labels=yes,maybe"),
  ),
  other_model(
    "single texts for a model of pairs",
    "run_classifier",
    *_MRPC,
    "--do_predict",
    "--predict_file={case}/texts.txt",
    error="--predict_file={case}/texts.txt: ",
    files={"texts.txt": "the cat sat\nthe dog ran\n"},
  ),
  other_model(
    "pairs for a model of single texts",
    "run_classifier",
    *use("trained", "--do_predict", "--predict_file={case}/texts.txt"),
    error="--predict_file={case}/texts.txt: ",
    files={"texts.txt": "the cat sat\tthe dog ran\n"},
  ),
  other_model(
    "predictions named like those of the dev set",
    "run_classifier",
    *use("trained", "--do_predict", "--predict_file={case}/eval.txt"),
    error="--predict_file={case}/eval.txt: ",
    files={"eval.txt": "the cat sat\nthe dog ran\n"},
  ),
  other_model(
    "tags named like those of the dev set",
    "run_ner",
    *use("trained_ner", "--do_predict", "--predict_file={case}/eval.txt"),
    error="--predict_file={case}/eval.txt: ",
    files={"eval.txt": "the cat sat\nthe dog ran\n"},
  ),
  other_model(
    "a column of second texts for a model of single texts",
    "run_classifier",
    *use("trained", "--do_eval", "--dev_file=pairs.tsv", "--text_b_column=2"),
    "--label_column=3",
    error="--dev_file=pairs.tsv: ",
  ),
  other_model(
    "training on pairs resumes a model of single texts",
    "run_classifier",
    "--output_dir={world}/trained",
    "--train_file=pairs.tsv",
    "--text_b_column=2",
    "--label_column=3",
    error="--train_file=pairs.tsv: ",
  ),
  other_model(
    "cased text for a lower-cased model",
    "run_classifier",
    *use("trained", "--do_predict", "--do_lower_case=False"),
  ),
  other_model(
    "tags by a classifier", "run_ner", "--output_dir={world}/trained"
  ),
  other_model(
    "a classifier by tags", "run_classifier", "--output_dir={world}/trained_ner"
  ),
  other_model(
    "another number of heads",
    "run_classifier",
    *use("trained", "--do_predict"),
    "--bert_config_file={case}/config.json",
    files={"config.json": wrong_input_world.config(num_attention_heads=4)},
  ),
  other_model(
    "another activation",
    "run_squad",
    *use("trained_squad", "--do_predict"),
    "--bert_config_file={case}/config.json",
    files={"config.json": wrong_input_world.config(hidden_act="relu")},
  ),
  Row("folder", "questions with one segment", "run_squad", **_ONE_SEGMENT),
  Row("folder", "features of a pair", "extract_features", **_ONE_SEGMENT),
  Row(
    "folder",
    "records of pairs with one segment",
    "run_pretraining",
    [*_ONE_SEGMENT["arguments"], "--init_checkpoint="],
    "segment",
    _ONE_SEGMENT["files"],
  ),
  Row(
    "folder",
    "a folder of the original code predicts",
    "run_classifier",
    [
      "--output_dir={case}/original",
      "--nodo_train",
      "--do_predict",
      "--predict_file={case}/texts.txt",
      "--labels=no,yes",
    ],
    files=copies("original") | {"texts.txt": "the cat sat\n"},
    logged="1 predictions in",
  ),
]

# What is wrong is found before the output folder is there.


def found_early(script, *arguments, error=None, name=None, **more):
  """A row for an error that names the last argument, if nothing else."""
  return Row(
    "before writing",
    name or f"{script} {' '.join(arguments)}",
    script,
    arguments,
    error or arguments[-1],
    **more,
  )


_TRAINERS = ("run_classifier", "run_squad", "run_ner", "run_pretraining")
_WORKERS = (
  '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker"%s}}'
)


def bad_cluster(name, text, script="run_classifier"):
  """A row for TF_CONFIG."""
  return found_early(
    script,
    "--distribution=multi_worker",
    error="TF_CONFIG: ",
    name=f"{script} TF_CONFIG {name}",
    environment={"TF_CONFIG": text},
  )


_EARLY = [
  # Cases of real use.
  found_early("run_classifier", "--freeze_layers=9"),
  bad_cluster("without index", _WORKERS % ""),
  bad_cluster("with an index out of range", _WORKERS % ', "index": 7'),
  found_early(
    "run_classifier",
    "--init_checkpoint={world}/wide.ckpt",
    error="{world}/wide.ckpt: ",
  ),
  found_early(
    "run_classifier",
    "--init_checkpoint=bert-base-uncasd",
    error="bert-base-uncased",
  ),
  found_early(
    "run_squad",
    "--nodo_train",
    "--from_logits={world}/records.tfrecord",
    error="{world}/records.tfrecord: ",
  ),
  *(
    found_early(
      script,
      *("--nodo_train", "--do_predict", *more),
      "--bert_config_file={case}/bert_config.json",
      f"--init_checkpoint={{world}}/{folder}/model.ckpt-1",
      name=f"{script} predicts with fewer layers than are trained",
      error=f"{{world}}/{folder}: holds a model with num_hidden_layers 2",
      files={"bert_config.json": wrong_input_world.config(num_hidden_layers=1)},
    )
    for script, folder, *more in (
      ("run_classifier", "trained"),
      ("run_squad", "trained_squad"),
      ("run_ner", "trained_ner"),
      (
        "run_pretraining",
        "trained_pretraining",
        "--predict_file={world}/lines.txt",
      ),
    )
  ),
  # More of each kind.
  *(found_early(script, "--freeze_layers=3") for script in _TRAINERS[1:]),
  *(
    found_early(script, "--gradient_accumulation_steps=3")
    for script in _TRAINERS
  ),
  *(
    found_early(
      script,
      f"--train_batch_size={size}",
      f"--num_replicas={count}",
      error=f"--train_batch_size={size} cannot be divided among {count}",
    )
    for size, count in ((2, 4), (4, 3))
    for script in _TRAINERS
  ),
  found_early(
    "run_classifier",
    "--train_batch_size=2",
    "--num_replicas=4",
    "--memory_gb=100",
    error="--train_batch_size=2 cannot be divided among 4",
  ),
  *(
    found_early(script, "--memory_gb=1e-06", error="--memory_gb=1e-06: ")
    for script in _TRAINERS
  ),
  bad_cluster("that is no JSON", "worker 0"),
  bad_cluster("of squad", _WORKERS % "", "run_squad"),
  bad_cluster("of tags", _WORKERS % "", "run_ner"),
  bad_cluster("of pretraining", _WORKERS % "", "run_pretraining"),
  found_early(
    "run_classifier",
    name="TF_CONFIG without --distribution",
    error="TF_CONFIG",
    environment={"TF_CONFIG": _WORKERS % ', "index": 0'},
  ),
  *(
    found_early(
      script,
      f"--init_checkpoint={{world}}/{checkpoint}.ckpt",
      error=f"{{world}}/{checkpoint}.ckpt: ",
    )
    for script, checkpoint in (
      ("run_squad", "wide"),
      ("run_ner", "shallow"),
      ("run_pretraining", "shallow"),
      ("extract_features", "wide"),
      ("run_classifier", "nan"),
      ("run_squad", "nan"),
      ("run_ner", "nan"),
      ("run_pretraining", "nan"),
    )
  ),
  found_early(
    "run_squad",
    "--nodo_train",
    "--from_logits={case}/empty.npz",
    error="{case}/empty.npz",
    files={"empty.npz": b""},
  ),
  *(
    found_early(
      script, "--num_train_epochs=0.06", error="--num_train_epochs=0.06"
    )
    for script in _TRAINERS[:3]
  ),
  found_early("run_classifier", "--train_batch_size=99"),
  found_early("run_classifier", "--best_metric=beauty"),
  found_early("run_classifier", "--patience=2", error="--patience"),
  found_early("run_squad", "--seeds=3", error="--seeds"),
  found_early(
    "run_ner",
    "--save_checkpoints_steps=2",
    "--eval_steps=3",
    error="--eval_steps=3",
  ),
  found_early("run_classifier", "--resume=must"),
  found_early("run_classifier", "--class_weights=maybe:2"),
  found_early("run_classifier", "--class_weights=yes:1_0"),
  found_early(
    "run_classifier",
    "--dev_fraction=0.2",
    "--dev_file=dev.tsv",
    error="--dev_fraction: contradicts --dev_file",
  ),
  found_early(
    "run_classifier",
    "--task_name=mrpc",
    "--data_dir={world}/mrpc",
    "--dev_fraction=0.2",
    error="--dev_fraction: --task_name=mrpc has a dev set",
  ),
  found_early(
    "run_classifier",
    "--dev_fraction=0.01",
    "--do_eval",
    error="--dev_fraction=0.01: leaves no dev example",
  ),
  found_early("run_classifier", "--dev_fraction=1"),
  found_early(
    "run_classifier",
    "--do_eval",
    "--dev_file=none.tsv",
    error="none.tsv: there is no such file. Give a --dev_file",
  ),
  found_early("run_squad", "--max_query_length=13"),
  found_early(
    "run_squad",
    "--interactive",
    "--passage_file={case}/none.txt",
    error="{case}/none.txt",
  ),
  found_early("run_squad", "--do_predict", "--save_logits={case}/none/l.npz"),
  found_early("extract_features", "--layers=2"),
  found_early("extract_features", "--layers=last"),
  found_early("extract_features", "--max_seq_length=33"),
  found_early(
    "run_pretraining",
    "--nodo_train",
    "--do_predict",
    "--predict_file={world}/lines.txt",
    "--top_k=999",
  ),
  found_early("create_vocab", "--vocab_size=6"),
  found_early("create_pretraining_data", "--max_seq_length=4"),
]

ROWS = [
  *_OUT_OF_RANGE,
  *_AT_THE_EDGE,
  *_CONFIGS,
  *_VOCABULARIES,
  *_FOLDERS,
  *_EARLY,
]
