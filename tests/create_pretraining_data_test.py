"""Tests of the command that creates pretraining data."""

import functools
import gc
import gzip
import hashlib
import importlib
import os
import random
import re
import sys

import absl.flags
import commands
import pytest
import reference_data
import run_outputs
from absl.testing import flagsaver
from parametrize import parametrize
from pretraining_corpus import Corpus, read_file

import create_pretraining_data
import tokenization
from bertlib.cli.errors import InputError
from bertlib.io import folder_lock, output_folders
from bertlib.tasks.pretraining.recipe import Recipe

pytestmark = pytest.mark.unit

SCRIPT = "create_pretraining_data.py"


def golden_run(name, folder):
  """Facts of a run by name, its recipe, its input files and its outputs."""
  path = functools.partial(reference_data.golden, "pretraining_data")
  runs = run_outputs.read_json(path("runs.json"))
  (run,) = (run for run in runs if run["name"] == name)
  recipe = Recipe(vocab_file=reference_data.vocab(run["vocab"]), **run["flags"])
  outputs = [str(folder / output["file"]) for output in run["outputs"]]
  return run, recipe, [*map(path, run["input_files"])], outputs


def assert_golden(paths, run):
  """Checks that the files equal those of the reference."""
  for path, expected in zip(paths, run["outputs"]):
    records = read_file(path)
    assert len(records) == expected["records"]
    content = hashlib.sha256(b"".join(records)).hexdigest()
    assert content == expected["deterministic_sha256"]


@pytest.mark.graph
@parametrize(
  "name",
  "readme",
  "short",
  "cased_two_in_three_out",
  "edge",
  "one_document",
  pytest.param("chinese", marks=pytest.mark.needs_data),
  "later_whole_word",
  "later_whole_word_edge",
  "later_plain",
)
def test_records_equal_the_reference(name, tmp_path):
  run, recipe, inputs, outputs = golden_run(name, tmp_path)
  counts = create_pretraining_data.write_in_memory(recipe, inputs, outputs)
  assert_golden(outputs, run)
  for count, field in [
    ("records", "records"),
    ("masked tokens", "masked"),
    ("random next sentences", "random_next"),
  ]:
    assert counts[count] == sum(output[field] for output in run["outputs"])


@pytest.mark.graph
@parametrize("name", "cased_two_in_three_out", "later_whole_word_edge")
def test_instances_written_by_a_caller_equal_the_reference(name, tmp_path):
  run, recipe, inputs, outputs = golden_run(name, tmp_path)
  tokenizer = tokenization.FullTokenizer(
    recipe.vocab_file, recipe.do_lower_case
  )
  instances = create_pretraining_data.create_training_instances(
    inputs,
    tokenizer,
    recipe.max_seq_length,
    recipe.dupe_factor,
    recipe.short_seq_prob,
    recipe.masked_lm_prob,
    recipe.max_predictions_per_seq,
    random.Random(recipe.random_seed),
    do_whole_word_mask=recipe.do_whole_word_mask,
  )
  lengths = recipe.max_seq_length, recipe.max_predictions_per_seq
  create_pretraining_data.write_instance_to_example_files(
    instances, tokenizer, *lengths, outputs
  )
  assert_golden(outputs, run)


def test_command_of_the_readme_equals_the_reference(tmp_path):
  run, recipe, inputs, _ = golden_run("readme", tmp_path)
  output = tmp_path / "tf_examples.tfrecord"
  log = commands.succeed(
    SCRIPT,
    f"--input_file={inputs[0]}",
    f"--output_file={output}",
    f"--vocab_file={recipe.vocab_file}",
    *("--do_lower_case=True", "--random_seed=12345", "--dupe_factor=5"),
    *("--max_seq_length=128", "--max_predictions_per_seq=20"),
    "--masked_lm_prob=0.15",
  ).stderr
  assert_golden([output], run)
  assert "  records: 60" in log
  assert f"Records in {output}" in log
  assert {*tmp_path.iterdir()} == {output, tmp_path / f"{output.name}.run.json"}


def test_flags_set_from_python_are_split_at_commas(tmp_path, vocab_file):
  text = [tmp_path / "a.txt", tmp_path / "b.txt"]
  for path in text:
    path.write_bytes(b"".join(Corpus([[[1, 2, 3]] * 30]).lines))
  flag_values = absl.flags.FLAGS
  with commands.in_process(create_pretraining_data), flagsaver.flagsaver():
    flag_values([SCRIPT, "--input_file=a", "--output_file=a", "--vocab_file=a"])
    flag_values.vocab_file = vocab_file
    flag_values.input_file = ",".join(map(str, text))
    flag_values.output_file = f"{tmp_path}/one, {tmp_path}/two"
    create_pretraining_data.main(None)
    assert gc.isenabled()  # a caller's graphs are freed
  assert (
    len(read_file(tmp_path / "one")) >= len(read_file(tmp_path / "two")) > 0
  )


@pytest.fixture
def flags(tmp_path, text_file, vocab_file):
  """Returns a function that creates the flags of a command."""

  def write(**changed):
    values = {
      "input_file": text_file,
      "output_file": tmp_path / "out",
      "vocab_file": vocab_file,
      "dupe_factor": 2,
    }
    return commands.as_flags(values | changed)

  return write


