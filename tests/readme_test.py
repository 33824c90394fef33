"""The commands of the documentation can be pasted.

Most tests check the commands without running them. The slow ones run every
block of README.md and docs/ in a copy of the checkout, on tiny data:

    python -m pytest -m slow tests/readme_test.py
"""

import functools
import importlib
import inspect
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import time
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import architecture_test
import commands
import pytest
import tiny_squad
from absl import app, flags

from benchmarks import side_by_side
from bertlib.cli import app as cli_app
from bertlib.training import loop
from website import build, reference

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).parent.parent
# Their commands are those of past runs.
RESULTS = sorted(ROOT.glob("docs/results/*.md"))
DOCUMENTS = [
  ROOT / "README.md",
  ROOT / "CONTRIBUTING.md",
  *(path for path in sorted(ROOT.glob("docs/**/*.md")) if path not in RESULTS),
  *sorted(ROOT.glob("[a-z]*/README.md")),
]
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
README = (ROOT / "README.md").read_text(encoding="utf-8")
each_document = pytest.mark.parametrize(
  "document",
  [*DOCUMENTS, *RESULTS],
  ids=lambda path: str(path.relative_to(ROOT)),
)


class Block(NamedTuple):
  """A block of code in a document.

  Attributes:
    location: file and line.
    language: "shell", "python", or "" for what a command prints.
    text: the code.
    remark: in the HTML comment just before it, or "". `not tested: REASON`
      where nothing but a network, a cluster or a TPU will do, `exit status N:
      REASON` where that is the point.
  """

  location: str
  language: str
  text: str
  remark: str


_BLOCK = re.compile(
  r"^( *)(?:<!-- ([^\n]*) -->\n\1)?```(\w*)\n(.*?)^\1```$", re.M | re.S
)


def blocks_of(document):
  text = document.read_text(encoding="utf-8")
  for found in _BLOCK.finditer(text):
    _, remark, language, code = found.groups()
    line = text.count("\n", 0, found.start()) + 1
    location = f"{document.relative_to(ROOT)}:{line}"
    yield Block(location, language, textwrap.dedent(code), remark or "")


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
SHELL_BLOCKS = [block for block in BLOCKS if block.language == "shell"]
each_shell_block = pytest.mark.parametrize(
  "block", SHELL_BLOCKS, ids=[block.location for block in SHELL_BLOCKS]
)


def commands_in(shell):
  """The simple commands of a shell block, each a list of words."""
  shell = re.sub(r"<<'?(\w+)'?\n.*?\n\1\n", "\n", shell, flags=re.S)
  shell = re.sub(r"^#.*\n", "", shell, flags=re.M)
  shell = shell.replace("\\\n", " ").replace("\n", ";")
  lexer = shlex.shlex(shell, posix=True, punctuation_chars=True)
  lexer.commenters = ""
  lexer.wordchars += "$%{}#:,@[]"
  words, commands = [], []
  for word in [*lexer, ";"]:
    if set(word) <= set("<>"):
      continue
    if set(word) <= set(";|&()"):
      if words:
        commands.append(words)
      words = []
    elif words or word not in ("do", "done", "then"):
      words.append(word)
  return commands


# The flags of every command


