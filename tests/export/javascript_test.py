"""Tests of exports and of their page in Node.js and in a browser.

They install transformers.js from npm, without its scripts, which download CUDA:

    python -m pytest -m slow tests/export/javascript_test.py
"""

import functools
import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import threading

import commands
import numpy as np
import pytest
import signatures_test
import tokenizer_files_test

import export_model
from bertlib.export import OnnxModel

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
pytest.importorskip("onnxruntime", reason="pip install -e .[test]")

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not shutil.which("npm"), reason="needs Node.js"),
]

INSTALL = "npm install --ignore-scripts @huggingface/transformers@4.3.2"
TEXTS = ["the cat sat", "Is it GOOD? (bad, good)", "Résumé 中文", "ΑΣ' ΣΑΣ"]
TEXTS += ["[SEP]"]
QUESTION = "is it good?"
KINDS = ("classification", "multi_label", "ner", "squad_1")
MODELS = {kind: signatures_test.MODELS[kind] for kind in KINDS}
MODELS |= {
  pooling: {
    "script": "run_embeddings",
    "embedding": {"pooling": pooling, "normalize": True},
  }
  for pooling in ("mean", "cls")
}
MODELS["int8"] = MODELS["mean"]
RERANKER = signatures_test.MODELS["ranking"]

# Outputs of pipelines by the folder of their model.
PIPELINES = """
import * as transformers from "@huggingface/transformers";

const pipelines = {
  classification: ["text-classification", { top_k: null }],
  multi_label: ["text-classification", { top_k: null }],
  ner: ["token-classification", { ignore_labels: [] }],
  squad_1: ["question-answering"],
  mean: ["feature-extraction", { pooling: "mean", normalize: true }],
  cls: ["feature-extraction", { pooling: "cls", normalize: true }],
  int8: ["feature-extraction", { pooling: "mean", normalize: true }],
};

export async function compute(root, texts, question) {
  const { env, pipeline } = transformers;
  env.allowRemoteModels = env.useBrowserCache = false;
  env.allowLocalModels = true;
  env.localModelPath = root;
  const found = {};
  for (const [folder, [task, options]] of Object.entries(pipelines)) {
    const run = await pipeline(task, folder);
    found[folder] = [];
    for (const text of texts) {
      const given = options ? [text, options] : [question, text];
      const output = await run(...given);
      found[folder].push(output.tolist?.()[0] ?? output);
    }
  }
  return found;
}
"""
IN_NODE = """
import { compute } from "./pipelines.mjs";
import { readFileSync } from "node:fs";
const given = JSON.parse(readFileSync("arguments.json"));
console.log(JSON.stringify(await compute(...given)));
"""
IN_BROWSER = """<!doctype html><meta charset="utf-8">
<script type="importmap">{"imports": {"@huggingface/transformers":
  "/node_modules/@huggingface/transformers/dist/transformers.min.js"}}</script>
<script type="module">
import { env } from "@huggingface/transformers";
import { compute } from "/pipelines.mjs";
env.backends.onnx.wasm.wasmPaths = "/node_modules/onnxruntime-web/dist/";
const [, ...given] = await (await fetch("/arguments.json")).json();
const found = await compute("/exported/", ...given).catch(String);
await fetch("/", { method: "POST", body: JSON.stringify(found) });
</script>
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with transformers.js, and with models in `exported`."""
  place = tmp_path_factory.mktemp("javascript")
  if subprocess.run(INSTALL.split(), cwd=place, check=False).returncode:
    pytest.skip("npm cannot install transformers.js")
  texts = place / "texts.txt"
  texts.write_text("\n".join(signatures_test.WORDS), encoding="utf-8")
  with commands.in_process(export_model) as main:
    for name, model in {**MODELS, "reranker": RERANKER}.items():
      folder = signatures_test.make_model(place / name, **model)
      flags = [f"--model_dir={folder}", f"--export_dir={place}/exported/{name}"]
      if name == "int8":
        flags += ["--quantize=int8", f"--calibration_file={texts}"]
      main(*flags, "--format=onnx")
  given = [f"{place}/exported/", TEXTS, QUESTION]
  (place / "arguments.json").write_text(json.dumps(given))
  (place / "pipelines.mjs").write_text(PIPELINES, encoding="utf-8")
  return place


def node(place, code):
  """Output of the code of a module in Node.js."""
  (place / "script.mjs").write_text(code, encoding="utf-8")
  return subprocess.check_output(["node", "script.mjs"], cwd=place).decode()


def best_score(logits, sep):
  """Score of an answer, as the pipeline computes it."""
  is_text = np.arange(logits.shape[1]) > sep
  is_text[0] = True  # and is then no answer
  powers = np.where(is_text, np.exp(logits), 0.0)
  start, end = powers / powers.sum(axis=1, keepdims=True)
  return np.triu(np.outer(start, end))[1:, 1:].max()


