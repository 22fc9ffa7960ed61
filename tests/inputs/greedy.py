"""Templates that would run for ever or fill any memory, rendered one by one in a process of its
own: it prints how each ended, the seconds it took and the megabytes it came to hold."""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LOOP = "{% for i in range(1000) %}"
_END = "{% endfor %}"
_DOUBLING = (
    "{% set ns = namespace(x=BEGIN) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"
)
_DEEP = (
    "{% set a = namespace(x=['y']) %}{% for i in range(60) %}{% set a.x = [a.x, a.x] %}{% endfor %}"
    "{% set b = namespace(x=['y']) %}{% for i in range(60) %}{% set b.x = [b.x, b.x] %}{% endfor %}"
)


def _doubled(begin: str, *steps: str) -> list[str]:
    return [_DOUBLING.replace("BEGIN", begin).replace("STEP", step) for step in steps]


BY_HAND = [
    # Loops.
    "{% for i in range(1000000000) %}{% endfor %}",
    "{{ range(10**9)|list|length }}{{ range(10**9)|sum }}",
    _LOOP * 4 + _END * 4,
    _LOOP * 4 + "x" * 50 + _END * 4,
    "{% set s = 'x' * 1000000 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "{% set s = 'x' * 1000000 %}{% for a in s %}{% for b in s if false %}{% endfor %}{% endfor %}",
    "{% set s = 'x' * 1000000 %}{% for a in s if 'y' in s %}{% endfor %}",
    "{% set s = 'x' * 900000 %}" + _LOOP * 2 + "{% if s ~ i in s %}{% endif %}" + _END * 2,
    "{% for x in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}",
    "{% for x in [1,2] recursive %}{{ loop([1,2]) }}{% endfor %}",
    "{% set l = [0] * 1000000 %}"
    + _LOOP
    + "{{ l|map('string')|select('in', l)|list|length }}"
    + _END,
    "{% set l = [0] * 1000000 %}" + _LOOP + "{{ l|sort|unique|list|length }}" + _END,
    # Macros and blocks.
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m(n) %}{% if n %}{% set _ = m(n-1) ~ m(n-1) %}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m(s,n) %}{% if n %}{{ m(s ~ s, n-1) }}{% else %}{{ s }}{% endif %}{% endmacro %}"
    "{{ m('xx', 60) }}",
    "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}"
    "{% set ns = namespace(x='y') %}{% for i in range(60) %}{% set ns.x = d(ns.x) %}{% endfor %}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% for i in range(9) %}{% block b scoped %}"
    + _LOOP * 2
    + _END * 2
    + "{% endblock %}{% endfor %}",
    "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 60
    + "x"
    + "{% endcall %}" * 60,
    # Doubling.
    *_doubled("'ab'", "ns.x + ns.x", "ns.x ~ ns.x", "ns.x * 2", "'%s%s' % (ns.x, ns.x)"),
    *_doubled("'ab'", "'{0}{0}'.format(ns.x)", "'{a}{a}'.format(a=ns.x)", "[ns.x, ns.x]|join"),
    *_doubled(
        "'ab'", "ns.x.join([ns.x, ns.x])", "ns.x.replace('a', ns.x)", "ns.x|replace('a', ns.x)"
    ),
    *_doubled("'ab'", "'%s%s'|format(ns.x, ns.x)", "(ns.x, ns.x)|string", "[ns.x, ns.x]|tojson"),
    *_doubled("'ab'", "ns.x|tojson|tojson", "ns.x|e ~ ns.x|e", "(ns.x ~ ns.x)|upper"),
    *_doubled("[1]", "ns.x + ns.x", "ns.x * 2", "[ns.x, ns.x]|sum(start=[])", "(ns.x + ns.x)|list"),
    *_doubled("3", "ns.x * ns.x", "ns.x ** 9", "ns.x * ns.x * ns.x", "(ns.x * ns.x)|abs"),
    "{% set ns = namespace(x='y') %}{% for i in range(60) %}"
    "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}{% endfor %}",
    "{% set ns = namespace(x='y') %}{% for i in range(60) %}"
    "{% set t %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}"
    "{% set ns.x = t %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}"
    + _LOOP * 2
    + "{% set ns.x = ns.x + ['x' * 9999] %}"
    + _END * 2,
    "{% set ns = namespace(x=[]) %}"
    + _LOOP
    + "{% set ns.x = ns.x + [('x' * 99999)|upper] %}"
    + _END,
    # A small value whose text, or whose comparison, has no end.
    *(
        _DEEP + use
        for use in ("{{ a.x }}", "{{ a.x|tojson }}", "{{ a.x ~ '' }}", "{{ a.x|string }}")
    ),
    *(_DEEP + use for use in ("{{ a.x|join }}", "{{ '%s' % a.x }}", "{{ '{}'.format(a.x) }}")),
    *(_DEEP + use for use in ("{{ a.x == b.x }}", "{{ a.x in [b.x] }}", "{{ a.x is eq(b.x) }}")),
    *(
        _DEEP + use
        for use in ("{{ a.x < b.x }}", "{{ [a.x, b.x]|unique|list }}", "{{ [a.x]|sort }}")
    ),
    *(
        _DEEP + use
        for use in ("{{ a.x|pprint }}", "{{ a }}", "{{ {'k': a.x}.items() }}", "{{ a.x|e }}")
    ),
    *(_DEEP + use for use in ("{{ [a.x, b.x]|max }}", "{{ a.x|upper }}", "{{ a.x|urlencode }}")),
    *(_DEEP + use for use in ("{{ {'k': a.x}|xmlattr }}", "{{ a.x|tojson(indent=2) }}")),
    *(_DEEP + use for use in ("{{ [b.x].index(a.x) }}", "{{ [b.x].count(a.x) }}")),
    _DEEP + "{% for i in [a.x, b.x] %}{{ loop.changed(i) }}{% endfor %}",
    "{% set a = namespace(x=(1,)) %}{% for i in range(60) %}{% set a.x = (a.x, a.x) %}{% endfor %}"
    "{{ {}[a.x] }}{{ {a.x: 1} }}{{ {}.get(a.x) }}{{ a.x in {} }}{{ dict([(a.x, 1)]) }}",
    # Numbers.
    "{{ 10 ** (10 ** 9) }}{{ 7 ** 7 ** 7 ** 7 }}",
    "{{ 1|round(-10**9) }}",
    "{{ 1.5|round(10**9, 'ceil') }}{{ 1.5|round(precision=10**9, method='floor') }}",
    "{{ (1).to_bytes(10**9) }}",
    "{{ ('9' * 999999)|int }}{{ ('f' * 999999)|int(base=16) * ('f' * 999999)|int(base=16) }}",
    "{{ strftime_now('%Y' * 10000000) }}{{ strftime_now('%1000000000Y') }}",
    # Straight on.
    "{% set s = 'x' * 1000000 %}" + "{{ s }}" * 2000,
    "{% set s = 'x' * 1000000 %}" + "{{ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s }}" * 100,
]
_VALUES = {
    "text": "'x y' * 100000",
    "lines": "'x\\n' * 200000",
    "tabs": "'\\t' * 500000",
    "list": "['x'] * 500000",
    "lists": "[['x'] * 1000] * 1000",
    "number": "7",
    "dict": "{'a': 'x' * 900000, 'b': ['y'] * 100000}",
}
_ARGUMENTS = (
    *("", "10**9", "-10**9", "'x' * 1000000", "'', 'y' * 1000000", "'x', 'y' * 1000000"),
    *("width=10**9", "10**9, 'y' * 100000", "'\\n' * 1000000", "1, 'y' * 1000000"),
)
_METHODS = {"text": str, "list": list, "dict": dict, "number": int}


