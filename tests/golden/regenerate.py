"""Write the golden files anew, after a change that is meant to move numbers; say which columns moved.

python tests/golden/regenerate.py
"""

import json
import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from golden_run import DEFAULTS_PATH, GOLDEN_PATH, defaults, moved, run
from test_golden import COMMANDS, ROOT, STUDIES, TABLES, VARIABLES, commands, tables


def main() -> None:
    """Run everything and replace the golden numbers."""
    warnings.filterwarnings("ignore", message="register_new_resolver")  # ai2-olmo's use of OmegaConf
    with TemporaryDirectory() as folder:
        found = run(Path(folder))
    golden = json.loads(GOLDEN_PATH.read_text(encoding="utf-8")) if GOLDEN_PATH.exists() else {}
    sys.stdout.write("".join(f"{phrase}\n" for phrase in moved(golden, found)) or "nothing moved\n")
    os.chdir(ROOT)
    os.environ.update(VARIABLES)
    of_studies = {study.stem: commands(study) for study in STUDIES}
    for path, content in (
        (GOLDEN_PATH, found),
        (DEFAULTS_PATH, defaults()),
        (COMMANDS, of_studies),
        (TABLES, tables()),
    ):
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
