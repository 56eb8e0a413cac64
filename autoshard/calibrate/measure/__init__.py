"""Times the operations of the cost model on this machine and writes a cluster file with the constants they give."""

from autoshard.calibrate.measure.machine import Measurements, measure_machine

__all__ = ["Measurements", "measure_machine"]
