"""Tests of the doctor and of run receipts."""

import collections
import gzip
import itertools
import json
import logging as python_logging
import os
import string

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
from absl import logging

import create_pretraining_data
import extract_features
import modeling
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_squad
from bertlib.checkpoints import checkpoint_writer, model_json
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.compute import precision
from bertlib.data import tf_records
from bertlib.io import files
from bertlib.reporting import doctor, receipts, training_checks
from bertlib.settings import rerun as rerun_flags
from bertlib.settings.classifier import ClassifierSettings
from bertlib.tasks.pretraining import pretraining_instances

pytestmark = pytest.mark.train

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "a the cat dog sat ran on mat home is good bad who where ."
WORDS = WORDS.split(" ")
CONFIG = modeling.BertConfig(
  vocab_size=len(SPECIAL + WORDS),
  hidden_size=8,
  num_hidden_layers=1,
  num_attention_heads=2,
  intermediate_size=16,
  max_position_embeddings=32,
  type_vocab_size=2,
)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

ROWS = ["the cat sat\ty", "the dog ran home\tn", "a cat is good\ty"] * 4
SQUAD = {"context": "the cat sat on the mat", "question": "where is the cat"}
Finding = collections.namedtuple("Finding", "status text")


@pytest.fixture(scope="module", autouse=True)
def no_measurement():
  """Replaces the speed measurement, which no test here depends on."""
  patch = pytest.MonkeyPatch()
  patch.setattr(precision, "product_rates", lambda *_, **__: {"any": 1e9})
  yield
  patch.undo()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
  """The current folder, with small models and data, valid and invalid."""
  folder = tmp_path_factory.mktemp("doctor")
  before = os.getcwd()
  os.chdir(folder)
  write_models()
  write_texts()
  write_records()
  yield folder
  os.chdir(before)


def write(path, text):
  mode = "wb" if isinstance(text, bytes) else "w"
  with open(path, mode) as file:
    file.write(text)


def write_config(path, **changed):
  values = CONFIG.to_dict() | changed
  write(path, modeling.BertConfig.from_dict(values).to_json_string())


def write_models():
  write("vocab.txt", "\n".join(SPECIAL + WORDS))
  write("large.txt", "\n".join([*SPECIAL, *WORDS, "more"]))
  write("no_sep.txt", "\n".join(w for w in SPECIAL + WORDS if w != "[SEP]"))
  names = map("".join, itertools.product(string.ascii_uppercase, repeat=3))
  names = list(itertools.islice(names, 1200))
  write("cased.txt", "\n".join(SPECIAL + names))
  write("other.txt", "\n".join(sorted(SPECIAL) + WORDS))
  write_config("config.json")
  write_config("many.json", vocab_size=2000)
  write_config("few.json", vocab_size=12)
  write_config("wide.json", intermediate_size=32)
  write("no_config.json", "[]")
  with tf.Graph().as_default():
    modeling.BertModel(CONFIG, False, tf.zeros([1, 4], tf.int32))
    shapes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
  random = np.random.RandomState(0)
  weights = {
    name: random.normal(0, 0.02, shape).astype("f")
    for name, shape in shapes.items()
  }
  checkpoint_writer.write_variables("bert.ckpt", weights)
  checkpoint_writer.write_variables("foreign.ckpt", {"w": np.zeros(3, "f")})
  checkpoint_writer.write_variables("damaged.ckpt", weights)
  with open("damaged.ckpt.data-00000-of-00001", "r+b") as file:
    file.seek(100)
    file.write(b"damage")
  os.mkdir("trained")
  checkpoint_writer.write_variables("trained/model.ckpt-5", weights)
  write("trained/checkpoint", 'model_checkpoint_path: "model.ckpt-5"\n')
  model = {
    "script": "run_classifier",
    "task": "tsv",
    "kind": "classification",
    "labels": ["no", "yes"],
  }
  model_json.write_model_files("trained", model, CONFIG, "vocab.txt")


