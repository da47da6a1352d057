"""The three outcomes: by formulas and by statsmodels, by simulated truth, and from results to a decision."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from legible_figures import legibility_faults
from statsmodels.regression.linear_model import WLS
from statsmodels.stats.multitest import multipletests
from written_results import write_tables

from analysis import outcomes as program
from analysis.gap import outcomes
from analysis.gap.outcomes import GAP, HARM, SHARE, Design, contrast
from analysis.notebooks import NOTEBOOKS, execute_all
from pipeline.cli import InputError
from pipeline.results.files import read_parquet
from pipeline.results.schemas import SCHEMAS

SHORT, LONG = [f"pose{seed}" for seed in range(4)], [f"long{seed}" for seed in range(4, 8)]
PLACEBO, JUDGES = "long8", ["judge0", "judge1"]


class Study:
    """Targets whose sparsity and controls are fixed, and draws of what the models make of them.

    A text has an intercept and a slope of its own, noise is wider where more is at stake, a token is easier
    or harder for all seeds of a training, and a seed has a slope of its own.
    """

    def __init__(self, seed: int, num_texts: int, targets_per_chunk: int, seed_deviation: float) -> None:
        self.generator = generator = np.random.default_rng([3, seed])
        num_chunks = generator.choice([1, 2, 3, 4], num_texts, p=[0.7, 0.15, 0.1, 0.05])
        self.texts = texts = np.repeat(np.arange(num_texts), num_chunks * targets_per_chunk)
        self.seed_deviation, normal = seed_deviation, lambda: generator.normal(size=len(texts))
        self.sparsity = 4 + 0.7 * generator.normal(size=num_texts)[texts] + 1.2 * normal()
        self.stake = 0.1 + np.exp(-1 - 0.3 * (self.sparsity - 4) + 0.8 * normal())
        self.targets = pd.DataFrame({
            "document_id": texts, "divergence": self.stake,
            "gain": self.stake + np.sqrt(self.stake) * normal(),
            "least_divergence": self.stake, "difficulty": generator.gamma(2, 2, len(texts)),
            "log_token_count": 8 + 2 * normal(),
            "position": generator.integers(224, 256, len(texts)),
            "source": np.where(texts < num_texts // 4, "Wikipedia", "C4"),
        })  # fmt: skip

    def measured(self, *judge_errors: float) -> pd.DataFrame:
        """The targets as judges with errors of these deviations measure them."""
        return self.targets.assign(**{
            f"mean_log2_k of {judge}": self.sparsity + error * self.generator.normal(size=len(self.texts))
            for judge, error in zip(JUDGES, judge_errors, strict=False)
        })  # fmt: skip

    def draw(self) -> pd.DataFrame:
        """What each model has of each target, with no effect of sparsity."""
        normal, centred, noise = self.generator.normal, self.sparsity - 4, 0.6 * np.sqrt(self.stake)
        shared = np.log(self.stake) ** 2 + 0.3 * self.targets["difficulty"] + 2 * normal(size=len(centred))

        def role() -> np.ndarray:
            intercepts, slopes = normal(0, [[0.1], [0.05]], (2, self.texts.max() + 1))
            return intercepts[self.texts] + slopes[self.texts] * centred + noise * normal(size=len(centred))

        def model(of_role: np.ndarray) -> np.ndarray:
            own = (noise + 0.2) * normal(size=len(centred)) + self.seed_deviation * normal() * centred
            return shared + of_role + own

        short, long = 0.4 * self.stake + role(), role()
        models = {name: model(short) for name in SHORT} | {name: model(long) for name in [*LONG, PLACEBO]}
        return pd.DataFrame(models)


def assert_right(study: tuple, num_designs: int, num_draws: int, covered: tuple, most_false: float) -> None:
    """Intervals cover the truth in a share of draws within `covered`; at no effect few draws find one."""
    said: dict[str, list[bool]] = {}
    for seed in range(num_designs):
        simulated = Study(seed, *study)
        exact, instrumented = simulated.measured(0), outcomes.design_of(simulated.measured(0.8, 0.8), GAP)
        designs = {outcome: outcomes.design_of(exact, outcome) for outcome in (GAP, SHARE, HARM)}
        for _ in range(num_draws):
            losses, rows = simulated.draw(), []
            for outcome, design in designs.items():
                drawn = simulated.draw() if outcome is HARM else losses
                null = outcomes.contrasts(design, drawn, short=SHORT, long=LONG, placebo=PLACEBO)
                rows += [{"outcome": outcome.name, "variant": "as planned"} | row for row in null]
                truth, unit = outcome.smallest_effect, simulated.stake if outcome.is_share else 1.0
                effect = unit * truth * (simulated.sparsity - simulated.sparsity.mean())
                drawn = drawn.assign(**{model: drawn[model] + effect for model in SHORT})
                found = {outcome.name: (truth, contrast(design.least_squares(drawn), SHORT, LONG))}
                found[f"placebo, {outcome.name}"] = 0.0, null[1]
                if outcome is GAP:
                    found["instrument"] = truth, contrast(instrumented.instrumented(drawn), SHORT, LONG)
                for name, (value, row) in found.items():
                    said.setdefault(name, []).append(row["slope_low"] <= value <= row["slope_high"])
            table = outcomes.with_decision(rows)
            said.setdefault("false: any of three", []).append((table["holm_p_value"] <= 0.05).any())
            said.setdefault("false: support", []).append(table["decision"][0] == "support")
    shares = {name: float(np.mean(values)) for name, values in said.items()}
    for name, share in shares.items():
        low, high = (0, most_false) if "false" in name else covered
        if "placebo" in name:
            high = 1  # one seed, whose spread, another role's and cut off at 0, is rather taken too large
        assert low <= share <= high, shares


def test_intervals_cover_the_truth_in_a_small_simulation() -> None:
    assert_right((60, 4, 0.02), num_designs=2, num_draws=15, covered=(0.8, 1), most_false=0.15)


def test_what_is_drawn_has_the_slope_and_no_controls() -> None:
    """Bins of the outcome with the controls held lie on the line that was planted; the figure can be read."""
    study, of_outcomes, rows = Study(0, 80, 16, 0.0), {}, []
    for outcome in (GAP, SHARE, HARM):
        drawn = study.draw()
        planted = drawn.assign(**{name: drawn[name] + 0.3 * study.sparsity for name in SHORT})
        names = {name: f"{outcome.measured} of {name}" for name in planted}
        targets = pd.concat([study.measured(0, 0), planted.rename(columns=names)], axis=1)
        rows += outcomes.outcome_rows(targets, outcome, short=SHORT, long=LONG, placebo=PLACEBO)
        of_outcomes[outcome] = outcomes.binned(targets, outcome, short=SHORT, long=LONG, placebo=PLACEBO)
    of_short = of_outcomes[GAP].query("compared == 'short-trained'")
    slope, _ = np.polyfit(of_short["mean_log2_k"], of_short["outcome"], 1)
    assert slope == pytest.approx(rows[0]["slope"], abs=0.02) and abs(slope - 0.3) < 0.1
    assert of_short["num_targets"].sum() == len(study.texts)
    table = outcomes.with_decision(rows)
    figure = outcomes.outcome_figure({GAP: of_outcomes[GAP], HARM: of_outcomes[HARM]}, table)
    assert legibility_faults(figure) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed_deviation", [0.0, 0.01])
def test_intervals_cover_the_truth_and_false_findings_are_rare(seed_deviation: float) -> None:
    study = (1000, 32, seed_deviation)
    assert_right(study, num_designs=20, num_draws=25, covered=(0.92, 0.98), most_false=0.06)


@pytest.fixture
def small() -> tuple[np.ndarray, np.ndarray, np.ndarray, pd.DataFrame]:
    """Two judges' sparsity, controls (one of a single text, one the sum of the others), texts, outcomes."""
    generator = np.random.default_rng(5)
    texts = generator.permutation(np.repeat(np.arange(12), generator.integers(1, 8, 12)))
    sparsity = generator.normal(size=(len(texts), 1)) + 0.4 * generator.normal(size=(len(texts), 2))
    first = sparsity[:, 0] + generator.normal(size=len(texts))
    controls = np.column_stack([first, texts == 3, first + (texts == 3)])
    return sparsity, controls, texts, pd.DataFrame(generator.normal(size=(len(texts), 2)))


