"""The training of a language model: OLMo's model, optimizer and scheduler, at the position IDs of a scheme.

ai2-olmo 0.6's own Trainer runs on CUDA only and knows no position IDs; this is its loop on accelerate,
without what this project does not use. Dimension letters: B sequences, S = train_context_length tokens, V
vocabulary; of held-out text W sequences, D documents, L the longest context length; of attention H heads, E
head width.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import ProjectConfiguration, broadcast_object_list
from olmo.config import DistributedStrategy, OptimizerType
from olmo.model import OLMo
from olmo.optim import build_optimizer
from torch.nn.functional import cross_entropy, pad

from pipeline.cli import InputError, logger
from pipeline.models.devices import best_device_type, refuse_beyond_memory, usable_device
from pipeline.models.load import find_checkpoint, load_stock_olmo
from pipeline.models.olmo import blocks_of, scale_attention, use_position_ids
from pipeline.results.files import write_atomically
from pipeline.results.versions import git_commit, package_versions
from pipeline.text.folder import EvaluationDocument, TokenizedData
from pipeline.training import checkpoints, parallel
from pipeline.training.config import PretrainConfig, Schedule
from pipeline.training.data import Prefetch, TrainingBatches
from pipeline.training.loop import StopRequest, TrainingLoop
from pipeline.training.speed import mixed_precision_of, utilization_of_a_token

METRICS_FILE = "metrics.jsonl"  # an object a step (`Trainer._train_step`)
_TRACKERS_FOLDER = "trackers"  # below the run folder
_NO_TARGET = -100
_LOGITS_AT_ONCE = 2**20
"""On a processor: as many as its caches hold in float32, with their gradient."""


def next_token_loss(
    logits_BSV: torch.Tensor, token_ids_BS: torch.Tensor, reduction: str = "mean"
) -> torch.Tensor:
    """Cross-entropy in nats of each sequence's tokens but the first, computed in float32.

    The one place in training where the one-position shift stands. EOS tokens are targets like any other, as
    in OLMo; so are the tokens after one, in the same sequence. The `reduction` is "mean" or "sum" over the
    B (S - 1) targets.
    """
    # The targets are shifted and not the logits cut: that would copy the largest tensor, and its gradient.
    targets = pad(token_ids_BS[:, 1:], (0, 1), value=_NO_TARGET).flatten()
    logits = logits_BSV.flatten(0, 1)
    on_cpu = logits.device.type == "cpu"
    tokens_at_once = max(1, _LOGITS_AT_ONCE // logits.shape[-1]) if on_cpu else len(targets)
    pieces = zip(logits.split(tokens_at_once), targets.split(tokens_at_once), strict=True)
    sums = [
        cross_entropy(piece.float(), piece_targets, ignore_index=_NO_TARGET, reduction="sum")
        for piece, piece_targets in pieces
    ]
    total = torch.stack(sums).sum()
    return total if reduction == "sum" else total / (targets != _NO_TARGET).sum()


LogitsAt = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(token_ids_WS, position_ids_1S) -> logits_WSV."""


