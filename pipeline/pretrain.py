"""Pretrain one OLMo model on tokenized text, at a chosen context length and position scheme.

The configuration is an OLMo TrainConfig file with a few fields of ours (olmo_configs/); any field can be
overridden as field=value. Training context and position scheme are overrides, so that one file serves
the short-trained model, the one with PoSE and the long-trained one. A step sees
global_train_batch_tokens tokens at any train_context_length.

A laptop-size run, some two minutes on two cores:

    python pipeline/pretrain.py olmo_configs/tiny.yaml --data runs/demo/data \\
        --save-folder runs/demo/models/short-pose train_context_length=32 \\
        position_scheme=pose pose_target_length=256 seed=0 max_duration=1000

A full-size run, on one GPU:

    python pipeline/pretrain.py olmo_configs/150m.yaml --data runs/c4/data \\
        --save-folder runs/c4/models/long seed=0 max_duration=1e10T

Under --save-folder: metrics.jsonl (one line a step: step, tokens, loss_nats, learning_rate,
gradient_norm, tokens_per_second) and a folder step<N>-unsharded every save_interval steps and at the end,
in OLMo's own layout. The same command run again goes on from the last of them, to the same weights, or
says that the run is finished; with another configuration or other data it is refused.

Positions: sequences are cut from the packed training tokens and shuffled by (seed, epoch); PoSE draws
its cuts and skips by (seed, step). Loss: mean cross-entropy of the next token, in nats.
"""

import argparse
import logging
import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pipeline.stage import run_stage, stage_parser

logger = logging.getLogger("pipeline")


def main(arguments: argparse.Namespace) -> None:
    """Train, go on training, or say that the run is finished."""
    # Imported late, for a --help at once.
    from pipeline.text.tokenized_data import TokenizedData
    from pipeline.training.batches import TrainingBatches
    from pipeline.training.checkpoints import checkpoints_of, refuse_another_run
    from pipeline.training.given_settings import load_config
    from pipeline.training.schedule import Schedule

    data = TokenizedData.open(arguments.data)
    config = load_config(arguments.config, arguments.overrides, data)
    config.save_folder = str(arguments.save_folder)
    batches = TrainingBatches.from_config(config, data)
    schedule = Schedule(config, batches.steps_per_epoch)
    refuse_another_run(arguments.save_folder, config)
    finished = checkpoints_of(arguments.save_folder).get(schedule.num_steps)
    if finished is not None:
        logger.info("already finished: %s", finished)
        return

    from pipeline.training.loop import Trainer

    logger.info("finished: %s", Trainer(config, batches, schedule).run())


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("config", type=Path, help="an OLMo TrainConfig YAML file, such as olmo_configs/tiny.yaml")
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add("--data", type=Path, required=True, help="folder written by tokenize_c4.py")
    add("--save-folder", type=Path, required=True, help="the run's folder: checkpoints and metrics")
    # Overrides may stand before, between and after the flags, which plain parse_args does not allow.
    stage.parse_args = stage.parse_intermixed_args  # type: ignore[method-assign]
    return stage


if __name__ == "__main__":
    run_stage(parser(), main)