def write_texts():
  write("train.tsv", "\n".join(ROWS))
  write("dev.tsv", "\n".join(f"it {row}" for row in ROWS[:3]))
  write("short.tsv", "the cat sat\ty\nthe dog\n")
  write("unknown.tsv", "the cat sat\ty\nthe dog\tmaybe\n")
  write("not_utf8.tsv", b"the cat sat\ty\nthe dog\t\xff\n")
  write("empty.tsv", "")
  write("file", "")
  write("uneven.tsv", "\n".join([*ROWS, *["a dog\tn"] * 200]))
  write("one_sided.tsv", "the cat sat\ty\n" * 8)
  write("long.tsv", "the cat sat\ty\na dog " + "ran " * 99 + "\tn\n")
  for name, answers in {
    "squad": [{"text": "mat", "answer_start": 19}],
    "unanswered": [],
    "outside": [{"text": "mat", "answer_start": 21}],
    "elsewhere": [{"text": "mat", "answer_start": 0}],
  }.items():
    qas = [{"id": "q", "question": SQUAD["question"], "answers": answers}]
    paragraph = {"context": SQUAD["context"], "qas": qas}
    data = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
    write(f"{name}.json", json.dumps(data))
  write("cut.json", json.dumps(data)[:-9])
  write("train.conll", "the\tO\ncat\tB-PET\n\na\tO\ndog\tB-PET\n\n" * 4)
  write("dev.conll", "the\tO\nmat\tB-THING\n")
  write("mixed.conll", "the\tO\ncat\n")
  write("untagged.conll", "the\ncat\n")
  pairs = ["who sat\tthe cat sat", "who ran\tthe dog ran"] * 4
  write("pairs.tsv", "\n".join(["question\tanswer", *pairs]))
  write("no_answer.tsv", "question\tanswer\nwho sat\t\n")
  write("scored.tsv", "question\tanswer\tscore\nwho sat\tthe cat\t5\n")
  np.save("vectors.npy", np.zeros([3, 8], np.float32))
  write("text.txt", "the cat sat\na dog ran\n\nit is good\nthe mat is bad\n")
  write("blank.txt", "\n \n")
  packed = gzip.compress(b"the cat sat on the mat\n" * 99)
  write("cut.gz", packed[: len(packed) // 2])


def record(seq_length=16, num_predictions=3, cls=2, token=8):
  ids = [cls, token, 4, 3, *[0] * (seq_length - 4)]
  return {
    "input_ids": ids,
    "input_mask": [int(i > 0) for i in ids],
    "segment_ids": [0] * seq_length,
    "masked_lm_positions": [2] + [0] * (num_predictions - 1),
    "masked_lm_ids": [6] + [0] * (num_predictions - 1),
    "masked_lm_weights": [1.0] + [0.0] * (num_predictions - 1),
    "next_sentence_labels": [0],
  }


def write_records():
  layout = pretraining_instances.record_layout(16, 3)
  tf_records.write_records("good.tf_record", [record()] * 9, layout)
  with open("good.tf_record", "rb") as file:
    write("cut.tf_record", file.read()[:-7])
  tf_records.write_records(
    "later.tf_record", [record(), record(token=len(SPECIAL + WORDS))], layout
  )
  tf_records.write_records("other.tf_record", [record(cls=1)], layout)
  for name, sizes in {"long": (20, 3), "many": (16, 4)}.items():
    tf_records.write_records(
      f"{name}.tf_record",
      [record(*sizes)],
      pretraining_instances.record_layout(*sizes),
    )
  both = b""
  for name in ("good", "long"):
    with open(f"{name}.tf_record", "rb") as file:
      both += file.read()
  write("mixed.tf_record", both)


MODEL = {"bert_config_file": "config.json", "vocab_file": "vocab.txt"}
TRAINING = MODEL | {"output_dir": "out", "do_train": True, "max_seq_length": 16}
FLAGS = {
  run_classifier: TRAINING
  | {
    "task_name": "tsv",
    "train_file": "train.tsv",
    "dev_file": "dev.tsv",
    "labels": "n,y",
    "train_batch_size": 4,
    "do_eval": True,
    "xla": "off",
  },
  run_squad: TRAINING
  | {
    "train_file": "squad.json",
    "max_query_length": 6,
    "train_batch_size": 1,
    "num_workers": 1,
  },
  run_embeddings: TRAINING
  | {
    "train_file": "pairs.tsv",
    "dev_file": "pairs.tsv",
    "text_columns": "question,answer",
    "train_batch_size": 4,
    "do_eval": True,
    "xla": "off",
  },
  run_ner: TRAINING | {"train_file": "train.conll", "train_batch_size": 4},
  run_pretraining: TRAINING
  | {
    "input_file": "good.tf_record",
    "max_predictions_per_seq": 3,
    "num_train_steps": 10,
  },
  extract_features: MODEL
  | {
    "input_file": "text.txt",
    "output_file": "features.jsonl",
    "init_checkpoint": "bert.ckpt",
    "max_seq_length": 16,
    "layers": -1,
  },
  create_pretraining_data: {
    "input_file": "text.txt",
    "output_file": "made.tf_record",
    "vocab_file": "vocab.txt",
    "max_seq_length": 16,
  },
}


def arguments(script, **changed):
  return commands.as_flags(FLAGS[script] | changed)


def call(script, *given):
  """Runs a script in this process; raises its error after the clean-up."""
  error = None
  with commands.in_process(script) as main:
    try:
      main(*given)
    except BaseException as raised:
      error = raised
  if error:
    raise error


def examine(capsys, script, **changed):
  """Runs the doctor; returns its findings by name, and the exit status."""
  capsys.readouterr()
  before = set(os.listdir())
  status = 0
  try:
    call(script, "--doctor", *arguments(script, **changed))
  except SystemExit as ended:
    status = ended.code
  assert set(os.listdir()) == before
  found = {}
  for line in capsys.readouterr().out.splitlines():
    word, rest = line.split("  ", 1)
    name, _, text = rest.partition("  ")
    found[name] = Finding(word, text.strip())
  return found, status


# Checks of a run


@pytest.mark.graph
@pytest.mark.parametrize("script", FLAGS, ids=lambda script: script.__name__)
def test_all_checks_of_a_valid_run_pass(workspace, capsys, script):
  found, status = examine(capsys, script)
  assert {name: f for name, f in found.items() if f.status != "pass"} == {}
  assert len(found) > 5 and status == 0


BAD = [
  (run_classifier, {"train_file": "short.tsv"}, "data", "row 2: has 1 columns"),
  (run_classifier, {"dev_file": "short.tsv"}, "data", "row 2: has 1 columns"),
  (
    run_classifier,
    {"train_file": "unknown.tsv"},
    "data",
    "unknown.tsv, row 2: unknown label 'maybe'",
  ),
  (run_classifier, {"train_file": "not_utf8.tsv"}, "data", "is not UTF-8"),
  (run_classifier, {"train_file": "empty.tsv"}, "data", "empty.tsv: is empty"),
  (
    run_classifier,
    {"train_file": "short.tsv", "labels": None},
    "task",
    "row 2: has 1 columns",
  ),
  (run_classifier, {"dev_file": "gone.tsv"}, "data", "gone.tsv: there is no"),
  (run_classifier, {"task_name": "colla"}, "task", "there is no such task"),
  (run_classifier, {"class_weights": "2:1"}, "classes", "give LABEL:WEIGHT"),
  (run_classifier, {"best_metric": "f9"}, "metric", "there is no such metric"),
  (run_classifier, {"train_batch_size": 99}, "data", "are not enough for one"),
  (run_classifier, {"max_seq_length": 33}, "config", "max_position_embeddings"),
  (
    run_classifier,
    {"bert_config_file": "no_config.json"},
    "config",
    "not a bert_config.json",
  ),
  (run_classifier, {"vocab_file": "large.txt"}, "vocabulary", "vocab_size"),
  (run_classifier, {"vocab_file": "no_sep.txt"}, "vocabulary", "[SEP]"),
  (
    run_classifier,
    {"vocab_file": "cased.txt", "bert_config_file": "many.json"},
    "vocabulary",
    "--do_lower_case=False",
  ),
  (
    run_classifier,
    {"init_checkpoint": "gone.ckpt"},
    "checkpoint",
    "gone.ckpt: no such checkpoint",
  ),
  (
    run_classifier,
    {"init_checkpoint": "bert.ckpt", "bert_config_file": "wide.json"},
    "weights",
    "has shape [8, 16]",
  ),
  (
    run_classifier,
    {"init_checkpoint": "foreign.ckpt"},
    "weights",
    "none of the encoder's variables",
  ),
  (
    run_classifier,
    {"init_checkpoint": "damaged.ckpt"},
    "checkpoint",
    "damaged.ckpt.data-00000-of-00001: is corrupt",
  ),
  (
    run_classifier,
    {"output_dir": "trained"},
    "folder",
    "holds a model with labels ['no', 'yes']",
  ),
  (
    run_classifier,
    {"output_dir": "trained", "bert_config_file": "many.json"},
    "folder",
    "trained: holds a model",
  ),
  (
    run_classifier,
    {"output_dir": "trained", "labels": "no,yes", "resume": "never"},
    "folder",
    "--resume=never",
  ),
  (run_classifier, {"resume": "must"}, "folder", "--resume=must"),
  (run_classifier, {"output_dir": "file/out"}, "disk", "Not a directory"),
  (
    run_classifier,
    {"num_replicas": 3},
    "batches",
    "--train_batch_size=4 cannot be divided among 3 replicas",
  ),
  (run_classifier, {"freeze_layers": 2}, "batches", "the model has 1 layers"),
  (run_classifier, {"memory_gb": 0.1}, "batches", "not even one sequence"),
  (run_squad, {"train_file": "cut.json"}, "data", "cut.json"),
  (run_squad, {"train_file": "gone.json"}, "data", "gone.json: cannot be read"),
  (
    run_squad,
    {"train_file": "unanswered.json"},
    "data",
    "unanswered.json, question q: has 0 answers",
  ),
  (run_squad, {"train_file": "outside.json"}, "data", "outside the context"),
  (run_squad, {"train_file": "elsewhere.json"}, "data", "no questions left"),
  (run_squad, {"train_batch_size": 9}, "steps", "are not enough for one step"),
  (run_squad, {"output_dir": "trained"}, "checkpoint", "was not trained on qu"),
  (
    run_ner,
    {"train_file": "mixed.conll"},
    "sentences",
    "mixed.conll, line 2: has 1 columns",
  ),
  (
    run_ner,
    {"train_file": "untagged.conll"},
    "sentences",
    "words without tags",
  ),
  (
    run_ner,
    {"dev_file": "dev.conll", "do_eval": True},
    "data",
    "'THING' (at 'mat') is not an entity",
  ),
  (run_ner, {"output_dir": "trained"}, "folder", "with script 'run_class"),
  (
    run_embeddings,
    {"train_file": "no_answer.tsv"},
    "texts",
    "no_answer.tsv, row 2: 'answer' is empty",
  ),
  (
    run_embeddings,
    {"dev_file": "scored.tsv", "dev_score_column": "score"},
    "texts",
    "scored.tsv, row 2: the score 5 is not between 0 and 1",
  ),
  (run_embeddings, {"dev_file": "trained"}, "texts", "trained"),
  (
    run_embeddings,
    {"text_columns": "question", "loss": "distillation"}
    | {"teacher": "vectors.npy", "dev_text_columns": "question,answer"},
    "teacher",
    "vectors.npy: has 3 vectors, but --train_file has 8 texts",
  ),
  (run_embeddings, {"matryoshka_dims": "9"}, "vectors", "must be 8"),
  (
    run_embeddings,
    {"bert_config_file": None},
    "files",
    "--bert_config_file must be given",
  ),
  (run_embeddings, {"output_dir": "trained"}, "folder", "'run_classifier'"),
  (
    run_pretraining,
    {"input_file": "cut.tf_record"},
    "data",
    "truncated at byte",
  ),
  (
    run_pretraining,
    {"input_file": "long.tf_record"},
    "data",
    "made with --max_seq_length=20",
  ),
  (
    run_pretraining,
    {"input_file": "many.tf_record"},
    "data",
    "made with --max_predictions_per_seq=4",
  ),
  (
    run_pretraining,
    {"input_file": "mixed.tf_record"},
    "data",
    "mixed.tf_record: record 9 ",
  ),
  (
    run_pretraining,
    {"input_file": "other.tf_record"},
    "data",
    "another vocabulary",
  ),
  (run_pretraining, {"vocab_file": "other.txt"}, "data", "another vocabulary"),
  (run_pretraining, {"input_file": "text.txt"}, "data", "text.txt: "),
  (
    run_pretraining,
    {"input_file": "later.tf_record"},
    "data",
    "later.tf_record: record 1 ",
  ),
  (run_pretraining, {"input_file": "gone*"}, "data", "gone*: no such file"),
  (
    run_pretraining,
    {"remask": True, "vocab_file": None},
    "vocabulary",
    "is needed with --remask",
  ),
  (run_pretraining, {"output_dir": "trained"}, "folder", "'run_classifier'"),
  (extract_features, {"input_file": "gone"}, "texts", "No such file"),
  (extract_features, {"input_file": "empty.tsv"}, "texts", "has no lines"),
  (extract_features, {"layers": -2}, "layers", "the model has 1 layers"),
  (extract_features, {"output_format": "npz"}, "layers", "--pooling"),
  (extract_features, {"output_file": "gone/x"}, "disk", "No such file"),
  (extract_features, {"init_checkpoint": "x"}, "checkpoint", "no such check"),
  (create_pretraining_data, {"input_file": "gone*"}, "input", "no such file"),
  (create_pretraining_data, {"input_file": "blank.txt"}, "text", "is no text"),
  (create_pretraining_data, {"input_file": "cut.gz"}, "text", "cut.gz: "),
  (
    create_pretraining_data,
    {"vocab_file": "no_sep.txt"},
    "vocabulary",
    "[SEP]",
  ),
]


@pytest.mark.parametrize(
  ("script", "changed", "name", "expected"),
  BAD,
  ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_invalid_input_fails_a_check(
  workspace, capsys, script, changed, name, expected
):
  found, status = examine(capsys, script, **changed)
  assert found[name].status == "fail" and expected in found[name].text
  assert status == 1


@pytest.mark.graph
@pytest.mark.parametrize(
  ("script", "changed", "name", "expected"),
  [
    (
      run_classifier,
      {"dev_file": "one_sided.tsv"},
      "labels",
      "the dev set has no n",
    ),
    (
      run_classifier,
      {"train_file": "uneven.tsv"},
      "labels",
      "n is 26 times as frequent as y",
    ),
    (
      run_classifier,
      {"train_file": "long.tsv"},
      "tokens",
      "50.0% are truncated",
    ),
    (
      create_pretraining_data,
      {"input_file": "vocab.txt"},
      "text",
      "is there a blank line between documents?",
    ),
  ],
)
def test_doubtful_input_is_a_warning(
  workspace, capsys, script, changed, name, expected
):
  if script is run_classifier:
    changed = {"train_batch_size": 2} | changed
  found, status = examine(capsys, script, **changed)
  assert found[name].status == "warn" and expected in found[name].text
  assert status == 0


@pytest.mark.graph
def test_only_dependents_of_a_failed_check_are_skipped(workspace, capsys):
  found, _ = examine(capsys, run_classifier, bert_config_file="gone.json")
  by_status = {"fail": set(), "skip": set(), "pass": set()}
  for name, finding in found.items():
    by_status[finding.status].add(name)
  assert by_status["fail"] == {"config"}
  assert {"vocabulary", "weights", "tokens", "memory"} < by_status["skip"]
  assert {"checkpoint", "data", "labels"} < by_status["pass"]


@pytest.mark.graph
def test_restored_variables_are_reported(workspace, capsys):
  found, _ = examine(capsys, run_classifier, init_checkpoint="bert.ckpt")
  text = found["weights"].text
  assert "23 of 25 variables restored" in text
  assert "(randomly initialized): output_weights, output_bias" in text


@pytest.mark.graph
def test_too_little_disk_space_fails(workspace, capsys, monkeypatch):
  usage = collections.namedtuple("usage", "total used free")
  monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(9, 4, 5))
  found, _ = examine(capsys, run_classifier)
  assert found["disk"].status == "fail"
  assert "--keep_checkpoint_max" in found["disk"].text


@pytest.mark.unit
def test_checkpoint_bytes_count_the_checkpoints_kept():
  settings = option.make(ClassifierSettings, save_checkpoints_steps=10)
  # The checkpoints kept, and the one being written.
  for num_steps, number in ((5, 2), (15, 3), (1000, 3)):
    num_bytes = training_checks.checkpoint_bytes(settings, 100, num_steps)
    assert num_bytes == number * 12 * 100


@pytest.mark.unit
def test_checkpoint_bytes_count_checkpoints_between_evaluations():
  settings = option.make(
    ClassifierSettings,
    save_checkpoints_steps=10,
    eval_steps=100,
    keep_checkpoint_max=7,
  )
  num_bytes = training_checks.checkpoint_bytes(settings, 100, 1000)
  assert num_bytes == (8 * 12 + 2 * 4) * 100


@pytest.mark.graph
def test_too_little_memory_is_a_warning(workspace, capsys, monkeypatch):
  monkeypatch.setattr(training_checks, "available_memory", lambda: 5 * 10**8)
  found, status = examine(capsys, run_classifier)
  assert found["memory"].status == "warn" and status == 0
  assert "--memory_gb" in found["memory"].text


# The doctor class


@pytest.fixture
def a_doctor(caplog):
  caplog.set_level(python_logging.INFO, logger="absl")
  lines = []
  a_doctor = doctor.Doctor(lines.append)
  a_doctor.lines = lines
  return a_doctor


@pytest.mark.unit
def test_passing_check_returns_its_value_and_shows_its_log(a_doctor):
  assert a_doctor.check("sum", lambda a, b: a + b, 1, 2) == 3
  a_doctor.check("rows", lambda: logging.info("%d rows", 5))
  assert a_doctor.lines == ["pass  sum", "pass  rows        5 rows"]
  assert a_doctor.num_failed == 0


@pytest.mark.unit
def test_check_that_logs_a_warning_warns(a_doctor):
  def check():
    logging.info("a")
    logging.warning("b")

  a_doctor.check("x", check)
  assert a_doctor.lines == ["warn  x           a; b"]


@pytest.mark.unit
def test_failing_check_shows_the_error_of_the_run(a_doctor):
  def check():
    raise InputError("x.tsv, row 3: fix it")

  assert a_doctor.check("x", check) is doctor.SKIPPED
  assert a_doctor.lines == ["fail  x           x.tsv, row 3: fix it"]
  assert a_doctor.num_failed == 1


@pytest.mark.unit
def test_missing_file_fails(a_doctor, tmp_path):
  a_doctor.check("x", open, str(tmp_path / "gone"))
  (line,) = a_doctor.lines
  assert line.endswith(f"{tmp_path}/gone: No such file or directory")


@pytest.mark.unit
def test_check_that_depends_on_a_failed_one_is_not_run(a_doctor):
  failed = a_doctor.check("x", open, "gone")
  calls = []
  assert a_doctor.check("y", calls.append, failed) is doctor.SKIPPED
  assert not calls and a_doctor.lines[1].startswith("skip  y")
  assert a_doctor.num_failed == 1


@pytest.mark.unit
def test_bug_keeps_its_traceback(a_doctor):
  with pytest.raises(ZeroDivisionError):
    a_doctor.check("x", lambda: 1 / 0)


@pytest.mark.unit
def test_logging_works_again_after_a_check(a_doctor, caplog):
  a_doctor.check("x", lambda: logging.info("inside"))
  with caplog.at_level(python_logging.INFO, logger="absl"):
    logging.info("outside")
  assert [record.message for record in caplog.records] == ["outside"]


@pytest.mark.unit
@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 9000])
def test_sample_has_at_most_the_requested_size(count):
  found = doctor.sample(range(count))
  assert min(count, 1000) <= len(found) <= 2000


