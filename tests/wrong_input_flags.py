"""Wrong input: flags, configs, vocabularies, folders of other models."""

import functools

import wrong_input_files
import wrong_input_world
from wrong_input_row import Row, named, unnamed

from bertlib.checkpoints import model_folder

# Flags have ranges (settings_test.py). Here is each form of the line on them.

flags = functools.partial(Row, "flags")

_OUT_OF_RANGE = {
  "run_classifier": """
    --learning_rate=inf --warmup_proportion=1.5 --num_train_epochs=0
    --train_batch_size=0 --max_seq_length=2 --seed=99999999999""",
  "run_ner": "--word_column=0",
  "run_pretraining": """
    --num_train_steps=0 --max_predictions_per_seq=17
    --time_budget_minutes=1e30""",
  "create_pretraining_data": "--max_predictions_per_seq=500 --num_shards=-2",
  "create_vocab": "--vocab_size=0",
  "extract_features": "--batch_size=0",
  "export_model": "--seq_length=1",
  "convert_checkpoint": "--average=1",
  "squad_metrics": "--na-prob-thresh=nan",
}
_OUT_OF_RANGE_WITH_OTHERS = """
run_classifier --do_eval --seeds=1
run_classifier --doctor --beta_2=1
run_pretraining --num_train_steps=9 --num_warmup_steps=10
"""


def each_flag(rule, flags_by_script):
  """Rows of one flag each, by script."""
  return [
    Row(rule, f"{script} {flag}", script, flag)
    for script, text in flags_by_script.items()
    for flag in text.split()
  ]


_RANGES = [
  *each_flag("flags", _OUT_OF_RANGE),
  *unnamed("flags", _OUT_OF_RANGE_WITH_OTHERS),
]

_NAMES = """
run_classifier --output_dir
create_pretraining_data --output_file
create_vocab --output_checkpoint
export_model --export_dir
squad_metrics --out-file
"""
_OF_CLASSIFIER = """
a folder that TensorFlow takes for a pattern: --output_dir={out}/rate[2e-5]
training in 8 bits: --do_train --precision=int8
XLA without kernels: --do_train --compute=plain --xla=on
8 bits without kernels:
  --nodo_train --do_eval --compute=plain --precision=int8
a word that is no flag: --do_train true --learning_rate=1e-3
several seeds on workers: --do_eval --seeds=2 --distribution=multi_worker
8 bits on a TPU: --nodo_train --do_eval --precision=int8 --use_tpu
"""
_OTHER_FLAGS = [
  *(
    flags(f"{line}= without a name", line.split()[0], f"{line.split()[1]}=")
    for line in _NAMES.strip().splitlines()
  ),
  flags(
    "--output_dir with a NUL",
    "run_classifier",
    "--flagfile={case}/flags",
    {"flags": "--output_dir=a\0b\n"},
  ),
  *named("flags", "run_classifier", _OF_CLASSIFIER),
  flags(
    "a run into a file",
    "run_classifier",
    "--output_dir={world}/vocab.txt",
    kind=FileExistsError,
  ),
  flags(
    "an export onto a file",
    "export_model",
    "--export_dir={world}/vocab.txt --overwrite",
  ),
  flags(
    "a Hugging Face folder to be converted to one",
    "convert_checkpoint",
    "--input={case} --to=huggingface",
    {"config.json": "{}"},
  ),
  flags(
    "a probability that is none",
    "squad_metrics",
    "--na-prob-file={case}/na.json --metric=2.0",
    {"na.json": '{"0": 0.5, "1": NaN}'},
  ),
  flags(
    "a column of lines",
    "run_classifier",
    "--nodo_train --do_predict --init_checkpoint={world}/trained"
    " --predict_file={world}/lines.txt --text_a_column=nosuch",
    logged="have no effect. Give a .csv file to name columns",
  ),
  flags(
    "a flag file that is not text",
    "extract_features",
    "--flagfile={case}/flags",
    {"flags": b"\xff\xfe-\x00"},
  ),
  flags(
    "the name of another project", "run_squad", "--bert_model=bert-base-uncased"
  ),
  flags(
    "8 bits, distributed to a TPU",
    "run_ner",
    "--nodo_train --do_eval --precision=int8 --distribution=tpu",
  ),
  flags(
    "a precision of an export that has its own",
    "export_model",
    "--quantize=dynamic_int8 --precision=bfloat16",
  ),
  # At the edge, which the original takes.
  flags(
    "no share of tokens is masked",
    "create_pretraining_data",
    "--masked_lm_prob=0 --short_seq_prob=1 --random_seed=-1",
    logged="Records in {out}/records.tfrecord",
  ),
]

# bert_config.json has a schema.


def not_a_config(name, text, script="run_classifier"):
  config = "{case}/config.json"
  files = {"config.json": text}
  return Row("config", name, script, f"--bert_config_file={config}", files)


def bad_config(name, script="run_classifier", **changed):
  """A row for a config that differs from a good one."""
  return not_a_config(name, wrong_input_world.config(**changed), script)


