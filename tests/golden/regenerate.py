"""Write golden.json and defaults.json anew, after a change that is meant to move numbers.

Says which columns moved.

python tests/golden/regenerate.py
"""

import json
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from golden_run import DEFAULTS_PATH, GOLDEN_PATH, defaults, moved, run  # noqa: E402


def main() -> None:
    """Run everything and replace the golden numbers."""
    warnings.filterwarnings("ignore", message="register_new_resolver")  # ai2-olmo's use of OmegaConf
    with TemporaryDirectory() as folder:
        found = run(Path(folder))
    golden = json.loads(GOLDEN_PATH.read_text(encoding="utf-8")) if GOLDEN_PATH.exists() else {}
    sys.stdout.write("".join(f"{phrase}\n" for phrase in moved(golden, found)) or "nothing moved\n")
    GOLDEN_PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    DEFAULTS_PATH.write_text(json.dumps(defaults(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
