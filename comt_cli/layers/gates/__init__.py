"""Gates: input-dependent factors multiplied onto what a site produces. One family a file."""

from __future__ import annotations

from comt_cli.layers.gates.base import CarriesGates, Gate, GateFactory, Site, draw_gate_weight
from comt_cli.layers.gates.comt import ComtGate
from comt_cli.layers.gates.eau import EvaluatorAdjuster
from comt_cli.layers.gates.full_rank import FullRankGate, HeadGate
from comt_cli.layers.gates.transponder import Granularity, StaticGate, TransponderGate

__all__ = [
    "CarriesGates",
    "ComtGate",
    "EvaluatorAdjuster",
    "FullRankGate",
    "Gate",
    "GateFactory",
    "Granularity",
    "HeadGate",
    "Site",
    "StaticGate",
    "TransponderGate",
    "draw_gate_weight",
]