def test_slopes_errors_and_freedom_are_those_of_the_formulas(small: tuple) -> None:
    sparsity, controls, texts, losses = small
    weights = np.random.default_rng(6).uniform(0.5, 2, len(texts))
    found = Design(sparsity, controls, texts, weights).least_squares(losses)
    plain = np.column_stack([sparsity.mean(axis=1), np.ones(len(texts)), controls[:, :2]])
    design, values = plain * np.sqrt(weights)[:, None], losses * np.sqrt(weights)[:, None]
    bread = np.linalg.inv(design.T @ design)
    left, rows = np.eye(len(texts)) - design @ bread @ design.T, []
    for text in np.unique(texts):
        of_text = np.flatnonzero(texts == text)
        sizes, vectors = np.linalg.eigh(left[np.ix_(of_text, of_text)])
        roots = np.where(sizes > 1e-9, np.abs(sizes) ** -0.5, 0)
        rows.append(((design @ bread)[of_text, 0] @ vectors * roots) @ vectors.T @ left[of_text])
    scores, inner = np.array(rows) @ values.to_numpy(), np.array(rows) @ np.array(rows).T
    assert found.covariance_MM == pytest.approx(scores.T @ scores)
    assert found.degrees_of_freedom == pytest.approx(np.trace(inner) ** 2 / (inner**2).sum())
    assert found.slopes_M[0] == pytest.approx(WLS(losses[0], plain, weights).fit().params.iloc[0])