@pytest.mark.unit
@pytest.mark.parametrize(
  ("bad", "expected"), [([3, 9], "id 9"), ([-1], "id -1")]
)
def test_ids_out_of_range_are_refused(bad, expected):
  doctor.check_ids([0, 8], 9, "x")
  with pytest.raises(InputError, match=f"^x: has the {expected}"):
    doctor.check_ids(bad, 9, "x")


# Receipts and --rerun


def train(workspace, *more, **changed):
  call(run_classifier, *arguments(run_classifier, **changed), *more)


def rerun(workspace, receipt, *more, script=run_classifier):
  call(script, f"--rerun={receipt}", *more)


@pytest.fixture(scope="module")
def receipt(workspace):
  train(workspace, "--seed=3", output_dir="run", init_checkpoint="bert.ckpt")
  return run_outputs.read_json("run/run.json")


def test_receipt_has_flags_versions_and_code(receipt):
  assert receipt["script"] == "run_classifier.py"
  assert {"--seed=3", "--output_dir=run", "--do_train"} < set(receipt["given"])
  assert not [g for g in receipt["given"] if "learning_rate" in g]
  assert receipt["flags"]["learning_rate"] == 5e-5
  assert receipt["seeds"] == {"seed": 3, "seeds": 0}
  assert {"python", "tensorflow-estimator", "numpy"} < set(receipt["versions"])
  assert receipt["versions"]["project"]
  assert receipt["device"]["cpu"] and receipt["device"]["cores"]
  assert {"all", "modeling.py", "bertlib/reporting/doctor.py"} < set(
    receipt["code"]
  )
  assert receipt["started"] <= receipt["ended"]


