#!/usr/bin/env bash
# Importing OpenVINO takes the log handler of absl away from the whole program.
#
# Versions: openvino 2026.4.1, absl-py 2.5.1.
# Expected: a program that logs by absl, as those with absl.app.run do, logs in
#   the same form, to the same place, after it has imported a library.
# Happens: `import openvino` imports its model converter, which removes absl's
#   handler from the root logger. absl then calls logging.basicConfig: later
#   lines have neither time nor place, and do not go where the handler wrote,
#   such as to a file.
# Matters: the log file of a job ends where the engine is loaded, without an
#   error. A test that reads the log depends on the tests before it.
# Output:
#   handlers before: [<ABSLHandler (NOTSET)>]
#   handlers after: []
#   the handler's stream: first line
#   standard error: INFO:absl:second line
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  openvino==2026.4.1 absl-py==2.5.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import contextlib
import io
import logging
import sys

from absl import flags
from absl import logging as absl_logging

flags.FLAGS(sys.argv[:1])
absl_logging.use_absl_handler()
absl_logging.set_verbosity(absl_logging.INFO)
stream, errors = io.StringIO(), io.StringIO()
absl_logging.get_absl_handler().python_handler.stream = stream
before = [*logging.root.handlers]
absl_logging.info("first line")

import openvino  # noqa: E402, F401

after = [*logging.root.handlers]
with contextlib.redirect_stderr(errors):
  absl_logging.info("second line")
logged = [line.partition("] ")[2] for line in stream.getvalue().splitlines()]
other = errors.getvalue().strip()
print(f"handlers before: {before}")
print(f"handlers after: {after}")
print(f"the handler's stream: {', '.join(logged)}")
print(f"standard error: {other}")
if not before or after or logged != ["first line"] or "second" not in other:
  sys.exit("changed: the import no longer removes the handler of absl")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py"
