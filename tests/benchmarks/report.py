"""From timed runs to the table and the JSON."""

from statistics import median
from typing import Any

import numpy as np
from accounting import num_pairs, predicted_gain
from agreement import rank_correlation, top_k_overlap
from equality import Measured
from matrix_product_peak import Peak
from variants import Influences

from pipeline.measuring.flags import ContextLengths

OURS, OURS_BFLOAT16 = "ours, float32", "ours, bfloat16"
LOOP, PAIRS = "all-targets loop, float32", "forward per pair, float32"
MIB = 1 << 20


def length_report(
    lengths: ContextLengths, measured: dict[str, Measured], peaks: list[Peak]
) -> dict[str, Any]:
    """Everything about one chunk length, ready for JSON."""
    peak_of = {peak.dtype: peak for peak in peaks}
    timed = {key: variant for key, variant in measured.items() if variant.timed}
    rows = {key: _variant_report(variant, peak_of[variant.name.dtype]) for key, variant in timed.items()}
    ms = {key: row["milliseconds_per_pair"] for key, row in rows.items()}
    gain, bound = ms[LOOP] / ms[OURS], predicted_gain(lengths)
    return {
        "long_context_length": lengths.long_context_length,
        "short_context_length": lengths.short_context_length,
        "targets_per_chunk": lengths.targets_per_chunk,
        "num_pairs": num_pairs(lengths),
        "matrix_product_peaks": [vars(peak) for peak in peaks],
        "variants": rows,
        "gain_over_loop": gain,
        "predicted_gain": bound,
        "fraction_of_predicted_gain": gain / bound,
        "times_faster_than_forward_per_pair": ms[PAIRS] / ms[OURS],
        "bfloat16_times_faster_than_float32_loop": ms[LOOP] / ms[OURS_BFLOAT16],
        "bfloat16_agreement": _agreement(measured),
    }


def _variant_report(variant: Measured, peak: Peak) -> dict[str, Any]:
    introduction, runs = variant.introduction, variant.timed
    chunk_seconds = median(run.chunk_seconds for run in runs)
    flops_per_second = introduction.work.flops / chunk_seconds
    return {
        "label": variant.name.label,
        "dtype": variant.name.dtype,
        "intervention": introduction.intervention,
        "how": introduction.note,
        "timed_seconds": [run.seconds for run in runs],
        "timed_evaluations": runs[0].num_evaluations,
        "chunk_seconds": chunk_seconds,
        "milliseconds_per_pair": median(run.milliseconds_per_pair for run in runs),
        "peak_extra_bytes": max(run.peak_extra_bytes for run in runs),
        "passes": introduction.work.num_passes,
        "token_forwards": introduction.work.token_forwards,
        "flops": introduction.work.flops,
        "flops_per_second": flops_per_second,
        "fraction_of_peak": flops_per_second / peak.flops_per_second,
    }


def _agreement(measured: dict[str, Measured]) -> dict[str, float]:
    """bfloat16 with float32, both ours, over the whole chunk."""
    influence_TF, other_TF = (as_matrix(measured[key].influences) for key in (OURS, OURS_BFLOAT16))
    return {
        "top_8_overlap": top_k_overlap(influence_TF, other_TF),
        "rank_correlation": rank_correlation(influence_TF, other_TF),
        "influence_standard_deviation": float(np.nanstd(influence_TF)),
        "mean_absolute_difference": float(np.nanmean(np.abs(influence_TF - other_TF))),
    }


def as_matrix(influences: Influences) -> np.ndarray:
    """[T, F], NaN where there is no pair."""
    shape = influences.target_index_N.max() + 1, influences.position_N.max() + 1
    matrix_TF = np.full(shape, np.nan)
    matrix_TF[influences.target_index_N, influences.position_N] = influences.influence_N
    return matrix_TF


def table(report: dict[str, Any]) -> str:
    """One chunk length for a reader."""
    rows = report["variants"]
    loop, pairs = (rows[key]["milliseconds_per_pair"] for key in (LOOP, PAIRS))
    agreement = report["bfloat16_agreement"]
    lines = [
        "",
        f"ℓ = {report['long_context_length']}, s = {report['short_context_length']},"
        f" m = {report['targets_per_chunk']}: {report['num_pairs']} pairs",
        f"{'':29}{'dtype':9}{'ms/pair':>10}{'x pair':>8}{'x loop':>8}{'+MiB':>8}{'token-fwd':>11}"
        f"{'GFLOP/s':>9}{'of peak':>9}",
        *(_line(row, pairs, loop) for row in rows.values()),
        f"gain over the loop: {report['gain_over_loop']:.2f} of the {report['predicted_gain']:.2f} that"
        f" counting token-forwards predicts ({report['fraction_of_predicted_gain']:.0%})",
        f"bfloat16 against float32: top-8 overlap {agreement['top_8_overlap']:.3f},"
        f" rank correlation {agreement['rank_correlation']:.3f}",
        *(
            f"matrix products, {peak['dtype']}: {peak['flops_per_second'] / 1e9:.0f} GFLOP/s"
            f" at {peak['shape']}"
            for peak in report["matrix_product_peaks"]
        ),
    ]
    return "\n".join(lines)


def _line(row: dict[str, Any], pairs: float, loop: float) -> str:
    ms = row["milliseconds_per_pair"]
    return (
        f"{row['label']:29}{row['dtype']:9}{ms:10.4f}{pairs / ms:8.1f}{loop / ms:8.2f}"
        f"{row['peak_extra_bytes'] / MIB:8.0f}{row['token_forwards']:11d}"
        f"{row['flops_per_second'] / 1e9:9.1f}{row['fraction_of_peak']:9.0%}"
    )


def scaling_report(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The cost of a pair at the longest chunk over that at the shortest."""
    shortest, longest = (
        pick(results, key=lambda result: result["long_context_length"]) for pick in (min, max)
    )
    ratios, sentences = {}, []
    for key in (OURS, OURS_BFLOAT16):
        ratios[key] = (
            longest["variants"][key]["milliseconds_per_pair"]
            / shortest["variants"][key]["milliseconds_per_pair"]
        )
        if longest is not shortest:
            sentences.append(
                f"{key}: a pair costs {ratios[key]:.2f} times as much at ℓ = {longest['long_context_length']}"
                f" as at {shortest['long_context_length']}"
            )
    return {"milliseconds_per_pair_longest_over_shortest": ratios, "sentences": sentences}
