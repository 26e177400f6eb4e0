#!/usr/bin/env python3
"""Runs llm-analysis on the training runs that `crates/planner/examples/beside.rs` writes.

    beside_llm_analysis.py table QUESTIONS    errors of both programs, as Markdown
    beside_llm_analysis.py time QUESTIONS     microseconds per estimate, one name and time per line

llm-analysis gets the shape of the model, the GPU, the parallelism config, the batch, the recompute
mode and an efficiency (see `efficiencies`). Other inputs keep their defaults. The estimate is its
`latency_per_iter`.
"""

import json
import os
import statistics
import sys
import time
from collections import Counter

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
START = time.perf_counter()
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis  # noqa: E402
from llm_analysis.config import (  # noqa: E402
    DtypeConfig,
    ModelConfig,
    ParallelismConfig,
    get_gpu_config_by_name,
)
from llm_analysis.constant import FLOPS_EFFICIENCY  # noqa: E402
from llm_analysis.logger import logger  # noqa: E402

IMPORT_S = time.perf_counter() - START
# Logging each estimate takes time, and nothing reads the log.
logger.setLevel("CRITICAL")

#: How often `time` estimates each run.
REPEATS = 20


def step_s(question, efficiency):
    """Estimated seconds per step. With the efficiency `None`, llm-analysis uses its default."""
    model = ModelConfig(
        name=question["model"],
        num_layers=question["layers"],
        n_head=question["heads"],
        hidden_dim=question["hidden"],
        vocab_size=question["vocab"],
        max_seq_len=question["seq_len"],
        num_key_value_heads=question["kv_heads"],
        ffn_embed_dim=question["ffn"],
        expansion_ratio=question["ffn"] / question["hidden"],
    )
    parallelism = ParallelismConfig(
        tp_size=question["tp"],
        pp_size=question["pp"],
        dp_size=question["dp"],
        sp_size=question["tp"] if question["sequence_parallel"] else 1,
    )
    analysis = LLMAnalysis(
        model, get_gpu_config_by_name(question["gpu"]), DtypeConfig(), parallelism, flops_efficiency=efficiency
    )
    summary = analysis.training(
        batch_size_per_gpu=question["micro_batch"],
        global_batch_size=question["global_batch"],
        seq_len=question["seq_len"],
        activation_recomputation=ActivationRecomputation[question["recompute"]],
        ds_zero=DSZeRO(question["zero"]),
        flash_attn=question["flash_attention"],
        mlp_gated_linear_units=question["gated"],
    )
    return summary["latency_per_iter"]


def error(seconds, question):
    return seconds / question["measured_s"] - 1


def quantile(sizes, share):
    place = share * (len(sizes) - 1)
    below = int(place)
    above = min(below + 1, len(sizes) - 1)
    return sizes[below] + (sizes[above] - sizes[below]) * (place - below)


def mean_and_p90(errors):
    sizes = sorted(abs(error) for error in errors)
    return f"{100 * statistics.fmean(sizes):.1f} %, {100 * quantile(sizes, 0.9):.1f} %"


def best_efficiency(questions):
    """The constant efficiency, at most 1, with the smallest mean error over these questions.

    An estimate is proportional to 1 / efficiency, so the sum of errors is piecewise linear in
    1 / efficiency. The minimum is therefore at an efficiency for which one estimate is exact.
    """
    at_peak = [(step_s(question, 1.0), question) for question in questions]

    def mean_error(efficiency):
        return statistics.fmean(abs(error(seconds / efficiency, question)) for seconds, question in at_peak)

    exact = [seconds / question["measured_s"] for seconds, question in at_peak]
    return min((efficiency for efficiency in exact if efficiency <= 1), key=mean_error)


def efficiencies(questions):
    """Choices of the efficiency: for each a description, and a function from a question to it."""
    best = best_efficiency(questions)
    by_gpu = {}
    for name in sorted({question["gpu"][:4] for question in questions}):
        by_gpu[name] = best_efficiency([question for question in questions if question["gpu"][:4] == name])
    named = ", ".join(f"{name.upper()} {best:.3f}" for name, best in by_gpu.items())
    return [
        (f"the default of llm-analysis, {FLOPS_EFFICIENCY}", lambda question: None),
        ("0.5, which the source of llm-analysis gives for Megatron-LM", lambda question: 0.5),
        (f"the constant with the smallest mean error on these rows, {best:.3f}", lambda question: best),
        (f"for each GPU, the best constant on its rows: {named}", lambda question: by_gpu[question["gpu"][:4]]),
    ]


def groups_by_name(questions):
    """The rows of the table: the name of each group, and its questions."""
    plain = [question for question in questions if not question["gated"] and question["ffn"] == 4 * question["hidden"]]
    groups = [("all", questions), ("feed-forward width 4 × hidden, not gated", plain)]
    groups.append(("other feed-forward width, or gated", [question for question in questions if question not in plain]))
    for key in ["gpu", "program", "recompute"]:
        for value in sorted({question[key] for question in questions}):
            groups.append((f"{key} {value.lower()}", [question for question in questions if question[key] == value]))
    return [(name, members) for name, members in groups if members]


def table(comparison):
    questions = comparison["questions"]
    choices = efficiencies(questions)
    source, rows = Counter(question["source"] for question in questions).most_common(1)[0]
    print(f"Both programs can estimate {len(questions)} rows, of which {rows} are from one source")
    print(f"({source}).\nExcluded rows:\n")
    for reason, rows in comparison["left_out"].items():
        print(f"- {rows}: {reason}")
    print("\nEach cell has the mean and the P90 of the absolute error. Efficiency of llm-analysis:\n")
    for letter, (name, _) in zip("ABCD", choices, strict=True):
        print(f"- {letter}: {name}")
    print("\n| group | rows | Farrier, held out | A | B | C | D |\n|---|---|---|---|---|---|---|")
    for name, members in groups_by_name(questions):
        cells = [mean_and_p90([error(question["farrier_s"], question) for question in members])]
        for _, efficiency in choices:
            cells.append(mean_and_p90([error(step_s(question, efficiency(question)), question) for question in members]))
        print(f"| {name} | {len(members)} | {' | '.join(cells)} |")


def times(comparison):
    times_us = []
    for _ in range(REPEATS):
        for question in comparison["questions"]:
            start = time.perf_counter()
            step_s(question, 0.5)
            times_us.append((time.perf_counter() - start) * 1e6)
    print(f"answer\t{statistics.median(times_us)}")
    print(f"import\t{IMPORT_S * 1e6}")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("table", "time"):
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        comparison = json.load(file)
    if sys.argv[1] == "table":
        table(comparison)
    else:
        times(comparison)


if __name__ == "__main__":
    main()