def test_receipt_has_fingerprints_of_the_files(receipt):
  by_path = {file["path"]: file for file in receipt["files"]}
  assert {(f["what"], path) for path, f in by_path.items()} == {
    ("vocabulary", "vocab.txt"),
    ("config", "config.json"),
    ("checkpoint", "bert.ckpt.index"),
    ("data", "train.tsv"),
    ("data", "dev.tsv"),
  }
  size = os.path.getsize("bert.ckpt.data-00000-of-00001")
  assert by_path["bert.ckpt.index"]["data_bytes"] == size
  # The value that `sha256sum` prints.
  with open("vocab.txt", "rb") as file:
    expected = receipts.hashlib.sha256(file.read()).hexdigest()
  assert by_path["vocab.txt"]["sha256"] == expected
  assert "train_file" in by_path["train.tsv"]["flags"]


def test_receipt_has_the_results(receipt):
  written = run_outputs.read_results("run/eval_results.txt")
  assert set(receipt["results"]) == set(written)
  assert np.float32(written["eval_loss"]) == receipt["results"]["eval_loss"]
  assert receipt["checkpoint"]["path"] == "run/model.ckpt-9.index"


def test_killed_run_has_a_receipt_without_results(workspace, monkeypatch):
  def die(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(run_classifier, "train_classifier", die)
  with pytest.raises(KeyboardInterrupt):
    train(workspace, output_dir="killed")
  assert run_outputs.read_json("killed/run.json")["results"] is None


def test_single_process_of_a_cluster_writes_a_receipt(workspace, monkeypatch):
  cluster = {"worker": ["a:1", "b:2"]}
  task = {"type": "worker", "index": 1}
  text = json.dumps({"cluster": cluster, "task": task})
  monkeypatch.setenv("TF_CONFIG", text)
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  with pytest.raises(TypeError):
    train(workspace, "--distribution=off", output_dir="alone")
  assert (
    run_outputs.read_json("alone/run.json")["script"] == "run_classifier.py"
  )


def test_receipt_of_another_run_is_kept(workspace, monkeypatch):
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  for more in ([], ["--seed=1"], ["--seed=1"], ["--seed=2"]):
    with pytest.raises(TypeError):
      train(workspace, *more, output_dir="several")
  given = [
    [
      flag
      for flag in run_outputs.read_json(f"several/{name}.json")["given"]
      if "seed" in flag
    ]
    for name in ("run-1", "run-2", "run")
  ]
  assert given == [[], ["--seed=1"], ["--seed=2"]]


def test_rerun_repeats_bit_for_bit(workspace, receipt, caplog):
  with caplog.at_level(python_logging.INFO, logger="absl"):
    rerun(workspace, "run/run.json", "--output_dir=again")
  again = run_outputs.read_json("again/run.json")
  assert again["results"] == receipt["results"]
  assert "results are identical to the earlier ones" in caplog.text
  assert "The weights are identical to the earlier ones" in caplog.text
  before, now = map(tf.train.load_checkpoint, ["run", "again"])
  for name in before.get_variable_to_shape_map():
    np.testing.assert_array_equal(
      before.get_tensor(name), now.get_tensor(name), err_msg=name
    )


def test_rerun_with_another_flag_logs_differences(workspace, receipt, caplog):
  more = ["--output_dir=other", "--seed=4", "--num_train_epochs=1"]
  rerun(workspace, "run/run.json", *more)
  assert run_outputs.read_json("other/run.json")["flags"]["seed"] == 4
  assert "global_step was 9, is now 3 (change -6)" in caplog.text
  assert "The weights differ from the earlier ones" in caplog.text


@pytest.mark.parametrize("more", [[], ["--output_dir=./run"]])
def test_rerun_needs_another_output_dir(workspace, receipt, more):
  with pytest.raises(InputError, match="Give another --output_dir"):
    rerun(workspace, "run/run.json", *more)


@pytest.fixture
def spoil(receipt):
  """Changes a file until the test is over."""
  saved = {}

  def change(path):
    with open(path, "rb") as file:
      saved[path] = file.read()
    write(path, saved[path] + b"\n")

  yield change
  for path, content in saved.items():
    write(path, content)


@pytest.mark.parametrize(
  ("path", "flag"),
  [
    ("train.tsv", "train_file"),
    ("vocab.txt", "vocab_file"),
    ("config.json", "bert_config_file"),
    ("bert.ckpt.index", "init_checkpoint"),
  ],
)
def test_rerun_with_changed_files_is_refused(
  workspace, spoil, caplog, path, flag
):
  spoil(path)
  with pytest.raises(
    InputError, match=rf"^{path}: is not the file .*--{flag}$"
  ):
    rerun(workspace, "run/run.json", "--output_dir=refused")
  assert f"{path}: has changed since" in caplog.text
  assert not os.path.exists("refused")


def test_rerun_accepts_a_changed_file_that_is_given_again(
  workspace, spoil, monkeypatch
):
  spoil("train.tsv")
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  with pytest.raises(TypeError):  # raised after the checks
    rerun(
      workspace,
      "run/run.json",
      "--output_dir=given_again",
      "--train_file=train.tsv",
    )


def test_changed_code_and_versions_are_warnings(
  workspace, receipt, monkeypatch, caplog
):
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  hashes = receipt["code"] | {"modeling.py": "0"}
  monkeypatch.setattr(receipts, "code_hashes", lambda: hashes)
  found = receipts.versions() | {"numpy": "9.9"}
  monkeypatch.setattr(receipts, "versions", lambda: found)
  with pytest.raises(TypeError):
    rerun(workspace, "run/run.json", "--output_dir=code")
  assert "the code has changed since: modeling.py" in caplog.text
  assert ", is now 9.9" in caplog.text


def test_doctor_checks_a_rerun(workspace, spoil, capsys):
  spoil("dev.tsv")
  with pytest.raises(SystemExit):
    rerun(workspace, "run/run.json", "--output_dir=x", "--doctor")
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].startswith("fail  rerun")
  assert "dev.tsv: is not the file used" in lines[0]


