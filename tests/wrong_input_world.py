"""A tiny model and data of every task, which rows of wrong input start from.

`make` writes into a folder, which the rows call `{world}`:

  vocab.txt, bert_config.json, model.ckpt       a pretrained model, random
  wide.ckpt, shallow.ckpt, nan.ckpt             twice as wide, with one layer,
                                                with a NaN
  train.tsv, dev.tsv, test.tsv                  single sentences, yes or no
  pairs.tsv                                     pairs of sentences
  mrpc/, cola/                                  data of these tasks
  squad.json, ner.conll, corpus.txt, lines.txt
  evaluated, evaluated_too                      folders of runs, with metrics
  questions.tsv, scored.tsv, lists.tsv, beir/   pairs; pairs with a score, with
                                                a negative; in the layout of
                                                BEIR
  records.tfrecord                              pretraining data of corpus.txt
  trained, trained_mrpc, trained_squad,         folders of trained models
  trained_ner, trained_embeddings,
  trained_reranker, trained_pretraining
  original                                      one as the original leaves it
"""

import json
import os

import numpy as np
import run_folders
import tensorflow.compat.v1 as tf
import tiny_model

import create_pretraining_data
import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.data import tf_records

WORDS = "the cat dog sat ran home ann bob went to rome oslo is good bad . ?"
VOCAB = [*tiny_model.SPECIAL, *WORDS.split(), "##s", "##ing"]
CONFIG = tiny_model.config(
  len(VOCAB), hidden_size=8, num_hidden_layers=2, intermediate_size=16
).to_dict()
TRAIN = [("the cat sat", "yes"), ("the dog ran", "no")] * 4
PAIRS = [(text, "ann went home", label) for text, label in TRAIN]
CORPUS = "the cat sat .\nthe dog ran home .\n\nann went to rome .\nbob sat .\n"
NER = "ann B-PER\nwent O\nto O\nrome B-LOC\n\nbob B-PER\nsat O\n\n"
QUESTIONS = [
  ("who went to rome ?", "ann went to rome ."),
  ("who sat ?", "the cat sat ."),
  ("who ran home ?", "the dog ran home ."),
  ("is bob good ?", "bob is good ."),
]
_QUESTION = {
  "question": "ann went to ?",
  "answers": [{"text": "rome", "answer_start": 12}],
}
_PARAGRAPH = {
  "context": "ann went to rome . the cat sat .",
  "qas": [{"id": str(number)} | _QUESTION for number in range(4)],
}
SQUAD = {
  "version": "1.1",
  "data": [{"title": "ann", "paragraphs": [_PARAGRAPH]}],
}

# What each command is given, before the arguments of a row.
_MODEL = """--vocab_file={world}/vocab.txt
  --bert_config_file={world}/bert_config.json
  --init_checkpoint={world}/model.ckpt """
# Compiling takes longer than a step.
_TRAINING = """--output_dir={out} --max_seq_length=16 --train_batch_size=4
  --xla=off --do_train """
_TUNING = _MODEL + _TRAINING + "--num_train_epochs=1 "
_COMMANDS = {
  "run_classifier": _TUNING + "--task_name=tsv --data_dir={world}",
  "run_squad": _TUNING
  + """--train_file={world}/squad.json --predict_file={world}/squad.json
    --max_query_length=5 --doc_stride=4""",
  "run_ner": _TUNING
  + """--train_file={world}/ner.conll --dev_file={world}/ner.conll
    --predict_file={world}/ner.conll --train_batch_size=2""",
  "run_embeddings": _TUNING
  + "--train_file={world}/questions.tsv --text_columns=question,answer",
  "run_reranker": _TUNING
  + """--train_file={world}/lists.tsv
    --text_columns=question,answer,other""",
  "run_pretraining": _MODEL
  + _TRAINING
  + """--input_file={world}/records.tfrecord --max_predictions_per_seq=4
    --num_train_steps=2 --num_warmup_steps=0""",
  "create_pretraining_data": """--vocab_file={world}/vocab.txt
    --input_file={world}/corpus.txt --output_file={out}/records.tfrecord
    --max_seq_length=16 --max_predictions_per_seq=4 --dupe_factor=2""",
  "create_vocab": """--input_file={world}/corpus.txt
    --output_file={out}.txt --vocab_size=60""",
  "extract_features": _MODEL
  + """--input_file={world}/lines.txt --output_file={out}.jsonl
    --max_seq_length=16 --layers=-1""",
  "export_model": "--model_dir={world}/trained --export_dir={out}",
  "convert_checkpoint": "--input={world}/model.ckpt --output={out}",
  "squad_metrics": "{world}/squad.json {world}/answers.json",
  "download_model": "",
  "report": "{world}/evaluated --output_file={out}.html",
}
COMMANDS = {name: text.split() for name, text in _COMMANDS.items()}


