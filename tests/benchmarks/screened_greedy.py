"""What a screen spares the greedy rules, and what it loses them, on a trained model.

    python tests/benchmarks/screened_greedy.py --data runs/demo/data --max-documents 40 \\
        --checkpoint runs/demo/models/long-seed0 --short-context-length 8 --long-context-length 256
    python tests/benchmarks/screened_greedy.py --data runs/wiki/data --targets-per-chunk 2 \\
        --checkpoint runs/wiki/models/long1024 --short-context-length 8 --long-context-length 1024

--learning-chunks N screens by learned attention as well, whose weights are fitted to so many chunks of
training tokens (not counted): the same candidates in every step, for one pass a chunk. No program offers
that screen.

One chunk a document. Every rule is run without a screen, then with each number of candidates; contexts are
made anew each time, so that no run gains by another. Means over the targets, with 95 % intervals over
documents:

cost        rows that were run, as a share of those without a screen; a row of a backward pass counts as two
seconds     of the processor, likewise
recovered@k what k tokens recover of what the far context gives, a ratio of sums: of the gain by the target's
            loss, or of the expected gain by the divergence, whichever the rule goes by
lost@k      that without a screen less that with it
same@k      tokens chosen by both
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from machine import machine, use_threads

from pipeline.cli import positive_int, progress
from pipeline.measuring import methods as additions
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, selected_positions
from pipeline.measuring.flags import DTYPES, ContextLengths
from pipeline.measuring.methods import fitted_head_weights, learned_attention_divergence
from pipeline.models.load import Loading, find_model, load_causal_lm
from pipeline.results.statistics import ratio_of_sums
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData, training_chunks

DERIVATIVES, LEARNED = "", " by learned attention"
"""What the names of the table's lines end with."""
RULES = ("greedy_divergence", "greedy")
OTHER_RULES = ("add_one_in_divergence", "add_one_in")


def parser() -> argparse.ArgumentParser:
    """The benchmark's command line."""
    benchmark = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = benchmark.add_argument
    add("--data", type=Path, required=True, help="folder written by tokenize_c4.py")
    add("--checkpoint", required=True, help="an OLMo checkpoint or a Hugging Face causal LM")
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add("--long-context-length", type=positive_int, required=True, help="chunk length, in tokens")
    add("--targets-per-chunk", type=positive_int, default=4, help="m")
    add("--max-documents", type=positive_int, default=20, help="one chunk of each")
    add("--num-candidates", type=positive_int, nargs="+", default=[8, 16, 32], help="of each step")
    add("--k", type=positive_int, nargs="+", default=[4, 8], help="numbers of tokens")
    add("--rules", nargs="+", choices=(*RULES, *OTHER_RULES), default=list(RULES), help="that are run")
    add("--learning-chunks", type=positive_int, help="screen by learned attention too; not if not given")
    add("--null", action="store_true", help="choose from the other document's far context, not the own")
    add("--tokens-per-batch", type=positive_int, default=2048, help="tokens a forward pass may hold")
    add("--threads", type=positive_int, default=1, help="of the processor")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="torch device")
    add("--dtype", choices=DTYPES[:2], default="float32", help="of weights and computation")
    add("--out", type=Path, help="JSON file of every interval")
    return benchmark


class CountingLM:
    """A model that counts the rows run through it; one of a backward pass counts as two more."""

    def __init__(self, model: Any) -> None:
        self._model, self.num_rows, self.num_parameters = model, 0, model.num_parameters
        self.vocabulary_size, self.device, self.logits = model.vocabulary_size, model.device, model.logits
        self.sequence_bytes = model.sequence_bytes

    def read(self, token_ids: torch.Tensor, *arguments: Any) -> Any:
        """See `CausalLM.read`."""
        self.num_rows += token_ids.numel()
        return self._model.read(token_ids, *arguments)

    def hidden_states(self, token_ids: torch.Tensor, *arguments: Any) -> Any:
        """See `CausalLM.hidden_states`."""
        self.num_rows += token_ids.numel()
        return self._model.hidden_states(token_ids, *arguments)

    def candidate_gradients(self, token_ids: torch.Tensor, *arguments: Any) -> Any:
        """See `ScreenedLM.candidate_gradients`."""
        self.num_rows += 3 * token_ids.numel()
        return self._model.candidate_gradients(token_ids, *arguments)


