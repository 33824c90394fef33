#!/usr/bin/env bash
# pytrec-eval accepts recip_rank.10 and does not cut the ranking at ten.
#
# Versions: pytrec-eval-terrier 0.5.11.
# Expected: P.10, success.10 and map_cut.10 look at ten documents; recip_rank.10
#   is MRR@10, the measure of MS MARCO, or an error.
# Happens: the measure is accepted, the 10 is dropped, and the key of the result
#   is "recip_rank". A relevant document at rank 12 counts 1/12 instead of 0.
# Matters: figures called MRR@10 are then too high, more so for weak rankings.
#   Cut each run to ten documents before the evaluation.
# Output:
#   asked for: P.10, recip_rank.10, success.10
#   received:  {'P_10': 0.0, 'recip_rank': 0.0833, 'success_10': 0.0}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  pytrec-eval-terrier==0.5.11 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import pytrec_eval

MEASURES = {"P.10", "recip_rank.10", "success.10"}
ranking = {f"document{rank}": float(-rank) for rank in range(1, 21)}
evaluator = pytrec_eval.RelevanceEvaluator(
  {"query": {"document12": 1}}, MEASURES
)
found = evaluator.evaluate({"query": ranking})["query"]
print(f"asked for: {', '.join(sorted(MEASURES))}")
print(f"received:  { {name: round(found[name], 4) for name in sorted(found)} }")
if abs(found.get("recip_rank", 0) - 1 / 12) > 1e-6 or found["P_10"] > 0:
  sys.exit("changed: recip_rank.10 is cut at ten, or is not received")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py"
