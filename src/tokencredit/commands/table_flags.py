"""Tables as flags: `--task.parameters min_words=2 max_words=4`."""

from typing import Any, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tokencredit.config.syntax import read_table, write_table

TABLES = ConstructorRegistry()


@TABLES.primitive_rule
def table_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    if get_origin(info.type) is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME=VALUE ...]",
        instance_from_str=read_table,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=write_table,
    )
