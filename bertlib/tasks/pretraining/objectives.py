"""Objectives of pretraining: what a model predicts, and all that follows.

Whoever has an `Objective` asks it; nothing else compares objectives. Imports no
TensorFlow. The formula of each loss stands in `run_pretraining`, that of the
replaced tokens in `electra`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# A variable of the output layer of each loss. Names of features and of metrics
# begin with the name of their loss.
_HEADS = {
  "masked_lm": "cls/predictions/output_bias",
  "next_sentence": "cls/seq_relationship/output_weights",
  "disc": "discriminator_predictions/dense/kernel",
}


@dataclasses.dataclass(frozen=True)
class Objective:
  """The weighted sum of some losses, the primary one first."""

  name: str  # value of --objective
  losses: Sequence[str]
  huggingface_class: str  # with the same heads

  @property
  def predicts_tokens(self) -> bool:
    """True if masked tokens are predicted."""
    return "masked_lm" in self.losses

  @property
  def predicts_pairs(self) -> bool:
    """True if it is predicted whether the second of two segments is next."""
    return "next_sentence" in self.losses

  @property
  def has_generator(self) -> bool:
    """True if a second encoder fills the masks for the model."""
    return "disc" in self.losses

  def weight(self, loss: str) -> float:
    """Factor of a loss in the sum."""
    return getattr(self, f"{loss}_weight", 1.0)

  @property
  def description(self) -> Mapping[str, Any]:
    """Entries of `model.json`."""
    return {} if self == MLM_NSP else {"objective": self.name}

  @property
  def must_agree(self) -> Sequence[str]:
    """Entries of `model.json` that a resumed training has to have."""
    return ()

  @property
  def metrics(self) -> list[str]:
    """Metrics of an evaluation, the primary one first."""
    names = ([f"{loss}_loss", f"{loss}_accuracy"] for loss in self.losses)
    return [*itertools.chain.from_iterable(names), "loss"]

  @property
  def required_head(self) -> Mapping[str, str]:
    """The variable that each trained model has, with the error without it."""
    variable = _HEADS[self.losses[0]]
    head = "masked LM" if self.predicts_tokens else "next sentence prediction"
    fix = "Name a checkpoint of pretraining, not of fine-tuning"
    return {variable: f"has no {head}. {fix}"}

  def reads(self, feature: str) -> bool:
    """True for features of these losses, and for those of no loss."""
    return not any(
      feature.startswith(loss) for loss in _HEADS if loss not in self.losses
    )


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Objective):
  """Replaced-token detection (ELECTRA, Clark et al. 2020)."""

  masked_lm_weight: float = 1.0  # of the generator's loss
  disc_weight: float = 50.0
  temperature: float = 1.0  # of the generator's samples
  # Whether the model reads the generator's tables without a gradient to them,
  # plus tables of its own (DeBERTa V3, He et al. 2021, section 3.3).
  is_disentangled: bool = False

  @property
  def description(self) -> Mapping[str, Any]:
    """See base class."""
    own = vars(self).keys() - vars(MLM).keys()
    fields = {name: getattr(self, name) for name in sorted(own)}
    return {"objective": self.name, "replaced_tokens": fields}

  @property
  def must_agree(self) -> Sequence[str]:
    """See base class."""
    return [*self.description]

  @property
  def metrics(self) -> list[str]:
    """See base class."""
    own = "disc_auc", "disc_precision", "disc_recall"
    return [*own, "sampled_masked_lm_accuracy", *super().metrics]


MLM_NSP = Objective(
  "mlm_nsp", ("masked_lm", "next_sentence"), "BertForPreTraining"
)
MLM = Objective("mlm", ("masked_lm",), "BertForMaskedLM")
NSP = Objective("nsp", ("next_sentence",), "BertForNextSentencePrediction")
# At Hugging Face the generator is a second model.
ELECTRA = ReplacedTokens(
  "electra", ("masked_lm", "disc"), "ElectraForPreTraining"
)

OBJECTIVES = {each.name: each for each in (MLM_NSP, MLM, NSP, ELECTRA)}


def of_model(description: Mapping[str, Any]) -> Objective:
  """The objective of a trained model, by its `model.json`."""
  objective = OBJECTIVES[description.get("objective", MLM_NSP.name)]
  return dataclasses.replace(
    objective, **description.get("replaced_tokens", {})
  )


def of_variables(has_variable: Callable[[str], bool]) -> Objective | None:
  """The objective whose heads a checkpoint has; None for others or no heads."""
  found = [loss for loss, name in _HEADS.items() if has_variable(name)]
  return next((o for o in OBJECTIVES.values() if [*o.losses] == found), None)
