"""Writes `bertlib/export/released.json`: what the released code computes.

python tests/export/released.py

Run it in a checkout of a release only, after a change that was meant.
`same_outputs_test.py` compares the file with independent implementations.
"""

import collections
import itertools
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import tokenization  # noqa: E402
from bertlib.export import same_outputs  # noqa: E402
from bertlib.task import task_record  # noqa: E402

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "tanh", "linear")
LABELS = ["0", "1", "2"]
SQUAD = {"doc_stride": 1, "max_query_length": 1}
SQUAD |= {"version_2_with_negative": False}

CONFIG = {
  "vocab_size": 16,
  "hidden_size": 8,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 12,
  "max_position_embeddings": 512,
  "type_vocab_size": 2,
}
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,!?'-()中文の"]
VOCAB += ["the", "cat", "##s", "##ly", "a", "##a", "##b", "Cafe", "cafe"]
VOCAB += ["Café", "café", "re", "##sume", "##sumé", "é", "x", "##́"]
TEXTS = [
  "The cats, the CAT!",
  "Café café Cafe\u0301 résumé",
  "中文の the中cat文",
  "(cat)-'cat'?!...",
  "a" * 99 + " " + "a" * 100 + " " + "a" * 101 + " " + "a" * 201,
  "\0the\x07 cat\u200b\ufffd \xadcat",
  "the\tcat\ncat\r\u00a0cat\u3000cat\u2028cat",
  "zebra catly catsly aab abba",
  "[MASK] [SEP] [cls] ##s [UNK]",
  "ΑΣ İ ﬁ ½ x́ 한 𠀀 e\u0301\u0301",
]


def tokenizer():
  vocab = {piece: index for index, piece in enumerate(VOCAB)}
  found = {"vocab": VOCAB, "texts": TEXTS}
  for name, do_lower_case in (("lower_case", True), ("cased", False)):
    of_ours = tokenization.FullTokenizer(vocab, do_lower_case)
    found[name] = [
      of_ours.convert_tokens_to_ids(of_ours.tokenize(text)) for text in TEXTS
    ]
  return found


def cases():
  """Tasks and the descriptions of their small models."""
  tasks = {task.script: task for task in task_record.all_records()}
  yield None, {}
  for kind in ("classification", "multi_label", "multiple_choice"):
    yield tasks["run_classifier"], {"kind": kind, "labels": LABELS}
  yield tasks["run_classifier"], {"kind": "regression", "labels": []}
  yield tasks["run_reranker"], {"activation": "identity"}
  yield tasks["run_ner"], {"labels": LABELS}
  yield tasks["run_squad"], SQUAD
  yield tasks["run_pretraining"], {}
  linear = {"projection_dim": 4, "projection_activation": "linear"}
  tanh = {"projection_dim": 4, "projection_activation": "tanh"}
  for pooling, more in (("mean", {}), ("max", linear), ("cls", tanh)):
    spec = {"pooling": pooling, "normalize": pooling == "mean", **more}
    yield tasks["run_embeddings"], {"embedding": spec}


def outputs():
  found = collections.defaultdict(list)
  for act, (task, described) in itertools.product(ACTIVATIONS, cases()):
    description = {"max_seq_length": 16, "do_lower_case": True, **described}
    values = same_outputs.released_outputs(task, description, act)
    rounded = [
      [float(f"{x:.6g}") for x in array.tolist()] for array in values.values()
    ]
    script = task.script if task else "encoder"
    found[f"{script} {act}"].append([description, rounded])
  return found


def write(contents):
  with open(same_outputs.RELEASED, "w", encoding="utf-8") as file:
    json.dump(contents, file, ensure_ascii=True, separators=(",", ":"))
    file.write("\n")


if __name__ == "__main__":
  contents = {"config": CONFIG, "tokenizer": tokenizer()}
  # `small_model` reads the sizes from the file.
  write(contents)
  write(contents | {"outputs": outputs()})
