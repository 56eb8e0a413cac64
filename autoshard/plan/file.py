"""Reading and writing plan files: atomic, deterministic, checked."""

import json
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from autoshard.errors import InvalidInputError, PlanMismatchError
from autoshard.plan import derive
from autoshard.plan.schema import SCHEMA, PlanData
from autoshard.sharding import strategy_reasons


def to_json(plan: PlanData) -> str:
    """The file's text; the same plan always gives the same bytes."""
    return json.dumps(plan.model_dump(mode="json", by_alias=True), indent=1, sort_keys=False) + "\n"


def save(plan: PlanData, path: str | os.PathLike[str]) -> None:
    """Write a plan; the file appears whole or not at all.

    Raises:
        InvalidInputError: when the folder cannot be written to.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    except OSError as error:
        raise InvalidInputError(f"cannot write {target}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(to_json(plan))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InvalidInputError(f"cannot write {target}: {error.strerror}") from None


def load(path: str | os.PathLike[str]) -> PlanData:
    """Read a plan and check that what it derives from its strategy is what it says.

    Raises:
        InvalidInputError: not a readable plan file (missing, not JSON, another schema, a wrong field).
        PlanMismatchError: placements, mesh or layouts differ from what graph and strategy give: edited, or another
            version's.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"cannot read plan {path}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"plan {path} is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"plan {path} is nested too deeply") from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise InvalidInputError(f"{path} is no plan of schema {SCHEMA}: it says schema={found!r}")
    try:
        plan = PlanData.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(x) for x in first["loc"])
        raise InvalidInputError(f"plan {path}: {where}: {first['msg']}") from None
    check_derived(plan, str(path))
    return plan


def check_derived(plan: PlanData, name: str) -> None:
    """Raise PlanMismatchError unless everything derived agrees with graph and strategy."""
    if plan.graph.structural_hash() != plan.model.structural_hash:
        raise PlanMismatchError(f"plan {name}: its graph is not that of the model it names (structural hash differs)")
    reasons = strategy_reasons(plan.graph, plan.strategy)
    if reasons:
        raise PlanMismatchError(f"plan {name}: {reasons[0].message}")
    expected = derive.planned_parameters(plan.graph, plan.strategy)
    for fqn in {*expected, *plan.parameters}:
        if expected.get(fqn) != plan.parameters.get(fqn):
            raise PlanMismatchError(
                f"plan {name}: placement of {fqn} is {_show(plan.parameters.get(fqn))},"
                f" its strategy gives {_show(expected.get(fqn))}"
            )
    if plan.held_by != derive.planned_holders(plan.graph, plan.strategy):
        raise PlanMismatchError(f"plan {name}: which ranks hold which experts is not what its strategy gives")
    if plan.padding != derive.planned_padding(plan.graph, plan.strategy):
        raise PlanMismatchError(f"plan {name}: what it fills up is not what its strategy gives")
    if plan.mesh != derive.mesh_layout(plan.graph, plan.strategy):
        raise PlanMismatchError(f"plan {name}: its mesh is not that of its degrees")
    if plan.stages != derive.stages(plan.graph, plan.strategy):
        raise PlanMismatchError(f"plan {name}: its stages are not those of its degrees")
    if plan.handovers != derive.planned_handovers(plan.graph, plan.strategy, plan.workload):
        raise PlanMismatchError(f"plan {name}: what its stages hand over is not what its strategy gives")
    if plan.ops != derive.planned_ops(plan.graph, plan.strategy, plan.workload):
        raise PlanMismatchError(f"plan {name}: layouts or collectives of its ops are not those of its strategy")


def _show(parameter: object) -> str:
    return "missing" if parameter is None else str(getattr(parameter, "placements", parameter))
