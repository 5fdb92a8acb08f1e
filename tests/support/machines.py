"""Runs a state machine of hypothesis as one test of several."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine


def run_machine(machine: type[RuleBasedStateMachine], steps: int, examples: int = 40) -> None:
    """Run it; on the first bug its steps are in the output."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
