"""Runs a state machine of hypothesis inside a test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine


def run_machine(machine: type[RuleBasedStateMachine], steps: int, examples: int = 40) -> None:
    """Run it. The output has the steps that lead to the first failure."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