def expected(name, folder):
  """Scores or vectors of the texts from `OnnxModel`, as of a pipeline."""
  model = OnnxModel(str(folder), engine="onnxruntime")
  pairs = [(QUESTION, text) for text in TEXTS] if name == "squad_1" else TEXTS
  _, rows = model.encode_windows(pairs)
  for row, output in zip(rows, model.run(rows)):
    if name == "squad_1":
      ids = row["input_ids"]
      sep = ids.index(model.tokenizer.vocab["[SEP]"])
      yield best_score(output[:, : len(ids)].astype(np.float64), sep)
    elif name == "ner":
      yield output[1 : len(row["input_ids"]) - 1].max(axis=1)
    else:
      yield output if name not in KINDS else -np.sort(-output)


def numbers(output):
  """The scores in the output of a pipeline, or its vector."""
  if isinstance(output, dict):
    return output["score"]
  return [*map(numbers, output)] if isinstance(output, list) else output


def check(found, place):
  assert isinstance(found, dict), found
  for name in MODELS:
    for text, row in zip(
      found[name], expected(name, place / "exported" / name)
    ):
      # In another engine, values in 8 bits may be rounded to the next one.
      atol = 1e-3 if name == "int8" else 1e-5
      np.testing.assert_allclose(numbers(text), row, rtol=0, atol=atol)


def test_pipelines_in_node_have_our_numbers(place):
  check(json.loads(node(place, IN_NODE)), place)


def test_logits_of_pairs_in_node_are_ours(place):
  code = f"""
    import * as transformers from "@huggingface/transformers";
    transformers.env.localModelPath = "exported/";
    const options = {{ local_files_only: true }};
    const load = (of) => transformers[of].from_pretrained("reranker", options);
    const tokenizer = await load("AutoTokenizer");
    const model = await load("AutoModelForSequenceClassification");
    const texts = {json.dumps(TEXTS[:4])};
    const queries = texts.map(() => "{QUESTION}");
    const inputs = tokenizer(queries, {{ text_pair: texts, padding: true }});
    console.log(JSON.stringify((await model(inputs)).logits.tolist()));
  """
  found = json.loads(node(place, code))
  model = OnnxModel(str(place / "exported" / "reranker"), engine="onnxruntime")
  expected = model.logits([(QUESTION, text) for text in TEXTS[:4]])
  np.testing.assert_allclose(np.ravel(found), expected, rtol=0, atol=1e-5)


def test_pipelines_in_a_browser_have_our_numbers(place):
  browser = shutil.which("chromium")
  if not browser:
    pytest.skip("needs Chromium")
  (place / "index.html").write_text(IN_BROWSER)
  posted = queue.Queue()

  class Handler(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
      size = int(self.headers["Content-Length"])
      posted.put(json.loads(self.rfile.read(size)))

  handler = functools.partial(Handler, directory=str(place))
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    flags = "--headless", "--no-sandbox", f"--user-data-dir={place}/profile"
    process = subprocess.Popen([browser, *flags, address])
    try:
      found = posted.get(timeout=300)
    finally:
      process.terminate()
      process.wait()
      server.shutdown()
  check(found, place)


def test_final_sigmas_are_those_of_python(place):
  # Unicode 17, which Node.js has, says that this letter has no case.
  texts = [text for text in tokenizer_files_test.TEXTS if "\u0295" not in text]
  (place / "texts.json").write_text(json.dumps(texts))
  code = """
    import { Tokenizer } from "@huggingface/tokenizers";
    import { readFileSync } from "node:fs";
    const read = (path) => JSON.parse(readFileSync(path));
    const file = read("exported/mean/tokenizer.json");
    const normalizer = new Tokenizer(file, {}).normalizer;
    const found = read("texts.json").map((text) => normalizer.normalize(text));
    console.log(JSON.stringify(found));
  """
  sigmas = tokenizer_files_test.sigmas
  found = [sigmas(text) for text in json.loads(node(place, code))]
  assert found == [sigmas(text.lower()) for text in texts]


def test_the_page_runs_and_cuts_as_we_do(place):
  for name, model in {
    "exported/demo_onnx": "classification",
    "exported/minilm_onnx": "mean",
    "exported/mrpc_onnx": "classification",
    "two_steps/onnx": "reranker",
  }.items():
    folder = place / "output" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(place / "exported" / model)
  page = os.path.join(commands.ROOT, "docs", "how_to", "onnx.md")
  with open(page, encoding="utf-8") as file:
    blocks = re.findall(r"```js\n(.*?)```", file.read(), re.S)
  assert [bool(node(place, block)) for block in blocks] == [True] * 4
  words = signatures_test.ODD
  texts = signatures_test.random_texts(100, 20, words, 3, separators=(" ",))
  pairs = [*zip(texts, texts[1:]), *((text, "") for text in texts)]
  code = f"""
    for (const pair of {json.dumps(pairs)}) {{
      const row = encode(...pair);
      console.log([...row.input_ids.data, ...row.token_type_ids.data].join());
    }}"""
  found = node(place, blocks[2] + code).splitlines()[-len(pairs) :]
  model = OnnxModel(str(place / "exported" / "classification"))
  for line, row in zip(found, model.encode_windows(pairs)[1]):
    ids, segments = row["input_ids"], row["segment_ids"]
    assert line == ",".join(map(str, ids + segments))