def config(**changed) -> str:
  """The text of a `bert_config.json`; a value of `...` leaves its key out."""
  values = CONFIG | changed
  return json.dumps({k: v for k, v in values.items() if v is not ...})


def vocab(*entries) -> str:
  return "".join(f"{entry}\n" for entry in entries)


def table(rows, header=()) -> str:
  return "".join(
    "\t".join(row) + "\n" for row in [*filter(None, [header]), *rows]
  )


def weights(sizes=None, **heads) -> dict[str, np.ndarray]:
  """Random variables of an encoder, and of heads, whose shapes are given."""
  with tf.Graph().as_default():
    model_config = modeling.BertConfig.from_dict(CONFIG | (sizes or {}))
    modeling.BertModel(model_config, False, tf.zeros([1, 3], tf.int32))
    shapes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
  rng = np.random.default_rng(1)
  return {
    name: rng.normal(0, 0.02, shape).astype(np.float32)
    for name, shape in (shapes | heads).items()
  }


_HIDDEN, _SIZE = CONFIG["hidden_size"], CONFIG["vocab_size"]
PRETRAINING_HEADS = {
  "cls/predictions/transform/dense/kernel": [_HIDDEN, _HIDDEN],
  "cls/predictions/transform/dense/bias": [_HIDDEN],
  "cls/predictions/transform/LayerNorm/beta": [_HIDDEN],
  "cls/predictions/transform/LayerNorm/gamma": [_HIDDEN],
  "cls/predictions/output_bias": [_SIZE],
  "cls/seq_relationship/output_weights": [2, _HIDDEN],
  "cls/seq_relationship/output_bias": [2],
}


def _head(num_outputs: int) -> dict[str, list[int]]:
  return {
    "output_weights": [num_outputs, _HIDDEN],
    "output_bias": [num_outputs],
  }


_OF_TSV = {
  "script": "run_classifier",
  "task": "tsv",
  "kind": "classification",
  "labels": ["no", "yes"],
  "max_seq_length": 16,
  "do_lower_case": True,
  "precision": "float32",
  "has_pairs": False,
}
_OF_SQUAD = {
  "script": "run_squad",
  "version_2_with_negative": False,
  "max_seq_length": 16,
  "doc_stride": 4,
  "max_query_length": 5,
  "do_lower_case": True,
}
_OF_NER = {
  "script": "run_ner",
  "labels": ["O", "B-LOC", "B-PER", "I-LOC", "I-PER"],
  "max_seq_length": 16,
  "do_lower_case": True,
}
_OF_EMBEDDINGS = {
  "script": "run_embeddings",
  "embedding": {
    "pooling": "mean",
    "normalize": True,
    "prompts": {"query": "who : "},
  },
  "max_seq_length": 16,
  "do_lower_case": True,
}
_OF_RERANKER = {
  "script": "run_reranker",
  "activation": "sigmoid",
  "max_seq_length": 16,
  "do_lower_case": True,
}
_OF_PRETRAINING = {
  "script": "run_pretraining",
  "max_seq_length": 16,
  "do_lower_case": True,
}
_TRAINED = {
  "trained": (_OF_TSV, _head(2)),
  "trained_mrpc": (
    _OF_TSV | {"task": "mrpc", "labels": ["0", "1"], "has_pairs": True},
    _head(2),
  ),
  "trained_squad": (
    _OF_SQUAD,
    {"cls/squad/output_weights": [2, _HIDDEN], "cls/squad/output_bias": [2]},
  ),
  "trained_ner": (_OF_NER, _head(5)),
  "trained_embeddings": (_OF_EMBEDDINGS, {}),
  "trained_reranker": (_OF_RERANKER, _head(1)),
  "trained_pretraining": (_OF_PRETRAINING, PRETRAINING_HEADS),
}


