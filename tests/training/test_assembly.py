"""What a configuration may ask of model and optimizer beside OLMo's plain ones."""

import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo import register_backend

from pipeline.cli import InputError
from pipeline.models.olmo import blocks_of
from pipeline.text.folder import TokenizedData
from pipeline.training.config import load_config
from pipeline.training.loop import StopRequest
from pipeline.training.metrics import refuse_missing_trackers
from pipeline.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
TINY_YAML = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"


def two_losses(trainer: Trainer) -> list[float]:
    return [trainer._train_step(step)[0]["loss_nats"] for step in (1, 2)]


def test_checkpointed_activations_are_computed_again_to_the_same_losses(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    checkpointed = make_trainer(tmp_path, "activation_checkpointing=whole_layer")
    calls: list[Any] = []
    blocks_of(checkpointed._olmo)[0].register_forward_pre_hook(lambda *_: calls.append(1))
    assert two_losses(checkpointed) == two_losses(make_trainer(tmp_path))
    assert len(calls) == 2 * 2 * 2  # two steps of two micro-batches, each forward and again in backward


def test_compiled_blocks_give_the_same_losses_and_names(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    compiled, plain = make_trainer(tmp_path, "compile.backend=aot_eager"), make_trainer(tmp_path)
    assert two_losses(compiled) == pytest.approx(two_losses(plain), rel=1e-6)
    assert compiled._olmo.state_dict().keys() == plain._olmo.state_dict().keys()


def test_a_failed_compilation_is_refused_in_a_sentence(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"compile: torch.compile failed \(.*no_such_backend"):
        make_trainer(tmp_path, "compile.backend=no_such_backend")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("no kernel for this\nand much more")

    register_backend(fail, name="failing_backend")
    trainer = make_trainer(tmp_path, "compile.backend=failing_backend")
    with pytest.raises(InputError, match=r"compile: torch.compile failed \(.*no kernel for this") as error:
        trainer._train_step(1)
    assert "\n" not in str(error.value)


def test_adamw_is_fused_unless_olmos_own_step_is_asked_for(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    groups = make_trainer(tmp_path)._optimizer.param_groups
    assert groups and all(group["fused"] for group in groups)
    own = make_trainer(tmp_path, "optimizer.selective_updates=true")._optimizer.param_groups
    assert not any(group["fused"] for group in own)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(
    number: signal.Signals, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    handler_before = signal.getsignal(number)
    with StopRequest() as stop_request:
        trainer = make_trainer(tmp_path, "save_interval=100", stop_request=stop_request)
        trainer._train_step(1)
        assert stop_request.signal_name is None
        os.kill(os.getpid(), number)
        assert trainer.run() == tmp_path / "step1-unsharded"
    assert stop_request.signal_name == number.name
    assert (tmp_path / "step1-unsharded" / "model.pt").exists()
    assert signal.getsignal(number) == handler_before


def test_a_tracker_that_is_not_installed_is_refused(
    data: TokenizedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(TINY_YAML, ["trackers=[wandb]"], data)
    monkeypatch.setattr("pipeline.training.metrics.find_spec", lambda name: None)
    with pytest.raises(InputError, match="wandb, which is not installed: pip install wandb"):
        refuse_missing_trackers(config)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_gets_every_metric_of_every_step(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    make_trainer(tmp_path / "run", "trackers=[tensorboard]").run()
    (folder,) = (tmp_path / "run" / "trackers").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("loss_nats")] == [1, 2, 3, 4, 5, 6]
    assert {"learning_rate", "gradient_norm", "model_flops_utilization"} <= set(events.Tags()["scalars"])
