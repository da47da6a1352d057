"""Compare `explain` with other attribution tools: seconds, and recovery by the sources that each finds.

  python tests/benchmarks/peers.py --text page.txt --out peers.parquet     # on SmolLM2, first 512 tokens

`explain` picks the predictions (those with the largest total effect) and the tokens that stand near each;
every tool then ranks the same distant tokens of the same predictions, one prediction after another, as its
own documentation has it, in an environment of its own (made at first: torch and transformers each time,
about 1 GB). Tools:
  captum      LLMGradientAttribution with LayerGradientXActivation and LayerIntegratedGradients;
              FeatureAblation would take one forward pass per distant token and prediction: hours
  inseq       attribute(method="saliency"), "attention" and "integrated_gradients"
  flashtrace  FlashTrace.trace, one hop; method="ifr-span" if it scores nothing
Integrated gradients get as many steps as take about as long as `explain`, a step being a saliency map: the
other methods have no setting that makes more of more time.

All are evaluated by one measure, computed here with stock transformers and none of the tools: put the top 4
distant tokens into four contexts whose distant tokens are another text's, and count how much of the total
effect, KL(full || swapped), they recover. Sums over all predictions.
Loading a model is timed for `explain` only. Seconds are the processor's (OMP_NUM_THREADS=1).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOP = 4
NUM_SWAPPED = 4
REQUIREMENTS = {"captum": ["captum"], "inseq": ["inseq"], "flashtrace": ["flashtrace"]}
METHODS = {
    "inseq saliency": "inseq",
    "inseq attention": "inseq",
    "inseq integrated_gradients": "inseq",
    "captum gradient x activation": "captum",
    "captum integrated gradients": "captum",
    "FlashTrace": "flashtrace",
}
"""The name of a method of inseq is its own; the first one tells what a step of integrated gradients takes."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--model", help="a Hugging Face folder (default: SmolLM2-135M-Instruct, made by tests/real_model.py)")
    add("--text", type=Path, nargs="+", help="texts (default: the passages of explain's first page)")
    add("--length", type=int, default=512, help="tokens of each text that are read")
    add("--targets", type=int, default=12, help="predictions explained per text")
    add("--environments", type=Path, default=Path.home() / ".cache/sparsity-length/peers")
    add("--out", type=Path, default=Path("peers.parquet"), help="a row per prediction and method")
    add("--work", nargs=2, help=argparse.SUPPRESS)  # method and task file: run by the driver
    return parser


# What runs in a tool's own environment: only torch, transformers and the tool are there.
def ranked_by_captum(
    model: Any, tokenizer: Any, ids: list[int], position: int, steps: dict[str, int]
) -> list[float]:
    """Score each token before the position."""
    import torch
    from captum.attr import (
        LayerGradientXActivation,
        LayerIntegratedGradients,
        LLMGradientAttribution,
        TextTokenInput,
    )

    kind = LayerIntegratedGradients if steps else LayerGradientXActivation
    tool = LLMGradientAttribution(kind(model, model.get_input_embeddings()), tokenizer)
    given = TextTokenInput(tokenizer.decode(ids[:position]), tokenizer)
    found = tool.attribute(given, target=torch.tensor([ids[position]]), **steps)
    return found.seq_attr.abs().tolist()


def ranked_by_inseq(
    model: Any, tokenizer: Any, ids: list[int], position: int, steps: dict[str, int]
) -> list[float]:
    """Score each token before the position."""
    prompt, whole = (tokenizer.decode(ids[:end]) for end in (position, position + 1))
    found = model.attribute(prompt, whole, show_progress=False, **steps)
    scores = found.aggregate().sequence_attributions[0].target_attributions
    return scores[:position, 0].nan_to_num().tolist()


def ranked_by_flashtrace(model: Any, tokenizer: Any, ids: list[int], position: int) -> list[float]:
    """Score each token before the position."""
    from flashtrace import FlashTrace

    tracer = FlashTrace(model, tokenizer)
    text = {"prompt": tokenizer.decode(ids[:position]), "target": tokenizer.decode(ids[position])}
    scores = tracer.trace(**text, output_span=(0, 0)).scores
    # Its default method passes over commas and full stops; its older one, ifr-span, does not.
    return scores if any(scores) else tracer.trace(**text, output_span=(0, 0), method="ifr-span").scores


def work(method: str, task_file: Path) -> None:
    """Rank the tokens of every prediction of a task file by one tool, and write its answer beside it."""
    task = json.loads(task_file.read_text())
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(task["model"])
    tool, _, kind = method.partition(" ")
    steps = {"n_steps": task["steps"]} if "integrated" in method else {}
    if tool == "inseq":
        import inseq

        model = inseq.load_model(task["model"], kind, device="cpu")
    else:
        model = AutoModelForCausalLM.from_pretrained(task["model"], attn_implementation="eager")
        model.eval()
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
    answers = []
    started = time.process_time()
    for position in task["positions"]:
        if tool == "captum":
            scores = ranked_by_captum(model, tokenizer, task["ids"], position, steps)
        elif tool == "inseq":
            scores = ranked_by_inseq(model, tokenizer, task["ids"], position, steps)
        else:
            scores = ranked_by_flashtrace(model, tokenizer, task["ids"], position)
        if len(scores) != position:
            raise SystemExit(f"{method} scores {len(scores)} tokens before position {position}")
        answers.append(scores)
    seconds = time.process_time() - started
    task_file.with_suffix(".answer.json").write_text(json.dumps({"seconds": seconds, "scores": answers}))


