"""Writes the numbers of docs/tutorials/search_and_rerank.md, by its commands.

    SQUAD_DIR=DATA python tests/tutorial_numbers.py FOLDER

pastes the tutorial up to its third section in a folder, which has the encoder
of `make demo` in output/minilm. That takes a quarter of an hour on two cores.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import readme_test  # noqa: E402

from bertlib.io import text_files  # noqa: E402
from website import markdown  # noqa: E402

PAGE = ROOT / "docs" / "tutorials" / "search_and_rerank.md"
METRICS = ("ndcg@10", "mrr@10", "recall@10")


def run(folder):
  """The commands but for the first, which names the data, in a folder."""
  environment = os.environ | {
    "BERT_DIR": "output/minilm",
    "PYTHONPATH": str(ROOT),
  }
  (folder / "output/two_steps/beir/qrels").mkdir(parents=True, exist_ok=True)
  scripts = f"python {ROOT}/run_"
  for block in list(readme_test.blocks_of(PAGE))[1:5]:
    text = block.text.replace("python run_", scripts)
    program = {"shell": ["bash", "-ec"], "python": [sys.executable, "-c"]}
    subprocess.run(
      [*program[block.language], text], cwd=folder, env=environment, check=True
    )


def table(folder):
  """A table of metrics before and after reranking."""
  path = folder / "output/two_steps/reranker/eval_results.txt"
  lines = text_files.read_text(str(path)).splitlines()
  found = dict(line.split(" = ") for line in lines)

  def row(name, suffix):
    values = (float(found[f"eval_{metric}{suffix}"]) for metric in METRICS)
    return [name, *(f"{value:.3f}" for value in values)]

  return markdown.table(
    ["", *(f"`{metric}`" for metric in METRICS)],
    [row("search alone", "_before"), row("search and reranker", "")],
  )


def main(folder):
  """Runs the tutorial, and renews its table."""
  run(folder)
  markdown.renew(PAGE, two_steps=table(folder))


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
