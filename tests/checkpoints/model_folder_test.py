"""Wrong folders of models: one line each, of all that reads them."""

import functools

import commands
import numpy as np
import pytest
import run_outputs
import signatures_test
from parametrize import parametrize
from refused import refusal
from signatures_test import MODELS

import run_classifier
import run_embeddings
import run_ner
import run_squad
from bertlib.checkpoints import checkpoint_files, model_folder
from bertlib.task import task_record

pytestmark = pytest.mark.unit


def edit(name, **changed):
  """A change of a JSON file, see `run_outputs.edit_json`."""
  return lambda folder: run_outputs.edit_json(folder / name, **changed)


description = functools.partial(edit, "model.json")
config = functools.partial(edit, "bert_config.json")


def shuffle(folder):
  path = folder / "vocab.txt"
  words = path.read_text().split("\n")
  path.write_text("\n".join([*words[:6], *words[:5:-1]]))


def cut(folder):
  path = folder / "model.json"
  path.write_text(path.read_text()[:-20])


def vectors(**changed):
  model = MODELS["embeddings, mean"]
  return description(embedding=model["embedding"] | changed)


DAMAGES = {
  "classification": {
    "swapped labels": description(labels=["yes", "no", "maybe"]),
    "no labels": description(labels=...),
    "fewer labels": description(labels=["no", "yes"]),
    "one label": description(labels=["no"]),
    "another kind": description(kind="multi_label"),
    "a newer format": description(format=2),
    "a negative length": description(seq_length=-3),
    "no length": description(max_seq_length=...),
    "a length that is text": description(max_seq_length="24"),
    "more tokens than positions": description(max_seq_length=64),
    "another casing": description(do_lower_case=False),
    "no casing": description(do_lower_case=...),
    "words of no length": description(max_input_chars_per_word=0),
    "half a file": cut,
    "shuffled vocabulary": shuffle,
    "more heads": config(num_attention_heads=4),
    "another activation": config(hidden_act="relu"),
    "positions that are text": config(max_position_embeddings="40"),
    "no script": description(script=...),
    "another script": description(script="run_embeddings"),
  },
  "ner": {
    "no labels": description(labels=...),
    "fewer labels": description(labels=["O", "S-X", "S-Y"]),
  },
  "squad_1": {
    "no stride": description(doc_stride=...),
    "a question length that is text": description(max_query_length="6"),
  },
  "embeddings, mean": {
    "no embedding": description(embedding=...),
    "an embedding that is text": description(embedding="mean"),
    "another pooling": vectors(pooling="max"),
    "another length of vectors": vectors(normalize=False),
  },
}
ROWS = [(kind, damage) for kind in DAMAGES for damage in DAMAGES[kind]]


def check(folder, kind):
  task = task_record.find(MODELS[kind]["script"])
  return model_folder.check(str(folder), task)


@parametrize("kind, damage", *ROWS)
def test_a_wrong_folder_is_refused(kind, damage, tmp_path):
  signatures_test.write_files(tmp_path, **MODELS[kind])
  assert check(tmp_path, kind)
  DAMAGES[kind][damage](tmp_path)
  assert refusal(check, tmp_path, kind).startswith(f"{tmp_path}/")


COMMANDS = {
  "classification": run_classifier,
  "ner": run_ner,
  "squad_1": run_squad,
  "embeddings, mean": run_embeddings,
}
# To a command, a folder of another script is an encoder, and labels are flags.
OTHERS = ("no script", "another script", "one label")


@pytest.mark.graph
@parametrize("kind, damage", *([row for row in ROWS if row[1] not in OTHERS]))
def test_a_wrong_folder_is_refused_by_a_command(kind, damage, tmp_path):
  signatures_test.write_files(tmp_path, **MODELS[kind])
  values = {"a": np.zeros(1)}
  checkpoint_files.write_variables(f"{tmp_path}/model.ckpt-7", values)
  checkpoint_files.write_state_file(str(tmp_path), f"{tmp_path}/model.ckpt-7")
  DAMAGES[kind][damage](tmp_path)
  (tmp_path / "texts.txt").write_text("the cat sat\n")
  with commands.in_process(COMMANDS[kind]) as main:
    flags = f"--output_dir={tmp_path}", f"--predict_file={tmp_path}/texts.txt"
    message = refusal(main, *flags, "--do_predict")
  assert f"{tmp_path}/" in message and "ckpt" not in message


def test_a_change_that_is_meant_is_kept(tmp_path):
  signatures_test.write_files(tmp_path, **MODELS["classification"])
  description(labels=[*"abc"], meaning_sha256=...)(tmp_path)
  assert check(tmp_path, "classification")["labels"] == [*"abc"]
