#!/usr/bin/env python3
"""Compares chat templates as Millrace renders them with Python's Jinja.

Goal: the text of every conversation, and whether a template raises, are those of
Jinja with the settings of Hugging Face's transformers. Method: the templates of
tests/data/chat_templates and small ones for single features, over conversations
made at random, with tools, missing keys, Unicode and white space; then templates
made of random parts, where both must agree on the text or both must fail.

    chat_template_test.py CHAT_DUMP [SEED]
"""

import datetime
import functools
import json
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

DATE = "2026-11-23"
TEMPLATES = pathlib.Path(__file__).parent.parent / "data" / "chat_templates"


class Generation(jinja2.ext.Extension):
    """{% generation %}: its body alone; what it marks is checked elsewhere."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.date.fromisoformat(DATE).strftime
    return env


ENV = environment()


@functools.lru_cache
def compiled(template):
    return ENV.from_string(template)


def expected(template, variables):
    try:
        return compiled(template).render(**variables), None
    except Exception as error:  # Whatever Python raises counts as an error.
        return None, f"{type(error).__name__}: {error}"


class Dump:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, encoding="utf-8")

    def render(self, template, variables):
        request = {"template": template, "variables": variables, "date": DATE}
        self.process.stdin.write(json.dumps(request, ensure_ascii=False) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"chat_dump ended on {request!r}")
        answer = json.loads(line)
        return answer.get("text"), answer.get("error")


WORDS = ["Hi", "a", "", " ", "\n", "  two  spaces ", "\n\nlines\n", "<think>", "</think>", "Ünïcödé",
         "日本語", "🙂", "\"quoted\"", "it's", "<b>&amp;", "{{ x }}", "\\n", "\t", "don't STOP", "1.5",
         "<tool_response>x</tool_response>", " "]


def text(rng):
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 4)))


def value(rng, depth=0):
    kinds = ["text", "int", "float", "bool", "none"] + (["list", "dict"] if depth < 2 else [])
    kind = rng.choice(kinds)
    if kind == "text":
        return text(rng)
    if kind == "int":
        return rng.choice([0, 1, -1, 7, 2**40, -(2**62)])
    if kind == "float":
        return rng.choice([0.0, 1.5, -2.25, 1e22, 1e-7, 3.0, 0.1, 123456.789])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "none":
        return None
    if kind == "list":
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice("abcdef"): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def message(rng, role):
    result = {"role": role, "content": text(rng)}
    if role == "assistant" and rng.random() < 0.3:
        result["tool_calls"] = [
            {"type": "function",
             "function": {"name": "f", "arguments": rng.choice([{"x": value(rng)}, "{}", {}])}}
            for _ in range(rng.randint(0, 2))]
    if role == "assistant" and rng.random() < 0.2:
        result["reasoning_content"] = text(rng)
    if rng.random() < 0.1:
        result["content"] = rng.choice([None, [{"type": "text", "text": text(rng)},
                                               {"type": "image"}], {"k": value(rng)}])
    if rng.random() < 0.05:
        del result["content"]
    if role == "system" and rng.random() < 0.3:
        result["tools"] = rng.choice([None, [value(rng)]])
    return result


def conversation(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append(message(rng, "system"))
    for i in range(rng.randint(0, 5)):
        role = ["user", "assistant"][i % 2]
        if rng.random() < 0.1:
            role = rng.choice(["user", "assistant", "tool", "system", "critic"])
        messages.append(message(rng, role))
    variables = {"messages": messages, "add_generation_prompt": rng.random() < 0.5,
                 "bos_token": "<s>", "eos_token": "</s>", "tools": None}
    if rng.random() < 0.2:
        variables["tools"] = [value(rng) for _ in range(2)]
    if rng.random() < 0.2:
        variables["enable_thinking"] = rng.random() < 0.5
    return variables


# One feature each; `x` is a random value, `s` a text, `l` a list, `d` a dict.
FEATURES = """
{{ x }}|{{ [x, s] }}|{{ (x,) }}|{{ {'a': x} }}|{{ x|tojson }}|{{ l|tojson(indent=2) }}|{{ d|tojson(sort_keys=true) }}
{{ s|tojson(ensure_ascii=true) }}|{{ l|tojson(separators=(',', ':')) }}
{{ s|upper }}|{{ s|lower }}|{{ s|title }}|{{ s|capitalize }}|{{ s.title() }}|{{ s.upper() }}|{{ s.capitalize() }}
{{ s|trim }}|{{ s.strip() }}|{{ s.lstrip('\\n ') }}|{{ s.rstrip() }}|{{ s.split() }}|{{ s.split('t', 1) }}|{{ s.rsplit(' ', 1) }}
{{ s.splitlines() }}|{{ s.replace('t', 'TT', 1) }}|{{ s|replace('', '-') }}|{{ s.find('t') }}|{{ s.count('t') }}|{{ s.rfind('t') }}
{{ s[1:] }}|{{ s[::-1] }}|{{ s[-2:] }}|{{ s[0] }}|{{ s[:-1:2] }}|{{ l[1:] }}|{{ l[::-1] }}|{{ l[-1] }}|{{ s[5:1:-1] }}
{{ s|length }}|{{ l|length }}|{{ d|length }}|{{ s|list }}|{{ d|list }}|{{ d|items|list }}|{{ d.items()|list }}
{{ l|first }}|{{ l|last }}|{{ s|first }}|{{ l|join(', ') }}|{{ l|reverse|list }}|{{ s|reverse }}
{{ l|map('string')|join('/') }}|{{ l|select('string')|list }}|{{ l|reject('none')|list }}|{{ l|map('upper')|list }}
{{ [{'a': x}, {'a': s}, {}]|map(attribute='a')|list|length }}|{{ [{'a': x}, {}]|selectattr('a', 'defined')|list }}
{{ [{'a': 1}, {'a': 2}]|rejectattr('a', 'eq', 1)|list }}|{{ [{'a': 1}, {'a': 0}]|selectattr('a')|list }}
{{ [3, 1, 2]|sort }}|{{ ['b', 'A', 'c']|sort }}|{{ ['b', 'A']|sort(reverse=true) }}|{{ d|dictsort }}|{{ [1, 1, 2]|unique|list }}
{{ x is string }}{{ x is number }}{{ x is integer }}{{ x is float }}{{ x is mapping }}{{ x is iterable }}{{ x is sequence }}{{ x is none }}{{ x is boolean }}{{ x is true }}
{{ y is defined }}{{ y is undefined }}{{ y|default('n') }}{{ x|default('n', true) }}{{ y }}{{ y|length }}{{ y ~ 1 }}
{{ y.z }}
{{ y + 1 }}
{{ x.z is defined }}|{{ d.a }}|{{ d['a'] }}|{{ d.get('a', 3) }}|{{ d.zzz }}|{{ l[99] }}|{{ d.keys()|list }}|{{ d.values()|list }}
{{ x + x }}
{{ x ~ x }}|{{ x == x }}|{{ x == 1 }}|{{ x != s }}|{{ 1 == 1.0 }}|{{ true == 1 }}
{{ x < x }}
{{ s < 'm' }}|{{ 1 < 2 < 3 }}|{{ 1 < 2 > 3 }}|{{ 'a' in s }}|{{ 'a' not in s }}|{{ x in l }}|{{ 'a' in d }}
{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 7 / 2 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 7.5 // 2 }}|{{ -7.5 % 2 }}|{{ 1e3 }}|{{ 1_000 }}
{{ -x|abs }}
{{ 'ab' * 3 }}|{{ [1] * 2 }}|{{ [1] + [2] }}|{{ 'a' 'b' }}|{{ not x }}|{{ x and s }}|{{ x or s }}|{{ s if x else 'no' }}|{{ s if x }}
{{ 1 + 2 ~ 3 + 4 }}
{{ 1 if false }}|{{ (1, 2)[0] }}|{{ 10|string|length }}|{{ '3'|int + 1 }}|{{ 'q'|int }}|{{ '2.5'|float }}|{{ 3.7|int }}|{{ 3.14159|round(2) }}
{{ range(3)|list }}|{{ range(1, 7, 2)|list }}|{{ range(3, 0, -1)|list }}|{{ dict(a=1, b=x) }}|{{ [1, 2, 3]|sum }}|{{ [3, 1]|max }}|{{ [3, 1]|min }}
{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('x', 'y') }}{% else %}empty{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ k }}
{% for a in l if a is string %}{{ loop.index }}{{ a }}{% endfor %}|{% for a in s %}{{ a }}.{% endfor %}
{% for a in range(9) %}{% if a == 2 %}{% continue %}{% endif %}{% if a > 4 %}{% break %}{% endif %}{{ a }}{% endfor %}
{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}{% if true %}{% set a = 9 %}{% endif %}{{ a }}
{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b is defined }}
{% set a, b = (1, 2) %}{{ a }}{{ b }}|{% set t %}  {{ s }} {% endset %}[{{ t }}]|{% set u | upper %}abc{% endset %}{{ u }}
{% macro m(a, b=2) %}{{ a }}-{{ b }}{{ c }}{% endmacro %}{% set c = 5 %}{{ m(1) }}|{{ m(1, b=s) }}|{{ m(b=1, a=0)|length }}
{% macro fib(n) %}{% if n < 2 %}{{ n }}{% else %}{{ fib(n - 1)|int + fib(n - 2)|int }}{% endif %}{% endmacro %}{{ fib(9) }}
{% macro box() %}[{{ caller(1) }}]{% endmacro %}{% call(v) box() %}in {{ v }}{{ s }}{% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %}|{% with q = 1, r = s %}{{ q }}{{ r }}{% endwith %}{{ q }}|{% raw %}{{ x }}{% endraw %}
{% for n in [[1, [2]], [3]] recursive %}<{% if n is iterable %}{{ loop(n) }}{% else %}{{ n }}{{ loop.depth }}{% endif %}>{% endfor %}
{{ 'a\\tb\\x41\\u00e9\\'' }}|{{ "\\"" }}|{{ '\\d' }}|{{ {'a': {'b': 1}}.a.b }}|{{ {'a': {}} }}|{{ ''.join(['a', 'b']) }}|{{ strftime_now('%d %b %Y') }}
{{ 'abc'.startswith(('x', 'a')) }}|{{ 'abc'.endswith('c') }}|{{ 'abc'.removeprefix('a') }}|{{ 'a1'.isdigit() }}|{{ '12'.isdigit() }}|{{ ' '.isspace() }}
{{ s|indent(2) }}|{{ s|indent(2, true) }}|{{ s|e }}|{{ x|string }}|{{ 5 is divisibleby(5) }}{{ 4 is even }}{{ 3 is odd }}{{ 3 is eq 3 }}{{ 'a' is in 'abc' }}{{ x is not none }}
{{ raise_exception('no') }}
{{ l.append(1) }}
{{ s.nothing() }}
{{ x | nothing }}
{{ ''.__class__ }}|{{ l.__class__.__mro__ }}
{{ [1, 2, 3][x] }}
{{ 'x' if x is defined and x is not none else 'y' }}|{{ x if x is string else x | tojson }}|{{ (x | string)[:3] }}
  {% if true %}
   a
  {% endif %}
 b  {%- if x %} c {%- endif +%}
d {%+ if true %}e{% endif %}
{#- comment -#}  f
{% if x %}1{% elif s %}2{% elif l %}3{% else %}4{% endif %}{# c #}
""".strip("\n").split("\n")


def feature_templates():
    # The last lines belong together: white space around tags.
    tail = FEATURES.index("  {% if true %}")
    return FEATURES[:tail] + ["\n".join(FEATURES[tail:]) + "\n"]


PARTS = [" ", "\n", "  ", "a", "{{ s }}", "{{- x }}", "{{ x -}}", "{% if x %}", "{%- if s %}", "{% else %}",
         "{% endif %}", "{%- endif -%}", "{% for m in messages %}", "{% for a in l -%}", "{% endfor %}",
         "{{ loop.index }}", "{{ m.role }}", "{{ m['content'] }}", "{{ a }}", "{# c #}", "{#- c -#}",
         "{% set q = s %}", "{{ q }}", "{{ s|trim }}", "{{ l|length }}", "{%+ if true %}", "{% endif +%}"]


def random_template(rng):
    """Parts in any order, blocks closed: many are templates, some are not."""
    parts, opened = [], []
    for _ in range(rng.randint(1, 14)):
        part = rng.choice(PARTS)
        keyword = part.strip("{}%-+ ").split(" ")[0]
        if keyword in ("if", "for"):
            opened.append(keyword)
        elif keyword in ("endif", "endfor"):
            if not opened or opened[-1] != keyword[3:]:
                continue
            opened.pop()
        elif keyword == "else" and not opened:
            continue
        parts.append(part)
    parts += ["{% end" + keyword + " %}" for keyword in reversed(opened)]
    return "".join(parts)


def main():
    dump = Dump(sys.argv[1])
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 16)
    compared = failures = raised = 0

    def compare(name, template, variables):
        nonlocal compared, failures, raised
        want, want_error = expected(template, variables)
        got, got_error = dump.render(template, variables)
        compared += 1
        raised += want is None
        if want == got:
            return
        failures += 1
        if failures <= 20:
            print(f"{name}: {template!r:.300}\n  variables {variables!r:.600}\n"
                  f"  expected {want!r} {want_error or ''}\n  found    {got!r} {got_error or ''}")

    for path in sorted(TEMPLATES.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for _ in range(200):
            compare(path.name, template, conversation(rng))
    for _ in range(40):
        for template in feature_templates():
            variables = conversation(rng) | {
                "x": value(rng), "s": text(rng), "l": [value(rng, 1) for _ in range(rng.randint(0, 3))],
                "d": {k: value(rng, 1) for k in rng.sample("abc", rng.randint(0, 3))}}
            compare("feature", template, variables)
    for _ in range(1000):
        compare("random", random_template(rng), conversation(rng) | {
            "x": value(rng), "s": text(rng), "l": [value(rng, 1) for _ in range(2)], "d": {}})
    print(f"{compared} renderings compared, {raised} of them errors, {failures} differ")
    if failures or compared < 4000 or raised > compared / 2:
        sys.exit(1)


if __name__ == "__main__":
    main()
