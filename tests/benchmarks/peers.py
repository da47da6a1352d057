"""Compare `explain` with other attribution tools: seconds, and recovery by the sources that each finds.

  python -m pip install captum inseq flashtrace     # beside this project, in an environment for it
  OMP_NUM_THREADS=1 python tests/benchmarks/peers.py --text page.txt --out peers.parquet

`explain` picks the predictions of SmolLM2 (those with the largest total effect) and the tokens that stand
near each; every tool then ranks the same distant tokens of the same predictions, one prediction after
another, as its own documentation has it:
  captum      LLMGradientAttribution with LayerGradientXActivation and LayerIntegratedGradients;
              FeatureAblation would take one forward pass per distant token and prediction: hours
  inseq       attribute(method="saliency"), "attention" and "integrated_gradients"
  FlashTrace  FlashTrace.trace, one hop; method="ifr-span" if it scores nothing
Integrated gradients get as many steps as take about as long as `explain`, a step being a saliency map: the
other methods have no setting that makes more of more time.

All are evaluated by one measure, computed here with stock transformers and none of the tools: put as many of
a tool's first distant tokens as `explain`'s sources hold into four contexts whose distant tokens are another
text's, and count how much of the total effect, KL(full || swapped), they recover. Sums over all predictions.
So it is done twice: with the passages that `explain` has first, and with what it narrows them down to.
Loading a model is timed for `explain` only. Seconds are the processor's.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import flashtrace
import inseq
import pandas as pd
import torch
from captum.attr import (
    LayerGradientXActivation,
    LayerIntegratedGradients,
    LLMGradientAttribution,
    TextTokenInput,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]
from real_model import model_folder

from sparsity_length import explain
from sparsity_length.cli import Stage
from sparsity_length.pages.explained import Explanation
from sparsity_length.text.sources import first_passages

NUM_SWAPPED = 4
KEYS = ["method", "granularity"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add = parser.add_argument
    add("--model", help="a Hugging Face folder (default: SmolLM2-135M-Instruct, made by tests/real_model.py)")
    add(
        "--text",
        type=Path,
        nargs="+",
        default=[ROOT / "analysis/reference/explained/austen.txt"],
        help="texts",
    )
    add("--length", type=int, default=512, help="tokens of each text that are read")
    add("--targets", type=int, default=12, help="predictions explained per text")
    add("--methods", nargs="+", help="such as 'inseq saliency' (default: all)")
    add("--out", type=Path, default=Path("peers.parquet"), help="a row per prediction and method")


def scores_of_captum(tool: Any, tokenizer: Any, ids: list[int], position: int, **steps: int) -> list[float]:
    """Score each token before the position."""
    given = TextTokenInput(tokenizer.decode(ids[:position]), tokenizer)
    return tool.attribute(given, target=torch.tensor([ids[position]]), **steps).seq_attr.abs().tolist()


def scores_of_inseq(tool: Any, tokenizer: Any, ids: list[int], position: int, **steps: int) -> list[float]:
    """Score each token before the position."""
    prompt, whole = (tokenizer.decode(ids[:end]) for end in (position, position + 1))
    found = tool.attribute(prompt, whole, show_progress=False, **steps).aggregate()
    return found.sequence_attributions[0].target_attributions[:position, 0].nan_to_num().tolist()


def scores_of_flashtrace(tool: Any, tokenizer: Any, ids: list[int], position: int) -> list[float]:
    """Score each token before the position."""
    text = {"prompt": tokenizer.decode(ids[:position]), "target": tokenizer.decode(ids[position])}
    scores = tool.trace(**text, output_span=(0, 0)).scores
    # Its default method passes over commas and full stops; its older one, ifr-span, does not.
    return scores if any(scores) else tool.trace(**text, output_span=(0, 0), method="ifr-span").scores


def methods_of(folder: str, model: Any, tokenizer: Any) -> dict[str, Callable[..., list[float]]]:
    """Method -> the scores of a text's tokens before a position; the first one tells what a step takes."""
    found: dict[str, Callable[..., list[float]]] = {}
    for kind in ("saliency", "attention", "integrated_gradients"):
        tool = inseq.load_model(folder, kind, device="cpu")
        found[f"inseq {kind}"] = partial(scores_of_inseq, tool, tokenizer)
    # captum sees embeddings as the activation of a layer.
    for name, of_layer in (
        ("gradient x activation", LayerGradientXActivation),
        ("integrated gradients", LayerIntegratedGradients),
    ):
        tool = LLMGradientAttribution(of_layer(model, model.get_input_embeddings()), tokenizer)
        found[f"captum {name}"] = partial(scores_of_captum, tool, tokenizer)
    found["FlashTrace"] = partial(scores_of_flashtrace, flashtrace.FlashTrace(model, tokenizer), tokenizer)
    return found