def test_with_many_texts_the_error_is_nearly_that_of_statsmodels() -> None:
    study = Study(0, 300, 8, 0.0)
    losses, controls = study.draw(), study.targets[["gain", "difficulty"]].to_numpy()
    found = Design(study.sparsity[:, None], controls, study.texts).least_squares(losses)
    plain = np.column_stack([study.sparsity, np.ones(len(controls)), controls])
    fit = WLS(losses["pose0"], plain).fit(cov_type="cluster", cov_kwds={"groups": study.texts})
    assert found.slopes_M[0] == pytest.approx(fit.params.iloc[0])
    assert np.sqrt(found.covariance_MM[0, 0]) == pytest.approx(fit.bse.iloc[0], rel=0.03)


def test_the_other_judge_as_instrument_is_two_stage_least_squares(small: tuple) -> None:
    sparsity, controls, texts, losses = small
    found = Design(sparsity, controls, texts).instrumented(losses)
    held = np.kron(np.eye(2), np.column_stack([np.ones(len(texts)), controls[:, :2]]))
    first = np.column_stack([sparsity[:, ::-1].T.ravel(), held])
    regressor, values = sparsity.T.ravel(), np.tile(losses[0], 2)
    fitted = first @ np.linalg.lstsq(first, regressor, rcond=None)[0]
    coefficients = np.linalg.lstsq(np.column_stack([fitted, held]), values, rcond=None)[0]
    residuals = values - np.column_stack([regressor, held]) @ coefficients
    beyond = fitted - held @ np.linalg.lstsq(held, fitted, rcond=None)[0]
    scores = np.bincount(np.tile(texts, 2), beyond * residuals) / (beyond @ beyond)
    assert found.slopes_M[0] == pytest.approx(coefficients[0])
    assert found.covariance_MM[0, 0] == pytest.approx(12 / 11 * scores @ scores)


