"""Models on the Hugging Face hub: fetched once into its cache, then a folder like any other."""

import re
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from pipeline.errors import InputError
from pipeline.models.hub_stalls import end_where_it_stalls
from pipeline.text.hub_answer import hub_answer

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(text: str) -> bool:
    """Whether `text` may name a model on the hub: `name`, or `owner/name`."""
    return _NAME.fullmatch(text) is not None


def weight_files(names: Iterable[str]) -> list[str]:
    """The files among `names` that hold a model's weights, sorted: safetensors where there are any.

    Only those at the top of a folder and called as `save_pretrained` calls them: many repositories hold the
    same weights again in other formats.
    """
    names = sorted(names)
    safetensors = [name for name in names if re.fullmatch(r"model[^/]*\.safetensors", name)]
    return safetensors or [name for name in names if re.fullmatch(r"pytorch_model[^/]*\.bin", name)]


def snapshot(name: str, revision: str | None, with_code: bool, patience_seconds: float | None = None) -> Path:
    """The folder of the hub's model `name`, downloaded where it is not in the cache.

    Args:
        name: `owner/name`.
        revision: branch, tag or commit; the main branch where None.
        with_code: fetch its Python files too.
        patience_seconds: how long the hub may take to answer; None: as long as ever.

    Raises:
        InputError: there is no such model or revision, or the hub cannot be reached and the cache has none.
    """
    at = "" if revision is None else f" at revision {revision}"
    try:
        # Asked first, with a time limit: a download would retry for long where there is no network.
        found = hub_answer(lambda: HfApi().model_info(name, revision=revision), patience_seconds)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InputError(
            f"there is no folder {name} here, and no model {name}{at} on the Hugging Face hub that you may"
            f" read ({_first_line(error)})"
        ) from error
    except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
        cached = _cached(name, revision)
        if cached is None:
            raise InputError(
                f"there is no folder {name} here, and the Hugging Face hub cannot be reached"
                f" ({_first_line(error)}) nor is {name}{at} in its cache; name a folder that holds the model"
            ) from error
        return cached
    files = [file.rfilename for file in found.siblings or ()]
    wanted = weight_files(files)
    wanted += [file for file in files if "/" not in file and file.endswith(".json")]
    if with_code:
        wanted += [file for file in files if file.endswith(".py")]
    end_where_it_stalls()
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=wanted, etag_timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
        )
    except Exception as error:  # as above
        raise InputError(
            f"the download of {name}{at} broke off ({_first_line(error)}); run the same command again"
        ) from error


def _cached(name: str, revision: str | None) -> Path | None:
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except FileNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
