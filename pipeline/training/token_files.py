"""Whether the training tokens are those whose SHA-256 the run's configuration and checkpoints record."""

from concurrent.futures import ThreadPoolExecutor

from pipeline.stage import progress
from pipeline.text.manifest import read_manifest
from pipeline.text.manifest_checks import damages, refuse_damage
from pipeline.text.tokenized_data import TokenizedData


def refuse_damaged_tokens(data: TokenizedData, rank: int = 0, num_ranks: int = 1) -> None:
    """Read the training files once and compare their SHA-256: what is recorded of a run must be true of it.

    Args:
        data: whose files are read.
        rank: which of the run's processes this is.
        num_ranks: how many there are; each reads its share of the files, so that none waits for long.

    Raises:
        InputError: a file is damaged.
    """
    manifest = read_manifest(data.folder)
    assert manifest is not None
    names = [path.relative_to(data.folder).as_posix() for path in data.train_paths][rank::num_ranks]

    def is_damaged(name: str) -> bool:
        return any(damages(data.folder, {name: manifest["files"][name]}, verify=True))

    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter free
        checked = progress(pool.map(is_damaged, names), "training tokens: SHA-256", "file", len(names))
        wrong = [name for name, is_wrong in zip(names, checked, strict=True) if is_wrong]
    files = {name: manifest["files"][name] for name in wrong}
    refuse_damage(data.folder, {**manifest, "files": files}, verify=True)
