"""What distant tokens do to a prediction, by their number, their distance and their text.

The near context of a target, the tokens right before it, is read alone and behind distant tokens that are
placed freely (--placements): the text's own or another's, at the position IDs of a longer context or squeezed
into those of a shorter one. For each target and placement: the loss, and the KL from the prediction by the
near tokens alone, or by the full context (--compared-with). With another text's distant tokens the former is
the length interference: what length does where there is nothing to be learnt from it. Distant texts are the
same for all targets, and are read once.

A placement is KIND:NUMBER[/SPAN][@START]. own:192 puts the 192 tokens before the near ones where they stand;
swap:512@10752 puts 512 tokens of another text at the IDs 0 to 511 and lets the near ones begin at ID 10,752;
swap:192/32 squeezes 192 tokens into 32 IDs; last:4 leaves only the last four near tokens. own:all is the full
context: all that is before the near tokens in the chunk; own:all+1024 moves the near tokens away from it by
1,024 IDs, and nothing else.

writes   <results>/length_interference/<model>/*.parquet      columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

on one GPU, a model trained to 8,192 positions:
  python pipeline/length_interference.py --data runs/c4/data --checkpoints HuggingFaceTB/SmolLM2-135M \\
      --results runs/c4/results --long-context-length 513 --near-context-length 512 --share-near \\
      --targets-per-chunk 256 --target-stride 16 --placements swap:512@7680 swap:512@10752 swap:512@11776

on a laptop, after `make demo` (seconds):
  python pipeline/length_interference.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --long-context-length 256 --near-context-length 32 --max-documents 16 \\
      --placements own:32 own:32@192 own:192/32 own:192 swap:32 swap:32@192 swap:192/32 swap:192
"""

from sparsity_length.measuring.settings import Placing, measuring_stage

STAGE = measuring_stage(
    __doc__,
    Placing.add_flags,
    lambda arguments: Placing.of(vars(arguments)),
    "sparsity_length.measuring.measurements:length_interference",
)


if __name__ == "__main__":
    STAGE.main()