def make(folder: str, in_process) -> None:
  """Writes all of it to an empty folder; see `commands.in_process`."""
  header = ["sentence", "label"]
  texts = {
    "vocab.txt": vocab(*VOCAB),
    "bert_config.json": config(),
    "train.tsv": table(TRAIN),
    "dev.tsv": table(TRAIN[:4]),
    "test.tsv": table([(text,) for text, _ in TRAIN[:4]]),
    "pairs.tsv": table(PAIRS),
    "squad.json": json.dumps(SQUAD),
    "answers.json": json.dumps({str(number): "rome" for number in range(4)}),
    "ner.conll": NER * 4,
    "questions.tsv": table(QUESTIONS, ["question", "answer"]),
    "lists.tsv": table(
      [(*pair, "the cat ran") for pair in QUESTIONS],
      ["question", "answer", "other"],
    ),
    "scored.tsv": table(
      [(*pair, str(score)) for score, pair in enumerate(QUESTIONS)],
      ["question", "answer", "score"],
    ),
    "corpus.txt": CORPUS * 4,
    "lines.txt": "the cat sat\nann went ||| to rome\n",
    "evaluated/eval_results.txt": "eval_f1 = 0.5\n",
  }
  for name in ("evaluated", "evaluated_too"):
    texts[f"{name}/run.json"] = json.dumps(run_folders.receipt(name))
  mrpc = ["1", "12", "13", "the cat sat", "the dog ran"]
  for split in ("train", "dev", "test"):
    texts[f"mrpc/{split}.tsv"] = table(
      [mrpc] * 4, ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    )
  for split in ("train", "dev"):
    texts[f"cola/{split}.tsv"] = table([["x", "1", "", "the cat sat"]] * 4)
  texts["cola/test.tsv"] = table([["0", "the cat sat"]] * 4, header[::-1])
  texts |= {f"beir/{name}": text for name, text in beir().items()}
  for name, text in texts.items():
    write(os.path.join(folder, name), text)
  checkpoint_files.write_variables(
    os.path.join(folder, "model.ckpt"), weights(**PRETRAINING_HEADS)
  )
  nan = weights()
  nan["bert/pooler/dense/bias"][0] = np.nan
  for name, variables in (
    ("wide", weights({"hidden_size": 2 * _HIDDEN})),
    ("shallow", weights({"num_hidden_layers": 1})),
    ("nan", nan),
  ):
    checkpoint_files.write_variables(
      os.path.join(folder, f"{name}.ckpt"), variables
    )
  for name, (description, heads) in _TRAINED.items():
    write_trained(os.path.join(folder, name), description, heads)
  write_trained(os.path.join(folder, "original"), None, _head(2))
  with in_process(create_pretraining_data) as main:
    main(
      *(
        argument.format(world=folder, out=folder)
        for argument in COMMANDS["create_pretraining_data"]
      )
    )


def beir() -> dict[str, str]:
  """Texts of the files of `QUESTIONS` in the layout of BEIR, by name."""

  def lines(prefix, texts):
    return "".join(
      json.dumps({"_id": f"{prefix}{number}", "text": text}) + "\n"
      for number, text in enumerate(texts)
    )

  queries, documents = zip(*QUESTIONS)
  header = ("query-id", "corpus-id", "score")
  judgments = [(f"q{i}", f"d{i}", "1") for i in range(len(QUESTIONS))]
  return {
    "corpus.jsonl": lines("d", documents),
    "queries.jsonl": lines("q", queries),
    "qrels/test.tsv": table(judgments, header),
  }


def write_trained(folder: str, description, heads, sizes=None) -> None:
  """Writes the folder of a model that was trained for one step.

  `description` is what its `model.json` has; None for no files of ours.
  """
  variables = weights(sizes, **heads) | {"global_step": np.int64(1)}
  os.makedirs(folder)
  checkpoint_files.write_variables(
    os.path.join(folder, "model.ckpt-1"), variables
  )
  write(
    os.path.join(folder, "checkpoint"),
    'model_checkpoint_path: "model.ckpt-1"\n',
  )
  if description:
    write(os.path.join(folder, "model.json"), json.dumps(description))
    write(os.path.join(folder, "vocab.txt"), vocab(*VOCAB))
    write(os.path.join(folder, "bert_config.json"), config(**(sizes or {})))


def write(path: str, content) -> None:
  """Writes text, bytes, or an array of records, making its folder."""
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, "wb") as file:
    file.write(content if isinstance(content, bytes) else content.encode())


def records(*examples) -> bytes:
  return b"".join(map(tf_records.frame_record, examples))
