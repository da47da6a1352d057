"""RoPE changed when a pretrained model is loaded (--rope), so that it reads farther untrained.

`KINDS` has a function per kind that scales: from a model's own parameters of RoPE to scaled ones, both as the
configurations of transformers hold them. `Stair` gives distant pairs of tokens other distances. What is
trained stays as it is.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparsity_length.cli import InputError, unknown_name

if TYPE_CHECKING:  # flags are parsed here, and torch takes seconds to import
    import torch

Parameters = Mapping[str, Any]
"""Parameters of one RoPE: rope_type, rope_theta, and what else the type needs."""


def _yarn(own: Parameters, factor: float, num_positions: int) -> Parameters:
    """YaRN (Peng et al. 2023, arXiv 2309.00071), with the frequencies and attention scale of the paper."""
    return {**own, "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": num_positions}


KINDS: dict[str, Callable[[Parameters, float, int], Parameters]] = {"yarn": _yarn}
"""Kind -> scaled parameters, from the model's own, a factor and the number of trained positions."""


@dataclass(frozen=True)
class RopeScaling:
    """What --rope says: `yarn:2`."""

    kind: str
    factor: float

    @classmethod
    def parse(cls, value: object) -> "RopeScaling | Stair":
        """Read KIND:FACTOR, or stair:W:E, or what was read; InputError says what is wrong with it."""
        text = str(value)
        stair = re.fullmatch(r"stair:([1-9]\d{0,8}):([1-9]\d{0,8})", text)
        if stair is not None:
            return Stair(int(stair[1]), int(stair[2]))
        found = re.fullmatch(r"([a-z]+):(\d{1,6}(?:\.\d{1,6})?)", text)
        if found is None or float(found[2]) <= 1 or found[1] == "stair":
            raise InputError(
                f"--rope {text}: must be KIND:FACTOR with a factor above 1, such as yarn:2, or stair:W:E"
            )
        if found[1] not in KINDS:
            raise unknown_name("kind of --rope", found[1], KINDS)
        return cls(found[1], float(found[2]))

    def __str__(self) -> str:
        return f"{self.kind}:{self.factor:.12g}"

    def scaled(self, own: Parameters | None, num_positions: int | None, name: str) -> Parameters:
        """The scaled parameters of a model, of its own ones; InputError if they cannot be scaled.

        Args:
            own: one set of parameters, or one per kind of layer (Gemma 3), of which those of full attention
                are scaled: windows that slide reach no farther.
            num_positions: how many the model was trained to.
            name: what messages call the model.
        """
        if own and all(isinstance(of_kind, Mapping) for of_kind in own.values()):
            # Without full attention nothing is scaled, which the next check refuses.
            of_full = self.scaled(own.get("full_attention"), num_positions, name)
            return {**own, "full_attention": of_full}
        if not own or num_positions is None:
            raise InputError(f"{name} has no RoPE whose parameters can be set: leave --rope out")
        if (kind := own.get("rope_type", "default")) != "default":
            raise InputError(f"{name} comes with scaled RoPE ({kind}): leave --rope out")
        return KINDS[self.kind](own, self.factor, num_positions)


@dataclass(frozen=True)
class Stair:
    """Stair positions (Ma et al. 2024, Mesa-Extrapolation, arXiv 2410.15859): `stair:512:50`.

    Pairs of tokens nearer than W position IDs keep their distance. Of farther ones E keys share an ID, so
    that distances grow E times slower. With W = 4 and E = 3 a query at ID 11 sees keys 0 to 11 at the
    distances 6 6 6 5 5 5 4 4, and 3 2 1 0.

    From the abstract and the authors' code: IDs woven so, no training, blocks of keys counted from the start
    of the text. Theirs cuts the text into chunks and applies this to the last one; here each query has the W
    IDs before it, as the idea is told without chunks. Nor are scores multiplied by a logarithm of the length.
    """

    near: int
    """W."""
    block: int
    """E."""

    def __str__(self) -> str:
        return f"stair:{self.near}:{self.block}"

    def far_ids(
        self, query_ids: "torch.Tensor", key_ids: "torch.Tensor"
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        """IDs of queries and of keys, whose difference is the distance of a pair W or more IDs apart."""
        # In blocks, as a floor of the difference is no difference of an ID of each.
        return self.near + (query_ids - self.near) // self.block, key_ids // self.block