@functools.cache
def flags_of(script):
  """Names of the flags of "run_squad.py" or "examples.graph_tf1"."""
  name = script.removesuffix(".py")
  source = (ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
  if "\nimport torch\n" in source:  # which is in the environment of peers
    names = re.findall(r"^    (\w+)=", source.rpartition("__main__")[2], re.M)
    return frozenset(names) | side_by_side.BASELINE.keys()
  # The one on Beam, which may not be installed, has the flags of the other.
  module = importlib.import_module(name.removesuffix("_beam"))
  if not hasattr(module, "define_flags"):
    module = SimpleNamespace(define_flags=lambda: define_flags_of(name))
  with commands.in_process(module):
    # And what `app.run` adds.
    return frozenset(flags.FLAGS) | {"flagfile", "tensorflow_log"}


def define_flags_of(benchmark):
  """Runs a benchmark until its flags are defined, which it does at last."""
  with mock.patch.object(app, "run"), mock.patch.object(cli_app, "run"):
    runpy.run_module(benchmark, run_name="__main__")


COMMANDS = [name for name, *_ in reference.commands()]


def python_commands(shell):
  for words in commands_in(shell):
    while words and re.fullmatch(r"\w+=.*", words[0]):
      words = words[1:]
    if words and words[0] == "srun":
      words = words[words.index("python") :]
    if not words or not words[0].endswith("python") or "-c" in words:
      continue
    _, script, *arguments = words
    if script == "-m":
      script, *arguments = arguments
    others = "venv", "zipfile", "bertlib.tensorflow_1", "output/", "tests/"
    if not script.startswith(others):
      yield script, arguments


def flag_names(words):
  """Names of the flags among words, up to a `--`."""
  if "--" in words:
    words = words[: words.index("--")]
  return {
    found[1] for word in words if (found := re.match(r"--?(\w[\w-]*)", word))
  }


@each_shell_block
def test_commands_have_the_flags_they_are_given(block):
  for script, arguments in python_commands(block.text):
    known = flags_of(script)
    known |= {f"no{name}" for name in known}
    assert flag_names(arguments) <= known, script


# Of pip, TensorBoard, absl, Beam, gunicorn and Slurm.
_OTHERS = {
  *("dask_client_address", "direct_num_workers", "direct_running_mode"),
  *("flink_master", "region", "runner", "spark_master_url", "temp_location"),
  *("index-url", "logdir", "no-deps", "preload", "undefok"),
  *("exclusive", "gpus-per-node", "gpus-per-task", "ntasks-per-node"),
  *("signal", "wait"),
}


# These name the flags of other projects.
OTHERS_FLAGS = [
  ROOT / "docs" / "coming_from" / f"{name}.md"
  for name in (
    *("bert_as_service", "dl4marco_bert", "nvidia_bert", "transformers"),
  )
]


@pytest.mark.parametrize(
  "document", [path for path in DOCUMENTS if path not in OTHERS_FLAGS], ids=str
)
def test_flags_named_in_the_text_exist(document):
  text = prose_of(document)
  scripts = {
    f"{folder}.{path.stem}"
    for folder in ("examples", "benchmarks")
    for path in (ROOT / folder).glob("*.py")
    if '__name__ == "__main__"' in path.read_text()
  }.union(COMMANDS)
  known = _OTHERS.union(*map(flags_of, scripts))
  named = set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", text))
  named -= {name for name in named if name.endswith("_")}
  assert named <= known | {"help"} | {f"no{name}" for name in known}


def test_only_known_remarks_stand_before_blocks():
  remarks = [block.remark for block in BLOCKS if block.remark]
  known = r"not tested: needs .+|not tested: downloads .+|exit status \d: .+"
  assert [r for r in remarks if not re.fullmatch(known, r)] == []


def module_tree():
  blocks = blocks_of(ARCHITECTURE)
  return next(block.text for block in blocks if "modeling.py  " in block.text)


def test_the_page_on_architecture_has_the_order_of_imports():
  shown = re.findall(r"^  (\w+)/ ", module_tree(), re.M)
  assert shown == [*architecture_test.ORDER]


def test_the_page_on_architecture_names_every_command_and_folder():
  named = set(re.findall(r"^ *([\w.]+/?)(?: |$)", module_tree(), re.M))
  folders = [path.parent for path in ROOT.glob("bertlib/**/__init__.py")]
  assert {path.name for path in ROOT.glob("*.py")} <= named
  assert {f"{folder.name}/" for folder in folders} <= named


def test_the_page_on_architecture_names_modules_that_exist():
  text = ARCHITECTURE.read_text(encoding="utf-8")
  folders = (".", "bertlib", "tests", "examples")
  for name in re.findall(r"`([\w/]+\.py)`", text):
    assert any((ROOT / folder / name).exists() for folder in folders), name


def test_the_page_on_architecture_names_functions_of_a_run():
  page = ARCHITECTURE.read_text(encoding="utf-8")
  calls = re.findall(r"^\| `(\w+)\((.*)\)`", page, re.M)
  assert calls
  for name, arguments in calls:
    parameters = inspect.signature(getattr(loop, name)).parameters
    assert {*arguments.split(", ")} <= {*parameters}, name


def test_readme_makefile_and_package_name_the_same_oldest_python():
  makefile = (ROOT / "Makefile").read_text()
  package = (ROOT / "pyproject.toml").read_text()
  (oldest,) = re.findall(r'requires-python = ">=(3\.\d+)"', package)
  for text in (README, makefile):
    assert set(re.findall(r"Python (3\.\d+)\s+or\s+newer", text)) == {oldest}


def test_the_page_on_installation_has_every_optional_package():
  package = (ROOT / "pyproject.toml").read_text()
  extras = package.partition("[project.optional-dependencies]")[2]
  names = re.findall(r"^(\w+) = \[", extras.partition("\n[")[0], re.M)
  page = (ROOT / "docs/how_to/installation.md").read_text(encoding="utf-8")
  table = page.partition("## Optional packages")[2].partition("\n## ")[0]
  assert sorted(names) == sorted(re.findall(r"^\| `(\w+)`", table, re.M))


def test_citation_changelog_and_package_have_the_same_version():
  package = (ROOT / "pyproject.toml").read_text()
  (version,) = re.findall(r'^version = "(.+)"$', package, re.M)
  changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
  newest = re.search(r"^## [\d-]+: .*?(\S+)$", changes, re.M)[1]
  citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
  (in_file,) = re.findall(r"^version: (.+)$", citation, re.M)
  assert version == newest == in_file


# Links


def prose_of(document):
  return _BLOCK.sub("", document.read_text(encoding="utf-8"))


def anchors_of(document):
  """Anchors of the headings, as GitHub makes them."""
  headings = re.findall(r"^#+ (.+)$", prose_of(document), re.M)
  return {
    re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    for heading in headings
  }


def links_in(document):
  for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(document)):
    if "://" not in target:
      path, _, anchor = target.partition("#")
      linked = (document.parent / path).resolve() if path else document
      yield linked, anchor