def tokens_of(found: pd.DataFrame) -> list[int]:
    """The tokens of all sources of one prediction."""
    spans = zip(found["source_position"], found["source_end"], strict=True)
    return [token for span in spans for token in range(*span)]


@torch.inference_mode()
def effects(
    model: Any, own: torch.Tensor, others: torch.Tensor, near: int, in_place: Sequence[list[int]]
) -> list[float]:
    """KL(full || swapped) with each of these sources in place: nats, means over swapped contexts."""
    contexts = [own]
    for other, sources in product(others, in_place):
        swapped = torch.cat([other[:near], own[near:]])
        swapped[sources] = own[sources]
        contexts.append(swapped)
    log_p = model(torch.stack(contexts), logits_to_keep=1).logits[:, 0].log_softmax(-1)
    divergence = (log_p[0].exp() * (log_p[0] - log_p[1:])).sum(-1)
    return divergence.reshape(len(others), -1).mean(0).tolist()


def main(arguments: argparse.Namespace) -> None:
    """Measure every tool on every text, and print a table."""
    folder = str(arguments.model or model_folder("smollm2"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # of captum
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    methods = methods_of(folder, stock, tokenizer)
    methods = {name: methods[name] for name in arguments.methods or methods}
    passages = tokenizer("\n\n".join(first_passages(24 * arguments.length)))["input_ids"]
    others = torch.tensor(passages[: NUM_SWAPPED * arguments.length]).reshape(NUM_SWAPPED, -1)
    asked = {"targets": arguments.targets, "budget": 60 * arguments.targets}
    rows = []
    for text in arguments.text:
        ids = tokenizer(text.read_text())["input_ids"][: arguments.length]
        started = time.process_time()
        shown: list[tuple[float, pd.DataFrame]] = []

        def show(explanation: Explanation, shown: list[tuple[float, pd.DataFrame]] = shown) -> None:
            shown.append((time.process_time(), explanation.frame))

        explain(tokenizer.decode(ids), folder, **asked, show=show)
        # First the losses, then passages of each prediction, then what is needed of them.
        seconds = {}
        sources = {}
        for granularity, place in (("passages", arguments.targets), ("narrowed", -1)):
            ended, frame = shown[place]
            by_position = frame.groupby("position")
            near = by_position["near_position"].first()
            sources["explain", granularity] = by_position.apply(tokens_of)
            seconds["explain", granularity] = (ended - started) / len(near)
        # A prompt that tokenizes otherwise when it ends at the prediction cannot be given to the other tools.
        positions = [p for p in near.index if tokenizer(tokenizer.decode(ids[:p]))["input_ids"] == ids[:p]]
        for method, scores_of in methods.items():
            for granularity in ("passages", "narrowed"):
                own = sources["explain", granularity]
                has_steps = "integrated" in method
                if has_steps or granularity == "passages":
                    seconds_of_step = seconds.get(("inseq saliency", granularity), 1)
                    num_steps = max(1, round(seconds["explain", granularity] / seconds_of_step))
                    started = time.process_time()
                    steps = {"n_steps": num_steps} if has_steps else {}
                    scores = {p: scores_of(ids, p, **steps) for p in positions}
                    took = (time.process_time() - started) / len(positions)
                    assert [*map(len, scores.values())] == positions, f"{method} scores other tokens"
                seconds[method, granularity] = took
                # The first token, an attention sink, is nobody's source.
                sources[method, granularity] = {
                    p: sorted(range(1, near[p]), key=of.__getitem__, reverse=True)[: len(own[p])]
                    for p, of in scores.items()
                }
        for p in positions:
            in_place = [[], *(of[p] for of in sources.values())]
            total, *remaining = effects(stock, torch.tensor(ids[:p]), others[:, :p], near[p], in_place)
            for key, left in zip(sources, remaining, strict=True):
                named = dict(zip(KEYS, key, strict=True))
                row = {"text": text.name, **named, "position": p, "sources": sources[key][p]}
                rows.append(row | {"total_effect": total, "remaining": left, "seconds": seconds[key]})
    table = pd.DataFrame(rows)
    table.to_parquet(arguments.out, index=False)
    by_method = table.groupby(KEYS, sort=False)
    sums = by_method[["remaining", "total_effect"]].sum()
    summary = by_method["seconds"].agg(seconds="mean", predictions="size")
    summary.insert(0, "recovered", 1 - sums["remaining"] / sums["total_effect"])
    summary["tokens"] = table.assign(tokens=table["sources"].map(len)).groupby(KEYS)["tokens"].mean()
    sys.stdout.write(f"{summary.round(3).to_string()}\n")


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
