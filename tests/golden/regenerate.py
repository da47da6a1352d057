"""Write the golden files anew, after a change that is meant to move numbers; say which columns moved.

python tests/golden/regenerate.py
"""

import json
import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where pytest finds the tests' own modules
import test_golden


def main() -> None:
    """Run everything and replace the golden numbers."""
    warnings.filterwarnings("ignore", message="register_new_resolver")  # ai2-olmo's use of OmegaConf
    with TemporaryDirectory() as folder:
        found = test_golden.run(Path(folder))
    moved = test_golden.moved(json.loads(test_golden.GOLDEN_PATH.read_text(encoding="utf-8")), found)
    sys.stdout.write("\n".join([*moved, f"{len(moved)} columns moved\n"]))
    os.chdir(test_golden.ROOT)
    os.environ.update(test_golden.VARIABLES)
    made = {
        test_golden.GOLDEN_PATH: found,
        test_golden.DEFAULTS_PATH: test_golden.defaults(),
        test_golden.COMMANDS: {study.stem: test_golden.commands(study) for study in test_golden.STUDIES},
        test_golden.TABLES: test_golden.tables(),
    }
    for path, content in made.items():
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