def test_the_spread_of_seeds_beyond_that_of_texts_is_added() -> None:
    found = outcomes.Slopes(["a", "b", "c", "d"], np.array([1.0, 3.0, 0.0, 0.0]), np.eye(4) / 2, 50.0)
    row = contrast(found, ["a", "b"], ["c", "d"])
    assert (row["slope"], row["pair_slopes"]) == (2.0, [1.0, 1.0, 3.0, 3.0])
    # texts: 4 · 0.5 / 4; the seeds a and b: S² = 2, of which texts explain 0.5; c and d agree by chance
    assert (row["text_error"] ** 2, row["seed_error"] ** 2) == pytest.approx((0.5, (2 - 0.5) / 2))
    assert row["degrees_of_freedom"] == pytest.approx(1.25**2 / (0.5**2 / 50 + (2 / 2) ** 2))
    placebo = contrast(found, ["c"], ["a", "b"])  # c is taken to differ as a and b do
    assert placebo["seed_error"] ** 2 == pytest.approx((2 - 0.5) * (1 + 1 / 2))


@pytest.mark.parametrize(
    ("ends", "placebo_low", "said"),
    [
        ([(-0.01, 0.03), (0.01, 0.09), (-0.01, 0.02)], -0.1, "support"),
        ([(-0.01, 0.03), (0.01, 0.09), (-0.01, 0.02)], 0.01, "open"),  # the placebo has as much
        ([(-0.03, -0.01), (0.01, 0.09), (-0.01, 0.02)], -0.1, "open"),
        ([(0.01, 0.03), (-0.01, 0.09), (-0.01, 0.02)], -0.1, "open"),
        ([(-0.01, 0.03), (0.0002, 0.09), (-0.01, 0.02)], -0.1, "open"),  # not after Holm's correction
        ([(-0.01, 0.019), (-0.02, 0.04), (0.001, 0.009)], -0.1, "refuted at this size"),
        ([(-0.01, 0.019), (-0.02, 0.06), (-0.01, 0.009)], -0.1, "open"),
    ],
)
def test_the_decision_is_the_rule_that_was_written_down(ends: list, placebo_low: float, said: str) -> None:
    rows = []
    for outcome, (low, high) in zip((GAP, SHARE, HARM), ends, strict=True):
        p_value = 0.01 if low > 0.001 or high < 0 else 0.04 if low > 0 else 0.5
        row = {"outcome": outcome.name, "estimator": "least squares", "p_value": p_value}
        row["variant"] = "as planned"
        rows.append(row | {"compared": "short-trained", "slope_low": low, "slope_high": high})
        rows.append(row | {"compared": "placebo", "slope_low": placebo_low, "slope_high": 0.1})
    table = outcomes.with_decision(rows)
    assert table["decision"].tolist() == [said] * 6
    holm = multipletests(table["p_value"][::2], method="holm")[1]
    assert table["holm_p_value"][::2].tolist() == pytest.approx(holm)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Results of 30 texts, in folders `far` and `near`: chosen by two seeds, judged by two others and one."""
    study = Study(1, 30, 8, 0.0)
    keys = pd.DataFrame({"document_id": study.texts.astype(str), "target_position": range(len(study.texts))})
    keys["chunk_index"] = 0
    harms, losses, effect = study.draw(), study.draw(), 0.1 * (study.sparsity - 4)
    losses = losses.assign(**{model: losses[model] + effect for model in SHORT})
    for model in [*losses, *JUDGES]:
        columns = {
            "target_token_id": 7, "num_long_context_tokens": study.targets["position"],
            "loss_difference": study.targets["gain"], "short_context_loss": 1.0,
            "long_context_loss": losses.get(model, study.targets["difficulty"]),
            "length_harm": harms.get(model),
        }  # fmt: skip
        rows = keys.assign(**columns).to_dict("records")
        write_tables(tmp_path / "far", "loss_differences", model, {}, {"loss_differences": rows})
    for folder in ("far", "near"):
        rows = []
        for judge in [*JUDGES, "chooser0"]:
            measured = study.measured(0.5)["mean_log2_k of judge0"].mask(study.stake < 0.15)
            columns = {
                "rule": program.RULE, "judge": judge, "criterion": "divergence", "gain": study.stake,
                "loss_difference": 0.5, "is_censored": False, "mean_log2_k": measured.astype(object),
                "half_sparsity": 2 ** study.sparsity.round().clip(0),
            }  # fmt: skip
            rows += keys.assign(**columns).replace({np.nan: None}).to_dict("records")
        tables = {"dependency_sparsity": rows}
        write_tables(tmp_path / folder, "influential_tokens", "chooser0+chooser1", {}, tables)
    return study


@pytest.fixture
def tell(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the program on these results."""
    documents = [SimpleNamespace(document_id=str(text), url=None) for text in range(30)]
    # Every third text says the same again and again; no bigram of the others comes twice.
    size = len(study.texts)
    tokens = [np.zeros(size, int) if text % 3 == 1 else np.arange(size) for text in range(30)]
    chunks = [SimpleNamespace(document_id=str(text), start=0, token_ids_L=tokens[text]) for text in range(30)]
    text = SimpleNamespace(
        data=SimpleNamespace(evaluation_documents=lambda: documents), short_context_length=2,
        chunks=lambda: zip(documents, chunks, strict=True),
        targets_of=lambda chunk: np.flatnonzero(study.texts == int(chunk.document_id)).tolist(),
    )  # fmt: skip
    monkeypatch.setattr("analysis.read.MeasuredText.open", lambda *_: text)
    monkeypatch.setattr(outcomes, "training_token_counts", lambda _: np.arange(9))

    def run(*further: str) -> None:
        words = [*further, "--out", str(tmp_path / "again")] if "--targets" in further else [
            "--sparsity-results", str(tmp_path / "far"), "--near-results", str(tmp_path / "near"),
            "--loss-results", str(tmp_path / "far"), "--short-trained", *SHORT, "--long-trained", *LONG,
            "--placebo", PLACEBO, "--out", str(tmp_path / "out"), *further,
        ]  # fmt: skip
        program.main(program.parser().parse_args(words))

    return run


