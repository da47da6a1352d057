"""How many sequences a forward pass holds: as many as pay and fit the memory, half where they did not.

A loss does not depend on the batch it was computed in, save for its last bits: matrix products of other
shapes add up in another order. In float32 losses agree to 2e-5 nats (a test). Sizes follow from the model,
the lengths and the kind of device, its whole memory included, not from what memory happens to be free: so a
result is the same to the byte whoever measures which part of it, as long as the memory suffices; where it
does not, that is said.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.errors import InputError, is_out_of_memory
from pipeline.models.causal_lm import CausalLM
from pipeline.models.memory import GIBIBYTE, free_bytes, total_bytes
from pipeline.stage import logger

# Measured on a CPU (tests/benchmarks/leave_one_out.py): batches that leave its caches are slower. On a GPU
# (not measured yet, tests/benchmarks/gpu.py): enough that telling it what to do takes less than doing it.
_TOKENS_PER_BATCH, _TOKENS_PER_BATCH_ON_ACCELERATORS = 2048, 32768
_BUDGET_BYTES = 1 * GIBIBYTE
_BUDGET_SHARE_OF_ACCELERATORS = 0.25
"""Of the memory that the device has; weights, prefixes and logits are beside it."""
_SHARE_OF_FREE_MEMORY = 0.5


@dataclass
class Batching:
    """The size of the batches of one model."""

    tokens_per_batch: int
    """Rows that a forward pass may hold, the prefix apart; a single sequence may be longer."""
    memory_budget_bytes: float = float("inf")
    """What a pass may take beyond weights and prefix, by the model's own estimate."""

    @classmethod
    def for_model(
        cls, model: CausalLM, tokens_per_batch: int | None = None, memory_budget_bytes: float | None = None
    ) -> "Batching":
        """Batches of the given sizes; None: what is fastest on the kind of device, within a fixed budget.

        Half of what is free, where that is less than the fixed budget: then it is said that last bits may
        differ.
        """
        is_cpu = model.device.type == "cpu"
        if memory_budget_bytes is None:
            whole = 0 if is_cpu else total_bytes(model.device)
            memory_budget_bytes = _BUDGET_BYTES if is_cpu else _BUDGET_SHARE_OF_ACCELERATORS * whole
            available_bytes = _SHARE_OF_FREE_MEMORY * free_bytes(model.device)
            if available_bytes < memory_budget_bytes:
                logger.warning(
                    "little memory is free: batches are kept within %.2f GiB and not %.3g, which may move the"
                    " last bits of losses",
                    available_bytes / GIBIBYTE, memory_budget_bytes / GIBIBYTE,
                )  # fmt: skip
                memory_budget_bytes = available_bytes
        return cls(
            tokens_per_batch or (_TOKENS_PER_BATCH if is_cpu else _TOKENS_PER_BATCH_ON_ACCELERATORS),
            memory_budget_bytes,
        )

    def num_sequences(self, model: CausalLM, num_rows: int, num_prefix_rows: int = 0) -> int:
        """Sequences of `num_rows` rows that one pass holds, at least one."""
        num_sequences = self.tokens_per_batch // num_rows
        if self.memory_budget_bytes < float("inf"):
            sequence_bytes = model.sequence_bytes(num_rows, num_prefix_rows)
            num_sequences = min(num_sequences, int(self.memory_budget_bytes // sequence_bytes))
        return max(1, num_sequences)

    @contextmanager
    def halved_where_memory_runs_out(self, num_sequences: int, num_rows: int) -> Iterator[None]:
        """Where the pass inside runs out of memory, go on after it with batches half as large.

        Args:
            num_sequences, num_rows: the size of the pass inside.

        Raises:
            InputError: not even one sequence fits.
        """
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if num_sequences == 1:
                raise InputError(
                    f"a single sequence of {num_rows} tokens does not fit the memory; choose a shorter"
                    " --long-context-length, --dtype bfloat16, or a device with more memory"
                ) from error
            self.tokens_per_batch = num_sequences // 2 * num_rows
            logger.warning(
                "out of memory with %d sequences of %d tokens in a batch; going on with half as many",
                num_sequences, num_rows,
            )  # fmt: skip
