"""Two KV-cache eviction policies as selection rules, tried like any other rule.

    sparsity influential_tokens --rule-file analysis/examples/kv_cache_rules.py \\
        --rules streaming_llm snapkv recency random --ablation mask \\
        --data runs/demo/data --checkpoints runs/demo/models/long-seed0 --results runs/try/policies \\
        --short-context-length 16 --long-context-length 128 --max-documents 8

A rule is a function of a distant context, with a decorator that says what it looks at: the answer, the whole
prediction, attention or nothing. It returns a score for each target and distant token. The short context
always stays, as a policy's window of recent tokens does. Real caches keep other tokens in each layer and
head; here one choice serves all.

Shapes: T targets, F distant tokens, S rows, H heads.
"""

import numpy as np
import torch

from sparsity_length.measuring.far_context import FarContext
from sparsity_length.measuring.rules import rule
from sparsity_length.models.interface import CausalLM, ReadText

NUM_SINKS = 4
POOLED = 5
"""Neighbors that SnapKV averages over."""


@rule(sees="nothing")
def streaming_llm(far: FarContext) -> np.ndarray:
    """The first four tokens ("attention sinks"), then the most recent: Xiao et al. 2023, arXiv 2309.17453.

    Theirs counts positions within the cache; here tokens keep their IDs.
    """
    num_far_T = far.num_far_tokens_T
    # Targets ascend, so the last one has the most distant tokens.
    scores_F = np.arange(num_far_T[-1])  # the later, the better
    sinks_F = scores_F[:NUM_SINKS].copy()
    # Of ten tokens: 14, 13, 12, 11, then 4 to 9, so that the sinks come first, the very first at the top.
    scores_F[:NUM_SINKS] = len(scores_F) + NUM_SINKS - sinks_F
    # A row per target; scores of tokens beyond a target's own distant context are ignored.
    return np.tile(scores_F, (len(num_far_T), 1))


@rule(sees="attention")
def snapkv(far: FarContext) -> np.ndarray:
    """Tokens that the last rows attend to most, each with its neighbors' mean.

    Li et al. 2024, arXiv 2404.14469. Their "observation window" is the short context here.
    """
    num_recent = far.lengths.short_context_length

    def votes(model: CausalLM, read: ReadText) -> torch.Tensor:
        # Heads are summed layer by layer, as keeping them would take as many times the memory as there are
        # heads.
        layers = model.watch_heads(*read[:3], lambda weights_HSS: weights_HSS.sum(0))
        weights_SS = torch.stack(layers).sum(0)
        # NaN: no candidate, such as a token of the short context.
        votes_TS = torch.full((len(read.query_rows_T), len(weights_SS)), torch.nan)
        for target, row in enumerate(read.query_rows_T.tolist()):
            # A sequence may hold several targets' short contexts; a mask then says what this one sees.
            seen = torch.arange(row + 1, device=weights_SS.device)
            if read.visible_1SS is not None:
                seen = read.visible_1SS[0, row].nonzero()[:, 0]
            # Rows: queries of the short context; columns: keys of the distant one.
            votes_F = weights_SS[seen[-num_recent:]][:, seen[:-num_recent]].sum(0, keepdim=True)
            # Zeros pad both ends and count in the mean, so the outermost tokens score lower.
            pooled_F = torch.nn.functional.avg_pool1d(votes_F, POOLED, stride=1, padding=POOLED // 2)[0]
            votes_TS[target, seen[:-num_recent].cpu()] = pooled_F.cpu()
        return votes_TS

    return far.look_inside(votes)
