"""The training of a language model: OLMo's model, optimizer and scheduler, at the position IDs of a scheme.

ai2-olmo 0.6's own Trainer runs on CUDA only and knows no position IDs; this is its loop on accelerate,
without what this project does not use. Dimension letters: B sequences, S = train_context_length tokens, V
vocabulary; of held-out text W sequences, D documents, L the longest context length; of attention H heads, E
head width.
"""

import argparse
import math
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from olmo.config import DistributedStrategy
from olmo.model import OLMo
from olmo.optim import build_optimizer
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, pad

from sparsity_length.cli import logger, path_of
from sparsity_length.models.checkpoints import errors_in_words, find_checkpoint, step_folders
from sparsity_length.models.devices import multiplies_bfloat16, usable_device, warn_of_slow_bfloat16
from sparsity_length.models.olmo import blocks_of, load_stock_olmo, use_position_ids
from sparsity_length.results.versions import provenance
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import PretrainConfig, config_of
from sparsity_length.training.data import TrainingBatches, prefetched, refuse_damaged_tokens
from sparsity_length.training.loop import TrainingLoop, has_finished, newest_state, save_checkpoint, train
from sparsity_length.training.settings import require

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_LOGITS_AT_ONCE = 2**20
"""Number that a CPU's caches hold in float32, with their gradient."""