@functools.cache
def generated_pages():
  """Paths that the pages on flags would have in docs/."""
  return {ROOT / "docs" / page for page in reference.pages()}


@each_document
def test_links_lead_to_files_and_headings(document):
  for path, anchor in links_in(document):
    assert path.exists() or path in generated_pages(), path
    if anchor and path.exists():
      assert anchor in anchors_of(path), f"{path}#{anchor}"


def test_pages_of_the_site_link_to_pages_of_the_site():
  sources = build.sources().values()
  assert [
    (document, path)
    for document in sources
    if document.suffix == ".md"
    for path, _ in links_in(document)
    if path not in {*sources, *generated_pages()}
  ] == []


# Running the blocks

# So much at most, of what takes long.
CAPS = {
  "gradient_accumulation_steps": 5,
  "max_eval_steps": 2,
  "num_shards": 2,
  "num_train_epochs": 1,
  "num_train_steps": 10,
  "num_warmup_steps": 2,
  "num_workers": 2,
  "passes": 1,
  "save_checkpoints_steps": 2,
  "seeds": 2,
  "train_batch_size": 16,
}


def shortened(shell):
  """A block whose numbers are no higher than those above."""

  def cap(found):
    name, number = found.groups()
    return f"--{name}={min(int(number), CAPS[name])}"

  return re.sub(rf"--({'|'.join(CAPS)})=(\d+)", cap, shell)


def write_data(folder):
  """Tiny data sets in the formats of the real ones."""
  for part in ("glue/MRPC", "squad", "ner", "text"):
    (folder / part).mkdir(parents=True)
  for split, number in (("train", 32), ("dev", 16), ("test", 8)):
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"]
    for i in range(number):
      second = f"It made {i} million ." if i % 2 else f"Rain fell on day {i} ."
      first = f"Firm {i} made a profit of {i} million ."
      lines.append(f"{i % 2}\t{i}1\t{i}2\t{first}\t{second}\n")
    (folder / "glue" / "MRPC" / f"{split}.tsv").write_text("".join(lines))
  for split, number in (("train", 12), ("dev", 4)):
    data = {"version": "1.1"} | tiny_squad.make_data(False, number)
    path = folder / "squad" / f"{split}-v1.1.json"
    path.write_text(json.dumps(data))
  sentence = "Ann\tB-person\nleft\tO\nNew\tB-location\nYork\tI-location\n.\tO\n"
  for split, number in (("train", 32), ("dev", 8), ("test", 4)):
    (folder / "ner" / f"{split}.conll").write_text(f"{sentence}\n" * number)
  for name in ("train.txt", "heldout.txt"):
    shutil.copy(ROOT / "sample_text.txt", folder / "text" / name)


def copy_checkout(folder):
  listed = subprocess.run(
    ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT, capture_output=True, text=True, check=True,
  )  # fmt: skip
  for name in filter(None, listed.stdout.split("\0")):
    if (ROOT / name).exists():
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(ROOT / name, folder / name)