class HeldOutLoss:
    """The loss on held-out text at several context lengths: length generalization shows while training.

    The same tokens at every context length: the first L tokens of the first D documents that have so many.
    At context length c the L tokens of a document are cut into L / c sequences of c tokens, each at
    position IDs 0 … c - 1; the loss is the mean cross-entropy, in nats, of every token but the first of its
    sequence: that of training, at contiguous positions. So a target sees contexts of every length up to c,
    and this monitors and does not measure; loss_differences.py measures at exactly so many.
    """

    def __init__(
        self,
        documents: Sequence[EvaluationDocument],
        context_lengths: Sequence[int],
        num_documents: int,
        tokens_per_batch: int,
    ) -> None:
        """Choose the tokens; `tokens_per_batch` is the most in one forward pass, one sequence at least."""
        longest = max(context_lengths)
        texts = (document.token_ids for document in documents)
        chosen = [text[:longest] for text in texts if len(text) >= longest]
        assert chosen, f"no document has {longest} tokens"
        self._token_ids_DL = torch.from_numpy(np.stack(chosen[:num_documents]).astype(np.int64))
        self._context_lengths = sorted(set(context_lengths))
        self._tokens_per_batch = tokens_per_batch

    def __call__(self, logits_at: LogitsAt, device: torch.device) -> dict[str, float]:
        """`held_out_loss_nats_at_<c>` of every context length c; the model takes its inputs on `device`."""
        losses = {}
        for length in self._context_lengths:
            token_ids_WS = self._token_ids_DL.reshape(-1, length).to(device)
            position_ids_1S = torch.arange(length, device=device)[None]
            sums = [
                next_token_loss(logits_at(batch_WS, position_ids_1S), batch_WS, reduction="sum")
                for batch_WS in token_ids_WS.split(max(1, self._tokens_per_batch // length))
            ]
            num_targets = len(token_ids_WS) * (length - 1)
            losses[f"held_out_loss_nats_at_{length}"] = float(torch.stack(sums).sum()) / num_targets
        return losses


def held_out_loss_of(config: PretrainConfig, data: TokenizedData) -> HeldOutLoss | None:
    """The monitor that `config` asks for; None where it asks for none, or no document is long enough."""
    if not config.eval_context_lengths:
        return None
    documents = data.evaluation_documents()
    lengths = config.eval_context_lengths
    if max((len(document.token_ids) for document in documents), default=0) < max(lengths):
        logger.info("no evaluation document has %d tokens: no held-out loss is measured", max(lengths))
        return None
    tokens_per_batch = config.device_train_microbatch_size * config.sequence_length
    return HeldOutLoss(documents, lengths, config.eval_num_documents, tokens_per_batch)


_LONGEST_COMPOSED = 512
"""Tokens of a sequence; beyond, its scores no longer fit the caches."""


def compose_short_attention(model: OLMo) -> None:
    """Let each block of `model` attend by plain products where they are faster: in short bfloat16 on a CPU.

    torch's fused kernel is slow there, most of all backward: sequences of 64 tokens took 5 times as long as
    with plain products, of 256 tokens 1.3 to 2 times (AMD EPYC, AVX512-BF16, one thread). In float32, and
    above 512 tokens, the fused kernel is the faster one. Scores are rounded to bfloat16, so that the error
    is some three times the fused kernel's: half a percent of what is gathered.
    `tests/benchmarks/training.py` times the whole step.
    """
    for block in blocks_of(model):
        fused = cast("Callable[..., torch.Tensor]", block._scaled_dot_product_attention)
        block._scaled_dot_product_attention = cast("torch.nn.Module", partial(_attention, fused))


def _attention(
    fused: Callable[..., torch.Tensor],
    query_BHSE: torch.Tensor,
    key_BHSE: torch.Tensor,
    value_BHSE: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **of_documents: object,
) -> torch.Tensor:
    """What `fused`, the block's own, returns: [B, H, S, E]; scores are rounded to bfloat16 where composed."""
    is_composed = (
        query_BHSE.device.type == "cpu"
        and query_BHSE.dtype == torch.bfloat16
        and query_BHSE.shape == key_BHSE.shape
        and query_BHSE.shape[2] <= _LONGEST_COMPOSED
        and is_causal
        and dropout_p == 0.0
    )
    if not is_composed:
        return fused(
            query_BHSE,
            key_BHSE,
            value_BHSE,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            **of_documents,
        )
    scaled_NSE = (query_BHSE * query_BHSE.shape[-1] ** -0.5).flatten(0, 1)
    future_SS = _future(query_BHSE.shape[2])
    scores_NSS = torch.baddbmm(future_SS, scaled_NSE, key_BHSE.flatten(0, 1).transpose(1, 2))
    attended_NSE = torch.softmax(scores_NSS, dim=-1) @ value_BHSE.flatten(0, 1)
    return attended_NSE.view(query_BHSE.shape)


@lru_cache(maxsize=4)
def _future(num_tokens: int) -> torch.Tensor:
    """Added to the scores: minus infinity at the tokens to come."""
    return torch.full((num_tokens, num_tokens), float("-inf"), dtype=torch.bfloat16).triu(1)


_BYTES_PER_WEIGHT = 16
"""Itself, its gradient and AdamW's two moments, in float32; activations come on top."""


def _make_accelerator(config: PretrainConfig, saved_precision: str | None) -> Accelerator:
    """Accelerate's view of ranks, devices and precision; a run that goes on keeps its `saved_precision`."""
    # Said outright: several CPU processes would otherwise not be taken for the ranks of one run.
    on_cpu = not torch.accelerator.is_available()
    if best_device_type() == "cuda":
        usable_device("cuda", "CUDA_VISIBLE_DEVICES= trains on the CPU")
    ranks = PartialState(cpu=on_cpu)
    # One rank's measurement decides for all.
    chosen = broadcast_object_list([mixed_precision_of(config.precision, ranks.device, saved_precision)])
    folder = str(Path(config.save_folder) / _TRACKERS_FOLDER)
    return Accelerator(
        mixed_precision=chosen[0],
        cpu=on_cpu,
        log_with=config.trackers,
        project_config=ProjectConfiguration(folder, logging_dir=folder),
    )


def _distribute(model: OLMo, config: PretrainConfig, accelerator: Accelerator) -> torch.nn.Module:
    """`model` on this rank's device: compiled where asked, sharded or replicated over the ranks.

    The parameters keep their names, so checkpoints stay OLMo's.
    """
    is_sharded = accelerator.num_processes > 1 and config.distributed_strategy == DistributedStrategy.fsdp
    num_weights = sum(weight.numel() for weight in model.parameters())
    refuse_beyond_memory(
        _BYTES_PER_WEIGHT * num_weights / (accelerator.num_processes if is_sharded else 1),
        accelerator.device,
        f"training {num_weights / 1e6:,.1f} M parameters",
        "choose a smaller model, more GPUs with distributed_strategy=fsdp, or one with more memory",
    )
    if config.compile is not None:
        # Blocks have one code, so one compilation serves all: seconds, where the whole model takes minutes.
        for block in blocks_of(model):
            block.compile(**config.compile.asdict())
    if not is_sharded:
        return accelerator.prepare_model(model)
    model.to(accelerator.device)
    parallel.shard(model, accelerator)
    # What is left for accelerate is to compute in the run's precision: a second wrapper would replicate.
    return accelerator.prepare_model(model, evaluation_mode=True)


def _begin_with(model: OLMo, load_path: str) -> None:
    """Give `model` the weights of another run, all else is its own; InputError where they do not fit it."""
    checkpoint = find_checkpoint(Path(load_path))
    try:
        model.load_state_dict(load_stock_olmo(checkpoint).state_dict())
    except RuntimeError as error:  # torch's first line names the class only
        raise InputError(
            f"load_path: the weights of {checkpoint} do not fit this run's model:"
            f" {' '.join(str(error).split())}"
        ) from error
    logger.info("beginning with the weights of %s", checkpoint)


def _optimizer_of(config: PretrainConfig, model: OLMo) -> torch.optim.Optimizer:
    """OLMo's, which refuses kinds of weights that it does not know: our scales come last, without decay."""
    scales = {name: weight for name, weight in model.named_parameters() if ".attention_scaling." in name}
    for scale in scales.values():
        scale.requires_grad_(False)
    optimizer = build_optimizer(config, model)
    for scale in scales.values():
        scale.requires_grad_(True)
    if scales:
        like_others = {**optimizer.param_groups[0], "weight_decay": 0.0, "param_names": [*scales]}
        optimizer.add_param_group(like_others | {"params": [*scales.values()]})
    return optimizer


def open_metrics(path: Path, step: int) -> TextIO:
    """Open `metrics.jsonl` after `step` finished steps; lines of later ones, which run again, are dropped.

    InputError where lines are missing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        # One torn by a kill has no line end and can only be the last.
        steps = [json.loads(line)["step"] for line in lines if line.endswith("\n")]
    except (ValueError, TypeError, KeyError):
        steps = None
    if steps is None or steps[:step] != list(range(1, step + 1)):
        raise InputError(
            f"{path} is damaged: it does not hold the {step} steps before the newest checkpoint; put back"
            " what was there, or choose another --save-folder"
        )
    kept = "".join(lines[:step])
    write_atomically(path, lambda temporary: temporary.write_text(kept, encoding="utf-8"))
    return path.open("a", encoding="utf-8")


class Trainer(TrainingLoop):
    """One pretraining run: the model and its optimizer at `step` finished steps."""

    def __init__(
        self,
        config: PretrainConfig,
        batches: TrainingBatches,
        schedule: Schedule,
        held_out_loss: HeldOutLoss | None = None,
        stop_request: StopRequest | None = None,
    ) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one."""
        super().__init__(config, Path(config.save_folder), schedule.num_steps, stop_request or StopRequest())
        self._config = config
        self._schedule = schedule
        self._batch_of = Prefetch(batches.batch)
        self._held_out_loss = held_out_loss
        saved = checkpoints.newest_state(self._run_folder)
        self._accelerator = accelerator = _make_accelerator(
            config, None if saved is None else saved["train"].get("mixed_precision")
        )
        self._num_positions = config.position_target_length or config.sequence_length
        self._micro_batch_size = config.micro_batch_size(accelerator.num_processes)
        torch.manual_seed(config.seed)  # OLMo draws its initial weights from the global generator
        self._olmo = OLMo(config.model).train()
        self._olmo.set_activation_checkpointing(config.activation_checkpointing)
        compose_short_attention(self._olmo)
        scale_attention(self._olmo, config.attention_scaling, config.sequence_length)
        if saved is None and config.load_path is not None:
            _begin_with(self._olmo, config.load_path)
        self._rotary = use_position_ids(self._olmo)
        self._model = _distribute(self._olmo, config, accelerator)
        self._optimizer = _optimizer_of(config, self._olmo)
        settings = config.optimizer
        own_step = settings.selective_updates or settings.record_update_metrics
        if settings.name == OptimizerType.adamw and not own_step:
            for group in self._optimizer.param_groups:
                group["fused"] = True  # one kernel a device
        dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
        self._utilization_of_a_token = utilization_of_a_token(
            config, accelerator.num_processes, accelerator.device, dtype
        )
        parallel.seed_stream(config.seed, accelerator.process_index)
        if saved is not None:
            self.step = saved["train"]["step"]
            parallel.load_weights(self._olmo, saved["model"])
            parallel.load_optimizer(self._optimizer, saved["optim"])
            parallel.restore_stream(accelerator, saved["train"], config.model, config.seed)

    @contextmanager
    def _open_metrics(self) -> Iterator[None]:
        if self._config.trackers:
            # `wandb sync` sends an offline run later; compute nodes often have no network.
            os.environ.setdefault("WANDB_MODE", "offline")
            self._accelerator.init_trackers(
                self._config.run_name or self._run_folder.resolve().name,
                init_kwargs={"wandb": {"dir": str(self._run_folder / _TRACKERS_FOLDER)}},
            )
        with ExitStack() as stack:
            if self._accelerator.is_main_process:
                self._metrics = stack.enter_context(open_metrics(self._run_folder / METRICS_FILE, self.step))
            yield
        self._accelerator.end_training()

    def _write(self, metrics: dict[str, float]) -> str:
        if self._accelerator.is_main_process:
            self._metrics.write(json.dumps(metrics) + "\n")
            if metrics["step"] % self._config.console_log_interval == 0:
                self._metrics.flush()
            self._accelerator.log(metrics, step=metrics["step"])
        return f"loss {metrics['loss_nats']:.3f} nats, {metrics['tokens_per_second']:,.0f} tokens/s"

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        """One optimizer step; its metrics, and whether any rank was asked to stop."""
        started = time.perf_counter()
        rank_loss = self._accumulate_gradients(step)
        # With the loss, so that all ranks stop after the same step at no further cost.
        is_asked = torch.full_like(rank_loss, self._stop_request.signal_name is not None)
        loss, share_asked = self._accelerator.reduce(torch.stack((rank_loss, is_asked)), reduction="mean")
        max_norm = self._schedule.max_grad_norm(step)
        norm = self._accelerator.clip_grad_norm_(
            self._model.parameters(), math.inf if max_norm is None else max_norm
        )
        gradient_norm = float(parallel.whole(norm))  # before clipping, over all ranks
        loss_nats = float(loss)
        learning_rate = self._schedule.learning_rate(step)
        self._update_weights(self._optimizer, step, learning_rate, loss_nats, gradient_norm)
        tokens_per_second = self._config.tokens_per_step / (time.perf_counter() - started)
        metrics = {
            "step": step,
            "tokens": step * self._config.tokens_per_step,
            "loss_nats": loss_nats,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "tokens_per_second": tokens_per_second,
            "model_flops_utilization": tokens_per_second * self._utilization_of_a_token,
        }
        return metrics, float(share_asked) > 0

    def _accumulate_gradients(self, step: int) -> torch.Tensor:
        """Forward and backward over this rank's micro-batches; the mean loss of its tokens.

        Micro-batches are of one size, so the mean over them and all ranks is that of the whole batch.
        """
        device = self._accelerator.device
        rank_batch_size = self._config.global_train_batch_size // self._accelerator.num_processes
        first = self._accelerator.process_index * rank_batch_size
        token_ids, position_ids = (
            torch.from_numpy(array[first : first + rank_batch_size]).to(device).split(self._micro_batch_size)
            for array in self._batch_of(step)
        )
        num_micro_batches = len(token_ids)
        total = torch.zeros((), device=device)
        for index, (token_ids_BS, position_ids_BS) in enumerate(zip(token_ids, position_ids, strict=True)):
            is_last = index == num_micro_batches - 1
            with nullcontext() if is_last else self._accelerator.no_sync(self._model):
                self._rotary.set_position_ids(position_ids_BS, self._num_positions)
                loss = next_token_loss(self._model(token_ids_BS).logits, token_ids_BS) / num_micro_batches
                self._accelerator.backward(loss)
            total += loss.detach()
        return total

    @torch.no_grad()
    def _measure(self) -> dict[str, float]:
        """The held-out loss at each context length, in the run's precision, without dropout.

        Every rank measures the same: sharded models need all ranks, and it is little beside the training.
        """
        if self._held_out_loss is None:
            return {}

        def logits_at(token_ids_WS: torch.Tensor, position_ids_1S: torch.Tensor) -> torch.Tensor:
            self._rotary.set_position_ids(position_ids_1S, position_ids_1S.shape[1])
            return self._model(token_ids_WS).logits

        self._model.eval()
        # Other lengths than training's would have the blocks compiled again.
        with torch.compiler.set_stance("force_eager") if self._config.compile else nullcontext():
            losses = self._held_out_loss(logits_at, self._accelerator.device)
        self._model.train()
        return losses

    def _save(self) -> None:
        is_main = self._accelerator.is_main_process
        train: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * self._config.tokens_per_step,
            "random_states": parallel.stream_states(self._accelerator),
            "train_data_sha256": self._config.train_data_sha256,
            "mixed_precision": self._accelerator.mixed_precision,
            "num_ranks": self._accelerator.num_processes,
            "git_commit": git_commit(),
            "packages": package_versions(),
        }
        model, optim = (parallel.gather(part.state_dict(), is_main) for part in (self._olmo, self._optimizer))
        state = {"model": model, "optim": optim, "train": train}
        if is_main:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            checkpoints.save_checkpoint(self._run_folder, self.step, self._config, state)
            if self._config.save_num_unsharded_checkpoints_to_keep > 0:
                checkpoints.drop_old_checkpoints(
                    self._run_folder, self._config.save_num_unsharded_checkpoints_to_keep
                )
        self._accelerator.wait_for_everyone()