_CONFIGS = [
  bad_config("misspelled key", num_hidden_layers=..., num_hiden_layers=2),
  bad_config("width of 65", hidden_size=65),
  bad_config("no layers", num_hidden_layers=0),
  bad_config("dropout 1.5", hidden_dropout_prob=1.5),
  bad_config("null", max_position_embeddings=None),
  bad_config("layers 2.0", num_hidden_layers=2.0),
  bad_config("text for a size", vocab_size="24"),
  bad_config("NaN", initializer_range=float("nan")),
  *(bad_config(f"no {key}", **{key: ...}) for key in model_folder.SIZES),
  bad_config("hyphen", **{"hidden-act": "gelu"}),
  bad_config("true for a size", type_vocab_size=True),
  bad_config("list for a size", hidden_size=[8]),
  bad_config("dropout 1", attention_probs_dropout_prob=1),
  bad_config("negative dropout", hidden_dropout_prob=-0.1),
  bad_config("no activation", hidden_act=None),
  bad_config("unknown activation", hidden_act="gelo"),
  bad_config("zero epsilon", layer_norm_eps=0),
  bad_config("of pretraining", "run_pretraining", hidden_size=0),
  bad_config("of features", "extract_features", hidden_size=0),
  not_a_config("a list", "[1, 2]"),
  not_a_config("incomplete", wrong_input_world.config()[:40]),
]

# A vocabulary has what a model needs, and is that of a trained folder.

_VOCAB = wrong_input_world.VOCAB
_SWAPPED = [*_VOCAB[:5], _VOCAB[6], _VOCAB[5], *_VOCAB[7:]]


def vocabulary(name, entries, script, arguments="", **more):
  return Row(
    "vocabulary",
    name,
    script,
    "--vocab_file={case}/vocab.txt " + arguments,
    {"vocab.txt": wrong_input_world.vocab(*entries)},
    **more,
  )


def bad_vocab(name, entries, script="run_classifier", arguments=""):
  return vocabulary(f"{script} {name}", entries, script, arguments)


def without(*words):
  """The vocabulary, with these words replaced by others."""
  return [f"w{n}" if e in words else e for n, e in enumerate(_VOCAB)]


def use(folder, actions):
  """Arguments that use a trained folder, and do not train."""
  return f"--output_dir={{world}}/{folder} --nodo_train {actions}"


_VOCABULARIES = [
  *(
    bad_vocab(f"{action} with another order", _SWAPPED, arguments=arguments)
    for action, arguments in (
      ("predict", use("trained", "--do_predict")),
      ("resume", "--output_dir={world}/trained"),
    )
  ),
  *(
    bad_vocab("another order", _SWAPPED, script, arguments)
    for script, arguments in (
      (
        "run_pretraining",
        use("trained_pretraining", "--do_predict")
        + " --predict_file={world}/lines.txt",
      ),
      ("export_model", ""),
    )
  ),
  bad_vocab(
    "one word less", _VOCAB[:-1], arguments=use("trained", "--do_predict")
  ),
  bad_vocab("too long", [*_VOCAB, "one", "more"]),
  bad_vocab("too long", [*_VOCAB, "more"], "extract_features"),
  bad_vocab("no [SEP]", without("[SEP]"), "run_ner"),
  bad_vocab("no [MASK]", without("[MASK]"), "create_pretraining_data"),
  bad_vocab("no special entries", _VOCAB[5:], "create_pretraining_data"),
  bad_vocab("[SEP] twice", [*_VOCAB[:-1], "[SEP]"]),
  vocabulary(
    "a word twice",
    [*_VOCAB[:6], "the", *_VOCAB[7:]],
    "create_pretraining_data",
    logged="{case}/vocab.txt: 1 entries occur more than once",
  ),
  vocabulary(
    "padding is not the first entry",
    [_VOCAB[1], _VOCAB[0], *_VOCAB[2:]],
    "create_pretraining_data",
    logged="{case}/vocab.txt: [PAD] is not its first entry",
  ),
]

# A folder keeps to its task and kind of input.

folder = functools.partial(Row, "folder")

_MRPC = use("trained_mrpc", "--data_dir={world}/mrpc --task_name=mrpc")
_COLA = use("trained_mrpc", "--data_dir={world}/cola --task_name=cola")
_CONFIG = "--bert_config_file={case}/config.json"
_CLASSIFY = use("trained", "--do_predict")
_PAIRS = "--train_file=pairs.tsv --text_b_column=2 --label_column=3"
_SINGLE = "the cat sat\nthe dog ran\n"
_OF_FOLDERS = """
predict another task: COLA --do_predict
resume another task: COLA --do_train
predict own data by a task's model:
  --output_dir={world}/trained_mrpc --nodo_train --do_predict --labels=0,1
predict other labels: CLASSIFY --labels=yes,maybe
a column of second texts for a model of single texts:
  --output_dir={world}/trained --nodo_train --do_eval --dev_file=pairs.tsv
  --text_b_column=2 --label_column=3
training on pairs resumes a model of single texts:
  --output_dir={world}/trained PAIRS
cased text for a lower-cased model: CLASSIFY --do_lower_case=False
a classifier by tags: --output_dir={world}/trained_ner
resume in float16, without a loss scale:
  --output_dir={world}/trained --precision=float16
"""