def make_environment(checkout):
  """An environment as `make` makes one, of this one's packages and new ones."""
  venv = checkout / ".venv"
  subprocess.run([sys.executable, "-m", "venv", venv], check=True)
  version = "python{}.{}".format(*sys.version_info)
  packages = venv / "lib" / version / "site-packages"
  (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
  made_with = pathlib.Path(sys.prefix, "made_with.mk")
  if made_with.exists():
    shutil.copy(made_with, venv)
  marker = subprocess.run(
    ["make", "--silent", "--eval=marker: ; @echo $(environment)", "marker"],
    cwd=checkout, env=environment(), capture_output=True, text=True, check=True,
  )  # fmt: skip
  (checkout / marker.stdout.strip()).touch()


def environment():
  unset = ("MAKEFLAGS", "MFLAGS", "TENSORFLOW", "BERT_DIR", "TF_CONFIG")
  programs = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
  environ = {k: v for k, v in os.environ.items() if k not in unset}
  return environ | {"PATH": programs, "PYTHON": sys.executable}


def paste(block, checkout, data):
  """Runs a block as if pasted after those before; the result of bash."""
  variables = checkout.parent / "variables"
  code = shortened(block.text).replace("path/to", str(data))
  if block.language == "python":
    (checkout.parent / "block.py").write_text(code)
    code = "python - < ../block.py\n"
  begin = f"set -eo pipefail\n[ ! -e {variables} ] || . {variables}\n"
  end = f"\nexport -p > {variables}\n"
  return subprocess.run(
    ["bash", "-c", begin + code + end],
    cwd=checkout,
    env=environment(),
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
    timeout=3600,
  )


def files_in(checkout):
  ignored = re.compile(r"(output|\.venv|.*\.egg-info|__pycache__)")
  return {
    os.path.join(folder, name)
    for folder, folders, names in os.walk(checkout)
    for name in [*names, *folders]
    if not any(map(ignored.match, os.path.join(folder, name).split(os.sep)))
  }


# Pages of the site, in order.
NAVIGATION = re.findall(
  r'"([\w/]+\.md)"', (ROOT / "website" / "zensical.toml").read_text("utf-8")
)

# README.md and the pages in the order of the site, without the one whose code
# tests/drop_in_test.py runs.
PAGES = ["README.md"]
PAGES += [
  f"docs/{page}"
  for page in NAVIGATION
  if ROOT / "docs" / page in DOCUMENTS
  and "/" in page
  and "google_research" not in page
]

# Pages whose commands read output of other pages; all read that of the README.
NEEDS = {
  "docs/coming_from/dl4marco_bert.md": ["docs/how_to/reranking.md"],
  "docs/how_to/comparing_runs.md": ["docs/how_to/early_stopping.md"],
  "docs/how_to/converting_checkpoints.md": [
    "docs/how_to/fine_tuning.md",
    "docs/tutorials/pretrain_on_your_text.md",
    "docs/how_to/export_and_serving.md",
  ],
  "docs/how_to/export_and_serving.md": ["docs/how_to/fine_tuning.md"],
  "docs/how_to/int8.md": ["docs/how_to/fine_tuning.md"],
  "docs/how_to/onnx.md": ["docs/how_to/int8.md"],
  "docs/how_to/reproducibility.md": ["docs/how_to/fine_tuning.md"],
  "docs/tutorials/serve_raw_text.md": ["docs/tutorials/classify_your_texts.md"],
}


class Checkout:
  """A copy of the checkout, with an environment, into which pages are pasted.

  `files` are those before anything is pasted.
  """

  def __init__(self, parent):
    self.folder, self._data = parent / "checkout", parent / "data"
    self._data.mkdir()
    copy_checkout(self.folder)
    for path in self.folder.glob("*/*.flags"):
      path.write_text(shortened(path.read_text()))
    write_data(self._data)
    self.files = files_in(self.folder)
    make_environment(self.folder)
    self._failures = {}

  def failures(self, page):
    """Locations of the blocks of a page that fail; runs a page once."""
    if page in self._failures:
      return self._failures[page]
    for needed in NEEDS.get(page, ["README.md"] if page != "README.md" else []):
      assert self.failures(needed) == [], needed
    blocks = [
      block
      for block in blocks_of(ROOT / page)
      if block.language in ("shell", "python")
      and not block.remark.startswith("not tested")
    ]
    self._failures[page] = [b.location for b in blocks if not self._paste(b)]
    return self._failures[page]

  def _paste(self, block):
    status = re.match(r"exit status (\d)", block.remark)
    begin = time.monotonic()
    done = paste(block, self.folder, self._data)
    seconds = time.monotonic() - begin
    print(
      f"{block.location}: status {done.returncode}, {seconds:.0f} s", flush=True
    )
    if done.returncode == int(status[1] if status else 0):
      return True
    print(done.stdout[-4000:], flush=True)
    return False


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
  return Checkout(tmp_path_factory.mktemp("pasted"))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_when_pasted(checkout, page):
  assert checkout.failures(page) == []
  assert files_in(checkout.folder) == checkout.files


@pytest.mark.parametrize(
  "module, name",
  [
    ("bertlib.tasks.classification.classification_decoding", "Prediction"),
    ("bertlib.tasks.squad.squad_decoding", "Answer"),
    ("bertlib.tasks.ner.ner_decoding", "EntityPrediction"),
  ],
)
def test_the_page_on_python_has_all_fields_of_a_prediction(module, name):
  page = (ROOT / "docs/reference/python_api.md").read_text(encoding="utf-8")
  documented, current = {}, None
  for of_class, cell in re.findall(r"(?m)^\| (`\w+` )?\| ([`\w, ]+) \|", page):
    current = of_class.strip("` ") or current
    documented.setdefault(current, []).extend(re.findall(r"\w+", cell))
  fields = getattr(importlib.import_module(module), name)._fields
  assert documented[name] == list(fields)