def test_rerun_refuses_other_files_and_other_scripts(workspace, receipt):
  for command, expected in (
    (["x.py", "--rerun=config.json"], "config.json"),
    (["x.py", "--rerun=train.tsv"], "train.tsv"),
    (["x.py", "--rerun=run/run.json"], "is of run_classifier.py"),
  ):
    with pytest.raises(InputError, match=expected):
      rerun_flags.with_receipt(command)


def test_flags_of_the_command_follow_those_of_the_receipt():
  receipt = {"script": "x.py", "given": ["--a=1", "--b"], "results": None}
  receipt |= {"path": "", "files": [], "code": {}, "versions": {}}
  receipt |= {"started": "", "device": {}}
  write("given.json", json.dumps(receipt))
  for rerun in (["--rerun=given.json"], ["--rerun", "given.json"]):
    found = rerun_flags.with_receipt(["x.py", "--c", "2", *rerun, "--a=3"])
    assert found == (
      ["x.py", "--a=1", "--b", "--c", "2", "--a=3"],
      "given.json",
    )
  assert rerun_flags.with_receipt(["x.py", "--a"]) == (["x.py", "--a"], None)


@pytest.mark.parametrize(
  ("flags", "recorded", "xla", "chosen"),
  [
    (
      {"precision": "auto", "xla": "auto"},
      "bfloat16",
      "off",
      ["bfloat16", "off"],
    ),
    ({"precision": "float32", "xla": "auto"}, "float32", "off", [None, "off"]),
    ({"precision": "auto", "xla": "on"}, "float64", "on", [None, None]),
    # --xla=on would compile evaluation on a GPU, which the run did not.
    ({"precision": "float32", "xla": "auto"}, "float32", "on", [None, None]),
    ({}, "bfloat16", "off", [None, None]),
  ],
)
def test_rerun_uses_the_values_chosen_for_auto(
  tmp_path, monkeypatch, flags, recorded, xla, chosen
):
  monkeypatch.chdir(tmp_path)
  receipt = {"script": "x.py", "given": ["--a=1"], "results": None}
  receipt |= {"path": "", "files": [], "code": {}, "versions": {}}
  receipt |= {"started": "", "device": {}}
  receipt |= {"flags": flags, "precision": recorded, "xla": xla}
  write("chosen.json", json.dumps(receipt))
  argv, _ = rerun_flags.with_receipt(["x.py", "--rerun=chosen.json", "--b"])
  expected = [
    f"--{name}={value}"
    for name, value in zip(("precision", "xla"), chosen)
    if value
  ]
  assert argv == ["x.py", "--a=1", *expected, "--b"]


