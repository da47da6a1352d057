"""Other people's tools on the same chunk, each at its best that we know.

captum's FeatureAblation takes any function. Given one that returns all targets' losses, from our own batched
passes, it is the all-targets loop with captum's bookkeeping: its best.

captum's LLMAttribution and inseq's occlusion take Hugging Face models, cannot leave a token out, and put
another in its place: so they are compared with our intervention `substitute`. LLMAttribution, told to
score the whole answer in one pass (`forward_in_tokens=False`), runs a pass a token, one by one; by default it
would run one a pair. inseq runs a pass a pair, and cannot be asked for some far tokens only.
Both project every row onto the vocabulary.

Nothing here needs the network: the model is the same weights as a Hugging Face OLMo, and the tokenizer writes
token 17 as the word [17].
"""

import time
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from accounting import ModelSizes, Work, num_pairs, work_of_pairs, work_of_whole_passes
from olmo.model import OLMo
from problem import SUBSTITUTE_ID, Problem
from variants import AllTargetsLoop, Influences, spread


class FeatureAblation:
    """captum's FeatureAblation of a function that is there (1) or not (0) for every far token asked for."""

    intervention = "remove"
    evaluations_beyond = 0

    def __init__(self, problem: Problem, model: OLMo) -> None:
        from captum.attr import FeatureAblation as Captum

        self._captum, self._problem = Captum, problem
        self._loop = AllTargetsLoop(problem, model)
        self.note = f"{self._loop.note}; the function returns every target's loss"

    def sample(self) -> list[int]:
        return self._loop.sample()

    def influences(self, removed_R: Sequence[int]) -> Influences:
        removed = np.asarray(removed_R)

        def losses(present_BR: torch.Tensor) -> torch.Tensor:
            if bool(present_BR.all()):
                # captum asks once with everything there, which a careful caller has at hand.
                return torch.as_tensor(self._loop.long_losses_T)[None]
            return self._loop.losses_without(removed[present_BR.argmin(1).numpy()]).cpu()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            differences_TR = self._captum(losses).attribute(
                torch.ones(1, len(removed)), baselines=0, perturbations_per_eval=self._loop.batch_size
            )
        return Influences.of_targets(-differences_TR.numpy(), removed_R, self._problem.lengths)

    def num_evaluations(self) -> int:
        return self._loop.num_evaluations()

    def work(self, sizes: ModelSizes) -> Work:
        return self._loop.work(sizes)


class LLMAttribution:
    """captum's LLMAttribution: the chunk before the targets is the prompt, the targets are the answer."""

    intervention = "substitute"
    evaluations_beyond = 1

    def __init__(self, problem: Problem, model: OLMo) -> None:
        from captum.attr import FeatureAblation as Captum
        from captum.attr import LLMAttribution as CaptumLLM
        from captum.attr import TextTemplateInput

        self._problem, self._input = problem, TextTemplateInput
        self._words = [word(token) for token in problem.chunk_L]
        self._attribution = CaptumLLM(Captum(twin_of(model)), word_tokenizer(model.config.vocab_size))
        self.note = "one token at a time, the answer in one pass; token replaced"

    def sample(self) -> list[int]:
        lengths = self._problem.lengths
        wanted = max(2, self._problem.sample_tokens // lengths.long_context_length)
        # What is not in the prompt is a target itself, and cannot be attributed to.
        return [position for position in spread(self._problem, wanted) if position < lengths.first_target]

    def influences(self, removed_R: Sequence[int]) -> Influences:
        lengths = self._problem.lengths
        prompt = self._words[: lengths.first_target]

        def filled(*chosen: str) -> str:
            words = dict(enumerate(prompt)) | dict(zip(removed_R, chosen, strict=True))
            return " ".join(words.values())

        text = self._input(
            filled, [prompt[r] for r in removed_R], baselines=[word(SUBSTITUTE_ID)] * len(removed_R)
        )
        answer_T = torch.as_tensor(self._problem.chunk_L[lengths.first_target :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how it prints our words
            result = self._attribution.attribute(text, target=answer_T, forward_in_tokens=False)
        # Differences of log-probabilities, with the token less without: the sign of an influence.
        return Influences.of_targets(result.token_attr.cpu().numpy(), removed_R, lengths)

    def num_evaluations(self) -> int:
        return int(self._problem.lengths.num_far_tokens_T[-1])

    def work(self, sizes: ModelSizes) -> Work:
        return work_of_whole_passes(sizes, self._problem.lengths, last_layer_at_targets=False)


class Occlusion:
    """inseq's occlusion of the first target: every token before it, one pass each.

    It returns sizes without signs, so the comparison is of sizes.
    """

    intervention = "substitute"
    evaluations_beyond = 1
    is_unsigned = True
    BATCHES_TRIED = (1, 8)

    def __init__(self, problem: Problem, model: OLMo) -> None:
        import inseq

        self._problem = problem
        twin, tokenizer = twin_of(model), word_tokenizer(model.config.vocab_size)
        self._model = inseq.load_model(twin, "occlusion", tokenizer=tokenizer, device=problem.device)
        seconds = {}
        for batch_size in self.BATCHES_TRIED:
            self._batch_size = batch_size
            start = time.perf_counter()
            self._attribute()
            seconds[batch_size] = time.perf_counter() - start
        self._batch_size = min(seconds, key=seconds.__getitem__)
        self.note = f"one target, {self._batch_size} tokens at a time; token replaced"

    def sample(self) -> list[int]:
        return list(range(self._problem.lengths.first_target))

    def influences(self, removed_R: Sequence[int]) -> Influences:
        """Of the first target; whatever is asked for, all its context tokens are measured."""
        values = self._attribute()
        num_far = int(self._problem.lengths.num_far_tokens_T[0])
        positions = np.arange(num_far)
        return Influences(np.zeros(num_far, dtype=int), positions, values[:num_far])

    def _attribute(self) -> np.ndarray:
        target = self._problem.lengths.first_target
        words = [word(token) for token in self._problem.chunk_L[: target + 1]]
        result = self._model.attribute(
            " ".join(words[:-1]), " ".join(words), attributed_fn="probability", logprob=True,
            show_progress=False, pretty_progress=False, perturbations_per_eval=self._batch_size,
        )  # fmt: skip
        return result.sequence_attributions[0].target_attributions[:target, 0].cpu().numpy()

    def num_evaluations(self) -> int:
        return num_pairs(self._problem.lengths)

    def work(self, sizes: ModelSizes) -> Work:
        return work_of_pairs(sizes, self._problem.lengths)


def twin_of(model: OLMo) -> torch.nn.Module:
    """The same weights as a Hugging Face model; imported late, as that library takes seconds."""
    from pipeline.models.export import as_hugging_face

    twin = as_hugging_face(model)
    twin.config.bos_token_id = SUBSTITUTE_ID  # inseq wants one, and puts it nowhere
    return twin


def word(token_id: int) -> str:
    """A token as a word that no other word begins with."""
    return f"[{int(token_id)}]"


def word_tokenizer(vocabulary_size: int) -> object:
    """A fast tokenizer of such words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    substitute = word(SUBSTITUTE_ID)
    words = Tokenizer(models.WordLevel({word(i): i for i in range(vocabulary_size)}, unk_token=substitute))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict.fromkeys(("unk_token", "pad_token", "eos_token", "bos_token"), substitute)
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)
