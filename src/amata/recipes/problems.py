"""What is wrong with a table, in one line."""

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from amata.errors import nearest
from amata.quantity import shown


def first_problem(error: ValidationError, table: type[BaseModel]) -> str:
    """The first error with its place, and the nearest key for a mistyped one."""
    problems = error.errors(include_url=False)
    # A mistyped key is often the one that is missing.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    first = problems[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known: Any = table
        for part in first["loc"][:-1]:
            known = known.model_fields[part].annotation
            known = (get_args(known) or (known,))[0]  # of an optional table
        message = f"unknown key; {nearest(str(first['loc'][-1]), known.model_fields)}"
    elif first["type"] == "missing":
        places = [p["loc"] for p in problems if p["type"] == "missing"]
        lacking = [".".join(map(str, loc)) if len(loc) > 1 else f"[{loc[0]}]" for loc in places]
        return f"{' and '.join(lacking)}: {'this is' if len(lacking) == 1 else 'these are'} needed"
    elif first["type"] == "value_error":
        message = str(first["ctx"]["error"])
    else:
        message = f"{first['msg'][0].lower()}{first['msg'][1:]}, not {shown(first['input'])}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{place}: {message}{more}" if place else f"{message}{more}"