@pytest.mark.unit
def test_data_making_can_be_repeated(workspace):
  given = arguments(create_pretraining_data)
  commands.succeed("create_pretraining_data.py", *given)
  made = run_outputs.read_json("made.tf_record.run.json")
  assert made["given"] == sorted(given)
  done = commands.succeed(
    "create_pretraining_data.py",
    "--rerun=made.tf_record.run.json",
    "--output_file=again.tf_record",
  )
  assert "results are identical to the earlier ones" in done.stderr
  with (
    open("made.tf_record", "rb") as one,
    open("again.tf_record", "rb") as two,
  ):
    assert one.read() == two.read()
  assert files.find_files(["made*"]) == ["made.tf_record"]
  line = commands.fail(
    "create_pretraining_data.py", "--rerun=made.tf_record.run.json"
  )
  assert "Give another --output_file" in line


@pytest.mark.graph
def test_fingerprint_of_a_large_file_covers_its_ends(tmp_path, monkeypatch):
  monkeypatch.setattr(receipts, "_LARGE", 10**7)
  path = str(tmp_path / "large")
  with open(path, "wb") as file:
    file.truncate(10**7 + 1)

  def hash_with(offset):
    with open(path, "r+b") as file:
      file.seek(offset)
      file.write(b"x")
    found = receipts.fingerprint(path)
    assert found["bytes"] == 10**7 + 1 and found["hashed"] != "all"
    return found["sha256"]

  first = receipts.fingerprint(path)
  middle = hash_with(5 * 10**6)
  assert receipts.is_unchanged(first)
  assert len({middle, hash_with(0), hash_with(10**7)}) == 3
  assert not receipts.is_unchanged(first)


@pytest.mark.graph
def test_of_a_large_data_set_the_ends_of_later_files_are_hashed(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(receipts, "_LARGE_SET", 10**6)
  paths = [str(tmp_path / name) for name in "abc"]
  for path, size in zip(paths, (3 * 10**6, 3 * 10**6, 10**6)):
    with open(path, "wb") as file:
      file.truncate(size)
  settings = option.make(ClassifierSettings, output_dir=str(tmp_path / "out"))
  receipt = receipts.Receipt("run_classifier.py", settings)
  receipt.start(settings, paths)
  found = run_outputs.read_json(tmp_path / "out" / "run.json")["files"]
  assert [file["hashed"] == "all" for file in found] == [True, False, True]
  assert all(map(receipts.is_unchanged, found))
