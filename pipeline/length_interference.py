"""Measure how distant tokens change predictions, by number, distance and text.

The near context of a target, the tokens right before it, is read alone and behind distant tokens placed in
various ways (--placements): tokens of the same text or of another, at the position IDs of a longer context or
squeezed into those of a shorter one. For each target and placement the program measures the loss, and the KL
from the prediction with the near tokens alone or with the full context (--compared-with). With another text's
distant tokens, the KL from the prediction with the near tokens alone is the length interference: the effect
of length if there is nothing to learn from the distant context. The distant texts are the same for all
targets.

A placement is KIND:NUMBER[/SPAN][@START], or KIND:all[+GAP]:
  own:192         the 192 tokens before the near ones, at the IDs 0 to 191; the near ones begin at ID 192
  swap:512@10752  512 tokens of another text at the IDs 0 to 511; the near ones begin at ID 10,752
  swap:192/32     192 tokens squeezed into 32 IDs
  own:all         the full context: all tokens before the near ones in the chunk
  own:all+1024    the same, with the near tokens moved away by 1,024 IDs and nothing else changed
  last:4          only the last four near tokens

Output: <results>/length_interference/<model>/*.parquet (columns: pipeline/RESULTS.md).
Resume: run the same command again. Complete shards are kept; results made with other settings are refused.

On one GPU, for a model trained with 8,192 positions:
  sparsity length_interference --data runs/c4/data --checkpoints HuggingFaceTB/SmolLM2-135M \\
      --results runs/c4/results --long-context-length 513 --near-context-length 512 --share-near \\
      --targets-per-chunk 256 --target-stride 16 --placements swap:512@7680 swap:512@10752 swap:512@11776

On a laptop, after `make demo` (takes seconds):
  sparsity length_interference --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --long-context-length 128 --near-context-length 16 --max-documents 16 \\
      --placements own:32 own:32@96 own:96/32 own:96 swap:32 swap:32@96 swap:96/32 swap:96
"""

from sparsity_length.measuring.settings import Placing, measuring_stage

STAGE = measuring_stage(
    __doc__,
    Placing.add_flags,
    Placing.asked,
    "sparsity_length.measuring.measurements:length_interference",
)


if __name__ == "__main__":
    STAGE.main()