def next_token_loss(logits_BSV: torch.Tensor, token_ids_BS: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats of each sequence's tokens but the first, in float32: the sum of B (S - 1).

    The one place in training where the one-position shift stands. EOS tokens are targets like any other, as
    in OLMo; so are the tokens after one, in the same sequence.
    """
    # The targets are shifted and not the logits cut: that would copy the largest tensor, and its gradient.
    # The last row of each sequence predicts nothing: -100 is what cross_entropy leaves out.
    targets = pad(token_ids_BS[:, 1:], (0, 1), value=-100).flatten()
    logits = logits_BSV.flatten(0, 1)
    # Pieces are for a CPU's caches; on a GPU each would only be one more launch.
    tokens_at_once = max(1, _LOGITS_AT_ONCE // logits.shape[-1]) if logits.is_cpu else len(targets)
    pieces = zip(logits.split(tokens_at_once), targets.split(tokens_at_once), strict=True)
    sums = [cross_entropy(piece.float(), of_piece, reduction="sum") for piece, of_piece in pieces]
    return torch.stack(sums).sum()


def held_out_tokens(config: PretrainConfig, data: TokenizedData) -> torch.Tensor:
    """The first L tokens of the first D documents that have so many: int64 [D, L]; D may be 0.

    L is the longest of `eval_context_lengths`; without any, no document is read.
    """
    longest = max(config.eval_context_lengths or [0])
    texts = [document.token_ids for document in (data.evaluation_documents() if longest else [])]
    chosen = [text[:longest] for text in texts if len(text) >= longest]
    if longest and not chosen:
        logger.info("no evaluation document has %d tokens: no held-out loss is measured", longest)
    return torch.from_numpy(np.array(chosen[: config.eval_num_documents], dtype=np.int64))


def short_attention(
    fused: Callable[..., torch.Tensor],
    query_BHSE: torch.Tensor,
    key_BHSE: torch.Tensor,
    value_BHSE: torch.Tensor,
    **settings: Any,
) -> torch.Tensor:
    """What `fused`, a block's own attention, returns, [B, H, S, E]: by plain products if they are faster.

    They are in short bfloat16 sequences on a CPU, where torch's fused kernel is slow, most of all backward:
    sequences of 64 tokens took 5 times as long as with plain products, of 256 tokens 1.3 to 2 times (AMD
    EPYC, AVX512-BF16, one thread). In float32, and above 512 tokens, the fused kernel is the faster one.
    Scores are rounded to bfloat16, so that the error is some three times the fused kernel's: half a percent
    of what is gathered. `tests/benchmarks/training.py` times the whole step.
    """
    num_tokens = query_BHSE.shape[2]
    if not (
        query_BHSE.is_cpu
        and query_BHSE.dtype == torch.bfloat16
        and query_BHSE.shape == key_BHSE.shape
        and num_tokens <= 512  # beyond, its scores no longer fit the caches
        and settings.get("is_causal")
        and not settings.get("dropout_p")
    ):
        return fused(query_BHSE, key_BHSE, value_BHSE, **settings)
    scaled_NSE = (query_BHSE * query_BHSE.shape[-1] ** -0.5).flatten(0, 1)
    future_SS = torch.full((num_tokens, num_tokens), float("-inf"), dtype=torch.bfloat16).triu(1)
    # Masks while it multiplies, which saves a pass over the scores.
    scores_NSS = torch.baddbmm(future_SS, scaled_NSE, key_BHSE.flatten(0, 1).transpose(1, 2))
    attended_NSE = torch.softmax(scores_NSS, dim=-1) @ value_BHSE.flatten(0, 1)
    return attended_NSE.view(query_BHSE.shape)


def mixed_precision_of(precision: str | None, device: torch.device, saved: str | None = None) -> str:
    """Accelerate's name for OLMo's `precision`: "bf16" or "no" (float32 throughout, as if it is None).

    `amp_bf16` keeps parameters and optimizer in float32 and computes matrix products in bfloat16; `auto` is
    that if it is faster. A resumed run keeps its `saved` one, whatever the device.
    """
    faster = "bf16" if multiplies_bfloat16(device) else "no"
    chosen = {"amp_bf16": "bf16", "auto": saved or faster}.get(precision or "fp32", "no")
    if chosen == "bf16":
        warn_of_slow_bfloat16(device, "precision=fp32")
    return chosen


def _distribute(model: OLMo, config: PretrainConfig, accelerator: Accelerator) -> torch.nn.Module:
    """`model` on this rank's device: compiled if asked, sharded or replicated over the ranks.

    The parameters keep their names, so checkpoints stay OLMo's.
    """
    if config.compile is not None:
        # Blocks have one code, so one compilation serves all: seconds, where the whole model takes minutes.
        for block in blocks_of(model):
            block.compile(**config.compile.asdict())
    if accelerator.num_processes == 1 or config.distributed_strategy != DistributedStrategy.fsdp:
        return accelerator.prepare_model(model)
    # Not through accelerate's plugin, which leaves it out on CPUs, where the tests run it. In bfloat16 runs
    # weights are gathered in bfloat16; gradients are always summed in float32.
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if accelerator.mixed_precision == "bf16" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # autocast decides, as without sharding
    )
    # Blocks first: the whole model then shards only what they left, such as the embedding.
    for module in (*blocks_of(model), model):
        fully_shard(module, mp_policy=precision)
    # What is left for accelerate is to compute in the run's precision: a second wrapper would replicate.
    return accelerator.prepare_model(model, evaluation_mode=True)


class Trainer(TrainingLoop):
    """One pretraining run: the model and its optimizer at `step` finished steps."""

    _config: PretrainConfig

    def __init__(self, config: PretrainConfig, data: TokenizedData) -> None:
        """Build model and optimizer, at the run's newest checkpoint if it has one."""
        super().__init__(config, Path(config.save_folder), config.num_steps)
        self._batch_of = prefetched(TrainingBatches(config, data).batch)
        saved = newest_state(self._run_folder)
        saved_precision = saved.get("train", {}).get("mixed_precision")
        device = usable_device(None, "CUDA_VISIBLE_DEVICES= trains on the CPU")
        # The CPU said outright: else several of its processes are not taken for the ranks of one run.
        self._accelerator = Accelerator(
            mixed_precision=mixed_precision_of(config.precision, device, saved_precision),
            cpu=not torch.accelerator.is_available(),
        )
        self._accelerator.gradient_accumulation_steps = config.num_micro_batches(
            self._accelerator.num_processes
        )
        self._held_out_DL = held_out_tokens(config, data).to(self._accelerator.device)
        torch.manual_seed(config.seed)  # OLMo draws its initial weights from the global generator
        self._olmo = OLMo(config.model).train()
        self._olmo.set_activation_checkpointing(config.activation_checkpointing)
        for block in blocks_of(self._olmo):
            block._scaled_dot_product_attention = partial(
                short_attention, block._scaled_dot_product_attention
            )
        # The initial weights of another run, without its optimizer; a run that goes on has its own.
        if config.load_path is not None and not saved:
            begun = load_stock_olmo(find_checkpoint(path_of(config.load_path)))
            require(
                begun.config.vocab_size == config.model.vocab_size,
                f"load_path {config.load_path} has a vocabulary of {begun.config.vocab_size} tokens, and the"
                f" data of {config.model.vocab_size}: it was trained with another tokenizer",
            )
            with errors_in_words(f"load_path {config.load_path} does not fit the configuration's model"):
                self._olmo.load_state_dict(begun.state_dict())
        self._rotary = use_position_ids(self._olmo)
        self._model = _distribute(self._olmo, config, self._accelerator)
        self._optimizer = build_optimizer(config, self._olmo)
        for group in self._optimizer.param_groups:
            group["fused"] = True  # AdamW's one kernel per device; Lion has none, and does not look
        if saved:
            self.step = saved["train"]["step"]
            # After sharding: each rank takes its part of the whole.
            set_state_dict(
                self._olmo,
                self._optimizer,
                model_state_dict=saved["model"],
                optim_state_dict=saved["optim"],
                options=_WHOLE,
            )

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        """One optimizer step; its metrics, and whether any rank was asked to stop.

        Micro-batches are of one size, so the mean over them and all ranks is that of the whole batch.
        """
        started = time.perf_counter()
        config = self._config
        accelerator = self._accelerator
        # For dropout, so that nothing needs to be saved of torch's generators. Ranks differ: one stream for
        # all would give one mask to different sequences.
        dropout_seed = np.random.SeedSequence(config.seed, spawn_key=(accelerator.process_index, step))
        torch.manual_seed(int(dropout_seed.generate_state(1, np.uint64)[0]))
        # Every rank makes the whole batch and takes its run of it, so any number of ranks trains on the same.
        token_ids, position_ids = (
            torch.from_numpy(array)
            .chunk(accelerator.num_processes)[accelerator.process_index]
            .to(accelerator.device)
            .chunk(accelerator.gradient_accumulation_steps)
            for array in self._batch_of(step)
        )
        rank_loss = torch.zeros((), device=accelerator.device)
        for token_ids_BS, position_ids_BS in zip(token_ids, position_ids, strict=True):
            # Gradients are summed over the ranks once a step, in the last backward pass.
            with accelerator.accumulate(self._model):
                self._rotary.set_position_ids(position_ids_BS)
                loss_sum = next_token_loss(self._model(token_ids_BS).logits, token_ids_BS)
                loss = loss_sum / token_ids_BS[:, 1:].numel()
                accelerator.backward(loss)  # divided by the number of micro-batches
            rank_loss += loss.detach() / accelerator.gradient_accumulation_steps
        # With the loss, so that all ranks stop after the same step at no further cost.
        is_asked = torch.full_like(rank_loss, self._is_asked_to_stop)
        loss, share_asked = accelerator.reduce(torch.stack((rank_loss, is_asked)), reduction="mean")
        learning_rate, max_norm = config.rates(step)
        norm = accelerator.clip_grad_norm_(self._model.parameters(), max_norm or math.inf)
        metrics = {
            "step": step,
            "tokens": step * config.global_train_batch_tokens,
            "loss_nats": float(loss),
            "learning_rate": learning_rate,
            # before clipping, over all ranks
            "gradient_norm": float(norm.full_tensor() if isinstance(norm, DTensor) else norm),
        }
        self._update_weights(step, learning_rate, metrics["loss_nats"], metrics["gradient_norm"])
        metrics["tokens_per_second"] = config.global_train_batch_tokens / (time.perf_counter() - started)
        return metrics, float(share_asked) > 0

    @torch.no_grad()
    def _measure(self) -> dict[str, float]:
        """`held_out_loss_nats_at_<c>` at every context length c: length generalization shows while training.

        At context length c the L tokens of a document are cut into L / c sequences of c tokens, each at
        position IDs 0 … c - 1; the loss is the mean cross-entropy, in nats, of every token but the first of
        its sequence: that of training, at contiguous positions, without dropout. So a target sees contexts of
        every length up to c, and this monitors and does not measure; loss_differences.py measures at exactly
        so many tokens. Every rank measures the same: sharded models need all ranks.
        """
        lengths = (self._config.eval_context_lengths or []) if len(self._held_out_DL) else []
        losses = {}
        self._model.eval()
        # Other lengths than training's would have the blocks compiled again.
        with torch.compiler.set_stance("force_eager") if self._config.compile else nullcontext():
            for length in sorted(set(lengths)):
                token_ids_WS = self._held_out_DL.reshape(-1, length)
                self._rotary.set_position_ids(torch.arange(length, device=token_ids_WS.device)[None])
                batches = token_ids_WS.split(max(1, self._config.device_train_microbatch_tokens // length))
                sums = [next_token_loss(self._model(batch_WS).logits, batch_WS) for batch_WS in batches]
                # The first token of each sequence has no context and is no target.
                num_targets = token_ids_WS[:, 1:].numel()
                losses[f"held_out_loss_nats_at_{length}"] = float(torch.stack(sums).sum()) / num_targets
        self._model.train()
        return losses

    def _save(self) -> None:
        # Whole on the first rank, whatever the ranks and the strategy: a run may go on with others.
        model, optim = get_state_dict(self._olmo, self._optimizer, options=_WHOLE)
        if self._accelerator.is_main_process:
            train = {
                "step": self.step,
                "tokens": self.step * self._config.global_train_batch_tokens,
                "train_data_sha256": self._config.train_data_sha256,
                "mixed_precision": self._accelerator.mixed_precision,
                "num_ranks": self._accelerator.num_processes,
                **provenance(),
            }
            save_checkpoint(
                self._run_folder, self.step, self._config, {"model": model, "optim": optim, "train": train}
            )
            num_kept = self._config.save_num_unsharded_checkpoints_to_keep
            for folder in list(step_folders(self._run_folder).values())[: -num_kept if num_kept > 0 else 0]:
                # A kill may leave a part of it: no run goes on from there, and the next save removes it.
                shutil.rmtree(folder)
        self._accelerator.wait_for_everyone()


def left(arguments: argparse.Namespace) -> list[str]:
    """What a command line of pretrain.py has still to train; another run's folder is refused."""
    config = config_of(arguments, TokenizedData.open(arguments.data))
    done = has_finished(arguments.save_folder, config, config.num_steps)
    return [] if done else [f"the training of {arguments.save_folder}"]


def pretrain(arguments: argparse.Namespace) -> None:
    """Train, resume training, or say that the run is finished."""
    if left(arguments):
        data = TokenizedData.open(arguments.data)
        refuse_damaged_tokens(data)
        train(arguments.save_folder, lambda: Trainer(config_of(arguments, data), data))
