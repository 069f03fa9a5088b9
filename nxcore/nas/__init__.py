"""Architecture search: networks, data, trainer. May import bench, report and below."""

from nxcore.nas import bilevel, data
from nxcore.nas.architecture import ArchitectureParameters, Temperature
from nxcore.nas.cells import Cell, EvalCell
from nxcore.nas.genotype import Genotype, dominant
from nxcore.nas.growth import add_node, deepen, widen
from nxcore.nas.mixed import MixedOp
from nxcore.nas.networks import EvalNetwork, SearchNetwork
from nxcore.nas.operations import OPS, PRIMITIVES, DilConv, FactorizedReduce, ReLUConvBN, SepConv
from nxcore.nas.patch import patch, replays, unpatch
from nxcore.nas.prepare import prepare
from nxcore.nas.preset import PRESETS, Mutation, Preset
from nxcore.nas.rule import Rule
from nxcore.nas.trainer import Trainer

__all__ = [
    "OPS",
    "PRESETS",
    "PRIMITIVES",
    "ArchitectureParameters",
    "Cell",
    "DilConv",
    "EvalCell",
    "EvalNetwork",
    "FactorizedReduce",
    "Genotype",
    "MixedOp",
    "Mutation",
    "Preset",
    "ReLUConvBN",
    "Rule",
    "SearchNetwork",
    "SepConv",
    "Temperature",
    "Trainer",
    "add_node",
    "bilevel",
    "data",
    "deepen",
    "dominant",
    "patch",
    "prepare",
    "replays",
    "unpatch",
    "widen",
]
