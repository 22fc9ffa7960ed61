"""Chat templates in the manner of well-known model families, written for these tests."""

from __future__ import annotations

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- set ns.system = message['content'] | trim %}
    {%- endif %}
{%- endfor %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n' }}
{%- if date_string is defined %}{{- 'Today Date: ' + date_string + '\\n\\n' }}
{%- else %}{{- 'Year: ' ~ strftime_now('%Y') ~ '\\n\\n' }}{%- endif %}
{{- ns.system + '<|eot_id|>' }}
{%- for message in messages if message['role'] != 'system' %}
    {%- if 'tool_calls' in message and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "parameters": ' }}
            {{- call.function.arguments | tojson }}{{- '}' }}
        {%- endfor %}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{% endif %}
{% endfor %}
"""

QWEN_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}{%- set last = message.content %}{%- break %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.reasoning_content is defined %}
            {{- '\\n<think>\\n' + message.reasoning_content + '\\n</think>' }}
        {%- endif %}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson(indent=2) }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

PARTS = """\
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- for part in message.content %}{{- part.text if part.type == 'text' }}{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}
"""

EITHER = """\
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message['content'] is string %}{{- message['content'] }}
    {%- else %}{%- for part in message['content'] %}[{{- part['text'] }}]{%- endfor %}{%- endif %}
{%- endfor %}
"""