def generated() -> Iterator[str]:
    """Every filter and every method on each kind of value, with arguments that are too large."""
    from quire.inputs.sandbox import sandbox

    names = [name for name in sandbox().filters if " " not in name]
    for kind, value in _VALUES.items():
        for name in names:
            for arguments in _ARGUMENTS:
                result = f"(({value})|{name}({arguments}))"
                yield f"{{{{ {result}|string|length }}}}"
        for name in dir(_METHODS.get(kind, str)):
            for arguments in _ARGUMENTS if not name.startswith("_") and kind in _METHODS else ():
                yield f"{{{{ (({value}).{name}({arguments}))|string|length }}}}"


def _held() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * 4096


def main(every: int) -> None:
    from quire.errors import InvalidPrompt
    from quire.inputs.chat import write_chat

    message = [{"role": "user", "content": "hello"}]
    write_chat(message, "{{ messages[0].content }}", special_tokens={})
    allowed = _held() + (300 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    made = list(generated())
    for template in [*BY_HAND[:: 3 if every > 1 else 1], *made[::every]]:
        signal.setitimer(signal.ITIMER_PROF, 4)  # ends us
        started = time.process_time()
        print(json.dumps(template), end="\t", flush=True)
        try:
            text = write_chat(message, template, special_tokens={}).text
            how = f"wrote {len(text)}"
        except InvalidPrompt as error:
            how = f"refused {error}"
        except BaseException as error:
            how = f"raw {type(error).__name__} {error}"
        print(json.dumps([how[:200], time.process_time() - started]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
