"""Tests of the objectives of pretraining, and of who may compare them."""

import ast
from pathlib import Path

import commands
import pytest
from parametrize import parametrize

import run_pretraining
from bertlib.tasks.pretraining import objectives
from bertlib.tasks.pretraining.objectives import MLM, MLM_NSP, NSP, OBJECTIVES

pytestmark = pytest.mark.unit

ROOT = Path(commands.ROOT)
MODULES = [
  path
  for path in (*ROOT.glob("*.py"), *ROOT.glob("bertlib/**/*.py"))
  if path.name != "objectives.py"
]
NAMES = {*OBJECTIVES, *(name.upper() for name in OBJECTIVES)}
# Kinds of models of transformers with the name of an objective.
MODEL_TYPES = {"electra"}


def comparisons(code, names):
  """Lines of a module that decide by the name of an objective."""
  for node in ast.walk(ast.parse(code)):
    parts = node.keys if isinstance(node, ast.Dict) else ()
    if isinstance(node, ast.Compare):
      parts = ast.walk(node)
    fields = [
      getattr(p, f, None) for p in parts for f in ("value", "attr", "id")
    ]
    if names.intersection(fields):
      yield node.lineno


@parametrize("path", *MODULES, ids=lambda path: path.name)
def test_objectives_are_compared_in_their_module_alone(path):
  names = NAMES - MODEL_TYPES if path.parent.name == "exchange" else NAMES
  assert not [*comparisons(path.read_text(encoding="utf-8"), names)]


@parametrize(
  "line",
  'a == "mlm"',
  'a.b in ("nsp",)',
  "a is not MLM_NSP",
  "a != objectives.MLM",
  '{"mlm": 1}[a]',
)
def test_comparisons_are_found(line):
  assert [*comparisons(line, NAMES)]


def test_each_loss_has_a_formula():
  losses = {loss for each in OBJECTIVES.values() for loss in each.losses}
  assert losses == run_pretraining.LOSSES.keys()


def test_features_of_other_losses_are_not_read():
  names = "input_ids", "masked_lm_ids", "next_sentence_labels", "position_ids"
  read = {
    name: [feature for feature in names if each.reads(feature)]
    for name, each in OBJECTIVES.items()
  }
  assert read == {
    "mlm_nsp": [*names],
    "mlm": ["input_ids", "masked_lm_ids", "position_ids"],
    "nsp": ["input_ids", "next_sentence_labels", "position_ids"],
    "electra": ["input_ids", "masked_lm_ids", "position_ids"],
  }


@parametrize("objective", *OBJECTIVES.values())
def test_a_model_has_the_objective_that_it_was_described_with(objective):
  assert objectives.of_model(objective.description) == objective


def test_a_checkpoint_has_the_objective_of_its_heads():
  heads = {MLM: ["cls/predictions/output_bias"]}
  heads[NSP] = ["cls/seq_relationship/output_weights"]
  heads[MLM_NSP] = heads[MLM] + heads[NSP]
  for objective, names in heads.items():
    assert objectives.of_variables(names.__contains__) == objective
  assert objectives.of_variables([].__contains__) is None