@pytest.fixture
def compressed(text_file):
  """The content of a compressed text file."""
  with open(text_file, "rb") as file:
    return gzip.compress(file.read())


@pytest.mark.process
@parametrize("num_workers", 0, 1)
def test_gzip_text_gives_the_same_records(
  tmp_path, flags, compressed, num_workers
):
  (tmp_path / "text.txt.gz").write_bytes(compressed)
  changed = {"num_workers": num_workers}
  commands.succeed(SCRIPT, *flags(**changed))
  changed |= {"input_file": tmp_path / "*.gz", "output_file": tmp_path / "gz"}
  commands.succeed(SCRIPT, *flags(**changed))
  assert (tmp_path / "gz").read_bytes() == (tmp_path / "out").read_bytes()


def test_corpus_of_one_document_logs_a_warning(tmp_path, flags):
  (tmp_path / "one").write_text("w0000 w0003\nw0006\nw0009\n")
  log = commands.succeed(SCRIPT, *flags(input_file=tmp_path / "one")).stderr
  assert "documents: 1" in log
  assert re.search(
    r"([1-9]\d*) of \1 random next sentences come from the same document", log
  )


def test_blank_line_after_every_sentence_logs_a_warning(tmp_path, flags):
  (tmp_path / "blank").write_text("w0000 w0003\n\nw0006\n\nw0009\n")
  log = commands.succeed(SCRIPT, *flags(input_file=tmp_path / "blank")).stderr
  assert "3 of 3 documents have only one sentence" in log
  log = commands.succeed(SCRIPT, *flags()).stderr
  assert "have only one sentence" not in log
  assert "come from the same document" not in log


def test_split_sentences_names_the_missing_package(monkeypatch, flags):
  monkeypatch.setitem(sys.modules, "sentencex", None)
  line = commands.fail(SCRIPT, *flags(split_sentences="en", num_workers=1))
  assert line.endswith("pip install sentencex")


@pytest.mark.process
@parametrize(
  "changed, message",
  ({"input_file": "{}/empty"}, "there is no text in it"),
  ({"input_file": "{}/gone*"}, "{}/gone*: no such file"),
  ({"input_file": "{}/empty", "num_workers": 1}, "0 documents are too few"),
  ({"input_file": "{}/cut.gz", "num_workers": 1}, "{}/cut.gz: "),
  ({"vocab_file": "{}/gone"}, "{}/gone: cannot be read; name a vocab.txt"),
  ({"output_file": "{0}/a,{0}/./a"}, "--output_file: names a file twice"),
  ({"output_file": "{0}/a,{0}/b", "num_shards": 2}, "one --output_file"),
  ({"num_workers": 1, "num_shards": 21}, "20 documents are too few for 21"),
  ({"mask_split": "80,20"}, "--mask_split=80,20: not three parts"),
  ids=str,
)
def test_bad_input_prints_one_line(
  tmp_path, flags, compressed, changed, message
):
  (tmp_path / "empty").write_text("\n \n")
  (tmp_path / "cut.gz").write_bytes(compressed[:100])
  before = set(os.listdir(tmp_path))
  changed = {
    name: value.format(tmp_path) if isinstance(value, str) else value
    for name, value in changed.items()
  }
  assert message.format(tmp_path) in commands.fail(SCRIPT, *flags(**changed))
  assert set(os.listdir(tmp_path)) == before


def test_records_do_not_depend_on_the_encoding(tmp_path, vocab_file):
  text = "w0001 w0002 é\r\nw0003\n\n中 w0004 w0005\nw0006 \u2028 w0007"
  found = set()
  for encoding in ("utf-8", "utf-8-sig", "utf-16", "gb18030"):
    (tmp_path / "text").write_bytes(text.encode(encoding))
    recipe = Recipe(
      vocab_file=str(vocab_file), dupe_factor=2, encoding=encoding
    )
    files = [str(tmp_path / "text")], [str(tmp_path / "out")]
    create_pretraining_data.write_in_memory(recipe, *files)
    found.add((tmp_path / "out").read_bytes())
  assert len(found) == 1


def test_folders_created_for_a_failed_run_are_removed(tmp_path):
  (tmp_path / "kept").mkdir()
  paths = [f"{tmp_path}/kept/new/a", f"{tmp_path}/b/c/d"]
  with pytest.raises(ZeroDivisionError), output_folders.folders_for(paths):
    assert all(map(os.path.isdir, map(os.path.dirname, paths)))
    raise ZeroDivisionError
  assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


def test_shards_of_one_name_are_written_by_one_run(tmp_path, flags):
  with (
    commands.in_process(create_pretraining_data) as main,
    folder_lock.lock_files([str(tmp_path / "out")]),
    pytest.raises(InputError, match=r"out: process .* another --output_file$"),
  ):
    main(*flags(num_shards=500))


@parametrize("do_lower_case", False, True)
def test_vocabulary_of_the_other_casing_logs_a_warning(do_lower_case, caplog):
  vocab_file = reference_data.vocab("uncased")
  create_pretraining_data.load_tokenizer(
    Recipe(vocab_file=vocab_file, do_lower_case=do_lower_case)
  )
  assert ("is uncased" in caplog.text) == (not do_lower_case)


def test_missing_beam_error_contains_the_pip_command(monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  with pytest.raises(SystemExit, match=r"needs Apache Beam: pip install"):
    importlib.import_module("create_pretraining_data_beam")