def to_predict(
  name, arguments, script="run_classifier", file="texts.txt", content=_SINGLE
):
  given = f"{arguments} --predict_file={{case}}/{file}"
  return folder(name, script, given, {file: content})


def with_config(name, script, arguments="", **changed):
  files = {"config.json": wrong_input_world.config(**changed)}
  return folder(name, script, f"{arguments} {_CONFIG}", files)


_FOLDERS = [
  *named(
    "folder",
    "run_classifier",
    _OF_FOLDERS,
    COLA=_COLA,
    CLASSIFY=_CLASSIFY,
    PAIRS=_PAIRS,
  ),
  folder("tags by a classifier", "run_ner", "--output_dir={world}/trained"),
  to_predict("single texts for a model of pairs", f"{_MRPC} --do_predict"),
  to_predict(
    "pairs for a model of single texts",
    _CLASSIFY,
    content="the cat sat\tthe dog ran\n",
  ),
  to_predict(
    "tags named like those of the dev set",
    use("trained_ner", "--do_predict"),
    "run_ner",
    "eval.txt",
  ),
  with_config(
    "another number of heads",
    "run_classifier",
    _CLASSIFY,
    num_attention_heads=4,
  ),
  with_config(
    "another activation",
    "run_squad",
    use("trained_squad", "--do_predict"),
    hidden_act="relu",
  ),
  folder(
    "a folder of the original code predicts",
    "run_classifier",
    "--output_dir={case}/original --nodo_train --do_predict"
    " --predict_file={case}/texts.txt --labels=no,yes",
    files=wrong_input_files.checkpoint(
      "original/model.ckpt-1", folder="original"
    )
    | {
      "original/checkpoint": wrong_input_files.of_world("original/checkpoint"),
      "texts.txt": "the cat sat\n",
    },
    logged="1 predictions in",
  ),
]

# What is wrong is found before the output folder is there.

_WORKERS = (
  '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker"%s}}'
)


early = functools.partial(Row, "before writing")


_EARLY_FLAGS = {
  "run_classifier": """
    --freeze_layers=9 --num_train_epochs=0.06 --train_batch_size=99
    --best_metric=beauty --patience=2 --resume=must --dev_fraction=1
    --class_weights=maybe:2 --init_checkpoint={world}/wide.ckpt
    --init_checkpoint={world}/nan.ckpt
    --memory_gb=1e-06""",
  "run_squad": "--num_train_epochs=0.06 --seeds=3 --max_query_length=13",
  "run_ner": "--num_train_epochs=0.06 --gradient_accumulation_steps=3",
  "run_pretraining": """
    --freeze_layers=3 --init_checkpoint={world}/shallow.ckpt
    --init_checkpoint={world}/nan.ckpt --gradient_accumulation_steps=3""",
  "extract_features": "--layers=2 --max_seq_length=33",
  "create_vocab": "--vocab_size=6",
  "create_pretraining_data": "--max_seq_length=4",
}
_EARLY_ARGUMENTS = """
run_squad --nodo_train --from_logits={world}/records.tfrecord
run_squad --do_predict --save_logits={case}/none/l.npz
run_classifier --train_batch_size=2 --num_replicas=4
run_classifier --dev_fraction=0.2 --dev_file=dev.tsv
run_classifier --dev_fraction=0.01 --do_eval
run_classifier --do_eval --dev_file=none.tsv
run_classifier --task_name=mrpc --data_dir={world}/mrpc --dev_fraction=0.2
run_ner --save_checkpoints_steps=2 --eval_steps=3
run_pretraining --nodo_train --do_predict --predict_file={world}/lines.txt
  --top_k=999
"""
_EARLY = [
  early(
    "run_classifier predicts with fewer layers than are trained",
    "run_classifier",
    "--nodo_train --do_predict --bert_config_file={case}/bert_config.json"
    " --init_checkpoint={world}/trained/model.ckpt-1",
    {"bert_config.json": wrong_input_world.config(num_hidden_layers=1)},
  ),
  *each_flag("before writing", _EARLY_FLAGS),
  *unnamed("before writing", _EARLY_ARGUMENTS),
  *(
    early(
      f"run_pretraining TF_CONFIG {name}",
      "run_pretraining",
      "--distribution=multi_worker",
      environment={"TF_CONFIG": text},
    )
    for name, text in (
      ("without index", _WORKERS % ""),
      ("with an index out of range", _WORKERS % ', "index": 7'),
      ("that is no JSON", "worker 0"),
    )
  ),
  early(
    "TF_CONFIG without --distribution",
    "run_classifier",
    environment={"TF_CONFIG": _WORKERS % ', "index": 0'},
  ),
  early(
    "run_squad --nodo_train --from_logits={case}/empty.npz",
    "run_squad",
    "--nodo_train --from_logits={case}/empty.npz",
    {"empty.npz": b""},
  ),
]

ROWS = [
  *_RANGES,
  *_OTHER_FLAGS,
  *_CONFIGS,
  *_VOCABULARIES,
  *_FOLDERS,
  *_EARLY,
]
