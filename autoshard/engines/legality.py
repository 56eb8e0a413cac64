"""Whether an engine accepts degrees: physics first, which no engine escapes, then the engine's own rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.engines.facts import ModelFacts, degree_facts, device_facts, model_facts, scheme_facts
from autoshard.engines.profile import Engine, Rule
from autoshard.engines.quantisation import Scheme
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.sharding.legality import degree_reasons
from autoshard.versions import parse_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that is broken: its name, the values it compared, one sentence, what happens, and where that is from."""

    rule: str
    values: Mapping[str, Any]
    message: str
    effect: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "rule": self.rule,
            "values": dict(self.values),
            "message": self.message,
            "effect": self.effect,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is asked of an engine besides degrees: the model, the cluster, version, quantisation and options.

    ``positions`` are the tokens that a sequence may have by the model's config, 0 where that is not known.
    """

    graph: OpGraph
    cluster: Cluster
    engine: Engine
    version: str
    scheme: Scheme
    options: Mapping[str, float | str]
    positions: int = 0

    def facts(self) -> tuple[ModelFacts, dict[str, Any]]:
        """Facts of the model, and every fact that degrees do not change."""
        model = model_facts(self.graph)
        numbers = (*parse_version(self.version), 0, 0)
        return model, {
            **model.once,
            **device_facts(self.cluster),
            **scheme_facts(self.scheme),
            **self.options,
            "positions": self.positions,
            "version_major": numbers[0],
            "version_minor": numbers[1],
        }


class Judge:
    """Finds every rule that degrees break for one launch; facts that degrees do not change are gathered once.

    ``context`` are the tokens of a request, 0 where degrees alone are judged.
    """

    def __init__(self, launch: Launch, *, context: int = 0) -> None:
        self.launch = launch
        self._model, fixed = launch.facts()
        self._fixed = {**fixed, "context": context}
        engine = launch.engine
        wanted = (launch.version, launch.scheme.name, launch.graph.model_class)
        self._rules = tuple(r for r in engine.rules if r.applies_to(*wanted))

    def facts(self, *, pp: int, dp: int, tp: int, ep: int, etp: int) -> dict[str, Any]:
        """All facts at given degrees, the engine's derived ones included."""
        facts = {**self._fixed, **degree_facts(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp)}
        facts["minimum_redundant"] = (ep - facts["experts"] % ep) % ep
        for name, formula in self.launch.engine.derived.items():
            facts[name] = formula.value(facts)
        return facts

    def findings(self, *, pp: int, dp: int, tp: int, ep: int, etp: int, replicas: int = 1) -> tuple[Finding, ...]:
        """Everything broken or worth a note at these degrees."""
        facts = self.facts(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp)
        found = [*_physics(facts, replicas), *self._own(pp=pp, dp=dp, tp=tp, ep=ep)]
        for rule in self._rules:
            for row in self._model.rows(rule.over):
                finding = _broken(rule, {**facts, **row})
                if finding is not None:
                    found.append(finding)
        return tuple({(f.rule, f.message): f for f in found}.values())

    def _own(self, *, pp: int, dp: int, tp: int, ep: int) -> tuple[Finding, ...]:
        """The rules of what autoshard's ranks execute, where they are the engine."""
        if self.launch.engine.name != "torch":
            return ()
        uneven = bool(self._fixed.get("allow_uneven", 0))
        reasons = degree_reasons(self.launch.graph, pp=pp, dp=dp, tp=tp, ep=ep, uneven=uneven)
        # Layers, and experts that are not there, are counted for every engine.
        return tuple(
            Finding(
                rule=r.rule,
                values=dict(r.values),
                message=r.message,
                effect="refused",
                source="autoshard.sharding.legality",
            )
            for r in reasons
            if r.rule not in ("layers vs pp", "dense ep")
        )


def _broken(rule: Rule, facts: Mapping[str, Any]) -> Finding | None:
    if not rule.when.value(facts) or rule.require.value(facts):
        return None
    return Finding(
        rule=rule.name,
        values={name: facts[name] for name in rule.values},
        message=rule.message.format(**facts),
        effect=rule.effect,
        source=rule.source,
    )


def _physics(facts: Mapping[str, Any], replicas: int) -> list[Finding]:
    """Rules of counting: devices, the two views of a stage, layers."""
    pp, dp, tp, ep, etp = (facts[n] for n in ("pp", "dp", "tp", "ep", "etp"))
    found = []
    needed = pp * max(dp * tp, ep * etp if facts["experts"] else 1) * replicas
    if needed > facts["devices"]:
        each = "" if replicas == 1 else f", {replicas} replicas"
        split = f"dp={dp} * tp={tp}" if dp * tp >= ep * etp else f"ep={ep} * etp={etp}"
        found.append(
            _counting(
                "devices",
                {"pp": pp, "dp": dp, "tp": tp, "replicas": replicas, "devices": facts["devices"]},
                f"pp={pp} * {split}{each} needs {needed} devices; the cluster has {facts['devices']}",
            )
        )
    if facts["experts"] and dp * tp != ep * etp:
        found.append(
            _counting(
                "dp*tp = ep*etp",
                {"dp": dp, "tp": tp, "ep": ep, "etp": etp},
                f"dp*tp = {dp}*{tp} is not ep*etp = {ep}*{etp}: experts and attention run on the same devices",
            )
        )
    if not facts["experts"] and ep * etp > 1 and (ep, etp) != (dp, tp):
        found.append(
            _counting(
                "no experts", {"ep": ep, "etp": etp}, f"ep={ep}, etp={etp} on a model without experts: leave them out"
            )
        )
    if pp > facts["layers"]:
        found.append(
            _counting(
                "layers vs pp",
                {"layers": facts["layers"], "pp": pp},
                f"pp={pp} stages for {facts['layers']} layers; at most {facts['layers']}",
            )
        )
    return found


def _counting(rule: str, values: Mapping[str, Any], message: str) -> Finding:
    return Finding(rule=rule, values=values, message=message, effect="refused", source="counting")
