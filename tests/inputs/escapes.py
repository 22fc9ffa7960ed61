"""Templates that try to leave their sandbox. CANARY stands for a file that they would make."""

from __future__ import annotations

_TOUCH = "os.system('touch CANARY')"
_OPEN = "open('CANARY', 'w')"

ESCAPES = [
    # To Python's insides by way of any object at hand.
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}{{ ''|attr('__class__') }}",
    "{{ ().__class__.__base__.__subclasses__() }}",
    "{{ ''['__cl' ~ 'ass__']['__mro__'][1]['__subclasses__']() }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f')|attr('__mro__') }}",
    "{{ ''|attr(['__', 'class', '__']|join) }}",
    "{{ [].__reduce_ex__(2)[0].__globals__ }}",
    "{{ {}.__class__.__bases__[0].__subclasses__()[104].__init__.__globals__ }}",
    "{{ (1).__class__.__call__('1') }}{{ 1.0.__class__.fromhex }}",
    "{{ true.__class__.__base__.__base__ }}",
    "{{ messages.__class__ }}{{ messages[0].__init__.__globals__ }}",
    "{{ messages.append.__self__.__class__ }}",
    "{{ ''.join.__self__.__class__ }}",
    "{{ ''.format.__func__ }}{{ ''.upper.__call__.__self__ }}",
    # By way of what a template is given.
    f"{{{{ cycler.__init__.__globals__.{_TOUCH} }}}}",
    f"{{{{ joiner.__init__.__globals__.{_TOUCH} }}}}",
    f"{{{{ namespace.__init__.__globals__.{_TOUCH} }}}}",
    f"{{{{ lipsum.__globals__['os'].{_TOUCH[3:]} }}}}",
    f"{{{{ range.__self__.{_OPEN} }}}}",
    f"{{{{ dict.__globals__['__builtins__'].{_OPEN} }}}}{{{{ dict.__subclasses__() }}}}",
    f"{{{{ raise_exception.__globals__['__builtins__'].{_OPEN} }}}}",
    f"{{{{ strftime_now.__globals__['__builtins__'].{_OPEN} }}}}",
    f"{{{{ strftime_now.__code__.__class__ }}}}{{{{ strftime_now.__closure__.{_OPEN} }}}}",
    f"{{{{ tojson.__globals__.{_OPEN} }}}}",
    f"{{{{ self.__init__.__globals__['__builtins__'].{_OPEN} }}}}",
    f"{{{{ self._TemplateReference__context.environment.{_OPEN} }}}}",
    f"{{{{ self._TemplateReference__context.eval_ctx.environment.from_string('x').{_OPEN} }}}}",
    f"{{{{ caller.__globals__.{_OPEN} }}}}{{{{ varargs.__class__ }}}}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}{{ m._func.__globals__ }}",
    "{% macro m() %}{{ caller._func.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{% for x in [1] %}{{ loop._iterator.__class__ }}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{{ undefined_name.__class__ }}{{ undefined_name._undefined_exception.__mro__ }}",
    # By way of filters and formats, which look up attributes themselves.
    "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
    "{{ messages|map('attr', '__class__')|list }}",
    "{{ messages|selectattr('__class__')|map(attribute='__init__.__globals__')|list }}",
    "{{ messages|groupby('__class__')|list }}{{ messages|sort(attribute='__class__') }}",
    "{{ [messages]|sum(attribute='__class__', start='') }}",
    "{{ '{0.__class__}'.format(1) }}{{ ('%s' % ''.__class__) }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}{{ ('{0[__class__]}'|format(1)) }}",
    "{{ ''.format.__call__('{0.__class__}', 1) }}",
    "{{ 'x'|xmlattr.__class__ }}{{ {'x y': 1}|attr('items')|attr('__self__') }}",
    # By changing what it was given, or what others will be given.
    "{{ messages.append(1) }}",
    "{{ messages[0].update(x=1) }}{{ messages[0].pop('role') }}",
    "{{ messages[0].__setitem__('role', 'x') }}{{ messages.clear() }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ namespace(__init__=1) }}",
    "{% do messages.append(1) %}",
    # By reading files.
    "{% import 'os' as os %}{{ os.system('touch CANARY') }}",
    "{% from 'os' import system %}{{ system('touch CANARY') }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{% include ['../../etc/passwd', 'CANARY'] %}",
]
