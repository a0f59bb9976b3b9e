"""The cost file of `specprof cost`: YAML in, checked options out.

    cost: on or off               # its title
    currency: EUR                 # a label: amounts of one file are in one currency
    options:
      - {name: A, cost_per_hour: 100, throughput_tok_s: 10000, effective_share: 0.95}
      - {name: B, cost_per_hour: 80, study: results/demo, cell: code/forced/off/8, one_off: 5000, upkeep_per_period: 90}
    payback: {baseline: A, period: month, effective_tokens_per_period: 2.4e+10}

`effective_share` is the share of *tokens* that belong to requests on time and of the quality asked for; the share of
requests is another number. `utilisation` is the share of paid hours in which an option works. What `cost_per_hour`
holds already does not belong in `upkeep_per_period`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, ValidationError

from specprof.errors import InputError, shortened
from specprof.study.strict import Strict, find, nearest, says, together, yaml_mapping

SMALLEST, LARGEST = 1e-9, 1e18  # beyond these a float's arithmetic, not the reader's, would decide
LONGEST_LABEL = 80

Location = tuple[str | int, ...]


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _positive(value: float) -> float:
    if not isfinite(value) or value <= 0:
        raise ValueError("must be a finite number above 0")
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"must lie between {SMALLEST:g} and {LARGEST:g}; check its unit")
    return value


def _not_negative(value: float) -> float:
    return value if value == 0 else _positive(value)


def _share(value: float) -> float:
    if _positive(value) > 1:
        raise ValueError("is a share and cannot be above 1; write 0.95 for 95%")
    return value


def _label(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    if len(value) > LONGEST_LABEL:
        raise ValueError(f"is too long for a table; at most {LONGEST_LABEL} characters")
    return value


Label = Annotated[str, AfterValidator(_label)]
Positive = Annotated[float, BeforeValidator(_number), AfterValidator(_positive)]
NotNegative = Annotated[float, BeforeValidator(_number), AfterValidator(_not_negative)]
Share = Annotated[float, BeforeValidator(_number), AfterValidator(_share)]


class OptionSpec(Strict):
    """One way of serving: what an hour costs, and what it delivers, given or measured (`study` and `cell`).

    `cell`: content/protocol/arm/streams. `one_off`, `upkeep_per_period`: beside the hourly cost, for the payback.
    """

    name: Label
    cost_per_hour: Positive
    throughput_tok_s: Positive | None = None
    effective_share: Share | None = None
    effective_throughput_tok_s: Positive | None = None
    study: Path | None = None
    cell: Label | None = None
    utilisation: Share | None = None
    one_off: NotNegative | None = None
    upkeep_per_period: NotNegative | None = None


class PaybackSpec(Strict):
    """The same work for every option: so many effective tokens a period, against the option that runs today."""

    baseline: Label
    period: Label
    effective_tokens_per_period: Positive


class CostSpec(Strict):
    """Everything a cost file says."""

    cost: Label
    currency: Label = "currency units"
    options: tuple[OptionSpec, ...]
    payback: PaybackSpec | None = None


@dataclass(frozen=True)
class CostFile:
    """A checked cost file, and where everything in it stands."""

    spec: CostSpec
    name: str  # as its errors call it
    folder: Path  # where studies are looked for first, then upwards, then in the working folder
    node: yaml.Node

    def where(self, *location: str | int) -> str:
        """`costs.yaml:7: options.1.cell`: file, line and key of a place in it."""
        return f"{self.name}:{find(self.node, location)[0]}: {'.'.join(map(str, location))}"

    def study_folder(self, index: int) -> Path:
        """The results folder an option names. Raises InputError where there is none."""
        given = self.spec.options[index].study or Path()
        places = [given] if given.is_absolute() else [base / given for base in (*self._upwards(), Path.cwd())]
        for place in places:
            if os.path.isdir(place):  # noqa: PTH112 - unlike Path.is_dir, False for a name the system refuses
                return place
        where = self.where("options", index, "study")
        raise InputError(f"{where}: {given} does not exist (looked from {self.folder} upwards). Name a results folder.")

    def _upwards(self) -> tuple[Path, ...]:
        return (self.folder, *self.folder.parents)


def load_cost_file(path: Path) -> CostFile:
    """Read and check a cost file.

    Raises InputError naming file, line, key and what to write instead.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise InputError(f"{path}: cannot be read ({problem}). Give the path of a cost file in YAML.") from None
    return parse_cost_file(text, str(path), path.resolve().parent)


