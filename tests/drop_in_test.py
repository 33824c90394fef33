"""Tests of the page for users of google-research/bert."""

import functools
import json
import os
import subprocess
import sys
import types

import commands
import pytest
import readme_test
from absl import flags
from absl.testing import flagsaver

import extract_features
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_squad

pytestmark = pytest.mark.unit

PAGE = readme_test.ROOT / "docs" / "coming_from" / "google_research_bert.md"
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] who went to rome ann ? . a b good bad"
CONFIG = {
  "vocab_size": 16,
  "hidden_size": 8,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "intermediate_size": 8,
  "max_position_embeddings": 16,
}
QUESTION = {"id": "q1", "question": "Who went to Rome?"}
DATA = [{"paragraphs": [{"context": "Ann went to Rome.", "qas": [QUESTION]}]}]


@pytest.mark.process
def test_code_on_the_page_runs_in_one_program(tmp_path):
  for path in (*readme_test.ROOT.glob("*.py"), readme_test.ROOT / "bertlib"):
    (tmp_path / path.name).symlink_to(path)
  (tmp_path / "vocab.txt").write_text("\n".join(WORDS.split()) + "\n")
  (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
  (tmp_path / "dev.json").write_text(json.dumps({"data": DATA}))
  (tmp_path / "a.tsv").write_text("good\tann\nbad\ta b\n")
  blocks = list(readme_test.blocks_of(PAGE))
  shell = "".join(b.text for b in blocks if b.language == "shell")
  subprocess.run(["bash", "-ec", shell], cwd=tmp_path, check=True)
  python = [block.text for block in blocks if block.language == "python"]
  assert len(python) == 6
  done = subprocess.run(
    [sys.executable, "-c", "\n".join(python)],
    capture_output=True,
    cwd=tmp_path,
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert set(json.loads(done.stdout.replace("'", '"'))) == {"q1"}
  assert (tmp_path / "eval.tf_record").stat().st_size


@pytest.mark.parametrize(
  "script",
  [
    run_classifier,
    run_squad,
    run_ner,
    run_embeddings,
    run_pretraining,
    extract_features,
  ],
)
def test_other_programs_need_no_flags_of_a_script(script):
  lengths = []
  program = types.SimpleNamespace(
    __file__="program.py",
    define_flags=functools.partial(script.define_flags, required=False),
    main=lambda _: lengths.append(flags.FLAGS.max_seq_length),
  )
  with commands.in_process(program) as main:
    main("--max_seq_length=64")
  assert lengths == [64]


def test_unknown_flags_are_ignored_if_named():
  with commands.in_process(run_squad), flagsaver.flagsaver():
    given = ["run_squad.py", "--output_dir=a", "--vocab_file=a"]
    given += ["--bert_config_file=a", "--save_summary_steps=3"]
    with pytest.raises(flags.UnrecognizedFlagError):
      flags.FLAGS(given)
    flags.FLAGS([*given, "--undefok=save_summary_steps"])
    assert flags.FLAGS.output_dir == "a"
