"""The commands that a study means, in the order in which they run one after another."""

from pipeline.studies.command import Command
from pipeline.studies.study_fields import Study, TextStudy
from pipeline.studies.synthetic_commands import synthetic_commands
from pipeline.studies.synthetic_fields import SyntheticStudy
from pipeline.studies.text_commands import text_commands


def commands_of(study: Study) -> list[Command]:
    """All commands of a study.

    Raises:
        InputError: its parts do not fit together.
    """
    if isinstance(study, SyntheticStudy):
        return synthetic_commands(study)
    assert isinstance(study, TextStudy)
    return text_commands(study)