def parse_cost_file(text: str, name: str, folder: Path) -> CostFile:
    """Check the text of a cost file; `name` stands in its errors, studies are looked for from `folder` upwards."""
    data, node = yaml_mapping(text, name, "holds no costs. It must be a mapping that begins with 'cost: TITLE'.")
    try:
        spec = CostSpec.model_validate(data)
    except ValidationError as problem:
        raise InputError(together(_explain(name, node, problem))) from None
    file = CostFile(spec, name, folder, node)
    if found := [f"{file.where(*location)}: {message}" for location, message in _contradictions(spec)]:
        raise InputError("\n".join(found))
    return file


def _explain(name: str, node: yaml.Node, problem: ValidationError) -> Iterator[str]:
    for error in problem.errors():
        location = tuple(error["loc"])
        line, _ = find(node, location)
        where, key = f"{name}:{line}", shortened(".".join(map(str, location)))
        if error["type"] == "extra_forbidden":
            yield f"{where}: unknown key '{key}'.{nearest(str(location[-1]), _valid_keys(location))}"
        elif error["type"] == "missing":
            yield f"{where}: '{key}' is missing. Add it."
        else:
            given = error.get("input")
            shown = "" if isinstance(given, dict | list | bool) else says(given)
            yield f"{where}: {key or 'cost'}: {_in_words(error)}{shown}"


def _in_words(error: Any) -> str:
    if isinstance(error.get("input"), bool):
        return f"YAML reads a bare on, off, yes or no as a truth value; {_instead_of_truth(error['type'])}"
    said = {
        "float_type": "must be a number",
        "float_parsing": "must be a number",
        "string_type": "must be text; write it in quotes",
        "path_type": "must be the path of a results folder",
        "model_type": "must be a mapping of keys",
        "tuple_type": "must be a list",
    }
    return said.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")


def _instead_of_truth(error_type: str) -> str:
    return "write it in quotes" if error_type in ("string_type", "path_type") else "write a number"


def _valid_keys(location: Location) -> list[str]:
    sections: dict[str | int, type[Strict]] = {"options": OptionSpec, "payback": PaybackSpec}
    model = sections[location[0]] if len(location) > 1 else CostSpec
    return list(model.model_fields)


def _contradictions(spec: CostSpec) -> Iterator[tuple[Location, str]]:
    """What is wrong between keys that are each right by themselves, and where."""
    names = [option.name for option in spec.options]
    if not names:
        yield ("options",), "must hold at least one option"
    for index, option in enumerate(spec.options):
        if option.name in names[:index]:
            yield ("options", index, "name"), f"{option.name!r} stands twice; every option needs a name of its own"
        for key, message in _of_option(option):
            yield ("options", index, key) if key else ("options", index), message
        if spec.payback is None:
            for key in ("one_off", "upkeep_per_period"):
                if getattr(option, key) is not None:
                    yield ("options", index, key), "belongs to a payback; add payback: or leave it out"
        elif option.name == spec.payback.baseline and option.one_off is not None:
            yield ("options", index, "one_off"), "the baseline runs already: what it once cost is spent; leave it out"
    if spec.payback is not None and spec.payback.baseline not in names:
        yield ("payback", "baseline"), f"{spec.payback.baseline!r} is no option; name one of {', '.join(names)}"
    if spec.payback is not None and len(names) < 2:
        yield ("payback",), "there is nothing to change to; add a second option"


def _of_option(option: OptionSpec) -> Iterator[tuple[str, str]]:
    raw, share, effective = option.throughput_tok_s, option.effective_share, option.effective_throughput_tok_s
    if option.study is not None or option.cell is not None:
        if option.study is None:
            yield "cell", "needs study: beside it, the results folder it was measured in"
        if option.cell is None:
            yield "study", "needs cell: beside it, as in code/forced/off/8 (content/protocol/arm/streams)"
        for key in ("throughput_tok_s", "effective_throughput_tok_s"):
            if getattr(option, key) is not None:
                yield key, "the study measured it; leave it out, or leave study: and cell: out"
    elif raw is None and effective is None:
        yield "", "says nothing of its output; add throughput_tok_s:, effective_throughput_tok_s:, or study: and cell:"
    if effective is not None and share is not None:
        yield "effective_share", "effective_throughput_tok_s: says it already; leave one of the two out"
    if effective is not None and raw is not None and effective > raw:
        yield "effective_throughput_tok_s", f"cannot be above the {raw:g} of throughput_tok_s: it is a part of it"