@dataclass
class Run:
    """What one rule did with one number of candidates, document by document."""

    num_rows: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    recovered: dict[int, list[float]] = field(default_factory=dict)
    """k -> nats, summed over the targets."""
    recoverable: list[float] = field(default_factory=list)

    def add(self, context: FarContext, rule: str, ks: list[int]) -> None:
        """Run the rule in a far context that nothing is known of yet."""
        model = context.model
        assert isinstance(model, CountingLM)
        context.predictions  # noqa: B018, which all need, and no rule pays for
        num_before, started = model.num_rows, time.process_time()
        positions_TK = selected_positions(context, rule, max(ks), [0])
        self.seconds.append(time.process_time() - started)
        self.num_rows.append(model.num_rows - num_before)
        self.positions.append(positions_TK)
        name = "divergences" if rule.endswith("_divergence") else "losses"
        short_T = getattr(context.short, name)
        long_T = np.zeros_like(short_T) if name == "divergences" else context.long_losses_T
        self.recoverable.append(float((short_T - long_T).sum()))
        for k in ks:
            sparse = context.measured_with(np.arange(len(positions_TK)), positions_TK[:, :k])
            self.recovered.setdefault(k, []).append(float((short_T - getattr(sparse, name)).sum()))

    def beside(self, exact: "Run") -> dict[str, object]:
        """The numbers of the table."""
        cells: dict[str, object] = {
            "cost": f"{sum(self.num_rows) / sum(exact.num_rows):.3f}",
            "seconds": f"{sum(self.seconds) / sum(exact.seconds):.3f}",
        }
        gains = np.array(exact.recoverable)
        for k, recovered in self.recovered.items():
            same = [
                len({*mine} & {*others}) / k
                for mine_TK, others_TK in zip(self.positions, exact.positions, strict=True)
                for mine, others in zip(mine_TK[:, :k].tolist(), others_TK[:, :k].tolist(), strict=True)
            ]
            cells[f"recovered@{k}"] = ratio_of_sums(np.array(recovered), gains)
            lost = np.array(exact.recovered[k]) - np.array(recovered)
            cells[f"lost@{k}"] = ratio_of_sums(lost, gains)
            cells[f"same@{k}"] = f"{np.mean(same):.2f}"
        return cells


def main(arguments: argparse.Namespace) -> None:
    """Run every rule with every number of candidates, and print a table."""
    use_threads(arguments.threads)
    lengths = ContextLengths(
        arguments.short_context_length, arguments.long_context_length, arguments.targets_per_chunk
    )
    loading = Loading(torch.device(arguments.device), getattr(torch, arguments.dtype), None, False)
    checkpoint = find_model(arguments.checkpoint, None, False)
    plain_model = load_causal_lm(checkpoint, loading, arguments.long_context_length)
    model = CountingLM(plain_model)
    data = TokenizedData.open(arguments.data)
    documents = long_enough_documents(data, arguments.long_context_length, arguments.max_documents)
    learned = Measurement(plain_model, lengths, Batching(arguments.tokens_per_batch))
    screens = [DERIVATIVES]
    if arguments.learning_chunks:
        chunks = training_chunks(data, arguments.long_context_length, arguments.learning_chunks)
        contexts = (far_contexts(learned, chunk_L, chunk_L)["own"] for chunk_L in chunks)
        learned = replace(learned, head_weights=fitted_head_weights(contexts, "learned_attention"))
        screens.append(LEARNED)
    asked = [(None, DERIVATIVES), *((c, screen) for screen in screens for c in arguments.num_candidates)]
    runs = {(rule, *one): Run() for rule in arguments.rules for one in asked}
    for index in progress(range(len(documents)), "screened_greedy", "document"):
        (chunk,) = chunks_of(documents, index, arguments.long_context_length, 1)
        for (rule, number, screen), run in runs.items():
            measurement = Measurement(
                model, lengths, Batching(arguments.tokens_per_batch), num_candidates=number
            )
            by_attention = _screened_by_attention(model, _far_context(learned, chunk, arguments.null))
            with by_attention if screen == LEARNED else nullcontext():
                run.add(_far_context(measurement, chunk, arguments.null), rule, arguments.k)
    table = {
        f"{rule}, {number or 'all'}{screen}": run.beside(runs[rule, None, DERIVATIVES])
        for (rule, number, screen), run in runs.items()
    }
    print(f"{len(documents)} documents; {machine(torch.device(arguments.device))}")
    columns = list(next(iter(table.values())))
    print("| rule, candidates | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, cells in table.items():
        print(f"| {name} | " + " | ".join(str(cells[column]) for column in columns) + " |")
    if arguments.out:
        report = {"settings": vars(arguments), "num_documents": len(documents), "table": table}
        arguments.out.write_text(json.dumps(report, indent=1, default=str) + "\n")


@contextmanager
def _screened_by_attention(model: CountingLM, watched: FarContext) -> Iterator[None]:
    """Candidates are those of most learned attention, instead of the least derivative."""

    def scores(context: FarContext, criterion: str, chosen_TK: np.ndarray) -> np.ndarray:
        if not chosen_TK.shape[1]:
            model.num_rows += watched.lengths.long_context_length - 1
        scores_TF = -watched.once(learned_attention_divergence)
        np.put_along_axis(scores_TF, chosen_TK, np.nan, axis=1)
        return scores_TF

    with mock.patch.object(additions, "derivatives_by_gates", scores):
        yield


def _far_context(measurement: Measurement, chunk: Chunk, is_null: bool) -> FarContext:
    own, null = far_contexts(measurement, chunk.token_ids_L, chunk.null_token_ids_L).values()
    return null if is_null else own


if __name__ == "__main__":
    main(parser().parse_args())
