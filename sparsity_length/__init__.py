"""What a language model gains from its distant context, and which few distant tokens each prediction needs.

    from sparsity_length import explain, influential_tokens, losses

    losses(texts, model)               # a row a token: its loss with long and with short context
    influential_tokens(texts, model)   # a row a target and rank: the distant tokens that it needs
    explain(text, model)               # one text as a page, which a notebook shows

All three take a model and texts as you have them.

model      an OLMo run or checkpoint, a Hugging Face folder, a name on the hub; or a causal LM in memory, of
           transformers or ai2-olmo, with its tokenizer. It is given back as it was.
tokenizer  a tokenizer.json or a model's folder, a tokenizer of the library tokenizers, or a fast one of
           transformers; where not given, that which lies by the model.
texts      a string or many: a list, a pandas series, a column of a data set; of any length, empty ones too.
           In the place of a string, token IDs as they are; or messages, dicts with role and content, which go
           through the tokenizer's chat template.

A text is read with the model's own tokens. What the tokenizer puts before every text (BOS, as <s>) belongs to
the model, which has it at the start of every context, the short ones too, unless bos="none"; it is no token
of the text, has no row and counts nowhere. Control tokens in a text (<|im_start|>) are text, unless
special_tokens=True. The context is the text's own; a text longer than `long_context_length` is read in
chunks that overlap by half.
Losses and divergences are nats. A bar on standard error says how long it takes; TQDM_DISABLE=1 hides it.
What cannot be used is an InputError of one sentence.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.cli import InputError
from pipeline.explain import NUM_SOURCES, NUM_TARGETS, SHORT_CONTEXT_LENGTH, check, parser
from sparsity_length.arguments import checked

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.measuring.explanation import Explanation
    from pipeline.text.tokenizer import Text

__all__ = ["InputError", "explain", "influential_tokens", "losses"]


def losses(
    texts: "Text | Iterable[Text]", model: Any, tokenizer: Any = None, *, short_context_length: int = 64,
    long_context_length: int | None = None, bos: str = "auto", special_tokens: bool = False,
    dtype: str = "auto", device: str | None = None,
) -> "pd.DataFrame":  # fmt: skip
    """The loss of each token with everything before it, and with the few tokens right before it.

    Args:
        short_context_length: s; the short context of a token is exactly the s tokens before it.
        long_context_length: tokens of a chunk; None: 1,024, or as many as the model has positions. In a text
            of one chunk each token sees everything before it. In a longer one it sees at least half a chunk.
        dtype, device: of a model that is loaded here; "auto" is float32. "bfloat16" takes half the memory and
            may choose other tokens that matter about as much. A model that needs more is loaded by you.
        bos, special_tokens: "auto" puts before a text what the tokenizer puts there, "none" nothing; whether
            control tokens in a text are read as such.

    Returns:
        A frame, a row for each token of each text, with the columns
            text: the text's place among those given, from 0;
            position, token, token_id: its place among the text's tokens, its characters, its ID;
            byte_start, byte_end: its place in the text's UTF-8;
            num_long_context_tokens: how many tokens its long context has;
            long_context_loss, short_context_loss: nats;
            loss_difference: short less long; positive where the long context helps;
            divergence: KL(p(.|long) || p(.|short)), the expected loss difference: it never sees the token.
        The last four are NaN, and num_long_context_tokens is 0, of each text's first s + 1 tokens: their
        short context is not whole, or it is the long one.
    """
    options, reading = checked(dtype=dtype, device=device), checked(bos=bos, special_tokens=special_tokens)
    lengths = checked(short_context_length=short_context_length, long_context_length=long_context_length)
    from sparsity_length.frames import losses_frame  # late: it loads torch

    return losses_frame(texts, model, tokenizer, options, reading, **lengths)


def influential_tokens(
    texts: "Text | Iterable[Text]", model: Any, tokenizer: Any = None, *, short_context_length: int = 64,
    long_context_length: int | None = None, num_targets: int | None = None,
    k: Iterable[int] = (1, 2, 4, 8, 16), rule: str = "leave_one_out_divergence",
    evaluators: Iterable[Any] = (), ablation: str = "swap", num_swaps: int = 1, swap_text: str | None = None,
    screen: int | None = None, seed: int = 0, bos: str = "auto", special_tokens: bool = False,
    dtype: str = "auto", device: str | None = None,
) -> "pd.DataFrame":  # fmt: skip
    """The distant tokens that each prediction needs most, and how far it gets with them.

    Distant tokens are those before the short context. Under the ablation "swap" what is left out is
    replaced by another text's tokens, and sources are put among these; under "mask" nothing stands there.

    Args:
        k: numbers of sources that are tried together; a text too short for the largest leaves it out.
        evaluators: other models of the same tokenizer, which try the sources instead of the one that chose.
        short_context_length, long_context_length, dtype and so on: as of `losses`.
        num_targets: predict the last so many tokens of each text only; None: all that have distant tokens
            enough. Time grows with it, and with the square of the length of a chunk.
        screen: blocks of distant tokens that a round of the rules leave_one_out and leave_one_out_divergence
            leaves out, those that matter being split, so that time grows about linearly; None: every token of
            a chunk up to 2,048 tokens, 32 blocks and one a target beyond.
        rule: which ranks the distant tokens; `sparsity influential_tokens --help` lists them.
        num_swaps: number of other texts to average over, under "swap".
        swap_text: is cut into the swapped contexts and the null baseline; None: bundled English passages.
        seed: of rules that draw.

    Returns:
        A frame, a row for each target, rank and evaluator, with the columns
            text, evaluator: the text's place among those given; the model that tries the sources;
            position, token, byte_start, byte_end: the target, as of `losses`;
            rank: from 1, the source needed most, to the largest k;
            source_position, source_token: the distant token of this rank;
            influence, divergence: what leaving this one out costs, and how far it moves the prediction; NaN
                where the rule leaves none out, or the screen not this one alone;
            long_context_loss, short_context_loss: of the target;
            baseline_loss, baseline_divergence: before a source is there: under the swapped distant context,
                or under the short context alone; the divergence is from the prediction with the long context;
            sparse_context_loss, sparse_context_divergence: with the sources of ranks 1 to this one together;
                in the rows whose rank is one of k, else NaN;
            null_sparse_context_loss, null_sparse_context_divergence: the same of sources chosen in another
                text; NaN of rules that say enough without that null;
            mean_log2_k: how many sources the target takes, in doublings; NaN where the long context moves its
                prediction by less than 0.1 nats.
        A target has a row only if s plus the largest k tokens stand before it; a warning counts the others.
    """
    options, reading = checked(dtype=dtype, device=device), checked(bos=bos, special_tokens=special_tokens)
    asked = checked(
        short_context_length=short_context_length, long_context_length=long_context_length,
        num_targets=num_targets, k=k, rule=rule, evaluators=evaluators, ablation=ablation,
        num_swaps=num_swaps, swap_text=swap_text, screen=screen, seed=seed,
    )  # fmt: skip
    from sparsity_length.frames import influential_frame  # late: it loads torch

    return influential_frame(texts, model, tokenizer, options, reading, **asked)


def explain(
    text: "Text", model: Any, tokenizer: Any = None, *, short_context_length: int = SHORT_CONTEXT_LENGTH,
    long_context_length: int | None = None, targets: "int | str" = NUM_TARGETS, sources: int = NUM_SOURCES,
    at: str | None = None, position: int | None = None, instead: str | None = None, unit: str = "word",
    generate: int | None = None, budget: "str | float | None" = None, swap_text: str | None = None,
    bos: str = "auto", special_tokens: bool = False, dtype: str = "auto", device: str | None = None,
) -> "Explanation":  # fmt: skip
    """Which earlier tokens the predictions in one text depend on, as pipeline/explain.py tells it.

    Args:
        text: a string, token IDs, or the messages of a chat, whose last message is what is explained.
        targets, at, position, instead, unit, generate, budget and so on: as the flags of these names;
            targets="all" is --all, and a budget may be a number of seconds.
        swap_text: its tokens stand in swapped contexts; None: English passages.

    Returns:
        An object that a notebook shows as a page, and `print` in words. `.html` is the page, and
        `.save("page.html")` writes it, or the data to a file that ends in .json or .csv. `.losses` has a row
        for each predicted token, with the columns
            position, byte_start, byte_end, token, token_id: its place among the text's tokens and in its
                UTF-8, its text and ID;
            near_position: where its near tokens begin, which it has in every context;
            full_loss, short_loss, swapped_loss: nats, with the full context, with the near tokens alone, and
                with these behind another document's;
            short_divergence, swapped_divergence: KL(p(.|full) || p(.|…)); the latter is the total effect.
        `.frame` has a row for each explained prediction and source, with the columns
            position, token, byte_start, byte_end: the prediction, as above;
            total_effect, recovered: mean of the total effect over 4 swapped contexts, and the fraction of it
                that the sources recover together;
            no_single_source: whether that is not distinguishable from the null baseline;
            rank, source, source_position, source_end: the source, its text and its tokens
                [source_position, source_end);
            source_byte_start, source_byte_end: its place in the text's UTF-8;
            effect, loss_effect: what swapping it alone does to the prediction and adds to the loss, nats.
    """
    arguments = parser().parse_args(["--model", ""])
    asked = checked(
        short_context_length=short_context_length, long_context_length=long_context_length, targets=targets,
        sources=sources,
        at=at, position=position, instead=instead, unit=unit, generate=generate, budget=budget,
        swap_text=swap_text, bos=bos, special_tokens=special_tokens, dtype=dtype, device=device,
    )  # fmt: skip
    if at is not None and position is not None:
        raise InputError("at and position both say what to explain; give one of them")
    vars(arguments).update(asked, model=model, tokenizer=tokenizer)
    check(arguments)
    from pipeline.measuring.explanation import explained  # late: it loads torch
    from pipeline.text.tokenizer import is_one_text

    if not is_one_text(text):
        raise InputError(f"the text is of type {type(text).__name__}; give one text, such as a string")
    return explained(text, arguments)
