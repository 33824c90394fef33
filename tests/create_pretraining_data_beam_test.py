"""Tests of the pipeline, on Beam's DirectRunner where Beam is installed."""

import hashlib
import importlib
import importlib.util
import json
import sys

import commands
import fake_beam
import pytest

import bertlib.data

pytestmark = pytest.mark.process

SCRIPT = "create_pretraining_data_beam.py"
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s", "one", "two"]
VOCAB += ["three", "word", "of", "."]

needs_beam = pytest.mark.skipif(
  importlib.util.find_spec("apache_beam") is None,
  reason="pip install -e .[beam]",
)


@pytest.fixture(params=["stand-in", pytest.param("Beam", marks=needs_beam)])
def runner(request, monkeypatch):
  """Selects Beam or its stand-in."""
  if request.param == "stand-in":
    for name, module in fake_beam.modules().items():
      monkeypatch.setitem(sys.modules, name, module)
  yield
  # The next test may use the other of the two.
  if sys.modules.pop("bertlib.tasks.pretraining.beam_files", None):
    del bertlib.tasks.pretraining.beam_files


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Changes to a folder with a vocabulary and two texts."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "vocab.txt").write_text("\n".join(VOCAB))
  for name, number in (("a.txt", 40), ("b.txt", 25)):
    documents = (
      f"one word of {i} .\ntwo words .\r\nthree\rwords of two" * (1 + i % 5)
      for i in range(number)
    )
    (tmp_path / name).write_bytes("\n\n".join(documents).encode())
  return tmp_path


def flags(output_file, num_shards=3, input_file="a.txt,b*.txt"):
  return [
    f"--input_file={input_file}",
    "--max_predictions_per_seq=3",
    "--max_seq_length=16",
    f"--num_shards={num_shards}",
    f"--output_file={output_file}",
    "--vocab_file=vocab.txt",
  ]


def read_json(path):
  return json.loads(path.read_text())


def read_outputs(folder, name):
  """Contents of the three output files."""
  return [
    (folder / f"{name}-0000{number}-of-00003").read_bytes()
    for number in range(3)
  ]


@pytest.mark.parametrize("options", [(), ("--", "--direct_num_workers=2")])
def test_files_and_counts_equal_those_of_workers(folder, runner, options):
  blocks = flags("blocks")
  commands.succeed("create_pretraining_data.py", *blocks, "--num_workers=1")
  commands.succeed(SCRIPT, *flags("beam"), *options)
  outputs = read_outputs(folder, "beam")
  assert all(outputs)
  assert outputs == read_outputs(folder, "blocks")
  results = [
    read_json(folder / f"{name}.run.json")["results"]
    for name in ("beam", "blocks")
  ]
  assert results[0] == results[1]
  assert not [*folder.glob(".bert-tmp-*")]


def test_run_leaves_a_receipt(folder, runner):
  commands.succeed(SCRIPT, *flags("beam"), "--", "--direct_num_workers=2")
  receipt = read_json(folder / "beam.run.json")
  assert receipt["script"] == SCRIPT
  assert receipt["given"] == flags("beam")
  assert receipt["flags"]["random_seed"] == receipt["seeds"]["random_seed"]
  assert [(file["what"], file["path"]) for file in receipt["files"]] == [
    ("vocabulary", "vocab.txt"),
    ("data", "a.txt"),
    ("data", "b.txt"),
  ]
  assert receipt["results"]["documents"] == 65
  assert receipt["results"]["sha256"] == [
    hashlib.sha256(content).hexdigest()
    for content in read_outputs(folder, "beam")
  ]


def test_receipt_repeats_the_run(folder, runner):
  commands.succeed(SCRIPT, *flags("beam"))
  receipt = "beam.run.json"
  done = commands.succeed(
    SCRIPT,
    f"--rerun={receipt}",
    "--output_file=again",
    "--",
    "--direct_num_workers=2",
  )
  assert "results are identical to the earlier ones" in done.stderr
  assert read_outputs(folder, "again") == read_outputs(folder, "beam")
  line = commands.fail(SCRIPT, f"--rerun={receipt}")
  assert "Give another --output_file" in line
  (folder / "b.txt").write_text("one")
  line = commands.fail(SCRIPT, f"--rerun={receipt}", "--output_file=more")
  assert line.startswith(f"{SCRIPT}: error: b.txt: is not the file used in")


@pytest.mark.parametrize("runner", ["stand-in"], indirect=True)
def test_files_may_be_on_any_beam_file_system(folder, runner):
  commands.succeed(SCRIPT, *flags("near"))
  far = flags("far://far", input_file="far://a.txt,far://b*")
  commands.succeed(SCRIPT, *far)
  assert read_outputs(folder, "far") == read_outputs(folder, "near")
  receipt = read_json(folder / "far.run.json")
  assert [file["path"] for file in receipt["files"]] == [
    "vocab.txt",
    "far://a.txt",
    "far://b.txt",
  ]
  done = commands.succeed(
    SCRIPT, "--rerun=far.run.json", "--output_file=far://again"
  )
  assert "results are identical to the earlier ones" in done.stderr
  assert not [*folder.glob(".bert-tmp-*")]


@pytest.mark.parametrize("runner", ["stand-in"], indirect=True)
def test_doctor_reads_from_beam_file_systems(folder, runner):
  far = flags("far://far", input_file="far://a.txt,far://b*")
  done = commands.succeed(SCRIPT, "--doctor", *far)
  statuses = [line.split()[:2] for line in done.stdout.splitlines()]
  assert ["pass", "input"] in statuses and ["pass", "text"] in statuses
  assert not [status for status, _ in statuses if status != "pass"]
  assert not [*folder.glob("far*")]


@pytest.mark.parametrize(
  ("changed", "expected"),
  [
    ({"input_file": "c*.txt"}, "c*.txt: no such file"),
    ({"num_shards": 99}, "65 documents are too few for 99 output files"),
    ({"input_file": "bytes"}, "bytes, line 1, byte 4: 0xFF is not UTF-8"),
  ],
  ids=["missing input", "too few documents", "not UTF-8"],
)
def test_bad_input_prints_one_line(folder, runner, changed, expected):
  (folder / "bytes").write_bytes(b"one\xff")
  done = commands.run(SCRIPT, *flags("beam", **changed))
  assert done.returncode == 1
  line = done.stderr.splitlines()[-1]
  assert line.startswith(f"{SCRIPT}: error: ")
  assert expected in line
  assert "while running" not in line
  assert not [*folder.glob("*.run.json")]


def test_files_of_an_earlier_run_do_not_count(folder, runner):
  paths = [folder / f"beam-0000{number}-of-00003" for number in range(3)]
  for path in paths:
    path.write_bytes(b"earlier")
  (folder / "two.txt").write_text("one word .\n\ntwo words .\n")
  done = commands.run(SCRIPT, *flags("beam", input_file="two.txt"))
  assert done.returncode == 1
  line = done.stderr.splitlines()[-1]  # Beam logs the error before it
  (missing,) = [path.name for path in paths if path.read_bytes() == b"earlier"]
  assert f"2 documents are too few for 3 output files; {missing} got" in line
  assert not [*folder.glob("*.run.json")]


def test_missing_beam_error_contains_the_pip_command(monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  with pytest.raises(SystemExit, match=r"needs Apache Beam: pip install"):
    importlib.import_module(SCRIPT.removesuffix(".py"))
