"""How far a Hugging Face model's position IDs may go before its predictions would mean something else.

One number a model, so that one rule covers all cases: with IDs below it, no two tokens are far enough apart
for a sliding window to cut, no table of positions runs out, and no RoPE changes its frequencies with the
length of the input.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import InputError

# What a layer may be told to do; any other word of `layer_types` (linear attention, state spaces, …) is a
# layer into which edges cannot be cut.
_LAYER_LIMITS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_RESCALED_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True)
class PositionLimit:
    """Position IDs must be below `num_positions`."""

    num_positions: int
    reason: str

    def refuse(self, num_positions: int, name: str) -> None:
        """Refuse to use `num_positions` position IDs where that is more than there are.

        Raises:
            InputError: it is.
        """
        if num_positions > self.num_positions:
            raise InputError(
                f"{name} {self.reason}, so it can be measured up to --long-context-length"
                f" {self.num_positions}, not {num_positions}"
            )


def position_limit(config: Any, has_rotary_embedding: bool) -> PositionLimit | None:
    """The least limit that the configuration of a model states; None where any position ID will do.

    Args:
        config: a Hugging Face configuration of a text model.
        has_rotary_embedding: whether positions are rotations, and not a table of `max_position_embeddings`.

    Raises:
        InputError: a kind of layer that this project knows nothing about.
    """
    limits = [*_window_limits(config), *_rope_limits(config)]
    table_size = getattr(config, "max_position_embeddings", None)
    if not has_rotary_embedding and table_size:
        limits.append(PositionLimit(table_size, f"has a table of {table_size} positions"))
    return min(limits, key=lambda limit: limit.num_positions, default=None)


def _window_limits(config: Any) -> Iterator[PositionLimit]:
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        # Without a word for each layer, the family slides in all of them or in none.
        names = ["sliding_window"] if getattr(config, "use_sliding_window", True) else []
    else:
        unknown = set(layer_types) - _LAYER_LIMITS.keys() - {"full_attention"}
        if unknown:
            raise InputError(
                f"{config.model_type} has layers of the kind {', '.join(sorted(unknown))}, which cannot be"
                " told whom to look at; only attention layers can"
            )
        names = [_LAYER_LIMITS[kind] for kind in set(layer_types) & _LAYER_LIMITS.keys()]
    if "local" in getattr(config, "attention_layers", ()):  # GPT-Neo
        names.append("window_size")
    for name in names:
        if width := getattr(config, name, None):
            yield PositionLimit(width, f"has layers that look at only the last {width} tokens ({name})")


def _rope_limits(config: Any) -> Iterator[PositionLimit]:
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        if not isinstance(parameters, Mapping) or parameters.get("rope_type") not in _RESCALED_ROPE:
            continue
        longest = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        yield PositionLimit(
            longest,
            f"has RoPE of the type {parameters['rope_type']}, whose frequencies change with the length of the"
            f" input beyond {longest} tokens",
        )
