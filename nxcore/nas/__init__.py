"""Differentiable architecture search on the public API: operations, mixed operations, cells and networks."""

from __future__ import annotations

from nxcore.nas.architecture import ArchitectureParameters, Temperature
from nxcore.nas.cells import Cell, EvalCell
from nxcore.nas.genotype import Genotype, dominant
from nxcore.nas.growth import add_node, deepen, widen
from nxcore.nas.mixed import MixedOp
from nxcore.nas.networks import EvalNetwork, SearchNetwork
from nxcore.nas.operations import OPS, PRIMITIVES, DilConv, FactorizedReduce, ReLUConvBN, SepConv
from nxcore.nas.patch import patch, unpatch
from nxcore.nas.rule import Rule

__all__ = [
    "OPS",
    "PRIMITIVES",
    "ArchitectureParameters",
    "Cell",
    "DilConv",
    "EvalCell",
    "EvalNetwork",
    "FactorizedReduce",
    "Genotype",
    "MixedOp",
    "ReLUConvBN",
    "Rule",
    "SearchNetwork",
    "SepConv",
    "Temperature",
    "add_node",
    "deepen",
    "dominant",
    "patch",
    "unpatch",
    "widen",
]
