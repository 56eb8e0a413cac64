"""Times the operations of the cost model on this machine and writes a cluster file with the constants they give."""

from autoshard.calibrate.measure.machine import Measurements, has_cuda, measure_machine
from autoshard.calibrate.measure.strategy_ops import OpTime, time_strategy

__all__ = ["Measurements", "OpTime", "has_cuda", "measure_machine", "time_strategy"]