# What runs in the project's environment.
def python_of(tool: str, environments: Path) -> Path:
    """The Python of a tool's environment, which is made if it is not there."""
    folder = environments / tool
    python = folder / "bin" / "python"
    if not (folder / ".made").exists():
        import torch
        import transformers

        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        versions = [f"torch=={torch.__version__.split('+')[0]}", f"transformers=={transformers.__version__}"]
        subprocess.run([python, "-m", "pip", "install", "-q", *versions, *REQUIREMENTS[tool]], check=True)
        (folder / ".made").touch()
    return python


def effects(
    model: Any,
    ids: list[int],
    others: list[list[int]],
    position: int,
    near: int,
    sources_in_place: list[list[int]],
) -> list[float]:
    """KL(full || swapped) with each of these sources in place: nats, means over swapped contexts."""
    import torch

    own = torch.tensor(ids[:position])
    contexts = [own]
    for other in others:
        for sources in sources_in_place:
            swapped = own.clone()
            swapped[:near] = torch.tensor(other[:near])
            swapped[sources] = own[sources]
            contexts.append(swapped)
    with torch.inference_mode():
        logits = model(torch.stack(contexts), logits_to_keep=1).logits[:, 0]
    log_p = logits.log_softmax(-1)
    divergence = (log_p[0].exp() * (log_p[0] - log_p[1:])).sum(-1)
    return divergence.reshape(len(others), -1).mean(0).tolist()


def main() -> None:
    """Measure every tool on every text, and print a table."""
    arguments = parser().parse_args()
    if arguments.work:
        work(arguments.work[0], Path(arguments.work[1]))
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import pandas as pd
    from real_model import model_folder
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from sparsity_length import explain
    from sparsity_length.text.sources import first_passages

    folder = str(arguments.model or model_folder("smollm2"))
    texts = arguments.text or [ROOT / "analysis/reference/explained/austen.txt"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    stock = AutoModelForCausalLM.from_pretrained(folder).eval()
    passages = tokenizer("\n\n".join(first_passages(24 * arguments.length)))["input_ids"]
    others = [passages[n * arguments.length : (n + 1) * arguments.length] for n in range(NUM_SWAPPED)]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for text in texts:
        ids = tokenizer(text.read_text())["input_ids"][: arguments.length]
        started = time.process_time()
        explained = explain(
            tokenizer.decode(ids), folder, unit="token", targets=arguments.targets, sources=TOP, budget=600
        )
        seconds = {"explain": time.process_time() - started}
        of_position = explained.frame.groupby("position")
        near = of_position["near_position"].first()
        found = of_position["source_position"].apply(list)
        # A prompt that tokenizes otherwise when it ends at the prediction cannot be given to the other tools.
        positions = [p for p in found.index if tokenizer(tokenizer.decode(ids[:p]))["input_ids"] == ids[:p]]
        ranked = {"explain": {p: found[p] for p in positions}}
        file = arguments.out.with_suffix(".task.json")
        task = {"model": folder, "ids": ids, "positions": positions}
        for method, tool in METHODS.items():
            if len(seconds) > 1:
                # explain has explained those predictions, too, that are not given to the others.
                step = seconds["inseq saliency"] / len(positions)
                task["steps"] = max(1, round(seconds["explain"] / len(found) / step))
            file.write_text(json.dumps(task))
            python = python_of(tool, arguments.environments)
            command = [python, __file__, "--work", method, file]
            subprocess.run(command, check=True)
            answer = json.loads(file.with_suffix(".answer.json").read_text())
            seconds[method] = answer["seconds"]
            ranked[method] = {
                # The first token, an attention sink, is nobody's source.
                p: sorted(range(1, int(near[p])), key=lambda place: -scores[place])[:TOP]
                for p, scores in zip(positions, answer["scores"], strict=True)
            }
        for p in positions:
            of_methods = {method: sources_of[p] for method, sources_of in ranked.items()}
            total, *remaining = effects(stock, ids, others, p, int(near[p]), [[], *of_methods.values()])
            for (method, sources), left in zip(of_methods.items(), remaining, strict=True):
                num_explained = len(found) if method == "explain" else len(positions)
                rows.append(
                    {
                        "text": text.stem,
                        "method": method,
                        "position": p,
                        "sources": sources,
                        "total_effect": total,
                        "remaining": left,
                        "seconds": seconds[method] / num_explained,
                    }
                )
        pd.DataFrame(rows).to_parquet(arguments.out, index=False)
    table = pd.DataFrame(rows).groupby("method", sort=False)
    summary = pd.DataFrame(
        {
            "recovered": 1 - table["remaining"].sum() / table["total_effect"].sum(),
            "seconds per prediction": table["seconds"].mean(),
            "predictions": table.size(),
        }
    )
    print(summary.round(3).to_string())


if __name__ == "__main__":
    main()
