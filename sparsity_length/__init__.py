"""What a language model gains from its distant context, and which few distant tokens each prediction needs.

    from sparsity_length import explain, influential_tokens, losses, plot, summary

    losses(texts, model)               # one row per token: its loss with the long and the short context
    influential_tokens(texts, model)   # one row per target and rank: the distant tokens that it needs
    explain(text, model)               # a text as a page, which a notebook shows; a list for many texts

    curve = losses(texts, model, context_lengths=(8, 32, 128, 512))  # one row per token and context length
    plot(curve)                                                      # loss against context length
    summary(influential_tokens(texts, model, k=(1, 4, 16)))          # what fraction k tokens recover

All accept models and texts in memory. Terms:

target           a predicted token
short context    the s tokens right before the target, its near tokens
distant context  all tokens before those; both together are the long, or full, context
source           an influential distant token, or in `explain` a word or sentence
divergence       KL from the prediction with the long context; losses and divergences are in nats

model      an OLMo run or checkpoint, a Hugging Face folder, or a name on the hub; or a causal LM of
           transformers or ai2-olmo in memory, with its tokenizer. A model in memory is not changed.
tokenizer  a tokenizer.json or a model's folder, a tokenizer of the library tokenizers, or a fast one of
           transformers (default: the one beside the model).
texts      a string or many: a list, a pandas series, or a column of a data set. Texts may have any length,
           even none, except for `explain`. A text may also be given as token IDs, or as messages (dicts with
           role and content), which go through the tokenizer's chat template.

A text is read with the model's own tokens. What the tokenizer puts before every text (BOS, such as <s>)
belongs to the model, which sees it at the start of every context, short ones included, unless bos="none". It
is not a token of the text: it has no row and is counted nowhere. Control tokens in a text (<|im_start|>) are
plain text unless special_tokens=True. The context is the text's own; a text longer than `long_context_length`
is read in chunks that overlap by half.
A progress bar on standard error shows the remaining time; TQDM_DISABLE=1 hides it. Bad input raises an
InputError with a one-sentence message.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("sparsity_length runs on Linux and macOS; on Windows, under WSL")
if TYPE_CHECKING:
    from sparsity_length.cli import InputError as InputError
    from sparsity_length.figures.frames import plot, summary
    from sparsity_length.measuring.frames import explain, influential_tokens, losses

# Without InputError, whose inherited methods would fill a screen of help().
__all__ = ["explain", "influential_tokens", "losses", "plot", "summary"]

# OpenMP threads that wait by spinning cost nothing on an idle machine, and on a busy one starve the thread
# they wait for (measured: analysis/LOG.md). They are told to give up spinning soon. Read when torch is
# loaded, so it stands before every other import.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# In a notebook without ipywidgets tqdm draws its bars as text, which serves as well.
warnings.filterwarnings("ignore", message="IProgress not found")

_PLACES = {
    "InputError": "cli",
    **dict.fromkeys(("explain", "influential_tokens", "losses"), "measuring.frames"),
    **dict.fromkeys(("plot", "summary"), "figures.frames"),
}


def __getattr__(name: str) -> Any:
    """Import a function when it is first asked for: torch takes seconds, and --help answers at once."""
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
