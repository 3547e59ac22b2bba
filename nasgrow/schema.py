"""JSON schemas of the files that users write, for completion and checks in editors."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from nasgrow.config import RunConfig
from nasgrow.expansions import EXPANSION_TYPES
from nasgrow.operators import OPERATORS
from nasgrow.spaces.builtin import built_in
from nasgrow.spaces.load import FROM, SpaceModel
from nasgrow.study.config import StudyConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"

File = Literal["study", "run", "schedule", "space"]

_SIZE: dict[str, Any] = {"type": "integer", "minimum": 1}


class _Open(GenerateJsonSchema):
    """Accepts anything where a custom validator reads a field; :func:`schema_of` fills these fields in."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}


def schema_of(file: File) -> dict[str, Any]:
    """Return the JSON schema of a kind of file."""
    if file == "study":
        made = _study()
    elif file == "run":
        made = _run()
    else:
        made = _schedule() if file == "schedule" else {"anyOf": [_space(), _changed()]}
    return {"$schema": DIALECT, **made, "title": f"nasgrow {file}"}


def _study() -> dict[str, Any]:
    schema = StudyConfig.model_json_schema(schema_generator=_Open)
    schema["required"] = ["final", "space"]  # the name defaults to that of the file
    named = {
        "anyOf": [{"enum": list(built_in())}, {"type": "string"}],
        "description": "A built-in space's name, or the path of a space's file.",
    }
    schema["properties"] |= {"final": _shape(), "space": {"anyOf": [named, _space(), _changed()]}}
    _name_operators(schema)
    return schema


def _run() -> dict[str, Any]:
    schema = RunConfig.model_json_schema(schema_generator=_Open)
    path = {"type": "string", "description": "The path of a schedule file."}
    schema["properties"]["schedule"] = {"anyOf": [path, _schedule()]}
    _name_operators(schema)
    return schema


def _space() -> dict[str, Any]:
    schema = TypeAdapter(SpaceModel).json_schema(schema_generator=_Open, ref_template="#/$defs/{model}")
    whole = {"anyOf": [{"type": "string"}, _schedule()]}
    parts = schema.pop("$defs")
    parts["Fixed"]["properties"]["schedules"]["additionalProperties"] = whole
    for part in parts.values():
        if "round" in part.get("properties", {}):
            by_dimension = part["properties"]["round"]
            part["properties"]["round"] = {"anyOf": [_SIZE, by_dimension]}
    inlined: dict[str, Any] = _inlined(schema, parts)
    return inlined


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """Replace all references in a schema by their definitions, so that it can be part of another schema.

    None of our schemas is recursive.
    """
    if isinstance(schema, list):
        return [_inlined(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = parts[schema["$ref"].rpartition("/")[2]]
        return _inlined({**named, **{key: value for key, value in schema.items() if key != "$ref"}}, parts)
    return {key: _inlined(value, parts) for key, value in schema.items() if key != "discriminator"}


def _changed() -> dict[str, Any]:
    """Return the schema of a space that changes another."""
    source = {"anyOf": [{"enum": list(built_in())}, {"type": "string"}]}
    return {"type": "object", "properties": {FROM: source}, "required": [FROM]}


def _schedule() -> dict[str, Any]:
    event = _object({"at": {"type": "number"}, "grow": {"type": "array", "items": _expansion()}})
    event["properties"]["operator"] = _operator()
    events = {"type": "array", "items": event}
    return _object({"start": _shape()}, {"events": events})


def _expansion() -> dict[str, Any]:
    forms = []
    for kind, expansion in EXPANSION_TYPES.items():
        first, *rest = (one.name for one in fields(expansion))
        forms.append(_object({"expand": {"const": kind}, first: {}}, {name: {} for name in rest}))
    return {"anyOf": forms}


def _operator() -> dict[str, Any]:
    return {"anyOf": [{"enum": list(OPERATORS)}, {"type": "object"}, {"type": "string"}]}


def _name_operators(schema: dict[str, Any]) -> None:
    schema["$defs"]["TrainingConfig"]["properties"]["operator"] = _operator()


def _shape() -> dict[str, Any]:
    group = _object({"count": _SIZE, "key": _SIZE, "value": _SIZE})
    sizes = dict.fromkeys(("mlp", "heads", "key", "value"), _SIZE)
    groups = {"mlp": _SIZE, "heads": {"type": "array", "items": group}}
    count = {"count": _SIZE}
    layer = {"anyOf": [_object(sizes, count), _object(groups, count)]}
    listed = _object({"hidden": _SIZE, "layers": {"type": "array", "items": layer}})
    alike = {"hidden": _SIZE, "layers": _SIZE}
    return {"anyOf": [_object({**alike, **sizes}), _object({**alike, **groups}), listed]}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
