"""What a study of text is: text, sizes, models, evaluations, as a file of olmo_configs/studies/ gives them.

Field names are those of the stages' flags and of pretrain.py's overrides. Lengths count tokens.
"""

from dataclasses import dataclass, field

from omegaconf import MISSING

from pipeline.influence.context_lengths import TARGETS_PER_CHUNK
from pipeline.influence.rules import DEFAULT_KS, DEFAULT_RULES

MEASURING = ("loss_differences", "length_losses", "influential_tokens")
ANALYSING = ("run_notebooks", "summary")
OF_PLANTED = ("planted", "foreign")
"""The kinds of documents that plant_signs.py always writes."""


@dataclass
class Text:
    """What is tokenized: flags of tokenize_c4.py. None: the flag is left out."""

    source: list[str] = MISSING
    further_source: list[str] | None = None
    """Globs of files that are read after those of `source`; one that matches none is left out."""
    evaluation_source: list[str] | None = None
    evaluation_fraction: float | None = None
    tokenizer: str = MISSING
    max_documents: int | None = None
    max_tokens: int | None = None
    max_evaluation_documents: int | None = None


@dataclass
class PlantedText:
    """Signs planted in the study's text: flags of plant_signs.py. None: the flag is left out."""

    context_length: int = MISSING
    short_context_length: int = MISSING
    num_planted: list[int] | None = None
    num_answers: int | None = None
    max_copies: int | None = None
    asked_per_piece: int | None = None
    document_lengths: list[int] | None = None
    """Of documents beside those as long as a piece; `of_planted` calls theirs planted-<length>."""
    every_number: bool | None = None
    max_documents: int | None = None

    @property
    def kinds(self) -> list[str]:
        """Of documents, as `of_planted` may name them."""
        return [*OF_PLANTED, *(f"planted-{length}" for length in self.document_lengths or ())]


@dataclass
class Size:
    """One model size, of which all models of the study are trained."""

    config: str = MISSING
    """A file such as olmo_configs/tiny.yaml."""
    max_duration: str | None = None
    """Steps (1000) or tokens (2e9T). None: as the file says."""
    overrides: list[str] = field(default_factory=list)
    """Further overrides of pretrain.py, as they would be typed."""
    models: list[str] | None = None
    """Names of the study's models that are trained in this size. None: all."""


@dataclass
class Model:
    """How one model of each size is trained: overrides of pretrain.py. None: the override is left out."""

    train_context_length: int = MISSING
    position_scheme: str | None = None
    pose_target_length: int | None = None
    randomized_target_length: int | None = None
    seed: int = 0


@dataclass
class Evaluation:
    """What is measured of the models, into a results folder a size."""

    stages: list[str] = field(default_factory=lambda: [*MEASURING, *ANALYSING])
    """Programs to run, of `MEASURING` and `ANALYSING`."""
    data: Text | None = None
    """Text of its own to measure on. None: the evaluation documents of the study's."""
    of_planted: str | None = None
    """Of `planted`, the documents to measure on: `planted`, `planted-<length>`, `foreign`. None: its text."""
    models: list[str] | None = None
    """Names of the study's models that are measured. None: all."""
    influential_models: list[str] = field(default_factory=list)
    """Those whose influential tokens are measured; this stage costs most. The first gives k*."""
    steps: list[int] | None = None
    """Checkpoints along training that are measured. None: the last one."""
    short_context_length: int = MISSING
    long_context_length: int = MISSING
    targets_per_chunk: int = TARGETS_PER_CHUNK
    max_documents: int | None = None
    max_chunks_per_document: int | None = None
    documents_per_shard: int | None = None
    """A killed measurement goes on at the shard. None: as many as the stages take."""
    dtype: str | None = None
    rules: list[str] = field(default_factory=lambda: [*DEFAULT_RULES])
    k: list[int] = field(default_factory=lambda: [*DEFAULT_KS])
    intervention: str | None = None
    """What stands where a token is left out. None: as influential_tokens.py takes it, another document's."""
    num_backgrounds: int | None = None
    """Foreign documents, under the intervention background. None: one."""
    num_subsets: int | None = None
    """Of the rules banzhaf* and surrogate*. None: as many as the stage takes."""
    kept_fraction: float | None = None
    """Of the rules surrogate*. None: as the stage has it."""
    learning_chunks: int | None = None
    """Of the rules learned_attention*. None: as many as the stage takes."""
    num_candidates: int | None = None
    """Tokens that the rules add_one_in* and greedy* try in each step. None: all."""
    judge_with: list[str] = field(default_factory=list)
    """Names of the study's models that the chosen tokens are tried on too."""
    reference_model: str | None = None
    """The study's model, trained long, that expected gaps are told by. None: they are not measured."""


@dataclass
class SlurmTasks:
    """Tasks of each array under --slurm."""

    tokenize: int = 1
    """For the study's own text: at most one a file, and 1 where a BPE is trained."""
    measure: int = 1
    """For each measuring stage; its numbers and bytes do not depend on it."""


@dataclass
class Study:
    """What every study has."""

    run: str = MISSING
    """The folder for its data, models, results, figures and logs."""
    threads: int = 1
    """Of each command that study.py runs on this machine; the last bits of numbers depend on it, so it is not
    the machine's to say. More pay for models of some million parameters or more, where there are cores."""


@dataclass
class TextStudy(Study):
    """A whole study of language models."""

    text_folder: str | None = None
    """For ${text_folder} in sources, so that one override moves them all."""
    data: Text = field(default_factory=Text)
    planted: PlantedText | None = None
    """What is planted in the text that the models are trained on. None: nothing."""
    sizes: dict[str, Size] = MISSING
    sizes_in_names: bool = True
    """Whether a model is named <size>-<model>; false, where there is one size, for <model>."""
    models: dict[str, Model] = MISSING
    evaluation: Evaluation = field(default_factory=Evaluation)
    further_evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """Name -> what differs from `evaluation`; reported apart, in the folder <run>/<name>. Null: not run."""
    slurm: SlurmTasks = field(default_factory=SlurmTasks)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All of them; the first is named ""."""
        return {"": self.evaluation, **self.further_evaluations}

    @property
    def texts(self) -> list[Text]:
        """The study's own, and those of evaluations."""
        of_evaluations = {id(one.data): one.data for one in self.evaluations.values() if one.data}
        return [self.data, *of_evaluations.values()]
