"""Order of the pages on the site."""

from __future__ import annotations

import json
from collections.abc import Iterable

# Pages by section. A page that is not named here is added to the end of the
# last section that names its folder.
SECTIONS = {
  "Tutorials": [
    "tutorials/classify_your_texts.md",
    "tutorials/answer_questions.md",
    "tutorials/find_entities.md",
    "tutorials/embedding_search.md",
    "tutorials/pretrain_on_your_text.md",
    "tutorials/serve_raw_text.md",
    "tutorials/move_a_project.md",
  ],
  "Tasks": [
    "how_to/installation.md",
    "how_to/models.md",
    "how_to/fine_tuning.md",
    "how_to/question_answering.md",
    "how_to/named_entities.md",
    "how_to/embeddings.md",
    "how_to/feature_extraction.md",
    "how_to/pretraining.md",
    "how_to/pretraining_cost.md",
    "how_to/domain_vocabulary.md",
    "how_to/export_and_serving.md",
    "how_to/converting_checkpoints.md",
    "how_to/report_and_doctor.md",
    "how_to/comparing_runs.md",
  ],
  "How-to": [
    "how_to/faq.md",
    "how_to/tensorflow_1_scripts.md",
    "how_to/tf_estimator.md",
    "how_to/out_of_memory.md",
    "how_to/speed.md",
    "how_to/mixed_precision.md",
    "how_to/int8.md",
    "how_to/checkpoints_and_resuming.md",
    "how_to/early_stopping.md",
    "how_to/gpus.md",
    "how_to/multiple_gpus.md",
    "how_to/tpu.md",
    "how_to/small_data_sets.md",
    "how_to/imbalanced_labels.md",
    "how_to/long_texts.md",
    "how_to/languages.md",
    "how_to/reproducibility.md",
    "how_to/offline.md",
  ],
  "Reference": [
    "reference/flags.md",
    "reference/flags/run_classifier.md",
    "reference/flags/run_squad.md",
    "reference/flags/run_ner.md",
    "reference/flags/run_embeddings.md",
    "reference/flags/run_pretraining.md",
    "reference/output_files.md",
    "reference/record_features.md",
    "reference/signatures.md",
    "reference/python_api.md",
    "reference/compatibility.md",
  ],
  "Explanation": [
    "explanation/architecture.md",
    "explanation/unpadding.md",
    "explanation/randomness.md",
    "explanation/equal_to_the_original.md",
    "explanation/changing_the_model.md",
  ],
  "Coming from": ["coming_from/google_research_bert.md"],
  "Results": [
    "results/fine_tuning.md",
    "results/performance.md",
    "results/earlier.md",
  ],
  "About": ["about/changelog.md", "about/contributing.md"],
}


def sections(pages: Iterable[str]) -> dict[str, list[str]]:
  """The given pages by section, in order."""
  unlisted = set(pages) - {"index.md"}
  found = {}
  for title, names in SECTIONS.items():
    found[title] = [name for name in names if name in unlisted]
    unlisted -= set(names)
  folders = {
    _folder(name): title for title, names in SECTIONS.items() for name in names
  }
  for name in sorted(unlisted):
    found[folders[_folder(name)]].append(name)
  return {title: names for title, names in found.items() if names}


def _folder(page: str) -> str:
  return page.split("/")[0]


def as_toml(pages: Iterable[str]) -> str:
  """The setting `nav` of Zensical."""
  entries = {"Home": "index.md", **sections(pages)}
  lines = [
    f"  {{ {json.dumps(title)} = {json.dumps(names)} }},\n"
    for title, names in entries.items()
  ]
  return f"nav = [\n{''.join(lines)}]\n"