def test_the_program_tells_all_slopes_and_the_decision(
    tell: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell()
    table = read_parquet(tmp_path / "out/outcomes.parquet").to_pandas()
    assert list(table) == SCHEMAS["outcomes"].names
    assert (table["num_left_out"][:9] > 0).all() and (table["pearson"] > 0.5).all()
    planned = table[table["variant"] == "as planned"]
    assert planned["pair_slopes"].map(len).tolist() == [16, 4, 16] * 3
    thresholds = ["any D(0)", "D(0) of at least 0.05 nats", "D(0) of at least 0.2 nats"]
    others = [*thresholds, "weighed by the stake", "not after a repeated bigram", "k* at 0.5"]
    assert table["variant"].tolist()[9:] == others * 3 and table["holm_p_value"][9:].isna().all()
    assert table["num_documents"][0] == 30 and table["num_documents"][13] == 20
    of_any, _, of_most = table["num_targets"][9:12]
    assert of_any >= planned["num_targets"].iloc[0] >= of_most > 0
    assert table["slope"][0] == pytest.approx(0.1, abs=0.05)
    assert table["slope"][2] > table["slope"][0]  # the judges' error draws the latter to 0
    printed = capsys.readouterr().out
    assert f"Decision: {table['decision'][0]}. Half of each interval: gap 0." in printed
    tell("--targets", str(tmp_path / "out/outcome_targets.parquet"))
    assert capsys.readouterr().out == printed
    assert read_parquet(tmp_path / "again/outcomes.parquet").to_pandas().equals(table)
    for given in (["--targets", str(tmp_path / "out/outcome_targets.parquet"), "--placebo", "long8"], []):
        with pytest.raises(InputError, match="give --targets alone, or all of --sparsity-results, --near"):
            program.main(program.parser().parse_args([*given, "--out", str(tmp_path / "none")]))


def test_chosen_tokens_alone_stand_in_a_second_table(
    tell: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for positions in (None, "compact"):
        rows = [
            {
                "document_id": str(text), "chunk_index": 0, "target_position": 9, "rule": program.RULE,
                "far_context": far, "k": k, "judge": "pose0", "short_context_loss": 3.0 + text,
                "long_context_loss": 2.0 + text,
                "sparse_context_loss": text + (2.5 if far == "own" else 2.75) - (0.25 if positions else 0),
            }
            for text in range(30) for far in ("own", "other_document") for k in (1, 16)
        ]  # fmt: skip
        tables = {"sparse_context_losses": rows}
        settings = {"positions": positions, "k": [1, 16]}
        write_tables(tmp_path / str(positions), "influential_tokens", "pose0", settings, tables)
    tell("--chosen-results", str(tmp_path / "None"), str(tmp_path / "compact"))
    table = read_parquet(tmp_path / "out/chosen_alone.parquet").to_pandas()
    assert table["positions"].tolist() == ["original"] * 2 + ["compact"] * 2
    assert table["less_than_short"].tolist() == [0.5] * 2 + [0.75] * 2
    assert table["null_less_than_short"].tolist() == [0.25] * 2 + [0.5] * 2
    assert "less than long" in capsys.readouterr().out


def test_models_of_two_roles_or_of_none_are_refused(tell: Callable[..., None], tmp_path: Path) -> None:
    for model in ("long4", "judge0", "chooser1"):
        with pytest.raises(InputError, match=f"{model} has two roles"):
            tell("--placebo", model)
    with pytest.raises(InputError, match="unknown model 'long9'"):
        tell("--placebo", "long9")
    rows = pd.DataFrame({"model": ["a+b", "d"], "judge": ["c", "a"]})
    with pytest.raises(InputError, match="chosen by a.b and by d"):
        outcomes.judged(rows)
    with pytest.raises(InputError, match="no model that chose no tokens"):
        outcomes.judged(rows.assign(model="a+c"))
    assert not (tmp_path / "out").exists()


def test_any_results_show_their_gap_without_data_placebo_or_decision(
    tell: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook's functions, then the notebook: the planted slope is found, its figure can be read."""
    results, longs = tmp_path / "far", [*JUDGES, *LONG, "nobody"]
    targets, trainings, others = outcomes.gap_targets(results, None, longs, [*SHORT, PLACEBO])
    assert others == LONG and trainings == {name: [name] for name in [*SHORT, PLACEBO]}
    assert not {"source", "log_token_count"} & set(targets)
    monkeypatch.setattr(outcomes, "training_token_counts", lambda _: np.arange(9))
    of_data, _, _ = outcomes.gap_targets(results, tmp_path, longs, SHORT)
    assert set(of_data["source"]) == {"C4"} and set(of_data["log_token_count"]) == {np.log(8)}
    table = pd.DataFrame(outcomes.outcome_rows(targets, GAP, short=SHORT, long=LONG))
    assert table["slope"][0] == pytest.approx(0.1, abs=0.05) and len(table) == 2
    bins = outcomes.binned(targets, GAP, short=SHORT, long=LONG)
    assert set(bins["compared"]) == {"short-trained"}
    assert legibility_faults(outcomes.outcome_figure({GAP: bins}, table, "pose")) == []
    for long, short, sentence in (
        (JUDGES, SHORT, "a long-trained model that neither chose tokens nor judged them is missing"),
        (LONG, [], "no model was trained at a short context"),
    ):
        with pytest.raises(InputError, match=sentence):
            outcomes.compared_models(results, long, short)
    parameters = {"results": str(results), "long_models": LONG, "short_models": SHORT[:1]}
    notebook = NOTEBOOKS / "sparsity_and_generalization.ipynb"
    list(execute_all([notebook], tmp_path / "figures", parameters | {"figures_folder": str(tmp_path)}))
    assert (tmp_path / "gap_by_sparsity-pose0.png").is_file()
