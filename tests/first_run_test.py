"""Tests of what a first run leaves and logs."""

import json

import commands
import numpy as np
import pytest

import modeling
import precision
import run_classifier

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["good", "bad", "a", "film"]
CONFIG = modeling.BertConfig(
  vocab_size=len(WORDS),
  hidden_size=8,
  num_hidden_layers=1,
  num_attention_heads=2,
  intermediate_size=8,
  max_position_embeddings=16,
  type_vocab_size=2,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with a small model and data of its own."""
  place = tmp_path_factory.mktemp("first_run")
  (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  (place / "bert_config.json").write_text(CONFIG.to_json_string())
  rows = ["good film\tyes", "bad film\tno", "a film\tyes"]
  for split, number in (("train", 8), ("dev", 4), ("test", 4)):
    lines = ["text\tlabel", *rows * number]
    (place / f"{split}.tsv").write_text("\n".join(lines) + "\n")
  return place


@pytest.fixture(scope="module")
def classify(place):
  """Runs the classifier in this process."""
  with commands.in_process(run_classifier) as main:

    def run(output_dir, *more):
      main(
        "--task_name=tsv",
        f"--data_dir={place}",
        "--text_a_column=text",
        "--label_column=label",
        f"--vocab_file={place / 'vocab.txt'}",
        f"--bert_config_file={place / 'bert_config.json'}",
        "--max_seq_length=8",
        "--train_batch_size=8",
        "--num_train_epochs=1",
        "--xla=off",
        f"--output_dir={output_dir}",
        *more,
      )

    yield run


@pytest.fixture(scope="module")
def trained(place, classify):
  """The folder of a run of three steps, with --precision=auto."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(precision, "fastest_dtype", lambda measures: "bfloat16")
    classify(
      place / "trained",
      "--do_train",
      "--do_eval",
      "--do_predict",
      "--precision=auto",
    )
  return place / "trained"


def read_json(path):
  return json.loads(path.read_text())


# The number format


def test_what_auto_chose_is_recorded(trained):
  for name in ("model.json", "run.json"):
    assert read_json(trained / name)["precision"] == "bfloat16"
  assert "auto: bfloat16" in (trained / "report.html").read_text()


def test_later_runs_take_the_recorded_format(
  trained, place, classify, monkeypatch
):
  before = np.loadtxt(trained / "test_results.tsv")

  def measure(measures):
    raise AssertionError("measured again")

  monkeypatch.setattr(precision, "fastest_dtype", measure)
  classify(trained, "--do_predict", "--precision=auto")
  np.testing.assert_array_equal(
    np.loadtxt(trained / "test_results.tsv"), before
  )
  assert read_json(trained / "run.json")["precision"] == "bfloat16"
  classify(
    place / "again",
    "--do_train",
    "--precision=auto",
    f"--rerun={trained / 'run.json'}",
  )
  assert read_json(place / "again" / "model.json")["precision"] == "bfloat16"
